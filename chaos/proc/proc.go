// Package proc starts programs for tests and for the rest of the proof, keeps what they print, and ends
// them: no process outlives the test that ran it. A program that is run to its end needs os/exec alone.
// Package rig starts its own, which it also pauses, restarts, and puts into networks and control groups.
package proc

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/wait"
)

// A Process is a program that was started. All methods are safe for concurrent use.
type Process struct {
	Cmd      *exec.Cmd
	Out, Err output.Text   // what it printed, where Cmd had no Stdout or no Stderr
	Ended    chan struct{} // closed when it has ended

	err   error // set before Ended is closed
	group sync.Once
}

// Start starts cmd.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{Cmd: cmd, Ended: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = &p.Out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.Err
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = 5 * time.Second // A child that the program left behind holds its output open.
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	go func() {
		defer close(p.Ended)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// stopWithin is how long a process may take to stop at the end of its test.
const stopWithin = 20 * time.Second

// Run starts cmd. When the test ends, the process is stopped, what is left of its group is killed if the
// process has one of its own (Setpgid), and the end of what it printed is shown if the test failed.
func Run(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p, err := Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Stop(stopWithin)
		if cmd.SysProcAttr != nil && cmd.SysProcAttr.Setpgid {
			p.KillGroup()
		}
		if text := p.Log(); t.Failed() {
			t.Logf("%s: %v\n%s", cmd, cmd.ProcessState, text[max(0, len(text)-10_000):])
		}
	})
	return p
}

// Log returns what the process printed to standard output, and then what it printed to standard error.
func (p *Process) Log() string { return p.Out.String() + p.Err.String() }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.Ended:
		return false
	default:
		return true
	}
}

// Signal sends the process a signal. The error is os.ErrProcessDone if it has ended.
func (p *Process) Signal(s syscall.Signal) error { return p.Cmd.Process.Signal(s) }

// Wait waits until the process has ended. It returns what Wait of exec.Cmd did.
func (p *Process) Wait() error {
	<-p.Ended
	return p.err
}

// ErrKilled is returned for a process that did not end in time.
var ErrKilled = errors.New("it did not end after SIGTERM, and was killed")

// Stop sends SIGTERM, to a paused process too, waits until the process has ended, and kills it if that
// takes longer than within. It returns what Wait does, or ErrKilled.
func (p *Process) Stop(within time.Duration) error {
	_, _ = p.Signal(syscall.SIGTERM), p.Signal(syscall.SIGCONT)
	select {
	case <-p.Ended:
		return p.err
	case <-time.After(within):
		p.Kill()
		return fmt.Errorf("%s: %w after %v", filepath.Base(p.Cmd.Path), ErrKilled, within)
	}
}

// Kill ends the process without notice.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.Ended
}

// KillGroup ends a process that has a group of its own without notice, and all that is left of the group. A
// second call kills nothing: another group may have the number by then.
func (p *Process) KillGroup() {
	p.group.Do(func() { _ = syscall.Kill(-p.Cmd.Process.Pid, syscall.SIGKILL) })
	<-p.Ended
}

// Code waits until the process has ended, and returns its exit code; -1 if a signal ended it.
func (p *Process) Code(t testing.TB) int {
	t.Helper()
	wait.Until(t, p.Cmd.String()+" ends", func() bool { return !p.Running() })
	return p.Cmd.ProcessState.ExitCode()
}

// Until waits until f returns nil, and fails the test if the process ends before that.
func (p *Process) Until(t testing.TB, what string, f func() error) {
	t.Helper()
	wait.NoError(t, what, func() error {
		running := p.Running()
		err := f()
		if err != nil && !running {
			t.Fatalf("%s ended before this: %s: %v", filepath.Base(p.Cmd.Path), what, err)
		}
		return err
	})
}

// Prints waits until what the process printed matches a regular expression, and returns the first match
// and its groups.
func (p *Process) Prints(t testing.TB, pattern string) (match []string) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	p.Until(t, fmt.Sprintf("%s prints %q", filepath.Base(p.Cmd.Path), pattern), func() error {
		if match = re.FindStringSubmatch(p.Log()); match == nil {
			return fmt.Errorf("it printed %.300q", p.Log())
		}
		return nil
	})
	return match
}

// Answers waits until a URL, which the process serves, answers with code.
func (p *Process) Answers(t testing.TB, code int, url string) {
	t.Helper()
	p.Until(t, fmt.Sprintf("%s answers %d", url, code), func() error {
		res, err := http.Get(url)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != code {
			return fmt.Errorf("%s: %s", url, res.Status)
		}
		return nil
	})
}
