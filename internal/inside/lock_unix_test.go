//go:build unix

package inside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/internal/meet"
	"github.com/flakelease/allocator/internal/member"
)

func TestLock(t *testing.T) {
	d := Dir(t.TempDir())
	release, err := d.lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Check(); !errors.Is(err, ErrDir) || !strings.Contains(err.Error(), "in use by another node") {
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
	if err != nil {
		t.Fatal(err)
	}
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
		if err := os.WriteFile(d.etcdLock(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(3*lockPause, func() { _ = f.Close() })
	release, _, err = hold(d.etcdLock(), time.Second)
	if err != nil {
		t.Fatalf("while another asks: %v", err)
	}
	release()
}

// A member that was started before a restore was prepared, and has its lock only now, leaves the
// data for its node to take over.
func TestServePrepared(t *testing.T) {
	d := Dir(t.TempDir())
	if err := meet.WriteJSON(d.restoredMarker(), member.Data{Host: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), d); !errors.Is(err, errPrepared) {
		t.Errorf("got %v, want %v", err, errPrepared)
	}
	if pid := d.runs(); pid != 0 {
		t.Errorf("process %d has the lock", pid)
	}
}

// One restore at a time is prepared or taken over, and it is the one that was planned.
func TestRestoreAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "db")
	be := backend.NewDefaultBackend(zap.NewNop(), file)
	schema.NewMembershipBackend(zap.NewNop(), be).MustCreateBackendBuckets()
	schema.CreateMetaBucket(be.BatchTx())
	if err := be.Close(); err != nil {
		t.Fatal(err)
	}
	d := Dir(t.TempDir())
	r, err := d.PlanRestore(file, "a", "http://a:2380", "a=http://a:2380")
	if err != nil {
		t.Fatal(err)
	}
	prepared := func(want bool) {
		t.Helper()
		_, err := os.Stat(d.restored())
		if d.prepared() != want || (err == nil) != want {
			t.Errorf("prepared %v, directory %v; want %v", d.prepared(), err, want)
		}
	}
	if err := d.Restore(r); err != nil {
		t.Fatal(err)
	}
	prepared(true)
	release, err := d.holdRestored()
	if err != nil {
		t.Fatal(err)
	}
	says := fmt.Sprintf("a restore that process %d prepares or takes over", os.Getpid())
	if err := d.Restore(r); !errors.Is(err, ErrDir) || !strings.Contains(err.Error(), says) {
		t.Errorf("restored beside another: %v", err)
	}
	if taken, err := d.takeRestored(time.Now()); taken || !errors.Is(err, ErrDir) {
		t.Errorf("taken over beside another: %v, %v", taken, err)
	}
	prepared(true)
	release()
	other := r
	other.SHA256 = strings.Repeat("0", len(r.SHA256)) // The file was another when it was planned.
	if err := d.Restore(other); !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("a file that changed: %v", err)
	}
	prepared(false)
	if taken, err := d.takeRestored(time.Now()); taken || err != nil {
		t.Errorf("nothing was prepared: %v, %v", taken, err)
	}
	if err := d.Restore(r); err != nil {
		t.Fatal(err)
	}
	if taken, err := d.takeRestored(time.Now()); !taken || err != nil {
		t.Errorf("taken over: %v, %v", taken, err)
	}
	prepared(false)
	if data, err := d.own(); err != nil || data == nil || data.Token != r.Token {
		t.Errorf("after it: %+v, %v", data, err)
	}
}
