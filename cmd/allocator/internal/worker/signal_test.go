//go:build linux

package worker

import (
	"bytes"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/worker"
)

// TestSignal: that a process cannot be stopped is said once, and a group that has ended is not
// signaled again, since other processes may have its number.
func TestSignal(t *testing.T) {
	child := exec.Command("sleep", "60")
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	fatal.If(t, child.Start())
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	pid := child.Process.Pid
	var calls []string
	var log bytes.Buffer
	fails := map[int]error{pid: syscall.EPERM}
	r := runner{
		worker: new(worker.Worker),
		child:  pid,
		log:    slog.New(slog.NewTextHandler(&log, nil)),
		kill: func(pid int, s syscall.Signal) error {
			calls = append(calls, fmt.Sprint(pid, " ", int(s)))
			return fails[pid]
		},
	}
	r.signal(syscall.SIGTERM)
	r.signal(syscall.SIGTERM)
	once := fmt.Sprintf("%d 15 %d 0", -pid, pid)
	if got := strings.Join(calls, " "); got != once+" "+once {
		t.Errorf("sent %s", got)
	}
	if n := strings.Count(log.String(), "runs as another user"); n != 1 {
		t.Errorf("said %d times:\n%s", n, &log)
	}

	calls, fails[-pid] = nil, syscall.ESRCH
	r.signal(syscall.SIGKILL)
	r.signal(syscall.SIGKILL)
	if got, want := strings.Join(calls, " "), fmt.Sprintf("%d 9 %d 9 %[2]d 9", -pid, pid); got != want {
		t.Errorf("sent %s, want %s", got, want)
	}
}
