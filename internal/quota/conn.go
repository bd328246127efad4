package quota

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Conn is a connection of a client. A nil *Conn counts nothing, so that listeners also
// serve connections that have no quota.
type Conn struct {
	net.Conn
	listener *Listener
	source   *source
	opened   clock.Mono

	tokens  atomic.Int64
	calls   atomic.Int64 // Only valid calls count.
	held    atomic.Int64 // bytes
	queued  atomic.Int64 // answers: see Queue
	noticed atomic.Int64 // This many of queued are accounted for in held.
	streams atomic.Int64 // see OpenStream
	wake    atomic.Bool  // a deadline was set: see wait
	paid    atomic.Bool  // for itself
	unknown atomic.Bool  // it paid as that of a source without a valid call

	left  bool  // guarded by Quota.mu, as are the next two
	seen  int64 // calls at the last sweep
	still int   // sweeps since calls changed

	mu     sync.Mutex // guards the next one, and held once it is set
	closed bool
	done   chan struct{} // closed by Close
}

// Of returns the Conn under nc, which may use TLS; nil: there is none.
func Of(nc net.Conn) *Conn {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, _ := nc.(*Conn)
	return c
}

// Proven reports whether a call of the connection was valid.
func (c *Conn) Proven() bool { return c == nil || c.calls.Load() > 0 }

// Charge makes the connection pay n tokens.
func (c *Conn) Charge(n int64) {
	if c != nil {
		c.tokens.Add(-n)
	}
}

// Valid says that a call was valid: the caller may make it, and it was not malformed.
func (c *Conn) Valid() {
	if c == nil {
		return
	}
	if c.calls.Add(1) == 1 {
		c.source.proven.Store(true)
		c.source.allow(1)
		if c.unknown.Load() {
			c.listener.quota.proved()
		}
	}
	if c.tokens.Load() < maxTokens {
		c.tokens.Add(worthCall)
	}
}

// Hold adds to the bytes that calls of this connection hold; n may be negative.
func (c *Conn) Hold(n int64) {
	if c == nil || n == 0 {
		return
	}
	c.mu.Lock()
	if !c.closed {
		c.held.Add(n)
	}
	open := !c.closed
	c.mu.Unlock()
	if open {
		c.listener.quota.add(n)
	}
}

// Queue adds to the answers of streams that wait to be sent.
func (c *Conn) Queue(n int64) {
	if c == nil {
		return
	}
	now, noticed := c.queued.Add(n), c.noticed.Load()
	if now < 0 { // answers of other calls were sent
		now = 0
		c.queued.Store(0)
	}
	if change := now - noticed; (change >= answerStep || change <= -answerStep) &&
		c.noticed.CompareAndSwap(noticed, now) {
		c.Hold(change * answerBytes)
	}
}

// OpenStream reports whether the connection has fewer than limit streams of a kind,
// and counts one if so. CloseStream must follow.
func (c *Conn) OpenStream(limit int64) bool {
	if c == nil || c.streams.Add(1) <= limit {
		return true
	}
	c.streams.Add(-1)
	return false
}

// CloseStream ends what OpenStream began.
func (c *Conn) CloseStream() {
	if c != nil {
		c.streams.Add(-1)
	}
}

// Read waits until the connection has tokens, and reads.
func (c *Conn) Read(b []byte) (int, error) {
	c.Pay()
	return c.Conn.Read(b)
}

// Pay waits until the connection has tokens.
func (c *Conn) Pay() {
	if c != nil && c.tokens.Load() < 0 {
		c.wait()
	}
}

// wait pays for the connection, and takes the tokens that are missing from the source, as
// soon as it has them. It returns early if the connection is closed or gets a new
// deadline, which the read then reports; the next one waits again.
func (c *Conn) wait() {
	now := c.listener.quota.cfg.Now
	c.wake.Store(false)
	var timer *time.Timer
	for pause := firstPoll; ; {
		if !c.paid.Load() {
			unknown := !c.source.proven.Load()
			if c.listener.quota.open(c.source, unknown, now()) && !c.paid.Swap(true) {
				c.unknown.Store(unknown)
				c.tokens.Add(1 + firstTokens)
			}
		}
		for missing := -c.tokens.Load(); missing > 0 && c.paid.Load(); missing = -c.tokens.Load() {
			part := min(missing, partTokens)
			if !c.source.pay(part, now()) {
				break
			}
			c.tokens.Add(part)
		}
		if c.tokens.Load() >= 0 {
			return
		}
		if timer == nil {
			c.listener.slowed.Add(1)
			timer = time.NewTimer(pause)
			defer timer.Stop()
		} else {
			timer.Reset(pause)
		}
		pause = min(2*pause, lastPoll)
		select {
		case <-timer.C:
			if c.wake.Load() {
				return
			}
		case <-c.done:
			return
		}
	}
}

// SetDeadline ends a wait too.
func (c *Conn) SetDeadline(t time.Time) error {
	c.endWait()
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline ends a wait too.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.endWait()
	return c.Conn.SetReadDeadline(t)
}

// endWait ends a wait. Package net/http sets four deadlines for each request, and a load
// costs less than a store.
func (c *Conn) endWait() {
	if !c.wake.Load() {
		c.wake.Store(true)
	}
}

// Close closes the connection and makes room for another.
func (c *Conn) Close() error {
	c.mu.Lock()
	first, held := !c.closed, c.held.Load()
	c.closed = true
	c.mu.Unlock()
	if first {
		close(c.done)
		q := c.listener.quota
		q.add(-held)
		q.mu.Lock()
		q.leave(c)
		q.mu.Unlock()
	}
	return c.Conn.Close()
}

// end closes the connection for a cause.
func (c *Conn) end(cause Cause) {
	c.listener.closed[cause].Add(1)
	if cause == Memory || cause == Stalled {
		c.source.allow(-costShed)
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // what it has not read is of no use, and must not stay in the kernel
	}
	_ = c.Close()
}
