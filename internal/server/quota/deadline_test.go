package quota

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestDeadlinesOfASocket: with calls, deadlines and data at random times a connection does what one does that sets all
// deadlines at once.
func TestDeadlinesOfASocket(t *testing.T) {
	for seed := range uint64(200) {
		want := schedule(t, seed, func(nc net.Conn) net.Conn { return nc })
		got := schedule(t, seed, func(nc net.Conn) net.Conn {
			c := &Conn{Conn: nc, source: &source{}, done: make(chan struct{})}
			return c
		})
		if got != want {
			t.Fatalf("seed %d:\n%s\nwith all deadlines set at once:\n%s", seed, got, want)
		}
	}
}

// schedule reads from and writes to one end of a pipe, and returns what each call returned, and when.
func schedule(t *testing.T, seed uint64, wrap func(net.Conn) net.Conn) (said string) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c, began := wrap(near), time.Now()
		rnd := rand.New(rand.NewPCG(seed, 1))
		// The far end sends and reads a byte at times of its own.
		ended := make(chan struct{})
		go func(rnd *rand.Rand) {
			defer close(ended)
			for far.SetDeadline(time.Time{}) == nil {
				time.Sleep(time.Duration(rnd.IntN(4000))*time.Millisecond + time.Microsecond)
				if rnd.IntN(2) == 0 {
					_ = far.SetDeadline(time.Now().Add(time.Millisecond + 2*time.Microsecond))
					_, _ = far.Write([]byte{1})
				} else {
					_ = far.SetDeadline(time.Now().Add(time.Millisecond + 2*time.Microsecond))
					_, _ = far.Read(make([]byte, 3))
				}
			}
		}(rand.New(rand.NewPCG(seed, 2)))
		at := func() time.Time {
			switch n := rnd.IntN(10); n {
			case 0:
				return time.Time{}
			case 1:
				return time.Unix(1, 0)
			default:
				return time.Now().Add(time.Duration(n*n) * 100 * time.Millisecond)
			}
		}
		var b bytes.Buffer
		for range 60 {
			// Deadlines that another goroutine sets during the call.
			during, read := rnd.IntN(3) == 0, rnd.IntN(2) == 0
			set := c.SetWriteDeadline
			if read {
				set = c.SetReadDeadline
			}
			for range rnd.IntN(3) {
				_ = set(at())
			}
			last := time.Now().Add(10 * time.Second) // or a call might never end
			if !during {
				last = at()
				if last.IsZero() {
					last = time.Now().Add(10 * time.Second)
				}
				_ = set(last)
			} else {
				time.AfterFunc(time.Duration(rnd.IntN(900))*time.Millisecond+3*time.Microsecond, func() { _ = set(last) })
			}
			var n int
			var err error
			if read {
				n, err = c.Read(make([]byte, 1))
			} else {
				n, err = c.Write(make([]byte, 1+rnd.IntN(4)))
			}
			fmt.Fprintf(&b, "%v: read %v: %d, late %v\n", time.Since(began), read, n, errors.Is(err, os.ErrDeadlineExceeded))
			time.Sleep(time.Second) // until what was to happen during the call has
		}
		_, _ = near.Close(), far.Close()
		<-ended
		said = b.String()
	})
	return said
}

// timed is a socket that never waits, and counts how often its deadlines are set.
type timed struct {
	net.Conn
	set int
}

func (c *timed) Read(b []byte) (int, error)       { return len(b), nil }
func (c *timed) Write(b []byte) (int, error)      { return len(b), nil }
func (c *timed) SetReadDeadline(time.Time) error  { c.set++; return nil }
func (c *timed) SetWriteDeadline(time.Time) error { c.set++; return nil }

// TestFewTimers: package net/http sets these deadlines for a request, and hardly any needs a timer.
func TestFewTimers(t *testing.T) {
	socket, now := &timed{}, time.Now()
	c := &Conn{Conn: socket, source: &source{}, done: make(chan struct{})}
	for range 300 {
		now = now.Add(time.Millisecond)
		_ = c.SetReadDeadline(now.Add(5 * time.Second)) // for the header
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetReadDeadline(now.Add(10 * time.Second)) // for the body
		_ = c.SetWriteDeadline(now.Add(15 * time.Second))
		_ = c.SetReadDeadline(time.Time{}) // It reads on in another goroutine,
		_ = c.SetReadDeadline(time.Unix(1, 0))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) { // which the end of the call ends.
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Time{})
		_, _ = c.Write(make([]byte, 1))
		_ = c.SetReadDeadline(now.Add(time.Minute)) // for the next request
		_, _ = c.Read(make([]byte, 1))
	}
	if socket.set != 2 {
		t.Errorf("%d timers for 300 requests, want two", socket.set)
	}
}
