package meet

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// A member of an unknown kind must not count as one that agrees to begin.
func TestParseReport(t *testing.T) {
	for text, want := range map[string]string{
		`{"name":"a","token":"1","data":"none"}`:     "",
		`{"name":"a","token":"1","data":"intended"}`: "",
		`{"name":"a","token":"1","data":"present"}`:  "",
		`{"name":"a","token":"1"}`:                   "as data",
		`{"name":"a","token":"1","data":"future"}`:   `"future" as data`,
		`{"name":"b","token":"1","data":"none"}`:     "belongs to another member",
		`{"name":"a"`:                                "not that of a member",
		`{"name":"a","data":"none","snapshot":1}`:    "not that of a member",
		``: "not that of a member",
	} {
		r, err := ParseReport([]byte(text), "a")
		switch {
		case want == "" && (err != nil || r.Name != "a"):
			t.Errorf("%s: %+v, %v", text, r, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || r != member.Report{}):
			t.Errorf("%s: %+v, %v; want %q", text, r, err, want)
		}
	}
}

// What a waiting member says counts only whole: without host or process it could be this member itself.
func TestParseWaiting(t *testing.T) {
	for text, whole := range map[string]bool{
		`{"host":"a","process":"x"}`:          true,
		`{"host":"a"}`:                        false,
		`{"process":"x"}`:                     false,
		`{}`:                                  false,
		`{"host":"a"`:                         false,
		`{"host":"a","process":"x","join":1}`: false,
	} {
		if w, err := ParseWaiting([]byte(text)); (err == nil) != whole || (w != nil) != whole {
			t.Errorf("%s: %+v, %v", text, w, err)
		}
	}
}

// Nothing of the list is lost: whoever has no vote, or has never started, is seen by it.
func TestParseMembers(t *testing.T) {
	got, err := ParseMembers([]byte(`[
		{"id":1,"peerURLs":["http://a:2380"],"name":"a","clientURLs":["http://a:2379"]},
		{"id":18446744073709551615,"peerURLs":["http://b:2380"],"name":"","isLearner":true}]`))
	want := []member.Member{
		{ID: 1, Name: "a", Peers: []string{"http://a:2380"}, Clients: []string{"http://a:2379"}},
		{ID: 1<<64 - 1, Peers: []string{"http://b:2380"}, Learner: true},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if got, err := ParseMembers([]byte(`{"id":1}`)); got != nil || err == nil {
		t.Errorf("no list: %+v, %v", got, err)
	}
}

// A directory whose log cannot be read does not count as empty: whoever is empty may begin.
func TestHasLog(t *testing.T) {
	for _, tc := range []struct {
		name, file  string
		has, failed bool
	}{
		{name: "nothing"},
		{name: "a database alone", file: "member/snap/db"},
		{name: "a log that etcd was making", file: "member/wal/0.tmp"},
		{name: "a log", file: "member/wal/0-0.wal", has: true},
		{name: "no directory where the log was", file: "member/wal", failed: true},
	} {
		data := t.TempDir()
		if tc.file != "" {
			path := filepath.Join(data, tc.file)
			fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)))
		}
		if has, err := HasLog(data); has != tc.has || (err != nil) != tc.failed {
			t.Errorf("%s: %v, %v; want %v, failed %v", tc.name, has, err, tc.has, tc.failed)
		}
	}
}

// What others send is refused or read, and never more.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"host":"a","process":"x","join":["a"],"now":"2026-11-20T12:00:00Z"}`))
	f.Add([]byte(`[{"id":1,"peerURLs":["http://a:2380"],"name":"a","clientURLs":["http://a:2379"],"isLearner":true}]`))
	f.Add([]byte(`{"name":"a","token":"1","data":"present"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if w, err := ParseWaiting(body); (w == nil) != (err != nil) {
			t.Errorf("%v, %v", w, err)
		}
		list, err := ParseMembers(body)
		if err != nil && list != nil {
			t.Errorf("%v, %v", list, err)
		}
		for _, m := range list {
			_ = member.HostOf(m.Label())
		}
		// Whatever the only other member reports, one without data begins only after a report that is whole.
		r, err := ParseReport(body, "a")
		known := r.Holds == member.HoldsNothing || r.Holds == member.HoldsIntent || r.Holds == member.HoldsData
		if (err == nil) != (known && r.Name == "a") {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// An answer without end is cut, and no question waits without end.
func TestGet(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.CopyN(w, endless{}, 4*maxAnswer)
	}))
	defer s.Close()
	status, body, _, err := Get(t.Context(), s.Client(), s.URL)
	if err != nil || status != http.StatusOK || len(body) != maxAnswer {
		t.Errorf("status %d, %d bytes, %v", status, len(body), err)
	}
	if _, _, _, err := Get(t.Context(), s.Client(), "http://127.0.0.1:1"); err == nil || strings.Contains(err.Error(), "Get ") {
		t.Errorf("nobody listens: %v", err)
	}
	began := time.Now()
	silent := &http.Client{Transport: asked(func(r *http.Request) (*http.Response, error) {
		if until, ok := r.Context().Deadline(); !ok || until.After(began.Add(2*Timeout)) {
			t.Errorf("the question may take until %v, %v", until, ok)
		}
		return nil, context.DeadlineExceeded
	})}
	if _, _, _, err := Get(t.Context(), silent, s.URL); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody answers: %v", err)
	}
	// People are told that a clock is wrong, and not the certificate.
	expired := &http.Client{Transport: asked(func(*http.Request) (*http.Response, error) {
		return nil, x509.CertificateInvalidError{Cert: &x509.Certificate{}, Reason: x509.Expired}
	})}
	if _, _, _, err := Get(t.Context(), expired, s.URL); err == nil || !strings.Contains(err.Error(), "compare the clocks") {
		t.Errorf("a certificate whose time is over: %v", err)
	}
	answer := &noted{Reader: strings.NewReader("text")}
	answers := &http.Client{Transport: asked(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: answer}, nil
	})}
	if _, text, _, err := Get(t.Context(), answers, s.URL); err != nil || string(text) != "text" || !answer.closed {
		t.Errorf("an answer: %q, %v, its connection closed %v", text, err, answer.closed)
	}
	if _, _, _, err := Get(t.Context(), answers, "http://a:b"); err == nil {
		t.Error("no URL was asked, and it answered")
	}
}

// asked is a transport that answers by itself.
type asked func(*http.Request) (*http.Response, error)

func (f asked) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// noted is a body that notes that it was closed.
type noted struct {
	io.Reader
	closed bool
}

func (b *noted) Close() error {
	b.closed = true
	return nil
}

// Whoever calls is unknown until its certificate was verified, and holds nothing open.
func TestServerIsBounded(t *testing.T) {
	s := Server(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 {
		t.Errorf("headers %v and %d bytes, idle %v; want bounds", s.ReadHeaderTimeout, s.MaxHeaderBytes, s.IdleTimeout)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// Snapshots are taken whole, and the oldest give way; nothing else is removed.
func TestSnapshots(t *testing.T) {
	server, err := etcdserver.Start(t.Context(), etcdserver.Alone{NoSync: true})
	fatal.If(t, err)
	defer server.Close()
	g, err := etcdstore.OpenGroup(etcdstore.Config{Endpoints: []string{server.Endpoint()}})
	fatal.If(t, err)
	defer g.Close()
	s := Snapshots{Dir: filepath.Join(t.TempDir(), "x"), Layout: "2006-01-02t15-04-05z", Suffix: ".snapshot", Keep: 2}
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	if list, err := s.List(now); len(list) > 0 || err != nil {
		t.Errorf("no directory: %v, %v", list, err)
	}
	for i, kind := range []string{"", "hourly", "", ""} {
		list, removed, err := s.Take(t.Context(), g, kind, now.Add(time.Duration(i)*time.Hour))
		if err != nil || len(list) != min(i+1, 2) || removed != max(0, min(i-1, 1)) || list[0].Size < 1024 ||
			!list[0].At.Equal(now.Add(time.Duration(i)*time.Hour)) {
			t.Errorf("%d: %+v, removed %d, %v", i, list, removed, err)
		}
		for _, other := range []string{"notes", "lost.snapshot", "a-b.snapshot", "2020-01-01t00-00-00z.snapshot.part"} {
			fatal.If(t, os.WriteFile(filepath.Join(s.Dir, other), nil, 0o600))
		}
		fatal.If(t, os.MkdirAll(filepath.Join(s.Dir, "2020-01-02t00-00-00z.snapshot"), 0o700))
	}
	if files, err := filepath.Glob(filepath.Join(s.Dir, "*")); err != nil || len(files) != 7 {
		t.Errorf("there are %v, %v", files, err)
	}
	// What a crash left goes after an hour.
	left := filepath.Join(s.Dir, ".2026-11-20t12-00-00z.snapshot-123")
	fatal.If(t, os.WriteFile(left, nil, 0o600))
	began := time.Now()
	for after, there := range map[time.Duration]bool{0: true, 2 * time.Hour: false} {
		fatal.If(t, errors.Join(os.WriteFile(left, nil, 0o600), os.Chtimes(left, began, began)))
		if _, _, err := s.Take(t.Context(), g, "", began.Add(after)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(left); (err == nil) != there {
			t.Errorf("%v later what a crash left: %v", after, err)
		}
	}
	// A group whose members are gone leaves no half of a snapshot.
	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := Save(ctx, g, filepath.Join(s.Dir, "half")); err == nil {
		t.Error("a snapshot of nobody was taken")
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "half")); err == nil {
		t.Error("there is a snapshot of nobody")
	}
}

// A full disk costs the oldest snapshots, one at a time, and never the last one. Other failures cost none.
func TestSnapshotsMakeRoom(t *testing.T) {
	full := fmt.Errorf("snapshot: %w", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})
	other := errors.New("etcd does not answer")
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name          string
		has, room     int // With so many snapshots there is room for another.
		fails         error
		left, removed int
		want          error
	}{
		{"room", 4, 4, nil, 4, 0, nil},
		{"room after two", 4, 2, full, 2, 2, nil},
		{"room for one alone", 4, 0, full, 1, 3, syscall.ENOSPC},
		{"no snapshot, no room", 0, -1, full, 0, 0, syscall.ENOSPC},
		{"another failure", 4, 0, other, 4, 0, other},
	} {
		s := Snapshots{Dir: t.TempDir(), Layout: "2006-01-02t15-04-05z", Suffix: ".snapshot", Keep: 2}
		for i := range tc.has {
			fatal.If(t, os.WriteFile(s.Path("", now.Add(time.Duration(i)*time.Hour)), nil, 0o600))
		}
		removed, err := s.makeRoom(now.Add(24*time.Hour), func() error {
			if list, err := s.List(now); err != nil || len(list) > tc.room {
				return cmp.Or(err, tc.fails)
			}
			return nil
		})
		list, _ := s.List(now.Add(24 * time.Hour))
		if !errors.Is(err, tc.want) || removed != tc.removed || len(list) != tc.left {
			t.Errorf("%s: removed %d, left %d, %v; want %d, %d, %v", tc.name, removed, len(list), err, tc.removed, tc.left,
				tc.want)
		}
		if len(list) > 0 && !list[0].At.Equal(now.Add(time.Duration(tc.has-1)*time.Hour)) {
			t.Errorf("%s: the latest was removed: %v", tc.name, list)
		}
	}
}

// Snapshots that a clock named which was ahead put none off, and go before all others.
func TestSnapshotsOfAClockAhead(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name  string
		named []time.Duration // after now
		want  []time.Duration // the latest first
		due   bool
	}{
		{"none", nil, nil, true},
		{"one that is old enough", []time.Duration{-time.Hour}, []time.Duration{-time.Hour}, true},
		{"one that is not", []time.Duration{time.Second - time.Hour}, []time.Duration{time.Second - time.Hour}, false},
		{"one of now", []time.Duration{0}, []time.Duration{0}, false},
		{"one of a clock ahead", []time.Duration{time.Second}, []time.Duration{time.Second}, true},
		{"one of each", []time.Duration{24 * time.Hour, -time.Minute}, []time.Duration{-time.Minute, 24 * time.Hour}, false},
		{"more than are kept", []time.Duration{-2 * time.Hour, 48 * time.Hour, -time.Hour, 24 * time.Hour},
			[]time.Duration{-time.Hour, -2 * time.Hour, 48 * time.Hour, 24 * time.Hour}, true},
	} {
		s := Snapshots{Dir: t.TempDir(), Layout: "2006-01-02t15-04-05z", Suffix: ".snapshot", Keep: 2}
		for _, after := range tc.named {
			fatal.If(t, os.WriteFile(s.Path("", now.Add(after)), nil, 0o600))
		}
		list, err := s.List(now)
		if due := Due(list, now, time.Hour); err != nil || due != tc.due {
			t.Errorf("%s: due %v, %v; want %v", tc.name, due, err, tc.due)
		}
		kept, removed, err := s.Prune(now, 2)
		if err != nil || removed != max(0, len(tc.want)-2) || len(list) != len(tc.want) {
			t.Errorf("%s: removed %d of %v, %v", tc.name, removed, list, err)
		}
		for n, after := range tc.want {
			if !list[n].At.Equal(now.Add(after)) || n < 2 && !kept[n].At.Equal(now.Add(after)) {
				t.Errorf("%s: %v, of which %v are kept; want %v", tc.name, list, kept, tc.want)
			}
		}
	}
}

// A snapshot that stays although it had to go is an error: the disk fills otherwise, and nobody knows why.
func TestPruneFails(t *testing.T) {
	s := Snapshots{Dir: "/proc/self", Suffix: "cmdline"} // Nobody can remove files there.
	if list, err := s.List(time.Now()); err != nil || len(list) != 1 {
		t.Skipf("there is no such directory here: %v, %v", list, err)
	}
	if left, _, err := s.Prune(time.Now(), 0); err == nil {
		t.Errorf("no error, and %v are left", left)
	}
}

func TestWriteJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	fatal.If(t, WriteJSON(path, 1))
	if text, err := os.ReadFile(path); err != nil || string(text) != "1\n" {
		t.Errorf("it has %q, %v", text, err)
	}
	if err := WriteJSON(path, func() {}); err == nil {
		t.Error("what JSON does not have was written")
	}
}
