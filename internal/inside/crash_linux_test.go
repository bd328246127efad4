package inside

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
)

// change is a call of the system that changes a file.
type change struct {
	call string // write, sync, rename, or another
	path string // what it changes
	to   string // the new name of a rename
}

// changing are the calls that change files, as Go and bbolt make them.
var changing = map[uint64]string{
	unix.SYS_OPENAT: "create", unix.SYS_MKDIRAT: "make", unix.SYS_UNLINKAT: "remove", unix.SYS_RENAMEAT: "rename",
	unix.SYS_RENAMEAT2: "rename", unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "write", unix.SYS_FTRUNCATE: "truncate",
	unix.SYS_FALLOCATE: "allocate", unix.SYS_FSYNC: "sync", unix.SYS_FDATASYNC: "sync", unix.SYS_FCHOWNAT: "own",
	unix.SYS_FCHMODAT: "mode", unix.SYS_FCHMOD: "mode", unix.SYS_COPY_FILE_RANGE: "write", unix.SYS_SENDFILE: "write",
}

// crash is the variable that says what a child does with a directory, which a test kills at some call.
const crash = "ALLOCATOR_TEST_CRASHES"

// TestCrashChild is the child.
func TestCrashChild(t *testing.T) {
	what, dir, _ := strings.Cut(os.Getenv(crash), "=")
	if what == "" {
		t.Skip("not run: only TestCrashes runs it")
	}
	fatal.If(t, crashes[what].do(Dir(dir)))
}

// traced runs a child, and kills it before its n-th call that changes a file below dir, counted from 0. It returns
// those calls, and whether it was killed.
//
// Source: Linux, ptrace(2), PTRACE_GET_SYSCALL_INFO.
func traced(t *testing.T, what string, dir Dir, n int) (calls []change, killed bool) {
	t.Helper()
	runtime.LockOSThread() // The thread that started a child is the one that may trace it.
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$")
	cmd.Env = append(os.Environ(), crash+"="+what+"="+string(dir), "GOMAXPROCS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true}
	output, err := os.CreateTemp(t.TempDir(), "")
	fatal.If(t, err)
	defer func() { _ = output.Close() }()
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Skipf("not run: a child cannot be traced: %v", err)
	}
	main := cmd.Process.Pid
	defer func() { _ = syscall.Kill(main, syscall.SIGKILL); _ = cmd.Process.Release() }()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(main, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("the child did not stop at its start: %v, %#x", err, status)
	}
	if err := syscall.PtraceSetOptions(main, syscall.PTRACE_O_TRACESYSGOOD|syscall.PTRACE_O_TRACECLONE|
		unix.PTRACE_O_EXITKILL); err != nil {
		t.Fatal(err)
	}
	for pid, sig := main, 0; ; {
		if err := syscall.PtraceSyscall(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
		if pid, err = syscall.Wait4(-main, &status, syscall.WALL, nil); err != nil {
			t.Fatal(err)
		}
		sig = 0
		switch {
		case pid == main && status.Exited():
			if status.ExitStatus() != 0 {
				text, _ := os.ReadFile(output.Name())
				t.Fatalf("the child failed: %s", text)
			}
			return calls, false
		case pid == main && status.Signaled():
			return calls, true
		case !status.Stopped():
			continue
		case status.StopSignal() == syscall.SIGTRAP|0x80:
			c, ok := changeOf(main, pid, string(dir))
			if !ok {
				continue
			}
			if len(calls) == n {
				_ = syscall.Kill(main, syscall.SIGKILL)
				continue
			}
			calls = append(calls, c)
		case status.StopSignal() == syscall.SIGTRAP: // a new thread
		case status.StopSignal() == syscall.SIGSTOP: // A new thread begins with it.
		default:
			sig = int(status.StopSignal())
		}
	}
}

// changeOf returns the call that a thread of a process begins, if it changes a file below dir.
func changeOf(process, thread int, dir string) (c change, ok bool) {
	var info struct {
		op   uint8
		_    [3]uint8
		arch uint32
		ip   uint64
		sp   uint64
		nr   uint64
		args [6]uint64
		_    [64]byte
	}
	const getSyscallInfo, entry = 0x420e, 1
	_, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, getSyscallInfo, uintptr(thread), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	name, changes := changing[info.nr]
	if errno != 0 || info.op != entry || !changes {
		return change{}, false
	}
	text := func(at uint64) string {
		var b [4096]byte
		n, _ := syscall.PtracePeekData(thread, uintptr(at), b[:])
		s, _, _ := strings.Cut(string(b[:n]), "\x00")
		return s
	}
	c = change{call: name}
	switch info.nr {
	case unix.SYS_OPENAT:
		if info.args[2]&unix.O_CREAT == 0 {
			return change{}, false
		}
		c.path = text(info.args[1])
	case unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_FCHOWNAT, unix.SYS_FCHMODAT:
		c.path = text(info.args[1])
		if !strings.HasPrefix(c.path, "/") { // RemoveAll names files below a directory that is open.
			at, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", process, info.args[0]))
			c.path = filepath.Join(at, c.path)
		}
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		c.path, c.to = text(info.args[1]), text(info.args[3])
	default:
		c.path, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", process, info.args[0]))
	}
	return c, strings.HasPrefix(c.path, dir)
}

// crashes are what a crash may interrupt.
var crashes = map[string]struct {
	begin func(t *testing.T, d Dir)
	do    func(d Dir) error
}{
	"restore":         {func(*testing.T, Dir) {}, restoreAgain(0)},
	"another restore": {func(t *testing.T, d Dir) { must(t, restoreAgain(0)(d)) }, restoreAgain(1)},
	"take over":       {func(t *testing.T, d Dir) { must(t, restoreAgain(1)(d)) }, takeOver(0)},
}

func must(t *testing.T, err error) {
	t.Helper()
	fatal.If(t, err)
}

func restoreAgain(again uint) func(Dir) error {
	return func(d Dir) error {
		r, err := d.PlanRestore(filepath.Join(filepath.Dir(string(d)), "snapshot"), "a", "http://a:2380", "a=http://a:2380", again)
		if err != nil {
			return err
		}
		return d.Restore(r, etcdserver.Restore)
	}
}

// takeOver is a take-over at some second.
func takeOver(second int) func(Dir) error {
	return func(d Dir) error {
		_, err := d.takeRestored(time.Date(2026, 11, 20, 12, 0, second, 0, time.UTC))
		return err
	}
}

// TestCrashes kills a process at each call of the system with which it prepares a restore or takes one over. Then
// the node takes over a restore as a whole, or has its data as they were; and the restore can be done again.
//
// Of a loss of power it holds what fsync promises: what is renamed was written to the disk before, and its name after
// that.
func TestCrashes(t *testing.T) {
	file, kills := snapshotFile(t), tier.Of(t, "kills of each", 4, 25, 1000)
	for what, c := range crashes {
		t.Run(what, func(t *testing.T) {
			begin := func() Dir {
				parent := t.TempDir()
				must(t, os.Link(file, filepath.Join(parent, "snapshot")))
				d := Dir(filepath.Join(parent, "inside"))
				must(t, errors.Join(os.MkdirAll(d.Data(), 0o700),
					os.WriteFile(filepath.Join(d.Data(), "file"), []byte("old"), 0o600),
					meet.WriteJSON(d.marker(), member.Data{Host: "a", Peer: "http://a:2380", Version: "3.7.0", Token: "old"})))
				c.begin(t, d)
				return d
			}
			whole := begin()
			calls, killed := traced(t, what, whole, -1)
			if killed || len(calls) < 3 {
				t.Fatalf("killed %v after %v", killed, calls)
			}
			synced(t, whole, calls)
			t.Logf("%d calls", len(calls))
			every := max(len(calls)/kills, 1)
			for n := len(calls) - 1; n >= 0; n -= every {
				d := begin()
				made, killed := traced(t, what, d, n)
				// The database is written each 100 ms, too, so that a slow process makes more calls.
				if !killed && (len(made) > n || n < len(calls)/2) {
					t.Errorf("not killed before call %d of %d, %d were made", n, len(calls), len(made))
				}
				for second := 1; second <= 2; second++ {
					if second == 2 {
						must(t, c.do(d))
					}
					must(t, takeOver(second)(d))
					if err := sound(d); err != nil {
						t.Errorf("killed %v after %+v, taken over %d times: %v", killed, made, second, err)
					}
				}
			}
		})
	}
}

// sound says what is wrong with the data of a member that nobody prepares a restore for.
func sound(d Dir) error {
	data, err := d.read()
	if err != nil || data == nil {
		return fmt.Errorf("the marker: %+v, %w", data, err)
	}
	old, err := os.ReadFile(filepath.Join(d.Data(), "file"))
	if data.Token == "old" {
		if string(old) != "old" {
			return fmt.Errorf("the old marker, with data %q, %v", old, err)
		}
		return nil
	}
	kept, _ := filepath.Glob(d.Data() + "-before-*/file")
	if has, err := meet.HasLog(d.Data()); !has || err != nil || len(kept) != 1 {
		return fmt.Errorf("restored, with a log %v, %v, and %d copies of the old data", has, err, len(kept))
	}
	info, err := os.Stat(d.Database())
	snap, _ := filepath.Glob(filepath.Join(d.Data(), "member", "snap", "*.snap"))
	if err != nil || info.Size() == 0 || len(snap) == 0 {
		return fmt.Errorf("restored, with database %v and snapshots %v: %w", info, snap, errors.Join(err, fs.ErrNotExist))
	}
	return nil
}

// synced checks that what was renamed had reached the disk, and that its name did before the process ended. The
// marker of a restore says that its data is beside it, or in place: it is removed before the data, and renamed after.
func synced(t *testing.T, d Dir, calls []change) {
	t.Helper()
	dirty := map[string]bool{} // written since its last fsync
	named := map[string]bool{} // directories with names that have not reached the disk
	for n, c := range calls {
		switch c.call {
		case "write", "truncate":
			dirty[c.path] = true
		case "remove":
			delete(dirty, c.path)
			if c.path == d.restoredMarker() {
				named[string(d)] = true
			} else if named[string(d)] && strings.HasPrefix(c.path, d.restored()) {
				t.Errorf("call %d removes %s while its marker is on the disk", n, c.path)
			}
		case "sync":
			delete(dirty, c.path)
			delete(named, c.path)
		case "rename":
			// What is below restored counts once a name outside says that it is there. etcd writes its database each
			// 100 ms meanwhile.
			within := strings.HasPrefix(c.path, d.restored()+"/")
			for path := range dirty {
				if path == c.path || strings.HasPrefix(path, c.path+"/") || !within && strings.HasPrefix(path, d.restored()+"/") {
					t.Errorf("call %d renames %s while %s has not reached the disk", n, c.path, path)
				}
			}
			if named[string(d)] && c.path == d.restoredMarker() {
				t.Errorf("call %d renames the marker while its data is not in place on the disk", n)
			}
			named[filepath.Dir(c.to)] = true
		}
	}
	for path := range named {
		t.Errorf("a name in %s has not reached the disk at the end", path)
	}
}
