package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/certs/reload"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon/metrics"
	"github.com/flakelease/allocator/internal/server/grpcserver"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/server/respserver"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// security protects the listeners: TLS, tokens, and limits. It also has the certificates for etcd. No field changes
// once the parts of the node run.
type security struct {
	tls       *certs.Server                 // nil: no TLS
	etcd      *certs.Client                 // nil: no TLS, and at an agent
	tokens    *reload.Value[*access.Tokens] // nil: no token is required
	keys      *cluster.Keys                 // They are the keys of gossip; nil: it is not encrypted.
	guard     *access.Guard                 // nil: everybody is let through
	quota     *quota.Quota                  // All connections of clients count against it.
	limit     config.Limit
	maxFiles  int64                      // The process may have so many open; 0: not known, or any.
	listeners map[string]*quota.Listener // by name; listen adds them before any part runs
}

// newSecurity reads the files of cfg. Its errors name the setting. A token file in which
// nobody would be accepted is an error at a start alone: while a node runs, each line that
// is removed revokes its token, the last one too.
func newSecurity(cfg config.Config, src clock.Source, log *slog.Logger) (*security, error) {
	s := &security{limit: cfg.Limit, listeners: map[string]*quota.Listener{}}
	ports := 0
	s.maxFiles = openFiles(os.ReadFile)
	for _, addr := range []string{cfg.Listen.GRPC, cfg.Listen.HTTP, cfg.Listen.RESP} {
		if addr != "" {
			ports++
		}
	}
	s.limit.Connections = connectionLimit(cfg.Limit.Connections, ports, s.maxFiles)
	if s.limit.Connections < cfg.Limit.Connections {
		log.Warn("each port has fewer connections than limit.connections, since the process may have few files open; "+
			"raise the limit of open files (ulimit -n, LimitNOFILE=)",
			"files", s.maxFiles, "connections", s.limit.Connections, "limit.connections", cfg.Limit.Connections)
	}
	s.quota = quota.New(quota.Config{
		Now:    func() clock.Mono { return src.Now().Mono },
		Memory: memoryLimit(), PerSource: cfg.Limit.ConnectionsPerSource,
	})
	var err error
	if cfg.TLS.Cert != "" {
		files := certs.ServerFiles{Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, ClientCA: cfg.TLS.ClientCA}
		if s.tls, err = certs.NewServer(files, log); err != nil {
			return nil, err
		}
	}
	limits := access.Config{
		Certificates: cfg.TLS.ClientCA != "",
		OpenAdmin: map[string]access.OpenAdmin{"loopback": access.OpenToLoopback, "none": access.OpenToNobody,
			"any": access.OpenToAll}[cfg.Auth.OpenAdmin],
		Rate: cfg.Limit.RequestsPerSecond,
		Now:  func() clock.Mono { return src.Now().Mono },
	}
	if path := cfg.Auth.TokenFile; path != "" {
		const setting = "auth.token-file"
		s.tokens, err = reload.New(reload.Config[*access.Tokens]{
			What: "tokens", Files: []reload.File{{Name: setting, Path: path, Trusted: true}}, Logger: log,
			Parse: func(contents [][]byte) (*access.Tokens, error) {
				t, err := access.ParseTokens(contents[0])
				if err != nil {
					return nil, fmt.Errorf("%s (%s): %w", setting, path, err)
				}
				return t, nil
			},
			Problem: func(t *access.Tokens) error {
				if err := t.Problem(); err != nil {
					return fmt.Errorf("%s (%s): %w", setting, path, err)
				}
				return nil
			},
			Changed: func(t *access.Tokens) { s.guard.SetTokens(t) },
			Stale:   func(error) { s.guard.SetTokens(access.Stale()) }, StaleAfter: cfg.Auth.StaleAfter,
		})
		if err != nil {
			return nil, err
		}
		limits.Tokens = s.tokens.Get()
		if limits.Tokens.Len() == 0 {
			return nil, fmt.Errorf("%s (%s): %w", setting, path, limits.Tokens.Problem())
		}
	}
	s.guard = access.New(limits)
	if path := cfg.Gossip.KeyFile; path != "" {
		if s.keys, err = cluster.NewKeys(path, log); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// files are files that are read again when they change.
type files interface {
	Run(context.Context) error
	Reload()
	Failing() bool
	Reloads() int64
}

// files returns the files by the names that metrics have for them.
func (s *security) files() map[string]files {
	all := map[string]files{}
	if s.tls != nil {
		all["tls"] = s.tls
	}
	if s.tokens != nil {
		all["tokens"] = s.tokens
	}
	if s.keys != nil {
		all["gossip_keys"] = s.keys
	}
	if s.etcd != nil {
		all["etcd_tls"] = s.etcd
	}
	return all
}

// run reloads the files when they change, until ctx ends, and returns nil then.
func (s *security) run(ctx context.Context) error {
	var all errgroup.Group
	for _, f := range s.files() {
		all.Go(func() error { return f.Run(ctx) })
	}
	all.Go(func() error { return s.quota.Run(ctx) })
	return all.Wait()
}

// Bounds of the admin port. Its clients are probes and scrapers, of which a node has a
// few, and a new connection closes the oldest one at once: a probe is answered.
const (
	adminConnections = 256
	adminPerSource   = 64
)

// grace is for which a new connection keeps its place without a valid call: handshakes
// over slow links fit.
const grace = 2 * time.Second

// listen returns l with the bounds of a listener, and keeps it for the metrics.
func (s *security) listen(name string, l net.Listener) net.Listener {
	cfg := quota.ListenerConfig{Connections: s.limit.Connections, Grace: grace, CloseSilent: true}
	switch name {
	case "admin":
		cfg = quota.ListenerConfig{Connections: adminLimit(s.maxFiles), PerSource: adminPerSource, Prompt: true}
	case "resp":
		if !s.encrypts(l.Addr().String()) {
			cfg.Refusal = respserver.TooMany
		}
	}
	bounded := s.quota.Listen(l, cfg)
	s.listeners[name] = bounded
	return bounded
}

// grpcOptions returns the credentials of the gRPC listener at an address.
func (s *security) grpcOptions(addr string) []grpc.ServerOption {
	creds := insecure.NewCredentials()
	if s.encrypts(addr) {
		creds = credentials.NewTLS(s.tls.Config("h2"))
	}
	return []grpc.ServerOption{grpc.Creds(grpcserver.WithQuota(creds))}
}

// callers returns whom the ports let in. Where no token is asked for, a wrong one is no error: callers can have
// theirs before nodes ask.
func (s *security) callers() string {
	switch {
	case s.tokens != nil:
		return "those with a token"
	case s.tls != nil && s.tls.Config().ClientCAs != nil:
		return "those with a certificate"
	}
	return "all, whatever token they send"
}

// encrypts reports whether a listener has TLS. A Unix socket has none: the kernel carries its bytes,
// and says who connects.
func (s *security) encrypts(addr string) bool { return s.tls != nil && !unixsocket.Is(addr) }

// config returns the TLS configuration of a listener at an address with these protocols; nil: no TLS.
func (s *security) config(addr string, protocols ...string) *tls.Config {
	if !s.encrypts(addr) {
		return nil
	}
	return s.tls.Config(protocols...)
}

// readFiles returns how the reading of each of them went.
func (d *Daemon) readFiles() map[string]feed.Files {
	all := map[string]feed.Files{}
	for name, f := range d.security.files() {
		all[name] = feed.Files{Reloads: f.Reloads(), Failing: f.Failing()}
	}
	return all
}

// Reload makes the node read its certificates, tokens and gossip keys now. It does not
// wait; the log says what was found.
func (d *Daemon) Reload() {
	for _, f := range d.security.files() {
		f.Reload()
	}
}

// openEtcd returns why others than members may write what the member of this node has, and what to do.
func (d *Daemon) openEtcd() (problem, do string) {
	if d.inside == nil || d.security.etcd == nil {
		return "", ""
	}
	return certs.OpenEtcd(d.cfg.Etcd.TLS.CA, d.cfg.TLS.ClientCA, d.security.etcd.Leaf())
}

// leaves returns the certificates in use, by setting.
func (d *Daemon) leaves() map[string]*x509.Certificate {
	all := map[string]*x509.Certificate{}
	if t := d.security.tls; t != nil {
		all["tls.cert"] = t.Leaf()
	}
	if t := d.security.etcd; t != nil && t.Leaf() != nil {
		all["etcd.tls.cert"] = t.Leaf()
	}
	return all
}

// securityReport returns the state of security and of the connection to etcd, for the
// metrics.
func (d *Daemon) securityReport() metrics.Security {
	r := metrics.Security{
		Listeners: map[string]quota.Stats{}, Files: d.readFiles(), Certificates: map[string]time.Time{},
	}
	for name, l := range d.security.listeners {
		r.Listeners[name] = l.Stats()
	}
	r.Held, r.HeldLimit = d.security.quota.Held()
	names := map[string]string{"tls.cert": "server", "etcd.tls.cert": "etcd_client"}
	for setting, leaf := range d.leaves() {
		r.Certificates[names[setting]] = leaf.NotAfter
	}
	return r
}
