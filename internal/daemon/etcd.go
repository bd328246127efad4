package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/reload"
)

// etcd is the store, with or without a client: with a password there is no client until
// etcd has accepted it. Until then every call fails, which the keeper treats like any
// other call without an answer.
type etcd struct {
	cfg   etcdstore.Config // without the password
	file  string           // with the password; "": none
	root  string
	space string
	log   *slog.Logger
	tls   *certs.Client // nil: no TLS files are configured
	tried chan struct{} // closed after the first attempt

	now   atomic.Pointer[etcdstore.Store]
	why   atomic.Pointer[error] // why there is no store
	close func()
}

// DialConfig returns the configuration of a connection to etcd, with the password, and
// what reloads its certificates; nil if there are none. It reads the files of cfg.
func DialConfig(cfg config.Etcd, log *slog.Logger) (etcdstore.Config, *certs.Client, error) {
	c := etcdstore.Config{
		Endpoints: cfg.Endpoints, Username: cfg.Username, DialTimeout: cfg.DialTimeout,
		Log: log.Handler(),
	}
	var t *certs.Client
	var err error
	if cfg.TLS != (config.TLS{}) {
		// TLS 1.2 is etcd's own minimum.
		if t, err = certs.NewClient("etcd_tls", certs.ClientFiles{CA: cfg.TLS.CA, Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, Prefix: "etcd.tls."}, tls.VersionTLS12, log); err != nil {
			return c, nil, err
		}
		c.TLS = t.Config() // enables TLS; the option below has the certificates
		c.Options = []grpc.DialOption{grpc.WithTransportCredentials(t.Credentials())}
	}
	if cfg.PasswordFile != "" {
		if c.Password, err = password(cfg.PasswordFile); err != nil {
			return c, nil, err
		}
	}
	return c, t, nil
}

func newEtcd(cfg config.Config, log *slog.Logger) (*etcd, error) {
	c, t, err := DialConfig(cfg.Etcd, log)
	if err != nil {
		return nil, err
	}
	c.Password = "" // dial reads it again, since the file may change
	e := &etcd{
		cfg: c, file: cfg.Etcd.PasswordFile, root: cfg.Root, space: cfg.Space, log: log, tls: t,
		tried: make(chan struct{}), close: func() {},
	}
	e.why.Store(&errNotConnected)
	return e, nil
}

var errNotConnected = errors.New("daemon: not connected to etcd yet")

// redialAfter is the pause between attempts to authenticate.
const redialAfter = time.Second

// connect tries to make the client until etcd accepts its credentials. It reloads the
// certificates when their files change, until ctx ends, and returns nil.
func (e *etcd) connect(ctx context.Context) error {
	if e.tls != nil {
		var watching sync.WaitGroup
		watching.Go(func() { _ = e.tls.Run(ctx) }) // always nil
		defer watching.Wait()
	}
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
			e.log.Warn("etcd authentication failed: check etcd.username and etcd.password-file; retrying", "endpoints", e.cfg.Endpoints, "error", err)
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

// The calls of keeper.Store, broker.Store and status.Directory.

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

func (e *etcd) Register(ctx context.Context, id lease.LeaseID, ttl time.Duration, r lease.Registration) (lease.LeaseID, error) {
	s, err := e.store()
	if err != nil {
		return 0, err
	}
	return s.Register(ctx, id, ttl, r)
}

func (e *etcd) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	s, err := e.store()
	if err != nil {
		return 0, err
	}
	return s.Grant(ctx, ttl)
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

func (e *etcd) Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.LedgerLine, bool, error) {
	s, err := e.store()
	if err != nil {
		return lease.LedgerLine{}, false, err
	}
	return s.Holder(ctx, sid, at)
}

// Survey, Repair and Recover are for an operator, who sees what they do first.

func (e *etcd) Survey(ctx context.Context, sid flake.SID) (lease.View, []repair.Line, error) {
	s, err := e.store()
	if err != nil {
		return lease.View{}, nil, err
	}
	return s.Survey(ctx, sid)
}

func (e *etcd) Repair(ctx context.Context, w repair.Write) error {
	s, err := e.store()
	if err != nil {
		return err
	}
	return s.Repair(ctx, w)
}

func (e *etcd) Recover(ctx context.Context, shown lease.View, next func(lease.View) (repair.Era, error)) (repair.Era, error) {
	s, err := e.store()
	if err != nil {
		return repair.Era{}, err
	}
	era, _, err := s.Recover(ctx, shown, next)
	return era, err
}

// Watch waits for the store, and then watches it.
func (e *etcd) Watch(ctx context.Context, progress time.Duration, report func(lease.Watched)) error {
	for {
		if s, err := e.store(); err == nil {
			return s.Watch(ctx, progress, report)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(redialAfter):
		}
	}
}

// password returns the contents of a file without its line end.
func password(file string) (string, error) {
	b, err := reload.ReadFile(reload.File{Name: "etcd.password-file", Path: file})
	if err != nil {
		return "", err
	}
	b = bytes.TrimRight(b, "\r\n")
	if len(b) == 0 {
		return "", fmt.Errorf("etcd.password-file: %s is empty: write the password of etcd.username into it", file)
	}
	return string(b), nil
}
