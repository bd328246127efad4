package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/certs/reload"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/text"
)

// etcd connects a store. With a password the store has no client until etcd has accepted
// it. Until then every call fails, which the keeper treats like any other call without an
// answer. newEtcd sets all fields. connect alone changes disconnect, which the stop calls once connect has returned.
type etcd struct {
	store        *etcdstore.Store
	dial         etcdstore.Config // It has no password: the file may change.
	passwordFile string
	tried        chan struct{} // It is closed after the first attempt.
	disconnect   func()
	log          *slog.Logger
}

// DialConfig returns the configuration of a connection to etcd, with the password, and
// what reloads its certificates; nil if there are none. It reads the files of cfg.
func DialConfig(cfg config.Etcd, log *slog.Logger) (etcdstore.Config, *certs.Client, error) {
	c := etcdstore.Config{
		Endpoints: cfg.Addresses(), Username: cfg.Username, DialTimeout: cfg.DialTimeout,
		Log: log.Handler(),
	}
	var t *certs.Client
	var err error
	if cfg.TLS != (config.TLS{}) {
		// TLS 1.2 is etcd's own minimum.
		if t, err = certs.NewClient("etcd_tls",
			certs.ClientFiles{CA: cfg.TLS.CA, Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, Prefix: "etcd.tls."},
			tls.VersionTLS12, log); err != nil {
			return c, nil, err
		}
		c.TLS = t.Config() // enables TLS; the option below has the certificates
		c.Options = []grpc.DialOption{grpc.WithTransportCredentials(t.Credentials())}
	}
	if cfg.PasswordFile != "" {
		if c.Password, err = password(cfg.PasswordFile, log); err != nil {
			return c, nil, err
		}
	}
	return c, t, nil
}

// DialAnyway is DialConfig for those who only look: without a certificate that is not valid now. etcd may
// refuse them, and they tell what they see without it.
func DialAnyway(cfg config.Etcd, log *slog.Logger) (etcdstore.Config, *certs.Client, error) {
	c, t, err := DialConfig(cfg, log)
	if errors.Is(err, certs.ErrTime) {
		log.Error("going on without a certificate", "error", err)
		cfg.TLS.Cert, cfg.TLS.Key = "", ""
		c, t, err = DialConfig(cfg, log)
	}
	return c, t, err
}

// newEtcd returns also what reloads the certificates of the connection; nil if there are none.
func newEtcd(cfg config.Config, log *slog.Logger) (*etcd, *certs.Client, error) {
	dial, t, err := DialConfig(cfg.Etcd, log)
	if err != nil {
		return nil, nil, err
	}
	dial.Password = ""
	store, err := etcdstore.New(nil, cfg.Root, cfg.Space)
	if err != nil {
		return nil, nil, err
	}
	return &etcd{
		store:        store,
		dial:         dial,
		passwordFile: cfg.Etcd.PasswordFile,
		tried:        make(chan struct{}),
		disconnect:   func() {},
		log:          log,
	}, t, nil
}

// newInside returns what runs the member of this node. It writes nothing.
func newInside(c Config, dial etcdstore.Config, restored chan<- lease.Act) (*inside.Inside, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout*5)
	defer cancel()
	return inside.New(ctx, inside.Config{
		Etcd:      c.Settings.Etcd,
		Node:      c.Settings.Node.Name,
		Program:   c.Program,
		Dial:      dial,
		Log:       c.Logger,
		LogFormat: c.Settings.Log.Format,
		Restored:  restored,
	})
}

// redialAfter is the pause between attempts to authenticate.
const redialAfter = time.Second

// connect tries to make the client until etcd accepts its credentials, or ctx ends, and returns nil when ctx ends.
func (e *etcd) connect(ctx context.Context) error {
	var said text.Said
	for first := true; ; first = false {
		disconnect, err := e.store.Connect(e.config)
		if first {
			close(e.tried)
		}
		if err == nil {
			if len(said) > 0 {
				e.log.Info("etcd authentication succeeds")
			}
			e.disconnect = disconnect
			<-ctx.Done()
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) && said.New(err.Error(), time.Now()) { // Else logWaiting says so.
			e.log.Warn("etcd authentication failed: check etcd.username and etcd.password-file; retrying",
				"endpoints", e.dial.Endpoints, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(redialAfter):
		}
	}
}

// config returns what to dial, with the password that the file has now.
func (e *etcd) config() (etcdstore.Config, error) {
	c := e.dial
	var err error
	if e.passwordFile != "" {
		c.Password, err = password(e.passwordFile, slog.New(slog.DiscardHandler)) // DialConfig has logged its mode.
	}
	return c, err
}

// password returns the contents of a file without its line end.
func password(file string, log *slog.Logger) (string, error) {
	b, err := reload.ReadFile(reload.File{Name: "etcd.password-file", Path: file, Secret: true}, log)
	if err != nil {
		return "", err
	}
	b = bytes.TrimRight(b, "\r\n")
	if len(b) == 0 {
		return "", fmt.Errorf("etcd.password-file: %s is empty: write the password of etcd.username into it", file)
	}
	return string(b), nil
}
