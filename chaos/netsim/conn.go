package netsim

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// conn is one end of a connection.
type conn struct {
	net           *Network
	local, remote address
	in, out       *stream // in is the other end's out
}

// pair returns the two ends of a connection. n.mu is held.
func (n *Network) pair(from, to address) (ours, theirs *conn) {
	there := newStream(n.latency, n.stalled[way{from.host(), to.host()}])
	back := newStream(n.latency, n.stalled[way{to.host(), from.host()}])
	return &conn{n, from, to, back, there}, &conn{n, to, from, there, back}
}

func (c *conn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.out.write(b) }

// Close ends both ways: the other end reads what was sent, and then the end.
func (c *conn) Close() error {
	c.out.end()
	c.in.close()
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetWriteDeadline(t)
	return c.SetReadDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.deadline(t)
	return nil
}

// SetWriteDeadline does nothing: a write never waits.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// stream is one direction of a connection. It holds whatever is written: its
// users bound the data in transit themselves, as HTTP/2 does.
type stream struct {
	latency time.Duration

	mu      sync.Mutex // guards the rest
	chunks  []chunk
	stalled bool
	ended   bool      // by the writer
	err     error     // Reads fail with it once it is set.
	broken  bool      // by the network: writes fail
	until   time.Time // deadline of reads; zero: none
	changed chan struct{}
}

// chunk is what one write sent; no data is the end.
type chunk struct {
	due  time.Time
	data []byte
}

func newStream(latency time.Duration, stalled bool) *stream {
	return &stream{latency: latency, stalled: stalled, changed: make(chan struct{})}
}

// notify wakes the reader. s.mu is held.
func (s *stream) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stream) write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken:
		return 0, fmt.Errorf("write: %w", syscall.ECONNRESET)
	case s.ended:
		return 0, fmt.Errorf("write: %w", net.ErrClosed)
	}
	if len(b) > 0 {
		s.chunks = append(s.chunks, chunk{time.Now().Add(s.latency), append([]byte(nil), b...)})
		s.notify()
	}
	return len(b), nil
}

// end is called by the writer, last.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && !s.broken {
		s.ended = true
		s.chunks = append(s.chunks, chunk{due: time.Now().Add(s.latency)})
		s.notify()
	}
}

// close is called by the reader.
func (s *stream) close() { s.fail(net.ErrClosed) }

// reset is called by the network.
func (s *stream) reset() {
	s.mu.Lock()
	s.broken, s.chunks = true, nil
	s.mu.Unlock()
	s.fail(syscall.ECONNRESET)
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.notify()
}

func (s *stream) stall(stalled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stalled = stalled
	s.notify()
}

func (s *stream) deadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = t
	s.notify()
}

func (s *stream) read(b []byte) (int, error) {
	for {
		n, wait, changed, err := s.take(b)
		if n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		if wait < 0 {
			<-changed
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
			timer.Stop()
		}
	}
}

// take returns what has arrived. If nothing has, it returns how long to wait for
// something at most (negative: without end), and a channel that is closed when that changes.
func (s *stream) take(b []byte) (n int, wait time.Duration, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait = -1
	now := time.Now()
	if s.err != nil {
		return 0, 0, nil, fmt.Errorf("read: %w", s.err)
	}
	if !s.until.IsZero() {
		if wait = s.until.Sub(now); wait <= 0 {
			return 0, 0, nil, os.ErrDeadlineExceeded
		}
	}
	if len(s.chunks) > 0 && !s.stalled {
		head := &s.chunks[0]
		if due := head.due.Sub(now); due > 0 {
			if wait < 0 || due < wait {
				wait = due
			}
			return 0, wait, s.changed, nil
		}
		if len(head.data) == 0 {
			return 0, 0, nil, io.EOF
		}
		n = copy(b, head.data)
		if head.data = head.data[n:]; len(head.data) == 0 {
			s.chunks = s.chunks[1:]
		}
		return n, 0, nil, nil
	}
	return 0, wait, s.changed, nil
}
