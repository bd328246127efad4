package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/internal/server/grpcserver"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/respserver"
)

// front answers clients.
type front struct {
	grpc *grpcserver.Server
	http http.Handler
	resp *respserver.Server // nil: no RESP listener
}

// newFront returns what answers clients on ls. The other APIs need a part of what gRPC needs.
func newFront(c grpcserver.Config, hosts *httpserver.Hosts, ls listeners, s *security, version string) front {
	f := front{
		grpc: grpcserver.New(c),
		http: httpserver.New(httpserver.Config{Service: c.Service, Reader: c.Reader, Hosts: hosts, Feed: c.Feed}),
	}
	if ls.resp != nil {
		f.resp = respserver.New(respserver.Config{
			Service:        c.Service,
			Reader:         c.Reader,
			Version:        version,
			Logger:         c.Logger,
			MaxConnections: s.limit.Connections,
		})
	}
	return f
}

// servers returns the servers of the gRPC, HTTP and admin listeners.
func (d *Daemon) servers() (*grpc.Server, *http.Server, *http.Server) {
	g := d.grpc.GRPC(append(d.security.grpcOptions(d.cfg.Listen.GRPC), d.host.Traces.GRPC...)...)
	h := httpserver.NewServer(d.http, d.log)
	if spans := d.host.Traces.HTTP; spans != nil {
		h.Handler = spans(h.Handler)
	}
	admin := httpserver.NewServer(d.hosts(d.cfg.CheckAdminHost()).Handler(d.adminHandler(true)), d.log)
	h.TLSConfig = d.security.config(d.cfg.Listen.HTTP, "http/1.1")
	h.WriteTimeout += d.cfg.Issue.MaxWait
	if d.cfg.TLS.Admin {
		admin.TLSConfig = d.security.config(d.cfg.Listen.Admin, "http/1.1")
	}
	return g, h, admin
}

// serveOn starts to serve on a port; nil: it is not configured.
func serveOn(l *lifecycle, name string, port net.Listener, serve func(net.Listener) error) {
	if port == nil {
		return
	}
	l.serve(name, func() error {
		err := serve(port)
		if errors.Is(err, http.ErrServerClosed) || errors.Is(err, respserver.ErrClosed) {
			return nil
		}
		return err
	})
}

// serveHTTP returns the function that serves s, over TLS if s has certificates.
func serveHTTP(s *http.Server) func(net.Listener) error {
	return func(l net.Listener) error {
		if s.TLSConfig == nil {
			return s.Serve(l)
		}
		return s.ServeTLS(l, "", "")
	}
}

func (d *Daemon) serveRESP(l net.Listener) error {
	if c := d.security.config(d.cfg.Listen.RESP); c != nil {
		l = tls.NewListener(l, c)
	}
	return d.resp.Serve(l)
}

// finishRequests closes the listeners of clients and waits until the requests in flight
// are answered. When ctx ends it aborts those that are left.
func finishRequests(ctx context.Context, g *grpc.Server, h *http.Server, r *respserver.Server) error {
	var all errgroup.Group
	all.Go(func() error {
		err := h.Shutdown(ctx)
		if err != nil {
			_ = h.Close()
		}
		return err
	})
	all.Go(func() error {
		finished := make(chan struct{})
		go func() { g.GracefulStop(); close(finished) }()
		select {
		case <-finished:
			return nil
		case <-ctx.Done():
			g.Stop() // and GracefulStop returns
			<-finished
			return ctx.Err()
		}
	})
	if r != nil {
		all.Go(func() error { return r.Shutdown(ctx) })
	}
	return all.Wait()
}

// stopAdmin closes the admin listener, which answers until then so that a stop can be
// observed.
func stopAdmin(ctx context.Context, s *http.Server) error {
	err := s.Shutdown(ctx)
	_ = s.Close()
	return err
}
