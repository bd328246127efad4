package respserver_test

import (
	"log/slog"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/server/respserver"
)

// TestAcceptedOptions: connections that a loop accepts have the options that package net gives them.
func TestAcceptedOptions(t *testing.T) {
	got := make(chan [3]int, 1)
	respserver.OnAccept(t, func(fd int) {
		noDelay, _ := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY)
		keepAlive, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		idle, _ := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		got <- [3]int{noDelay, keepAlive, idle}
	})
	newFixture(t).serve(nil).dial()
	if options := <-got; options != [3]int{1, 1, 15} {
		t.Errorf("no delay, keep-alive and its seconds are %v", options)
	}
}

// lines gets what is logged.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// TestNoDescriptorIsLeft: a connection for which no descriptor is left waits until there is one. Meanwhile it is tried
// less and less often, and others are answered.
func TestNoDescriptorIsLeft(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one loop
	log := make(lines, 100)
	w := newFixture(t, func(c *respserver.Config) {
		c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}).serve(nil)
	other := w.dial()
	other.ask("PING")
	var was syscall.Rlimit
	fatal.If(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	restore := func() { fatal.If(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)) }
	defer restore()
	var held []int
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { // It is open, and not connected yet.
			fatal.If(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(fd) + 1, Max: was.Max}))
			for free, err := syscall.Dup(int(fd)); err == nil; free, err = syscall.Dup(int(fd)) {
				held = append(held, free)
			}
		})
	}}
	nc, err := d.Dial("tcp", w.addr)
	fatal.If(t, err)
	for i, want := range []string{"pause=5ms", "pause=10ms", "pause=20ms"} { // It is a warning once.
		line := <-log
		if !strings.Contains(line, "accept of a RESP connection failed") || !strings.Contains(line, want) || strings.Contains(line, "WARN") != (i == 0) {
			t.Errorf("logged %s, want %s", line, want)
		}
		other.ask("PING")
	}
	for _, fd := range held {
		fatal.If(t, syscall.Close(fd))
	}
	restore()
	if got := newClient(t, nc).ask("PING"); got != "+PONG" {
		t.Error(got)
	}
}
