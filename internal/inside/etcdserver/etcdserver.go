// Package etcdserver is etcd's own server for the members that nodes and pods of the chart run: it runs one, and makes
// the data of one from a snapshot. Alone is a member for "allocator dev", and for tests. The package is apart from
// package inside so that programs with a node in them, which run no member (package embed), do not link the server.
package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/features"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore/etcdlog"
)

// Times of raft. etcd's own are 100 ms and 1 s. An election that comes a second later costs
// nothing, since windows outlast 25 s without etcd; one that need not be costs a write.
const (
	heartbeat = 200 * time.Millisecond
	election  = 2 * time.Second
)

// Run runs a member in dir until ctx ends, and calls started once its threads run.
func Run(ctx context.Context, r member.Run, dir string, started func()) error {
	cfg, err := config(r, dir)
	if err != nil {
		return err
	}
	if client := cfg.ListenClientUrls[0]; client.Scheme == "unix" {
		taken, err := guard(filepath.Dir(client.Path), net.JoinHostPort(r.IP, cfg.AdvertisePeerUrls[0].Port()))
		if err != nil {
			return fmt.Errorf("etcd in %s: %w", dir, err)
		}
		defer taken.Close()
	}
	// Warnings repeat what members say of each other while one restarts.
	level := zap.NewAtomicLevelAt(zap.ErrorLevel)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger(handler(r.Log), level))
	cfg.TickMs, cfg.ElectionMs = uint(heartbeat/time.Millisecond), uint(election/time.Millisecond)
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("etcd in %s: %w", dir, err)
	}
	defer func() {
		select {
		case <-etcd.Server.ReadyNotify():
		default: // Close would wait until most members run.
			etcd.Server.HardStop()
		}
		etcd.Close() // It hands leadership over.
	}()
	started()
	select {
	case <-ctx.Done():
		level.SetLevel(zap.FatalLevel) // A stop in order reports every listener that it closes.
		return nil
	case err := <-etcd.Err():
		return fmt.Errorf("etcd in %s: %w", dir, err)
	case <-etcd.Server.StopNotify():
		return fmt.Errorf("etcd in %s ended by itself; was the member removed?", dir)
	}
}

// guard makes the directory of the sockets of a member that is alone, for this user only, and takes the port
// that it would listen at: of two such members on a machine the second does not start, as of any others.
func guard(sockets, address string) (io.Closer, error) {
	if err := errors.Join(os.MkdirAll(sockets, 0o700), os.Chmod(sockets, 0o700)); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return l, nil
}

// Restore makes the data of a member from a snapshot, as member.Data says, in dir. checked says that the
// snapshot has etcd's checksum. It reads all of the snapshot first.
func Restore(file string, checked bool, d member.Data, dir string) error {
	if _, _, _, err := Open(file); err != nil {
		return err
	}
	return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        file,
		Name:                d.Host,
		OutputDataDir:       dir,
		PeerURLs:            []string{d.Peer},
		InitialCluster:      d.Initial,
		InitialClusterToken: d.Token,
		SkipHashCheck:       !checked,
	})
}

// handler returns what writes a log to stderr, as text or json.
func handler(form string) slog.Handler {
	if form == "json" {
		return slog.NewJSONHandler(os.Stderr, nil)
	}
	return slog.NewTextHandler(os.Stderr, nil)
}

// logger passes what etcd logs on, from a level on, in the form of the node's log.
func logger(to slog.Handler, from zapcore.LevelEnabler) *zap.Logger {
	level := func(l zapcore.Level) slog.Level {
		if l < zapcore.ErrorLevel {
			return slog.LevelWarn
		}
		return slog.LevelError
	}
	return zap.New(etcdlog.Log{Handler: to, Level: level, Message: "etcd inside"}, zap.IncreaseLevel(from))
}

func config(r member.Run, dir string) (*embed.Config, error) {
	client, err := url.Parse(r.Client)
	if err != nil {
		return nil, err
	}
	peer, err := url.Parse(r.Peer)
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = r.Name, dir
	at := func(u url.URL) []url.URL {
		u.Host = net.JoinHostPort(r.IP, u.Port())
		return []url.URL{u}
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = at(*client), []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = at(*peer), []url.URL{*peer}
	if client.Scheme == "unix" {
		cfg.ListenClientUrls = []url.URL{*client}
		// etcd takes the host of a member's URL for the path.
		members := filepath.Join(filepath.Dir(client.Path), "members")
		cfg.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: members}}
	}
	cfg.InitialCluster, cfg.InitialClusterToken = r.Initial, r.Token
	cfg.ClusterState = embed.ClusterStateFlagNew
	if r.Existing {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	// Every extension of a window is a revision, and etcd keeps them all by default.
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "1h"
	cfg.QuotaBackendBytes = r.Quota
	if t := r.TLS; t != (member.TLS{}) {
		cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = t.Cert, t.Key
		cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = t.CA, true
		cfg.PeerTLSInfo = cfg.ClientTLSInfo
	}
	if r.PeerName != "" {
		// Clients have certificates of the same authority.
		cfg.PeerTLSInfo.AllowedCNs, cfg.PeerTLSInfo.SkipClientSANVerify = []string{r.PeerName}, true
	}
	if r.Metrics != "" {
		cfg.ListenMetricsUrls = []url.URL{{Scheme: "http", Host: net.JoinHostPort(r.IP, r.Metrics)}}
	}
	// Members call each other from the address that is in their certificates.
	if gate, ok := cfg.ServerFeatureGate.(interface{ Set(string) error }); ok {
		if err := gate.Set(string(features.SetMemberLocalAddr) + "=true"); err != nil {
			return nil, err
		}
	}
	cfg.EnableGRPCGateway = false
	return cfg, os.MkdirAll(filepath.Dir(cfg.Dir), 0o700)
}
