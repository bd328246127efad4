package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Process is a program under test. Its methods are for one goroutine.
type Process struct {
	Name  string
	Start time.Time // of the present run
	Log   string    // file that every run's output is appended to

	path string
	args []string
	env  []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the present run has ended
}

// NewProcess describes a program and starts nothing. Its output goes to a file
// of its name in dir.
func NewProcess(dir, name, path string, env []string, args ...string) *Process {
	return &Process{Name: name, Log: filepath.Join(dir, name+".log"), path: path, args: args, env: env}
}

// Run starts the program. It dies with the harness, whatever becomes of that.
func (p *Process) Run() error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd, p.Start, p.done = cmd, time.Now(), make(chan struct{})
	go func(done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(p.done)
	return nil
}

// Running reports whether the present run has not ended.
func (p *Process) Running() bool {
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

// Kill ends the program at once, as a power failure would, and returns when it
// is gone.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL, 5*time.Second) }

// Stop asks the program to end and returns when it has, or after timeout.
func (p *Process) Stop(timeout time.Duration) error { return p.end(syscall.SIGTERM, timeout) }

func (p *Process) end(sig syscall.Signal, timeout time.Duration) error {
	if !p.Running() {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("%s still runs %v after %v", p.Name, timeout, sig)
	}
}

// ExitCode returns how the last run ended; -1 if by a signal or not yet.
func (p *Process) ExitCode() int {
	if p.cmd == nil || p.cmd.ProcessState == nil {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// Memory returns the resident memory of the present run, in bytes.
func (p *Process) Memory() (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(data), &size, &resident); err != nil {
		return 0, err
	}
	return resident * int64(os.Getpagesize()), nil
}

// Tail returns the end of the program's output, for the words of a failure.
func (p *Process) Tail() string {
	data, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-4000):])
}

// FreePorts returns n ports of 127.0.0.1 that nothing listens on now.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all at once, so that they differ
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
