package inside

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/inside/member"
)

// Who decides follows from the directory: an intention of before a crash holds, and restored data begin a cluster of
// their own.
func TestOwner(t *testing.T) {
	s := &alone(Dir(t.TempDir()), slog.DiscardHandler).Site
	first, err := s.Owner(nil)
	if err != nil || first.Intends || first.Token != "" || first.Founds == 0 {
		t.Errorf("an empty directory: %+v, %v", first, err)
	}
	fatal.If(t, s.Write(member.Step{Action: member.Intend}))
	if own, err := s.Owner(nil); err != nil || !own.Intends || own.Founds != first.Founds {
		t.Errorf("after it intended: %+v, %v", own, err)
	}
	restored := &member.Data{Host: "r", Peer: "http://r:1", Initial: "r=http://r:1", Token: "restored-1", Restored: true}
	founds, err := ClusterOf(restored.Initial, restored.Token)
	fatal.If(t, err)
	if own, err := s.Owner(restored); err != nil || !own.Intends || own.Host != "r" || own.Token != restored.Token || own.Founds != founds {
		t.Errorf("restored: %+v, %v", own, err)
	}
	s.Own.Join = []string{"a b"}
	if _, err := s.Owner(nil); err == nil {
		t.Error("a list that etcd refuses has an owner")
	}
}

// Restored data are started from as they are; else what is left of lost data is moved away before a member begins.
func TestTake(t *testing.T) {
	s := &alone(Dir(t.TempDir()), slog.DiscardHandler).Site
	there := func() bool {
		_, err := os.Stat(s.Dir.Data())
		return err == nil
	}
	fatal.If(t, os.MkdirAll(filepath.Dir(s.Dir.Database()), 0o700))
	restored := &member.Data{Host: "r", Token: "restored-1", Restored: true}
	if got, err := s.Take(member.Step{Action: member.Begin}, restored); err != nil || got != restored || got.Restored || !there() {
		t.Errorf("restored: %+v, %v; the data are there: %v", got, err, there())
	}
	started := &member.Data{Host: "s"}
	if got, err := s.Take(member.Step{Action: member.Start}, started); err != nil || got != started || !there() {
		t.Errorf("started: %+v, %v; the data are there: %v", got, err, there())
	}
	if got, err := s.Take(member.Step{Action: member.Join, Initial: "x"}, restored); err != nil || got.Initial != "x" || !got.Existing || there() {
		t.Errorf("joins: %+v, %v; the data are there: %v", got, err, there())
	}
}

// A member that listens at all addresses calls others over IPv6 too, and none without its certificate.
func TestCaller(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("not run: this machine has no IPv6: %v", err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == membersPath {
			w.Header().Set(clusterID, "7")
			_, _ = fmt.Fprint(w, `[{"id":1,"peerURLs":["http://a:1"],"name":"a"}]`)
			return
		}
		http.NotFound(w, r)
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()
	s := &alone(Dir(t.TempDir()), slog.DiscardHandler).Site
	for _, ip := range []string{"0.0.0.0", "127.0.0.1", "::1"} {
		s.Etcd.IP = ip
		if a := s.AskAt(t.Context(), server.URL); a.Err != nil || a.Cluster != 7 {
			t.Errorf("from %s: %+v", ip, a)
		}
	}
	s.Etcd.IP = "192.0.2.1" // It is not this machine's.
	if a := s.AskAt(t.Context(), server.URL); a.Err == nil {
		t.Errorf("from another address: %+v", a)
	}
	missing := errors.New("no certificate")
	s.TLS = func() (*tls.Config, error) { return nil, missing }
	if a := s.AskAt(t.Context(), server.URL); !errors.Is(a.Err, missing) {
		t.Errorf("without a certificate: %+v", a)
	}
}
