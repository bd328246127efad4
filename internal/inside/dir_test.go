package inside

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// A directory that cannot be used is an error that says why, and nothing is written.
func TestCheck(t *testing.T) {
	marker := func(version string) string {
		return `{"host":"a","peer":"http://a:2380","version":"` + version + `"}`
	}
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"nothing", nil, ""},
		{"of this etcd", map[string]string{"member.json": marker(etcdstore.ServerVersion()), "etcd/member/wal/0": ""}, ""},
		{"of an older etcd", map[string]string{"member.json": marker("3.5.9")}, ""},
		{"of a newer etcd", map[string]string{"member.json": marker("3.99.0")}, "was used by etcd 3.99.0"},
		{"of another etcd", map[string]string{"member/wal/0": ""}, "has the data of another etcd"},
		{"something else", map[string]string{"photos/1.jpg": ""}, "is not empty"},
		{"left by an aborted start", map[string]string{"node.lock": "", "restore.lock": ""}, ""},
		{"left by a crash at the first start", map[string]string{"node.lock": "", ".member.json-123": ""}, ""},
		{"a restore into nothing", map[string]string{"restored/member/wal/0": "", "restored.json": "{}"}, ""},
		{"left by a crash of a restore", map[string]string{"restored/member/wal/0": "", ".restored.json-123": ""}, ""},
		{"a restore half taken over", map[string]string{"etcd/member/wal/0": "", "restored.json": "{}"}, ""},
		{"data without a marker", map[string]string{"etcd/member/wal/0": ""}, "is not empty"},
		{"of a new file system", map[string]string{"lost+found/x": ""}, ""},
		{"a broken marker", map[string]string{"member.json": "{"}, "member.json that cannot be read"},
		{"an empty marker", map[string]string{"member.json": "{}"}, "does not say whose it is"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := Dir(t.TempDir())
			for name, text := range tc.files {
				path := filepath.Join(string(d), name)
				fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)))
			}
			err := d.Check()
			if tc.want == "" && err != nil || tc.want != "" && (!errors.Is(err, ErrDir) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if entries, err := os.ReadDir(string(d)); err != nil || len(entries) > len(tc.files) {
				t.Errorf("the check wrote: %v, %v", entries, err)
			}
		})
	}
	file := filepath.Join(t.TempDir(), "file")
	fatal.If(t, os.WriteFile(file, nil, 0o600))
	if err := Dir(file).Check(); !errors.Is(err, ErrDir) {
		t.Errorf("a file: %v", err)
	}
	if err := Dir("/proc/none").Check(); !errors.Is(err, ErrDir) {
		t.Errorf("not writable: %v", err)
	}
	if _, err := os.Stat("/proc/none"); err == nil {
		t.Error("the check wrote")
	}
}

// A member begins on a disk with room for it alone, and goes on with less.
func TestCheckFree(t *testing.T) {
	failed := errors.New("no such call")
	for _, tc := range []struct {
		name string
		free int64
		err  error
		has  bool // It has begun.
		want string
	}{
		{name: "room", free: minFree},
		{name: "a full disk", free: minFree - 1, want: "has 255 MiB free: etcd needs 256 to begin"},
		{name: "a full disk under a member", has: true},
		{name: "unknown", err: failed},
	} {
		dir := t.TempDir()
		for _, d := range []Dir{Dir(dir), Dir(filepath.Join(dir, "new", "one"))} {
			if tc.has {
				marker := member.Data{Host: "a", Peer: "http://a:1", Version: "3.5.9"}
				fatal.If(t, errors.Join(os.MkdirAll(string(d), 0o700), meet.WriteJSON(d.marker(), marker)))
			}
			err := d.check(func(string) (int64, error) { return tc.free, tc.err })
			if tc.want == "" && err != nil || tc.want != "" && (!errors.Is(err, ErrDir) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s, %s: %v; want %q", tc.name, d, err, tc.want)
			}
		}
	}
}

// A marker without etcd's log counts as no data, whatever it says: the others know whether the log
// was lost. Until the member has answered, the marker says that it begins: this one, with this list and token.
func TestOwn(t *testing.T) {
	d := Dir(t.TempDir())
	if data, err := d.Own(); data != nil || err != nil {
		t.Fatalf("nothing: %v, %v", data, err)
	}
	want := member.Data{Host: "a", Peer: "http://a:1", Version: "3.7.3", Initial: "a=http://a:1", Token: "t"}
	intends := func(begins bool) {
		t.Helper()
		for _, other := range []string{"", "peer", "list", "token"} {
			ask := map[string]string{"peer": want.Peer, "list": want.Initial, "token": want.Token}
			ask[other] += "x"
			got, err := d.Intends(ask["peer"], ask["list"], ask["token"])
			if got != (begins && other == "") || err != nil {
				t.Errorf("it intends to begin with another %q: %v, %v", other, got, err)
			}
		}
	}
	intends(false)
	fatal.If(t, meet.WriteJSON(d.marker(), want))
	if data, err := d.Own(); data != nil || err != nil {
		t.Errorf("before the member answered: %v, %v", data, err)
	}
	intends(true)
	want.Cluster = 7
	fatal.If(t, meet.WriteJSON(d.marker(), want))
	if data, err := d.Own(); data != nil || err != nil {
		t.Errorf("etcd's data is gone: %v, %v", data, err)
	}
	intends(false)
	wal := filepath.Join(d.Data(), "member", "wal")
	fatal.If(t, os.MkdirAll(wal, 0o700))
	fatal.If(t, os.WriteFile(filepath.Join(wal, "0.tmp"), nil, 0o600))
	if data, err := d.Own(); data != nil || err != nil {
		t.Errorf("etcd's log is gone: %v, %v", data, err)
	}
	fatal.If(t, os.WriteFile(filepath.Join(wal, "0-0.wal"), nil, 0o600))
	if data, err := d.Own(); data == nil || err != nil {
		t.Errorf("with a log: %v, %v", data, err)
	}
}

func TestSnapshots(t *testing.T) {
	d, now := Dir(t.TempDir()), time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	if list, err := d.Snapshots().List(now); len(list) > 0 || err != nil {
		t.Errorf("none: %v, %v", list, err)
	}
	fatal.If(t, os.MkdirAll(filepath.Dir(d.Database()), 0o700))
	if err := d.beforeUpgrade("3.8.0", now, 0); err != nil {
		t.Errorf("never ran: %v", err)
	}
	fatal.If(t, os.WriteFile(d.Database(), []byte("data"), 0o600))
	if err := d.beforeUpgrade("3.8.0", now, minFree+3); err == nil || !strings.Contains(err.Error(), "too little disk free") {
		t.Errorf("on a full disk: %v", err)
	}
	if list, err := d.Snapshots().List(now); len(list) > 0 || err != nil {
		t.Errorf("on a full disk: %v, %v", list, err)
	}
	for i := range 3 {
		fatal.If(t, d.beforeUpgrade("3.8.0", now.Add(time.Duration(i)*time.Hour), minFree+4))
	}
	fatal.If(t, os.WriteFile(filepath.Join(d.Snapshots().Dir, "mine.db"), nil, 0o600))
	list, err := d.Snapshots().List(now.Add(2 * time.Hour))
	if err != nil || len(list) != 3 || !list[0].At.Equal(now.Add(2*time.Hour)) || list[0].Size != 4 {
		t.Errorf("got %+v, %v", list, err)
	}
}

func TestNewer(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"3.7.3", "3.7.3", false}, {"3.7.9", "3.7.3", false}, {"3.8.0", "3.7.3", true}, {"4.0.0", "3.7.3", true},
		{"3.5.0", "3.7.3", false}, {"", "3.7.3", false}, {"x.y", "3.7.3", false}, {"3.10.0", "3.9.0", true},
	} {
		if got := newer(tc.a, tc.b); got != tc.want {
			t.Errorf("%q newer than %q: %v", tc.a, tc.b, got)
		}
	}
}

// A member.json is refused or read, and says whose it is.
func FuzzParseData(f *testing.F) {
	f.Add([]byte(`{"host":"a","peer":"http://a:1","version":"3.7.3","members":[{}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		data, err := ParseData(body)
		if (data == nil) != (err != nil) || err == nil && (data.Host == "" || data.Peer == "" || data.Version == "") {
			t.Errorf("%+v, %v", data, err)
		}
	})
}

// Each machine restores into the same cluster, whatever the order of its etcd.join.
func TestPlanRestoreOrder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "snapshot")
	fatal.If(t, os.WriteFile(file, make([]byte, 4096), 0o600))
	peer := func(host string) string { return "https://" + host + ":2380" }
	plan := func(hosts ...string) Restored {
		r, err := Dir(t.TempDir()).PlanRestore(file, "a", peer("a"), Initial(hosts, peer), 0)
		fatal.If(t, err)
		return r
	}
	one, other := plan("a", "b", "c"), plan("c", "a", "b")
	if one.Token != other.Token || one.Initial != "a=https://a:2380,b=https://b:2380,c=https://c:2380" || one.Initial != other.Initial {
		t.Errorf("%+v\n%+v", one, other)
	}
	if fewer := plan("a", "b"); fewer.Token == one.Token {
		t.Errorf("another list has the same token %s", one.Token)
	}
	tokens := map[string]bool{}
	for again := range uint(3) {
		r, err := Dir(t.TempDir()).PlanRestore(file, "a", peer("a"), one.Initial, again)
		if err != nil || (r.Token == one.Token) != (again == 0) || (r.Cluster == one.Cluster) != (again == 0) {
			t.Errorf("restored %d times before: %+v, %v", again, r, err)
		}
		tokens[r.Token] = true
	}
	if len(tokens) != 3 {
		t.Errorf("tokens of three restores: %v", tokens)
	}
}

// Copies of the data stay for a week, and the latest for longer.
func TestForget(t *testing.T) {
	d := Dir(t.TempDir())
	now := time.Now()
	const week = 7 * 24 * time.Hour
	for i, age := range []time.Duration{3 * week, 2 * week, 0, -time.Hour} {
		fatal.If(t, os.MkdirAll(filepath.Join(d.Data(), "member"), 0o700))
		fatal.If(t, os.WriteFile(filepath.Join(d.Data(), "member", "db"), make([]byte, i+1), 0o600))
		fatal.If(t, d.setAside("before", now.Add(-age)))
		// A later one of them is the latest in its turn, and no earlier one is deleted while it is young.
		gone, err := d.forget(now)
		if want := map[int]int{0: 0, 1: 1, 2: 1, 3: 0}[i]; err != nil || len(gone) != want {
			t.Errorf("copy %d: %v, %v deleted; want %d", i, err, gone, want)
		}
	}
	if copies := d.Copies(); len(copies) != 2 || copies[0].Size != 4 || copies[1].Size != 3 {
		t.Errorf("left %+v", copies)
	}
}
