package etcdpod

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
)

// state is what the listener says of a member. It is safe for concurrent use.
type state struct {
	metrics string // URL

	mu      sync.Mutex // guards the fields below
	report  member.Report
	waiting string // why etcd does not run
	running bool
	lived   bool // etcd has been alive since it started
	member  bool // the member votes, and etcd knows its users
}

func (s *state) set(f func(*state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// handler answers other members, and the kubelet, which has no certificate.
func (s *state) handler(log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /report", func(w http.ResponseWriter, r *http.Request) {
		if !named(r, memberName) {
			http.Error(w, "the certificate is not that of a member", http.StatusForbidden)
			return
		}
		s.mu.Lock()
		report := s.report
		s.mu.Unlock()
		if err := json.NewEncoder(w).Encode(report); err != nil {
			log.Warn("a report was not sent", "error", err)
		}
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		waiting, running, lived := s.waiting, s.running, s.lived
		s.mu.Unlock()
		if !running {
			fmt.Fprintln(w, waiting)
			return
		}
		err := s.healthy(r.Context(), "livez")
		// A large database takes a while to open.
		if err != nil && lived {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		s.set(func(s *state) { s.lived = err == nil })
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		waiting, running, votes := s.waiting, s.running, s.member
		s.mu.Unlock()
		var err error
		switch {
		case !running:
			err = errors.New(waiting)
		case !votes:
			err = errors.New("the member does not vote yet")
		default:
			err = s.healthy(r.Context(), "readyz")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// named reports whether the client has a certificate with one of the names.
func named(r *http.Request, names ...string) bool {
	return r.TLS != nil && len(r.TLS.VerifiedChains) > 0 &&
		slices.Contains(names, r.TLS.PeerCertificates[0].Subject.CommonName)
}

// healthy asks the etcd of this member.
func (s *state) healthy(ctx context.Context, check string) error {
	status, text, _, err := meet.Get(ctx, http.DefaultClient, s.metrics+"/"+check)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("etcd: %d: %s", status, text)
	}
	return err
}

// serve serves h with the certificate in dir until ctx ends. Clients may have a certificate: the
// kubelet has none.
func serve(ctx context.Context, address, dir string, h http.Handler, log *slog.Logger) error {
	ca, cert, key := files(dir)
	s, err := certs.NewServer(certs.ServerFiles{Cert: cert, Key: key, ClientCA: ca, Optional: true}, log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := meet.Server(h, log)
	go func() { _ = s.Run(ctx) }()
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(tls.NewListener(listener, s.Config())); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ask returns what another member reports.
func ask(ctx context.Context, c *http.Client, h host) (member.Report, error) {
	status, body, _, err := meet.Get(ctx, c, h.report())
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("HTTP status %d", status)
	}
	if err != nil {
		return member.Report{}, fmt.Errorf("%s: %w", h.report(), err)
	}
	return meet.ParseReport(body, h.name)
}
