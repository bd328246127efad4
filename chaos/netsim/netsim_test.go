package netsim_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/netsim"
)

const latency = 10 * time.Millisecond

// pair returns a network in a bubble with a connection from a to b.
func pair(t *testing.T) (n *netsim.Network, from, to net.Conn) {
	t.Helper()
	n = netsim.New(latency)
	l, err := n.Listen("b:1")
	fatal.If(t, err)
	began := time.Now()
	from, err = n.Dialer("a")(t.Context(), "b:1")
	fatal.If(t, err)
	if took := time.Since(began); took != 2*latency {
		t.Errorf("a dial took %v", took)
	}
	to, err = l.Accept()
	fatal.If(t, err)
	return n, from, to
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := c.Write([]byte(s)); err != nil {
		t.Error(err)
	}
}

// read reads what has arrived, and tells when and with what error.
func read(c net.Conn) (string, time.Duration, error) {
	began, b := time.Now(), make([]byte, 100)
	n, err := c.Read(b)
	return string(b[:n]), time.Since(began), err
}

func TestBytesTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, from, to := pair(t)
		write(t, from, "one")
		write(t, from, "two")
		if got, took, err := read(to); got != "one" || took != latency || err != nil {
			t.Errorf("got %q after %v, %v", got, took, err)
		}
		if got, took, err := read(to); got != "two" || took != 0 || err != nil {
			t.Errorf("got %q after %v, %v", got, took, err)
		}
		write(t, to, "back")
		_ = to.Close()
		if got, _, err := read(from); got != "back" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		if _, _, err := read(from); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
		if _, _, err := read(to); !errors.Is(err, net.ErrClosed) {
			t.Errorf("own end, closed: %v", err)
		}
		_ = from.SetReadDeadline(time.Now().Add(-time.Second))
		if _, _, err := read(from); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after the deadline: %v", err)
		}
	})
}

func TestStallIsOneWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, from, to := pair(t)
		n.Stall("b", "a")
		write(t, from, "asked")
		if got, _, err := read(to); got != "asked" || err != nil {
			t.Errorf("the way there: got %q, %v", got, err)
		}
		write(t, to, "answer")
		_ = from.SetReadDeadline(time.Now().Add(time.Second))
		if got, took, err := read(from); got != "" || took != time.Second || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the way back: got %q after %v, %v", got, took, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := n.Dialer("a")(ctx, "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a dial into a stall: %v", err)
		}
		_ = from.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Second, func() { n.Flow("b", "a") })
		if got, took, err := read(from); got != "answer" || took != time.Second || err != nil {
			t.Errorf("after the stall: got %q after %v, %v", got, took, err)
		}
	})
}

func TestBreakAndKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, from, to := pair(t)
		write(t, from, "lost")
		time.AfterFunc(latency/2, func() { n.Break("b", "a") })
		for _, c := range []net.Conn{to, from} {
			if got, _, err := read(c); got != "" || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("got %q, %v", got, err)
			}
			if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("write: %v", err)
			}
		}
		dial := n.Dialer("a")
		if c, err := dial(t.Context(), "b:1"); err != nil {
			t.Errorf("dial after a break: %v", err)
		} else {
			n.Kill("a")
			if _, _, err := read(c); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read of the dead: %v", err)
			}
		}
		if _, err := dial(t.Context(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial of the dead: %v", err)
		}
		if _, err := n.Dialer("c")(t.Context(), "b:2"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial where nobody listens: %v", err)
		}
	})
}
