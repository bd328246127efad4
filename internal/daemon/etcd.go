package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// etcd is the store, before and after there is a client of it: with a password
// there is none until etcd has accepted it. Until then every call fails, which
// the keeper takes like any other call without an answer.
type etcd struct {
	cfg   etcdstore.Config // without the password
	file  string           // that has the password; "": none
	root  string
	space string
	log   *slog.Logger
	tried chan struct{} // closed after the first attempt

	now   atomic.Pointer[etcdstore.Store]
	why   atomic.Pointer[error] // there is no store
	close func()
}

// DialConfig returns how etcd is reached, the password included. It reads the
// files that cfg names.
func DialConfig(cfg config.Etcd, log *slog.Logger) (etcdstore.Config, error) {
	t, err := tlsConfig(cfg.TLS)
	if err != nil {
		return etcdstore.Config{}, err
	}
	c := etcdstore.Config{
		Endpoints: cfg.Endpoints, TLS: t, Username: cfg.Username, DialTimeout: cfg.DialTimeout,
		Log: log.Handler(),
	}
	if cfg.PasswordFile != "" {
		if c.Password, err = password(cfg.PasswordFile); err != nil {
			return etcdstore.Config{}, err
		}
	}
	return c, nil
}

func newEtcd(cfg config.Config, log *slog.Logger) (*etcd, error) {
	c, err := DialConfig(cfg.Etcd, log)
	if err != nil {
		return nil, err
	}
	c.Password = "" // read again at every attempt, for it may be changed
	e := &etcd{
		cfg: c, file: cfg.Etcd.PasswordFile, root: cfg.Root, space: cfg.Space, log: log,
		tried: make(chan struct{}), close: func() {},
	}
	e.why.Store(&errNotConnected)
	return e, nil
}

var errNotConnected = errors.New("daemon: not connected to etcd yet")

// redialAfter is the pause between attempts to authenticate.
const redialAfter = time.Second

// connect makes the client, again and again until etcd lets it in or ctx ends.
// Then it waits for ctx and returns nil.
func (e *etcd) connect(ctx context.Context) error {
	for first := true; ; first = false {
		err := e.dial()
		if first {
			close(e.tried)
		}
		if err == nil {
			<-ctx.Done()
			return nil
		}
		if old := *e.why.Swap(&err); old == nil || old.Error() != err.Error() {
			e.log.Warn("etcd does not let us in; trying on", "endpoints", e.cfg.Endpoints, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(redialAfter):
		}
	}
}

func (e *etcd) dial() error {
	cfg := e.cfg
	if e.file != "" {
		var err error
		if cfg.Password, err = password(e.file); err != nil {
			return err
		}
	}
	client, err := etcdstore.Dial(cfg)
	if err != nil {
		return err
	}
	store, err := etcdstore.New(client, e.root, e.space)
	if err != nil {
		_ = client.Close()
		return err
	}
	e.close = func() { _ = client.Close() }
	e.now.Store(store)
	return nil
}

// store returns the store, or why there is none yet.
func (e *etcd) store() (*etcdstore.Store, error) {
	if s := e.now.Load(); s != nil {
		return s, nil
	}
	return nil, *e.why.Load()
}

// The calls of keeper.Store and server.Directory.

func (e *etcd) Load(ctx context.Context) (lease.View, error) {
	s, err := e.store()
	if err != nil {
		return lease.View{}, err
	}
	return s.Load(ctx)
}

func (e *etcd) Read(ctx context.Context, sid flake.SID) (lease.View, error) {
	s, err := e.store()
	if err != nil {
		return lease.View{}, err
	}
	return s.Read(ctx, sid)
}

func (e *etcd) Commit(ctx context.Context, txn lease.Txn) (bool, lease.View, error) {
	s, err := e.store()
	if err != nil {
		return false, lease.View{}, err
	}
	return s.Commit(ctx, txn)
}

func (e *etcd) Register(ctx context.Context, ttl time.Duration, r lease.Registration) (lease.LeaseID, error) {
	s, err := e.store()
	if err != nil {
		return 0, err
	}
	return s.Register(ctx, ttl, r)
}

func (e *etcd) KeepAlive(ctx context.Context, id lease.LeaseID) error {
	s, err := e.store()
	if err != nil {
		return err
	}
	return s.KeepAlive(ctx, id)
}

func (e *etcd) Revoke(ctx context.Context, id lease.LeaseID) error {
	s, err := e.store()
	if err != nil {
		return err
	}
	return s.Revoke(ctx, id)
}

func (e *etcd) Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.Tenure, bool, error) {
	s, err := e.store()
	if err != nil {
		return lease.Tenure{}, false, err
	}
	return s.Holder(ctx, sid, at)
}

// Watch waits for the store, and then watches it.
func (e *etcd) Watch(ctx context.Context, changed func()) error {
	for {
		if s, err := e.store(); err == nil {
			return s.Watch(ctx, changed)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(redialAfter):
		}
	}
}

// password returns what a file has before its line end.
func password(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("etcd.password-file: %w", err)
	}
	b = bytes.TrimRight(b, "\r\n")
	if len(b) == 0 {
		return "", fmt.Errorf("etcd.password-file: %s is empty", file)
	}
	return string(b), nil
}

// tlsConfig returns nil if no file is named. The client certificate is read
// again for every connection, so that a renewed one is taken up.
func tlsConfig(files config.TLS) (*tls.Config, error) {
	if files == (config.TLS{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12} // etcd's own least
	if files.CA != "" {
		pem, err := os.ReadFile(files.CA)
		if err != nil {
			return nil, fmt.Errorf("etcd.tls.ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd.tls.ca: %s has no certificate in PEM form", files.CA)
		}
	}
	if files.Cert != "" {
		read := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
			if err != nil {
				return nil, fmt.Errorf("etcd.tls.cert: %w", err)
			}
			return &cert, nil
		}
		if _, err := read(); err != nil { // a mistake shows at the start
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return c, nil
}
