package inside

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/meet"
	"github.com/flakelease/allocator/internal/member"
)

// The cluster that a list founds differs from a restored one of the same members.
func TestClusterOf(t *testing.T) {
	var e config.Etcd
	i := &Inside{cfg: Config{Etcd: e}, join: []string{"10.0.0.1", "10.0.0.2"}}
	initial, token := i.founding()
	id, err := clusterOf(initial, token)
	if err != nil || id == 0 {
		t.Fatalf("%s, %s: %x, %v", initial, token, id, err)
	}
	if other, err := clusterOf(initial, "restored-1"); err != nil || other == id {
		t.Errorf("restored: %x, %v", other, err)
	}
	if _, err := clusterOf("a=:", token); err == nil {
		t.Error("a list without URLs founds a cluster")
	}
}

// A member that waits for others ends its waiting when a restore was prepared, and takes it over.
func TestDecidePrepared(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := Dir(t.TempDir())
	i := &Inside{
		cfg:  Config{Log: slog.New(slog.DiscardHandler)},
		dir:  d,
		host: "127.0.0.1",
		ip:   "127.0.0.1",
		join: []string{"127.0.0.1", "localhost"}, // Nobody is there.
	}
	time.AfterFunc(askEvery/2, func() {
		if err := meet.WriteJSON(d.restoredMarker(), member.Data{Host: "a"}); err != nil {
			t.Error(err)
		}
	})
	if data, err := i.decide(ctx, nil); !errors.Is(err, errPrepared) || data != nil {
		t.Errorf("got %v, %v; want %v", data, err, errPrepared)
	}
	if taken, err := d.takeRestored(time.Now()); !taken || err != nil || d.prepared() {
		t.Errorf("taken over: %v, %v, prepared %v", taken, err, d.prepared())
	}
}

// A member that begins starts without what is left of the data that it lost, and keeps that.
func TestBeginsWithoutLeftovers(t *testing.T) {
	d := Dir(t.TempDir())
	if err := os.MkdirAll(filepath.Dir(d.database()), 0o700); err != nil {
		t.Fatal(err)
	}
	i := &Inside{
		cfg:  Config{Log: slog.New(slog.DiscardHandler)},
		dir:  d,
		host: "127.0.0.1",
		ip:   "127.0.0.1",
		join: []string{"127.0.0.1"},
	}
	if data, err := i.decide(t.Context(), nil); err != nil || data == nil || data.Token == "" {
		t.Fatalf("got %+v, %v", data, err)
	}
	if _, err := os.Stat(d.data()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("etcd's directory: %v", err)
	}
	if kept, err := filepath.Glob(d.data() + "-lost-*/member/snap"); err != nil || len(kept) != 1 {
		t.Errorf("kept %v, %v", kept, err)
	}
}

// A directory that is a copy is not started while the member that it is a copy of answers at its
// address, which need not be in the list.
func TestDecideCopied(t *testing.T) {
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != membersPath {
			http.NotFound(w, r)
			return
		}
		w.Header().Set(clusterID, "7")
		_, _ = io.WriteString(w, `[{"id":1,"peerURLs":["http://a:1"],"name":"a","clientURLs":["http://a:2"]}]`)
	}))
	defer old.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	i := &Inside{
		cfg:  Config{Log: slog.New(slog.NewTextHandler(until{"still runs", cancel}, nil))},
		dir:  Dir(t.TempDir()),
		host: "127.0.0.1",
		ip:   "127.0.0.1",
		join: []string{"127.0.0.1"},
	}
	copied := member.Data{Host: "a", Peer: old.URL, Cluster: 7, ID: 1}
	if data, err := i.decide(ctx, &copied); data != nil || err != nil {
		t.Errorf("it runs: %+v, %v; want to wait", data, err)
	}
	old.Close()
	if data, err := i.decide(t.Context(), &copied); data == nil || err != nil {
		t.Errorf("it does not run any more: %+v, %v; want to start", data, err)
	}
}

// until ends something once a text is logged.
type until struct {
	text string
	end  func()
}

func (u until) Write(line []byte) (int, error) {
	if strings.Contains(string(line), u.text) {
		u.end()
	}
	return len(line), nil
}

// A learner gets no vote before its directory says which member it is.
func TestPromotesWhatIsNoted(t *testing.T) {
	const longest = 4095 // A path may have so many bytes on Linux: member.json does, and no other file can be made.
	path := t.TempDir()
	for room := longest - len("/member.json"); len(path)+1 < room; {
		path += "/" + strings.Repeat("d", min(200, room-len(path)-1))
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Skipf("paths are shorter here: %v", err)
	}
	for _, tc := range []struct {
		name  string
		dir   Dir
		noted bool
	}{
		{"noted", Dir(t.TempDir()), true},
		{"not noted", Dir(path), false},
	} {
		text := `{"host":"a","peer":"http://a:1","version":"3.7.3"}`
		if err := os.WriteFile(tc.dir.marker(), []byte(text), 0o600); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		var log strings.Builder
		i := &Inside{
			cfg:  Config{Log: slog.New(slog.NewTextHandler(&log, nil))},
			dir:  tc.dir,
			host: "a",
			join: []string{"a"}, // No other can promote it, so a try is an error.
		}
		i.answered(t.Context(), member.Status{Member: member.Member{ID: 4, Learner: true}, Cluster: 7}, nil)
		data, err := tc.dir.read()
		if err != nil || (data.Cluster == 7 && data.ID == 4) != tc.noted {
			t.Errorf("%s: %+v, %v", tc.name, data, err)
		}
		if tried := strings.Contains(log.String(), "cannot become a voting member"); tried != tc.noted {
			t.Errorf("%s: tried %v: %s", tc.name, tried, &log)
		}
	}
}

// A snapshot leaves etcd what it needs of their common disk, and one that failed waits for a while.
func TestSnapshotRoom(t *testing.T) {
	const size = 1 << 30
	if err := room(size+minFree, size); err != nil {
		t.Errorf("room for both: %v", err)
	}
	if err := room(size+minFree-1, size); err == nil {
		t.Error("a snapshot takes what etcd needs")
	}
	var log strings.Builder
	i := &Inside{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, dir: Dir(t.TempDir())}
	i.cfg.Etcd.Inside.SnapshotEvery, i.cfg.Etcd.Inside.SnapshotKeep = time.Hour, 1
	logs := func() string {
		defer log.Reset()
		i.snapshotIfDue(t.Context(), "http://127.0.0.1:1", member.Status{Size: 1 << 62})
		return log.String()
	}
	// Those beyond the setting go even so: the message tells people to lower it.
	old := time.Now().Add(-2 * time.Hour)
	for n := range 3 {
		path := i.dir.Snapshots().Path("hourly", old.Add(time.Duration(n)*time.Minute))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if got := logs(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "too little disk free for a snapshot") {
		t.Errorf("a disk without room: %q", got)
	}
	if list, err := i.dir.Snapshots().List(); err != nil || len(list) != 1 {
		t.Errorf("left %v, %v", list, err)
	}
	// Another reason would be logged.
	i.dir = Dir(filepath.Join(string(i.dir), "none"))
	if got := logs(); got != "" {
		t.Errorf("tried again at once: %q", got)
	}
	i.snapshotAfter = time.Now().Add(-time.Second)
	if got := logs(); !strings.Contains(got, "no such file") || !i.snapshotAfter.After(time.Now()) {
		t.Errorf("after the pause: %q, then at %v", got, i.snapshotAfter)
	}
}
