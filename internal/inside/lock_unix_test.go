//go:build unix

package inside

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	ossignal "os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/durable"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
)

func TestLock(t *testing.T) {
	d := Dir(t.TempDir())
	release, err := d.lock()
	fatal.If(t, err)
	if err := d.Check(); !errors.Is(err, ErrDir) || !errors.Is(err, ErrPasses) || !strings.Contains(err.Error(), "in use by another node") {
		t.Errorf("in use: %v", err)
	}
	release()
	if err := d.Check(); err != nil {
		t.Errorf("free again: %v", err)
	}
	if pid := d.runs(); pid != 0 {
		t.Errorf("no member runs, and %d does", pid)
	}
	release, _, err = hold(d.etcdLock(), 0)
	fatal.If(t, err)
	if pid := d.runs(); pid != os.Getpid() {
		t.Errorf("runs: %d", pid)
	}
	// A process of another container, and one that got the ID of another, are not the holder.
	me := fmt.Sprintln(os.Getpid(), namespace(), startOf(os.Getpid()))
	for name, text := range map[string]string{
		"another container": strings.Replace(me, namespace(), "pid:[1]", 1),
		"a later process":   strings.Replace(me, " "+startOf(os.Getpid())+"\n", " 1\n", 1),
		"all processes":     strings.Replace(me, strconv.Itoa(os.Getpid()), "-1", 1),
		"nobody":            "",
	} {
		fatal.If(t, os.WriteFile(d.etcdLock(), []byte(text), 0o600))
		if pid := d.runs(); pid != unnamed {
			t.Errorf("%s: %d runs", name, pid)
		}
		if err := d.Terminate(time.Second); !errors.Is(err, ErrDir) || !strings.Contains(err.Error(), "cannot be named") {
			t.Errorf("%s: terminate: %v", name, err)
		}
	}
	release()
	if pid := d.runs(); pid != 0 {
		t.Errorf("it ended, and %d runs", pid)
	}
	// Who asks shares the lock, and whoever starts then waits for that moment.
	f, err := os.Open(d.etcdLock())
	fatal.If(t, err)
	fatal.If(t, syscall.Flock(int(f.Fd()), syscall.LOCK_SH))
	time.AfterFunc(3*lockPause, func() { _ = f.Close() })
	release, _, err = hold(d.etcdLock(), wait.Most)
	if err != nil {
		t.Fatalf("while another asks: %v", err)
	}
	release()
}

// A member that was started before a restore was prepared, and has its lock only now, leaves the
// data for its node to take over.
func TestServePrepared(t *testing.T) {
	d := Dir(t.TempDir())
	fatal.If(t, meet.WriteJSON(d.restoredMarker(), member.Data{Host: "a"}))
	if err := Serve(t.Context(), d, nil); !errors.Is(err, errPrepared) {
		t.Errorf("got %v, want %v", err, errPrepared)
	}
	if pid := d.runs(); pid != 0 {
		t.Errorf("process %d has the lock", pid)
	}
}

// holds makes the program of the tests one that holds the lock of a directory until it is stopped.
const holds = "ALLOCATOR_TEST_HOLDS_ETCD_LOCK"

// serves makes it the member of a directory.
const serves = "ALLOCATOR_TEST_SERVES_ETCD"

func TestMain(m *testing.M) {
	if os.Getenv(holds) == "" && os.Getenv(serves) == "" {
		os.Exit(m.Run())
	}
	d := Dir(os.Args[len(os.Args)-1])
	ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // A test that was killed stops nothing.
	defer cancel()
	var err error
	if os.Getenv(serves) != "" {
		err = Serve(ctx, d, etcdserver.Run)
	} else if _, _, err = hold(d.etcdLock(), wait.Most); err == nil {
		<-ctx.Done()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A member that runs is taken over as it is, and restarted if it runs with other settings or data.
func TestUpTakesOver(t *testing.T) {
	t.Setenv(holds, "1")
	d := Dir(t.TempDir())
	node := func() *Inside {
		return nodeAt("127.0.0.1", d, Config{Program: os.Args[0], Log: slog.New(slog.DiscardHandler)})
	}
	last := 0
	for _, tc := range []struct {
		name   string
		change func(*Inside)
		same   bool
	}{
		{"the first", func(*Inside) {}, false},
		{"of the same settings", func(*Inside) {}, true},
		{"of another quota", func(i *Inside) { i.Etcd.Quota = 1 << 30 }, false},
		{"of another address", func(i *Inside) { i.Etcd.Quota, i.Etcd.IP = 1<<30, "127.0.0.2" }, false},
		{"whose data was lost", func(i *Inside) {
			i.Etcd.Quota, i.Etcd.IP = 1<<30, "127.0.0.2"
			fatal.If(t, os.RemoveAll(d.Data()))
		}, false},
	} {
		i := node()
		tc.change(i)
		c, err := i.up(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		for d.runs() != c.pid {
			select {
			case <-c.ended:
				t.Fatalf("%s: the member ended: %s", tc.name, c.result())
			case <-time.After(lockPause):
			}
		}
		t.Cleanup(func() { c.stop(i.cfg.Log) })
		if (c.pid == last) != tc.same {
			t.Errorf("%s: process %d after %d", tc.name, c.pid, last)
		}
		last = c.pid
		wal := filepath.Join(d.Data(), "member", "wal", "0-0.wal") // etcd has begun.
		fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(wal), 0o700), os.WriteFile(wal, nil, 0o600)))
	}
}

// snapshotFile returns the file of an empty database.
func snapshotFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "db")
	be := backend.NewDefaultBackend(zap.NewNop(), file)
	schema.NewMembershipBackend(zap.NewNop(), be).MustCreateBackendBuckets()
	schema.CreateMetaBucket(be.BatchTx())
	fatal.If(t, be.Close())
	return file
}

// TestRestoreAsRoot: what root prepares in the directory of another user belongs to that user, whose
// node takes it over. Nothing outside of the directory changes its owner.
func TestRestoreAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: only root gives files away")
	}
	const user, group = 65534, 65533
	d, outside := Dir(t.TempDir()), filepath.Join(t.TempDir(), "file")
	err := errors.Join(os.WriteFile(outside, nil, 0o600), os.Lchown(string(d), user, group))
	fatal.If(t, err)
	r, err := d.PlanRestore(snapshotFile(t), "a", "http://a:2380", "a=http://a:2380", 0)
	if err == nil {
		err = d.Restore(r, etcdserver.Restore)
	}
	fatal.If(t, err)
	owner := func(path string) [2]uint32 {
		info, err := os.Lstat(path)
		fatal.If(t, err)
		s := info.Sys().(*syscall.Stat_t)
		return [2]uint32{s.Uid, s.Gid}
	}
	seen := map[string]bool{}
	err = filepath.WalkDir(string(d), func(path string, _ os.DirEntry, err error) error {
		if got := owner(path); got != [2]uint32{user, group} {
			t.Errorf("%s belongs to %v", path, got)
		}
		seen[path] = true
		return err
	})
	for _, path := range []string{d.restoreLock(), d.restoredMarker(), filepath.Join(d.restored(), "member", "snap", "db")} {
		if err != nil || !seen[path] {
			t.Errorf("%s is not there, %v", path, err)
		}
	}
	// A snapshot that root saves elsewhere stays root's: it has every record.
	other := t.TempDir()
	err = errors.Join(os.Lchown(other, user, group),
		durable.Replace(filepath.Join(other, "snapshot"), 0o600, func(*os.File) error { return nil }))
	if got := owner(filepath.Join(other, "snapshot")); err != nil || got != [2]uint32{} {
		t.Errorf("a snapshot of root belongs to %v, %v", got, err)
	}
	err = errors.Join(os.Symlink(outside, filepath.Join(d.restored(), "link")), meet.Own(string(d), "restored"))
	if got := owner(outside); err != nil || got != [2]uint32{} {
		t.Errorf("a file outside belongs to %v, %v", got, err)
	}
}

// One restore at a time is prepared or taken over, and it is the one that was planned.
func TestRestoreAlone(t *testing.T) {
	file := snapshotFile(t)
	d := Dir(t.TempDir())
	plan := func(again uint) (Restored, error) {
		return d.PlanRestore(file, "a", "http://a:2380", "a=http://a:2380", again)
	}
	r, err := plan(0)
	fatal.If(t, err)
	prepared := func(want bool) {
		t.Helper()
		_, err := os.Stat(d.restored())
		if d.prepared() != want || (err == nil) != want {
			t.Errorf("prepared %v, directory %v; want %v", d.prepared(), err, want)
		}
	}
	fatal.If(t, d.Restore(r, etcdserver.Restore))
	prepared(true)
	release, err := d.holdRestored()
	fatal.If(t, err)
	says := fmt.Sprintf("a restore that process %d prepares or takes over", os.Getpid())
	if err := d.Restore(r, etcdserver.Restore); !errors.Is(err, ErrDir) || !strings.Contains(err.Error(), says) {
		t.Errorf("restored beside another: %v", err)
	}
	if taken, err := d.takeRestored(time.Now()); taken || !errors.Is(err, ErrDir) {
		t.Errorf("taken over beside another: %v, %v", taken, err)
	}
	prepared(true)
	release()
	other := r
	other.SHA256 = strings.Repeat("0", len(r.SHA256)) // The file was another when it was planned.
	if err := d.Restore(other, etcdserver.Restore); !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("a file that changed: %v", err)
	}
	prepared(false)
	if taken, err := d.takeRestored(time.Now()); taken || err != nil {
		t.Errorf("nothing was prepared: %v, %v", taken, err)
	}
	fatal.If(t, d.Restore(r, etcdserver.Restore))
	if taken, err := d.takeRestored(time.Now()); !taken || err != nil {
		t.Errorf("taken over: %v, %v", taken, err)
	}
	prepared(false)
	data, err := d.Own()
	if err != nil || data == nil || data.Token != r.Token || !data.Restored {
		t.Fatalf("after it: %+v, %v", data, err)
	}
	// Once etcd has run in the data, or in those of the same cluster, they are not made again.
	var refusal *member.Refusal
	for _, tc := range []struct {
		name  string
		data  member.Data
		again bool
	}{
		{"never started", *data, false},
		{"started", member.Data{Token: r.Token}, true},
		{"started in another cluster", member.Data{Token: "restored-1", Cluster: 7}, false},
		{"replaced in that cluster", member.Data{Cluster: r.Cluster, ID: 9, Existing: true}, true},
	} {
		tc.data.Host, tc.data.Peer, tc.data.Version = data.Host, data.Peer, data.Version
		fatal.If(t, meet.WriteJSON(d.marker(), tc.data))
		if _, err := plan(0); errors.As(err, &refusal) != tc.again || (err != nil) != tc.again {
			t.Errorf("%s: planned again: %v", tc.name, err)
		}
		if err := d.Restore(r, etcdserver.Restore); errors.As(err, &refusal) != tc.again || (err != nil) != tc.again {
			t.Errorf("%s: restored again: %v", tc.name, err)
		}
		prepared(!tc.again)
		fatal.If(t, errors.Join(os.RemoveAll(d.restored()), os.RemoveAll(d.restoredMarker())))
		if later, err := plan(1); err != nil || later.Token == r.Token {
			t.Errorf("%s: for all members once more: %+v, %v", tc.name, later, err)
		}
	}
}

// A directory that others may write is refused: they could replace what the member starts with.
func TestPrivate(t *testing.T) {
	for _, tc := range []struct {
		mode      os.FileMode
		user, gid int // -1: our own
		says      string
		root      bool
	}{
		{0o700, -1, -1, "", false},
		{0o755, -1, -1, "", false},
		{0o775, -1, -1, "", false}, // the group is ours
		{0o777, -1, -1, "may be written by others (mode 0777)", false},
		{0o775, -1, 64321, "may be written by others (mode 0775)", true},
		{0o755, -1, 64321, "", true},
		{0o700, 64321, -1, "belongs to user 64321", true},
	} {
		d := Dir(t.TempDir())
		if tc.root && os.Geteuid() != 0 {
			continue
		}
		fatal.If(t, errors.Join(os.Chmod(string(d), tc.mode), os.Chown(string(d), tc.user, tc.gid)))
		err := d.Check()
		if (err == nil) != (tc.says == "") || err != nil && (!errors.Is(err, ErrDir) || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%+v: %v", tc, err)
		}
		// The way out where its mode cannot be changed.
		within := Dir(filepath.Join(string(d), "etcd"))
		if tc.says != "" && !strings.HasSuffix(err.Error(), ": "+string(within)) {
			t.Errorf("%+v: %v, want it to name %s", tc, err, within)
		}
		if err := errors.Join(within.Check(), os.MkdirAll(string(within), 0o700), within.Check()); err != nil {
			t.Errorf("%+v: in it: %v", tc, err)
		}
	}
}
