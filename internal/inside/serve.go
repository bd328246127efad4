package inside

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/features"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/meet"
)

// Run is what the child runs with: run.json.
type Run struct {
	Version  string     `json:"version"` // The node that started it had this one of etcd.
	Name     string     `json:"name"`
	Client   string     `json:"client"` // URLs that the member is known by
	Peer     string     `json:"peer"`
	IP       string     `json:"ip"` // It listens there.
	Initial  string     `json:"initial"`
	Token    string     `json:"token"`
	Existing bool       `json:"existing"`
	Quota    int64      `json:"quota"`
	TLS      config.TLS `json:"tls"`
}

// Prepare writes what Serve runs with.
func (d Dir) Prepare(r Run) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	return meet.WriteJSON(d.run(), r)
}

// running returns what Prepare wrote.
func (d Dir) running() (run Run, err error) {
	text, err := os.ReadFile(d.run())
	if err == nil {
		err = json.Unmarshal(text, &run)
	}
	return run, err
}

// Times of raft. etcd's own are 100 ms and 1 s. An election that comes a second later costs
// nothing, since windows outlast 25 s without etcd; one that need not be costs a write.
const (
	heartbeat = 200 * time.Millisecond
	election  = 2 * time.Second
)

// niceness is the priority of the member, where it may be raised: it uses little of the processor,
// and needs that little at once.
const niceness = -10

// Serve runs the member of d until ctx ends. It is the child's whole work.
func Serve(ctx context.Context, d Dir) error {
	release, pid, err := hold(d.etcdLock(), time.Second)
	if errors.Is(err, errTaken) {
		return d.unfit("has a member that runs (process %d)", pid)
	}
	if err != nil {
		return d.unfit("cannot be locked: %v", err)
	}
	defer release()
	// A restore looks for a member that runs after it has prepared the data, so one of both sees the
	// other. The node takes the data over, and starts the member again.
	if d.prepared() {
		return errPrepared
	}
	run, err := d.running()
	if err != nil {
		return d.unfit("has no run.json: %v; \"allocator serve --etcd.inside\" writes it", err)
	}
	cfg, err := run.etcd(d)
	if err != nil {
		return err
	}
	// Warnings repeat what members say of each other while one restarts.
	level := zap.NewAtomicLevelAt(zap.ErrorLevel)
	log, err := zap.Config{
		Level:             level,
		Encoding:          "console",
		EncoderConfig:     zap.NewProductionEncoderConfig(),
		DisableStacktrace: true,
		OutputPaths:       []string{"stderr"},
		ErrorOutputPaths:  []string{"stderr"},
	}.Build()
	if err != nil {
		return err
	}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	ahead(niceness)
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("etcd in %s: %w", d, err)
	}
	defer etcd.Close() // It hands leadership over.
	ahead(niceness)    // the threads that came meanwhile
	select {
	case <-ctx.Done():
		level.SetLevel(zap.FatalLevel) // A stop in order reports every listener that it closes.
		return nil
	case err := <-etcd.Err():
		return fmt.Errorf("etcd in %s: %w", d, err)
	case <-etcd.Server.StopNotify():
		return fmt.Errorf("etcd in %s ended by itself; was the member removed?", d)
	}
}

func (r Run) etcd(d Dir) (*embed.Config, error) {
	client, err := url.Parse(r.Client)
	if err != nil {
		return nil, err
	}
	peer, err := url.Parse(r.Peer)
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = r.Name, d.data()
	at := func(u url.URL) []url.URL {
		u.Host = net.JoinHostPort(r.IP, u.Port())
		return []url.URL{u}
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = at(*client), []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = at(*peer), []url.URL{*peer}
	cfg.InitialCluster, cfg.InitialClusterToken = r.Initial, r.Token
	cfg.ClusterState = embed.ClusterStateFlagNew
	if r.Existing {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	cfg.TickMs, cfg.ElectionMs = uint(heartbeat/time.Millisecond), uint(election/time.Millisecond)
	// Every extension of a window is a revision, and etcd keeps them all by default.
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "1h"
	cfg.QuotaBackendBytes = r.Quota
	if t := r.TLS; t != (config.TLS{}) {
		cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = t.Cert, t.Key
		cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = t.CA, true
		cfg.PeerTLSInfo = cfg.ClientTLSInfo
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
