//go:build unix

package inside

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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
