package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stopWithin is how long a process may take to stop before it is killed.
const stopWithin = 20 * time.Second

// A process was started by this program. Its output is in a file.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
	err  error         // set before done is closed
}

// processes starts processes and stops them, the last one first. One goroutine may
// use it at a time, except for ended.
type processes struct {
	dir  string // directory of the logs
	list []*process
}

// start runs a program in the background.
func (ps *processes) start(name, program string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(ps.dir, name+".log"), done: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// On Ctrl-C we stop them in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	ps.list = append(ps.list, p)
	return p, nil
}

// ended returns an error if a process has ended before stop.
func (ps *processes) ended() error {
	for _, p := range ps.list {
		select {
		case <-p.done:
			return permanent{fmt.Errorf("%s has ended: %v; the end of %s:\n%s", p.name, p.err, p.log, tail(p.log, 15))}
		default:
		}
	}
	return nil
}

// stop ends one process and waits for it.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopWithin):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

func (ps *processes) stop() {
	for i := len(ps.list) - 1; i >= 0; i-- {
		ps.list[i].stop()
	}
	ps.list = nil
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return "    " + strings.Join(all[max(0, len(all)-lines):], "\n    ")
}

// output runs a program to its end and returns all it wrote.
func output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), err
}

// permanent is an error after which until does not retry.
type permanent struct{ error }

// until calls ask until it returns nil or within has passed, and then returns its
// last error.
func until(ctx context.Context, within time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if errors.As(err, new(permanent)) {
			return err
		}
		// The error of a context that ended says less than the one before.
		if last == nil || !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", within, last)
		case <-tick.C:
		}
	}
}
