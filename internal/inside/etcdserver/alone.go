package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/internal/dev/loopback"
	"github.com/flakelease/allocator/internal/inside/member"
)

// Errors of Start and Restart.
var (
	ErrStart = errors.New("etcd did not start")
	ErrInUse = errors.New("the directory is in use")
)

// Alone is how to run an etcd of one member in this process: to try the allocator out on one machine, for tests, and to
// look into a snapshot. What members promise together, such as to survive the loss of a disk, it does not.
type Alone struct {
	Dir string // Close keeps the data in it; "": a temporary directory, which Close removes.
	// Run has its quota, its files for TLS with clients, how it logs ("": not at all), and where clients and members
	// would call it ("": at ports of 127.0.0.1 that are free).
	Run     member.Run
	NoSync  bool // Skip fsync, and hash passwords cheaply.
	NoUsers bool // Who calls needs no password of the users in the data.
	// TokenTTL is how long a login by password lasts without a call, in whole seconds; 0: etcd's 5 min.
	TokenTTL time.Duration
}

// Server is an etcd of one member that can be stopped and started again on the same data and ports. It is safe for
// concurrent use.
type Server struct {
	cfg  Alone
	temp bool // cfg.Dir is ours to remove

	mu     sync.Mutex // guards the fields below; held while etcd starts and stops
	etcd   *embed.Etcd
	closed bool
}

// name is that of the member.
const name = "dev"

// Start runs a server and returns when it answers. ctx bounds the start alone, which takes about 1 s on an idle
// machine.
//
// It returns ErrStart, with the cause, when etcd does not answer in time or cannot start at all; ErrInUse is the cause
// when another etcd has cfg.Dir open. Nothing is then left running.
func Start(ctx context.Context, cfg Alone) (*Server, error) {
	s := &Server{cfg: cfg, temp: cfg.Dir == ""}
	r := &s.cfg.Run
	r.Name, r.IP, r.Token = name, "127.0.0.1", name
	// While the server is stopped, no outgoing connection and no other program of this project takes the ports.
	for _, at := range []*string{&r.Client, &r.Peer} {
		if *at != "" {
			continue
		}
		port := loopback.Port()
		if port == 0 {
			return nil, fmt.Errorf("%w: no port of %s is free", ErrStart, loopback.Range)
		}
		*at = fmt.Sprintf("http://%s:%d", r.IP, port)
	}
	r.Initial = r.Name + "=" + r.Peer
	err := error(nil)
	if s.temp {
		s.cfg.Dir, err = os.MkdirTemp("", "etcd-")
	}
	if err == nil {
		err = s.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Endpoint returns the URL that clients connect to. It does not change while s is stopped and restarted.
func (s *Server) Endpoint() string { return s.cfg.Run.Client }

// Stop ends the server, as an outage would: open streams and connections break. Data and ports are kept for Restart.
// Stopping a stopped server does nothing.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

// stop ends etcd if it runs. s.mu is held.
func (s *Server) stop() {
	if s.etcd != nil {
		s.etcd.Close()
		s.etcd = nil
	}
}

// Restart starts a stopped server on the same data and ports.
//
// It returns ErrStart; s is then as it was before.
func (s *Server) Restart(ctx context.Context) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w in %s: %w", ErrStart, s.cfg.Dir, err)
		}
	}()
	if s.closed || s.etcd != nil {
		return errors.New("it runs, or was closed")
	}
	if err := free(s.cfg.Dir); err != nil {
		return err
	}
	cfg, err := s.config()
	if err != nil {
		return err
	}
	if s.etcd, err = embed.StartEtcd(cfg); err != nil {
		s.etcd = nil
		return err
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
		if s.cfg.NoUsers {
			s.etcd.Server.AuthStore().AuthDisable()
		}
		return nil
	case <-s.etcd.Server.StopNotify():
		err = errors.New("it stopped at once")
	case err = <-s.etcd.Err():
	case <-ctx.Done():
		err = fmt.Errorf("it has no leader: %w", ctx.Err())
	}
	s.stop()
	return err
}

// config returns what etcd runs with.
func (s *Server) config() (*embed.Config, error) {
	cfg, err := config(s.cfg.Run, s.cfg.Dir)
	if err != nil {
		return nil, err
	}
	if s.cfg.TokenTTL > 0 {
		cfg.AuthTokenTTL = uint(s.cfg.TokenTTL / time.Second)
	}
	if cfg.UnsafeNoFsync = s.cfg.NoSync; s.cfg.NoSync {
		cfg.BcryptCost = 4 // the minimum
	}
	log := zap.NewNop()
	if s.cfg.Run.Log != "" {
		log = logger(handler(s.cfg.Run.Log), zap.ErrorLevel)
	}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	return cfg, nil
}

// free returns ErrInUse if another etcd has the data in dir open. etcd itself would wait until that one ends, whatever
// its context.
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

// Failed returns a channel that delivers the error of a server that ended on its own. It is nil, and so never delivers,
// while the server is stopped.
func (s *Server) Failed() <-chan error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.etcd == nil {
		return nil
	}
	return s.etcd.Err()
}

// Close stops the server for good and removes its data if the directory was a temporary one.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stop()
	if !s.temp {
		return nil
	}
	return os.RemoveAll(s.cfg.Dir)
}
