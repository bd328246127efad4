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
	waiting string // why etcd does not run; "": it runs
	lived   bool   // etcd has been alive since it started
	member  bool   // the member votes, and etcd knows its users
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
		if !isMember(r) {
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
	for path, check := range map[string]func(context.Context) (string, error){"/livez": s.live, "/readyz": s.ready} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			text, err := check(r.Context())
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, text)
		})
	}
	return mux
}

// live says why the member has to be restarted; nil: it has not.
func (s *state) live(ctx context.Context) (string, error) {
	s.mu.Lock()
	waiting, lived := s.waiting, s.lived
	s.mu.Unlock()
	if waiting != "" {
		return waiting, nil
	}
	err := s.healthy(ctx, "livez")
	if err != nil && lived {
		return "", err
	}
	s.set(func(s *state) { s.lived = err == nil }) // A large database takes a while to open.
	return "ok", nil
}

// ready says why the member is of no use to clients; nil: it is.
func (s *state) ready(ctx context.Context) (string, error) {
	s.mu.Lock()
	waiting, votes := s.waiting, s.member
	s.mu.Unlock()
	switch {
	case waiting != "":
		return "", errors.New(waiting)
	case !votes:
		return "", errors.New("the member does not vote yet")
	}
	return "ok", s.healthy(ctx, "readyz")
}

// isMember reports whether the client has the certificate of a member.
func isMember(r *http.Request) bool {
	return r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && r.TLS.PeerCertificates[0].Subject.CommonName == memberName
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
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(tls.NewListener(listener, s.Config())); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ask returns what another member reports at a URL.
func ask(ctx context.Context, c *http.Client, name, at string) (member.Report, error) {
	status, body, _, err := meet.Get(ctx, c, at)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("HTTP status %d", status)
	}
	if err != nil {
		return member.Report{}, fmt.Errorf("%s: %w", at, err)
	}
	return meet.ParseReport(body, name)
}
