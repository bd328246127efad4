package clockhook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Start starts cmd, which must not have been started, and returns when the
// program is about to initialize its packages, with its clocks showing o. As
// after [exec.Cmd.Start], the caller has to call cmd.Wait.
//
// Start may be called on a locked thread, say one inside a network namespace; the
// process is then a child of that thread, and dies with it if cmd.SysProcAttr has
// a Pdeathsig.
//
// It returns ErrUnsupported if the program is none that can be hooked or if ptrace
// is forbidden; and what cmd.Start returned if that failed. No process is left then.
func Start(cmd *exec.Cmd, o Offsets) (*Hook, error) {
	target, err := targetOf(cmd.Path)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("clockhook", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%w: memfd_create: %w", ErrUnsupported, err)
	}
	shared := os.NewFile(uintptr(fd), "clockhook")
	defer shared.Close()
	h := &Hook{offsets: o, since: readClocks()}
	if h.page, err = mapPage(shared); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	h.page.write(o, Rates{}, h.since)
	if err := h.start(cmd, shared, target); err != nil {
		return nil, errors.Join(err, h.page.close())
	}
	return h, nil
}

// Supported returns ErrUnsupported with the reason if this machine lets no
// process be hooked. It starts this very program, and kills it before its first
// instruction.
func Supported() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(self)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: start under ptrace: %w", ErrUnsupported, err)
	}
	t := tracee{pid: cmd.Process.Pid}
	err = t.awaitExec()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return err
}

func mapPage(shared *os.File) (*page, error) {
	if err := shared.Truncate(pageWords * 8); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(shared.Fd()), 0, pageWords*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return &page{
		words: (*[pageWords]atomic.Int64)(unsafe.Pointer(unsafe.SliceData(mem))),
		unmap: func() error { return unix.Munmap(mem) },
	}, nil
}

// start starts cmd, puts the stubs into it, and lets it run.
func (h *Hook) start(cmd *exec.Cmd, shared *os.File, at target) (err error) {
	// ptrace belongs to the thread that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	files, attr := cmd.ExtraFiles, cmd.SysProcAttr
	defer func() { cmd.ExtraFiles, cmd.SysProcAttr = files, attr }()
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if attr != nil {
		*cmd.SysProcAttr = *attr
	}
	cmd.SysProcAttr.Ptrace = true
	inherited := 3 + len(files)
	cmd.ExtraFiles = append(files[:len(files):len(files)], shared)
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) {
			return fmt.Errorf("%w: start under ptrace: %w", ErrUnsupported, err)
		}
		return err
	}
	h.pid = cmd.Process.Pid
	t := tracee{pid: h.pid}
	if err := t.inject(at, inherited); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("%w: %s: %w", ErrUnsupported, filepath.Base(cmd.Path), err)
	}
	return nil
}

func readClocks() (r readings) {
	for _, c := range []struct {
		id  int32
		out *int64
	}{{unix.CLOCK_REALTIME, &r.wall}, {unix.CLOCK_MONOTONIC, &r.mono}, {unix.CLOCK_MONOTONIC_RAW, &r.raw},
		{unix.CLOCK_BOOTTIME, &r.boot}} {
		var ts unix.Timespec
		// Raw, so that no scheduler of ours takes the processor away meanwhile: the
		// hooked process may be waiting for us. It fails on no Linux that runs Go.
		_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, uintptr(c.id), uintptr(unsafe.Pointer(&ts)), 0)
		*c.out = ts.Nano()
	}
	return r
}

// stop stops a process and returns when all its threads stand.
func stop(ctx context.Context, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("clockhook: stop: %w", err)
	}
	for {
		stopped, err := allStopped(pid)
		if stopped && err == nil {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("clockhook: stop: %w", errors.Join(err, resume(pid)))
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// allStopped reports whether each thread of a process is stopped.
func allStopped(pid int) (bool, error) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return false, err
	}
	for _, task := range tasks {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, task.Name()))
		if err != nil {
			return false, err
		}
		// The name, in brackets, may hold anything; the state follows it.
		_, after, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
		switch after[:1] {
		case "T", "t":
		case "Z", "X":
			return false, syscall.ESRCH
		default:
			return false, nil
		}
	}
	return len(tasks) > 0, nil
}

func resume(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		return fmt.Errorf("clockhook: resume: %w", err)
	}
	return nil
}
