package respserver_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/server/respserver"
)

// endless is a client that sends the same requests again and again, as often as it
// is told to, and takes all answers.
type endless struct {
	requests string
	more     chan int // how often
	left     int
	taken    int // bytes of answers
	done     chan struct{}
	closed   chan struct{}
}

func (e *endless) Read(b []byte) (int, error) {
	for e.left == 0 {
		if e.taken > 0 {
			e.taken = 0
			e.done <- struct{}{}
		}
		select {
		case e.left = <-e.more:
		case <-e.closed:
			return 0, io.EOF
		}
	}
	e.left--
	return copy(b, e.requests), nil
}

func (e *endless) Write(b []byte) (int, error)      { e.taken += len(b); return len(b), nil }
func (e *endless) Close() error                     { return nil }
func (e *endless) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (e *endless) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (e *endless) SetDeadline(time.Time) error      { return nil }
func (e *endless) SetReadDeadline(time.Time) error  { return nil }
func (e *endless) SetWriteDeadline(time.Time) error { return nil }

// send has requests sent n times, and returns when they are answered.
func (e *endless) send(n int) {
	e.more <- n
	<-e.done
}

func newEndless(t testing.TB, requests string) *endless {
	e := &endless{requests: requests, more: make(chan int), done: make(chan struct{}), closed: make(chan struct{})}
	p := &pipe{conn: make(chan net.Conn, 1), ended: make(chan struct{})}
	p.conn <- e
	w := newFixture(t, func(c *respserver.Config) { c.IdleTimeout = time.Hour }).serve(p)
	t.Cleanup(func() { close(e.closed) }) // before the listener closes
	go func() {                           // the clock goes on, so that there is entropy
		for {
			select {
			case <-e.closed:
				return
			case <-time.After(time.Millisecond):
				w.clock.Advance(200 * time.Millisecond)
				w.node.Raise(w.clock.Now().Wall + 30_000)
			}
		}
	}()
	return e
}

var mixes = []struct{ name, requests string }{
	{"one", "*1\r\n$7\r\nID.NEXT\r\n"},
	{"16", strings.Repeat("*1\r\n$7\r\nID.NEXT\r\n", 16)},
	{"16 lower case", strings.Repeat("*1\r\n$7\r\nid.next\r\n", 16)},
	{"16 HGET", strings.Repeat("*3\r\n$4\r\nHGET\r\n$2\r\nid\r\n$4\r\nnext\r\n", 16)},
	{"16 uuid", strings.Repeat("*3\r\n$7\r\nID.NEXT\r\n$6\r\nFORMAT\r\n$4\r\nuuid\r\n", 16)},
	{"count 100", "*3\r\n$7\r\nID.NEXT\r\n$5\r\nCOUNT\r\n$3\r\n100\r\n"},
	{"after", "*3\r\n$7\r\nID.NEXT\r\n$5\r\nAFTER\r\n$13\r\n00000000000GA\r\n"},
}

// TestAllocations: to serve a request allocates nothing.
func TestAllocations(t *testing.T) {
	for _, m := range mixes {
		t.Run(m.name, func(t *testing.T) {
			e := newEndless(t, m.requests)
			e.send(100)
			// The world's own ticking allocates a little.
			if n := testing.AllocsPerRun(5, func() { e.send(2000) }); n > 500 {
				t.Errorf("%.0f allocations for 2000 reads", n)
			}
		})
	}
}
