package rig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/flakelease/allocator/chaos/real/clockhook"
)

// Place is where a process runs.
type Place interface {
	// IP is the address that the others reach it at.
	IP() string
	// Do calls f on a thread inside the place; what f starts runs there.
	Do(f func() error) error
}

// Loopback is the machine itself.
type Loopback struct{}

// IP returns 127.0.0.1.
func (Loopback) IP() string { return "127.0.0.1" }

// Do calls f.
func (Loopback) Do(f func() error) error { return f() }

// Process is a program under test, started any number of times. It is safe for
// concurrent use.
type Process struct {
	Name   string
	Place  Place
	Path   string
	Args   []string
	Env    []string // besides the harness's own
	Dir    string   // directory of its logs: <name>.<run>.log
	Hooked bool     // started behind the clock hook

	mu     sync.Mutex // guards all below
	cmd    *exec.Cmd
	hook   *clockhook.Hook
	done   chan struct{} // closed when the present run has ended
	run    int           // runs begun so far
	paused bool
	began  time.Time
}

// ErrRunning: the process to be started already runs.
var ErrRunning = errors.New("rig: process already runs")

// maxLog bounds what one run may write to its log, in bytes.
const maxLog = 32 << 20

// Start begins a new run with more arguments. The process dies with the
// harness, however that ends.
func (p *Process) Start(more ...string) error { return p.StartAt(clockhook.Offsets{}, more...) }

// StartAt is Start with clocks that are off from the first reading on; they are
// as the machine's if the process is not hooked.
func (p *Process) StartAt(clocks clockhook.Offsets, more ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return fmt.Errorf("%w: %s", ErrRunning, p.Name)
	}
	log, err := os.OpenFile(p.log(p.run+1), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.Path, append(append([]string(nil), p.Args...), more...)...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own, or Ctrl-C at a terminal would end the cluster before the
	// harness has healed it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var hook *clockhook.Hook
	began := time.Now() // no answer of this run is earlier
	err = p.Place.Do(func() (err error) {
		if !p.Hooked {
			return cmd.Start()
		}
		hook, err = clockhook.Start(cmd, clocks)
		return err
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	done := make(chan struct{})
	p.cmd, p.hook, p.done, p.paused, p.began = cmd, hook, done, false, began
	p.run++
	go func() {
		_ = cmd.Wait()
		if hook != nil {
			_ = hook.Close()
		}
		close(done)
	}()
	return nil
}

func (p *Process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Running reports whether a run has begun and not ended.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running()
}

// Run returns the number of the latest run, from 1; 0: none has begun.
func (p *Process) Run() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// RunName names the latest run: "n1#2".
func (p *Process) RunName() string { return fmt.Sprintf("%s#%d", p.Name, p.Run()) }

// Hook returns what changes the clocks of the present run; nil if there is no
// run, or it is not hooked.
func (p *Process) Hook() *clockhook.Hook {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	return p.hook
}

// PID returns the process ID of the present run; 0 if there is none.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return 0
	}
	return p.cmd.Process.Pid
}

// Kill ends the present run at once, as a power failure would, and returns when
// it is gone.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL, most) }

// Terminate asks the program to end, and returns when it has or after timeout.
func (p *Process) Terminate(timeout time.Duration) error {
	if err := p.Resume(); err != nil {
		return err
	}
	return p.end(syscall.SIGTERM, timeout)
}

func (p *Process) end(sig syscall.Signal, timeout time.Duration) error {
	p.mu.Lock()
	if !p.running() {
		p.mu.Unlock()
		return nil
	}
	err, done := p.cmd.Process.Signal(sig), p.done
	p.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	select {
	case <-done:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("%s still runs %v after %v", p.Name, timeout, sig)
	}
}

// Pause stops the present run where it is.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP, true) }

// Resume continues it.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT, false) }

func (p *Process) signal(sig syscall.Signal, paused bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() || p.paused == paused {
		return nil
	}
	p.paused = paused
	return p.cmd.Process.Signal(sig)
}

// State returns the state code of the process in the kernel: R, S, T (stopped),
// Z; "" if it is gone.
func (p *Process) State() string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	state, _, _ := strings.Cut(rest, " ")
	return state
}

// Exit returns how the latest run ended: "signal: killed", "exit status 1"; "" if it
// has not.
func (p *Process) Exit() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.running() {
		return ""
	}
	return p.cmd.ProcessState.String()
}

func (p *Process) log(run int) string {
	return filepath.Join(p.Dir, fmt.Sprintf("%s.%d.log", p.Name, run))
}

// Output returns what a run has written, of a long one only the end.
func (p *Process) Output(run int) string {
	f, err := os.Open(p.log(run))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-maxLog), io.SeekStart)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// TrimLog bounds what the present run's log holds on disk.
func (p *Process) TrimLog() {
	name := p.log(p.Run())
	if info, err := os.Stat(name); err == nil && info.Size() > maxLog {
		_ = os.Truncate(name, 0) // the run appends, and so goes on at the start
	}
}
