package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/metrics"
	"github.com/flakelease/allocator/internal/reload"
)

// security is what stands between the doors and whoever knocks.
type security struct {
	tls    *certs.Server                 // nil: the doors speak in clear
	tokens *reload.Value[*access.Tokens] // nil: nobody needs one
	guard  *access.Guard                 // nil: everybody is let through
	doors  map[string]*door              // by name; set by listen
}

// newSecurity reads the files that cfg names. Its errors name the setting.
func newSecurity(cfg config.Config, src clock.Source, log *slog.Logger) (*security, error) {
	s := &security{doors: map[string]*door{}}
	var err error
	if cfg.TLS.Cert != "" {
		files := certs.ServerFiles{Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, ClientCA: cfg.TLS.ClientCA}
		if s.tls, err = certs.NewServer(files, log); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
	}
	limits := access.Config{
		Rate: cfg.Limit.RequestsPerSecond, Burst: cfg.Limit.Burst,
		Now: func() clock.Mono { return src.Now().Mono },
	}
	if cfg.Auth.TokenFile != "" {
		s.tokens, err = reload.New(reload.Config[*access.Tokens]{
			What: "tokens", Files: []string{cfg.Auth.TokenFile}, Logger: log,
			Parse: func(contents [][]byte) (*access.Tokens, error) {
				t, err := access.ParseTokens(contents[0])
				if err != nil {
					return nil, fmt.Errorf("%s: %w", cfg.Auth.TokenFile, err)
				}
				return t, nil
			},
			Changed: func(t *access.Tokens) { s.guard.SetTokens(t) },
		})
		if err != nil {
			return nil, fmt.Errorf("auth.token-file: %w", err)
		}
		limits.Tokens = s.tokens.Get()
	}
	s.guard = access.New(limits)
	return s, nil
}

// run keeps certificates and tokens true to their files until ctx ends, and
// returns nil then.
func (s *security) run(ctx context.Context) error {
	var all errgroup.Group
	if s.tls != nil {
		all.Go(func() error { return s.tls.Run(ctx) })
	}
	if s.tokens != nil {
		all.Go(func() error { return s.tokens.Run(ctx) })
	}
	all.Go(func() error { <-ctx.Done(); return nil })
	return all.Wait()
}

// watch returns l as the door of that name, with its limit of connections.
func (s *security) watch(name string, l net.Listener, most int) net.Listener {
	d := newDoor(l, most)
	s.doors[name] = d
	return d
}

// grpcOptions returns the encryption of the gRPC door.
func (s *security) grpcOptions() []grpc.ServerOption {
	if s.tls == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(s.tls.Config("h2")))}
}

// config returns the encryption of a door that speaks these protocols, nil for
// none.
func (s *security) config(protocols ...string) *tls.Config {
	if s.tls == nil {
		return nil
	}
	return s.tls.Config(protocols...)
}

// securityReport is what the metrics show of it, and of the connection to etcd.
func (d *Daemon) securityReport() metrics.Security {
	var r metrics.Security
	for _, name := range metrics.ListenerNames {
		if door := d.security.doors[name]; door != nil {
			refused := door.refused.Load()
			if name == "resp" && d.resp != nil {
				refused = d.resp.Refused()
			}
			r.Listeners = append(r.Listeners, metrics.Listener{Name: name, Open: door.open.Load(), Refused: refused})
		}
	}
	if t := d.security.tls; t != nil {
		r.Files = append(r.Files, metrics.Files{Name: "tls", Failing: t.Failing(), Reloads: t.Reloads()})
		r.Certificates = append(r.Certificates, metrics.Certificate{Name: "server", Expires: t.Expires()})
	}
	if t := d.security.tokens; t != nil {
		r.Files = append(r.Files, metrics.Files{Name: "tokens", Failing: t.Failing(), Reloads: t.Reloads()})
	}
	if t := d.etcd.tls; t != nil {
		r.Files = append(r.Files, metrics.Files{Name: "etcd_tls", Failing: t.Failing(), Reloads: t.Reloads()})
		if at, ok := t.Expires(); ok {
			r.Certificates = append(r.Certificates, metrics.Certificate{Name: "etcd_client", Expires: at})
		}
	}
	return r
}
