// Package devetcd runs a one-member etcd inside this process, on loopback.
//
// It is for trying the allocator out on one machine and for tests; nothing that
// serves IDs in production imports it. What the members of a real cluster
// promise together (surviving the loss of a disk) this one does not.
package devetcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/flakelease/allocator/internal/dev/loopback"
)

// Errors of the package.
var (
	ErrStart   = errors.New("devetcd: etcd did not start")
	ErrInUse   = errors.New("devetcd: directory is in use")
	ErrRunning = errors.New("devetcd: etcd is running")
	ErrClosed  = errors.New("devetcd: server is closed")
)

// Config is how to run the server. The zero value runs it on free ports in a
// temporary directory that Close removes.
type Config struct {
	Dir          string        // data directory, kept by Close; "": a temporary one
	ClientPort   int           // on 127.0.0.1; 0: any that is free
	PeerPort     int           // on 127.0.0.1; 0: any that is free
	StartTimeout time.Duration // 0: 30 s; a start takes about 1 s on an idle machine
	Log          io.Writer     // etcd's errors, as lines of text; nil: nowhere
	NoSync       bool          // for tests: skip fsync, and hash passwords cheaply

	// Cert and Key are PEM files of the server's certificate, and ClientCA those of
	// the authorities that clients' must have; "": clients connect in clear. etcd
	// reads them when it starts.
	Cert, Key, ClientCA string
	Quota               int64 // maximum size of the database in bytes; 0: etcd's own
	// TokenTTL is how long a login by password lasts without a call, in whole
	// seconds; 0: etcd's 5 min.
	TokenTTL time.Duration
}

// Server is an etcd server that can be stopped and started again on the same
// data and ports. It is safe for concurrent use.
type Server struct {
	cfg  Config
	temp bool // cfg.Dir is ours to remove

	mu     sync.Mutex // guards the fields below; held while etcd starts and stops
	etcd   *embed.Etcd
	closed bool
}

// Start runs a server and returns when it answers. ctx bounds the start alone.
//
// It returns ErrStart, with the cause, when etcd does not answer within
// cfg.StartTimeout or cannot start at all; ErrInUse is the cause when another etcd
// has cfg.Dir open. Nothing is then left running.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 30 * time.Second
	}
	s := &Server{cfg: cfg}
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "devetcd-")
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrStart, err)
		}
		s.cfg.Dir, s.temp = dir, true
	}
	err := s.pickPorts()
	if err == nil {
		s.mu.Lock()
		err = s.start(ctx)
		s.mu.Unlock()
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// Endpoint returns the URL that clients connect to. It does not change while s
// is stopped and restarted.
func (s *Server) Endpoint() string { return s.scheme() + "://" + address(s.cfg.ClientPort) }

// Peer returns the URL that other members would connect to, which a restore of a
// snapshot has to name.
func (s *Server) Peer() string { return "http://" + address(s.cfg.PeerPort) }

func (s *Server) scheme() string {
	if s.cfg.Cert != "" {
		return "https"
	}
	return "http"
}

// Dir returns the data directory.
func (s *Server) Dir() string { return s.cfg.Dir }

// Stop ends the server, as an outage would: open streams and connections break.
// Data and ports are kept for Restart. Stopping a stopped server does nothing.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

// Restart starts a stopped server on the same data and ports.
//
// It returns ErrRunning, ErrClosed or ErrStart; s is then as it was before.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.etcd != nil:
		return ErrRunning
	}
	return s.start(ctx)
}

// Failed returns a channel that delivers the error of a server that ended on its
// own. It is nil, and so never delivers, while the server is stopped.
func (s *Server) Failed() <-chan error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.etcd == nil {
		return nil
	}
	return s.etcd.Err()
}

// Close stops the server for good and removes its data if the directory was a
// temporary one. Only the first call does anything.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.stop()
	return s.remove()
}

func (s *Server) remove() error {
	if !s.temp {
		return nil
	}
	return os.RemoveAll(s.cfg.Dir)
}

// start runs etcd and waits until it answers. s.mu is held.
func (s *Server) start(ctx context.Context) error {
	if err := free(s.cfg.Dir); err != nil {
		return fmt.Errorf("%w in %s: %w", ErrStart, s.cfg.Dir, err)
	}
	etcd, err := embed.StartEtcd(s.etcdConfig())
	if err != nil {
		return fmt.Errorf("%w in %s: %w", ErrStart, s.cfg.Dir, err)
	}
	s.etcd = etcd

	ctx, done := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer done()
	select {
	case <-etcd.Server.ReadyNotify():
		return nil
	case <-etcd.Server.StopNotify():
		err = errors.New("it stopped at once")
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = fmt.Errorf("no leader after %v: %w", s.cfg.StartTimeout, ctx.Err())
	}
	s.stop()
	return fmt.Errorf("%w in %s: %w", ErrStart, s.cfg.Dir, err)
}

// free returns ErrInUse if another etcd has the data in dir open. etcd itself
// would wait until that one ends, whatever its context.
func free(dir string) error {
	path := filepath.Join(dir, "member", "snap", "db")
	if _, err := os.Stat(path); err != nil {
		return nil // it will be made
	}
	// A lock that is taken is an error at once; any other error etcd reports better.
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Nanosecond})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return ErrInUse
	case err == nil:
		return db.Close()
	}
	return nil
}

// stop ends etcd if it runs. s.mu is held.
func (s *Server) stop() {
	if s.etcd == nil {
		return
	}
	s.etcd.Close()
	s.etcd = nil
}

// etcdConfig returns the configuration of a member that is a cluster of its own.
func (s *Server) etcdConfig() *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "dev"
	cfg.Dir = s.cfg.Dir
	client := []url.URL{{Scheme: s.scheme(), Host: address(s.cfg.ClientPort)}}
	peer := []url.URL{{Scheme: "http", Host: address(s.cfg.PeerPort)}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// Every extension of a window is a revision, and etcd keeps them all by default.
	cfg.AutoCompactionMode = embed.CompactorModePeriodic
	cfg.AutoCompactionRetention = "1h"
	cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = s.cfg.Cert, s.cfg.Key
	cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = s.cfg.ClientCA, s.cfg.ClientCA != ""
	cfg.QuotaBackendBytes = s.cfg.Quota
	if s.cfg.TokenTTL > 0 {
		cfg.AuthTokenTTL = uint(s.cfg.TokenTTL / time.Second)
	}
	if cfg.UnsafeNoFsync = s.cfg.NoSync; s.cfg.NoSync {
		cfg.BcryptCost = 4 // the minimum
	}
	cfg.EnableGRPCGateway = false // JSON over HTTP: not used here
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger(s.cfg.Log))
	return cfg
}

// logger returns a logger that writes errors to w, or nothing if w is nil.
func logger(w io.Writer) *zap.Logger {
	if w == nil {
		return zap.NewNop()
	}
	enc := zapcore.NewConsoleEncoder(zap.NewProductionEncoderConfig())
	return zap.New(zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(w)), zapcore.ErrorLevel))
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// pickPorts picks free ports for those that are 0. While the server is stopped, no outgoing connection and
// no other program of this project takes them.
func (s *Server) pickPorts() error {
	for _, port := range []*int{&s.cfg.ClientPort, &s.cfg.PeerPort} {
		if *port != 0 {
			continue
		}
		if *port = loopback.Port(); *port == 0 {
			return fmt.Errorf("%w: no port of %s is free", ErrStart, loopback.Range)
		}
	}
	return nil
}
