package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
)

// ending is a test that ends, and may be said to have failed.
type ending struct {
	testing.TB
	cleanups []func()
	failed   bool
	said     string
}

func (e *ending) Helper()                   {}
func (e *ending) Cleanup(f func())          { e.cleanups = append(e.cleanups, f) }
func (e *ending) Failed() bool              { return e.failed }
func (e *ending) Logf(f string, a ...any)   { e.said += fmt.Sprintf(f, a...) }
func (e *ending) Fatalf(f string, a ...any) { e.Logf(f, a...); panic(e) }

// A process ends with its test, with all that is left of its group, and a failure shows what it printed.
func TestRun(t *testing.T) {
	e := &ending{TB: t, failed: true}
	cmd := exec.Command("sh", "-c", `trap 'echo told >&2; exit 3' TERM; sleep 1000 & echo "left $!"; while :; do sleep 0.01; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Millisecond
	p := Run(e, cmd)
	left := p.Prints(t, `left (\d+)`)[1]
	fatal.If(t, p.Signal(syscall.SIGSTOP)) // A paused process stops, too.
	e.cleanups[0]()
	if p.Running() || p.Code(t) != 3 || !strings.HasSuffix(e.said, "\nleft "+left+"\ntold\n") {
		t.Errorf("running %v, %v, said %q", p.Running(), cmd.ProcessState, e.said)
	}
	wait.Until(t, "what it left behind ends", func() bool {
		stat, err := os.ReadFile("/proc/" + left + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
	e.failed, e.said = false, ""
	if e.cleanups[0](); e.said != "" {
		t.Errorf("a test that passed says %q", e.said)
	}
}

// A process without a group of its own ends with its test, too, and Kill returns once it has ended.
func TestAlone(t *testing.T) {
	e := &ending{TB: t}
	p := Run(e, exec.Command("sleep", "1000"))
	if e.cleanups[0](); p.Running() {
		t.Error("it outlives its test")
	}
	p = Run(t, exec.Command("sleep", "1000"))
	if p.Kill(); p.Running() {
		t.Error("it runs after Kill")
	}
}

// One that does not stop is killed, and one that ended comes to nothing more.
func TestEnd(t *testing.T) {
	p := Run(t, exec.Command("sh", "-c", `trap '' TERM; echo up; while :; do sleep 0.01; done`))
	p.Prints(t, "up")
	if err := p.Stop(100 * time.Millisecond); !errors.Is(err, ErrKilled) || p.Code(t) != -1 {
		t.Errorf("%v, %v", err, p.Cmd.ProcessState)
	}
	e := &ending{TB: t}
	defer func() {
		if recover() != any(e) || !strings.Contains(e.said, "sh ended before this: ") {
			t.Errorf("it said %q", e.said)
		}
	}()
	p.Prints(e, "more")
}
