package maelstromtest

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/maelstrom"
)

// bubble are the clocks of a testing/synctest bubble, whose time begins in 2000:
// before the epoch of IDs.
type bubble struct{ origin time.Time }

const wallAhead = 26 * 365 * 24 * time.Hour

func (b bubble) Read() clock.Readings {
	now := time.Now()
	elapsed := now.Sub(b.origin)
	return clock.Readings{
		Wall: now.Add(wallAhead).UnixNano(), Mono: clock.Mono(elapsed), Raw: int64(elapsed), Boot: int64(elapsed),
	}
}

func (bubble) Kernel() clock.Kernel { return clock.Kernel{} }

// InProcess returns what starts nodes in this process, on pipes, in the time of
// the testing/synctest bubble that it is called in. They cannot be paused; killed,
// they find their streams ended.
func InProcess(window time.Duration) func(string) (*Process, error) {
	return func(string) (*Process, error) {
		inR, inW := io.Pipe()
		outR, outW := io.Pipe()
		ctx, cancel := context.WithCancel(context.Background())
		log := &tail{}
		ended := make(chan error, 1)
		go func() {
			err := maelstrom.Run(ctx, maelstrom.Config{
				Window: window, Version: "test", Logger: slog.New(slog.NewTextHandler(log, nil)),
				Clock: clock.NewSystemOn(clock.AnchorConfig{}, bubble{time.Now()}),
			}, inR, outW)
			_ = inR.Close()
			_ = outW.Close()
			ended <- err
		}()
		var once sync.Once
		var result error
		wait := func() error { once.Do(func() { result = <-ended }); return result }
		return &Process{
			In: inW, Out: outR, Log: log.String,
			Kill: func() { _ = inW.Close(); _ = outR.Close(); cancel(); _ = wait() },
			Stop: func() error { cancel(); return wait() },
		}, nil
	}
}

// Command returns what starts nodes as processes of that program.
func Command(program string, args ...string) func(string) (*Process, error) {
	return func(string) (*Process, error) {
		cmd := exec.Command(program, args...)
		log := &tail{}
		cmd.Stderr = log
		in, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		var once sync.Once
		var result error
		wait := func() error { once.Do(func() { result = cmd.Wait() }); return result }
		send := func(s syscall.Signal) { _ = cmd.Process.Signal(s) }
		return &Process{
			In: in, Out: out, Log: log.String,
			Kill:   func() { send(syscall.SIGKILL); _ = wait() },
			Pause:  func() { send(syscall.SIGSTOP) },
			Resume: func() { send(syscall.SIGCONT) },
			Stop:   func() error { send(syscall.SIGTERM); return wait() },
		}, nil
	}
}

// tail keeps the end of what is written to it. It is safe for concurrent use.
type tail struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

const tailBytes = 16 << 10

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(b)
	if over := l.buf.Len() - tailBytes; over > 0 {
		l.buf.Next(over)
	}
	return len(b), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
