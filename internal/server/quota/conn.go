package quota

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
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
	unread  atomic.Int64 // bytes of answers: see Answer
	noticed atomic.Int64 // This many of unread are accounted for in held.
	taken   atomic.Int64 // DATA frames that were written
	streams atomic.Int64 // see OpenStream
	resting atomic.Int64 // see Rest
	waiting atomic.Bool  // A call waits for room.
	wake    atomic.Bool  // a deadline was set: see wait
	paid    atomic.Bool  // for itself
	unknown atomic.Bool  // it paid as that of a source without a valid call

	left  bool  // guarded by Quota.mu, as are the next four
	seen  int64 // calls at the last sweep
	read  int64 // taken at the last sweep
	still int   // sweeps since calls changed
	stuck int   // sweeps since calls or taken changed

	reads, writes deadline

	goAway func() // asks the client to leave; nil: its protocol cannot

	mu     sync.Mutex // guards the next two, and held once closed is set
	closed bool
	room   chan struct{} // closed when there may be room for an answer; nil: nobody waits
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

// Rest adds n to the valid calls that wait for something other than their caller, and that
// the connection is therefore not closed for; n may be negative.
func (c *Conn) Rest(n int64) {
	if c != nil {
		c.resting.Add(n)
	}
}

// Hold adds to the bytes that calls of this connection hold; n may be negative.
func (c *Conn) Hold(n int64) {
	if c == nil || n == 0 {
		return
	}
	c.mu.Lock()
	open, held := !c.closed, int64(0)
	if open {
		held = c.held.Add(n)
	}
	c.mu.Unlock()
	if open {
		c.listener.quota.add(c.source, n, c.large(held))
	}
}

// large reports whether a connection that holds so many bytes may be shed. One stream alone is no reason.
func (c *Conn) large(held int64) bool {
	return held-streamBytes*min(c.streams.Load(), 1) >= connBytes+unfinished
}

// maxUnread is how many bytes of answers a connection may hold that its client has not
// read. One answer alone may be larger.
const maxUnread = 2 << 20

// Answer counts n bytes of an answer that the transport is to hold until the client reads
// them. Took must follow with as many. It waits while the client has not read what it was
// sent before, and counts nothing if ctx ends, whose error it returns then, or the connection.
func (c *Conn) Answer(ctx context.Context, n int64) error {
	if c == nil {
		return nil
	}
	for {
		switch now := c.unread.Load(); {
		case now > 0 && now+n > maxUnread:
			if err := c.waitForRoom(ctx, n); err != nil {
				return err
			}
		case c.unread.CompareAndSwap(now, now+n):
			c.notice()
			return nil
		}
	}
}

// waitForRoom returns when there may be room for an answer of n bytes.
func (c *Conn) waitForRoom(ctx context.Context, n int64) error {
	c.mu.Lock()
	if c.room == nil {
		c.room = make(chan struct{})
	}
	room := c.room
	c.waiting.Store(true)
	c.mu.Unlock()
	if now := c.unread.Load(); now == 0 || now+n <= maxUnread {
		return nil
	}
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return net.ErrClosed
	}
}

// More adds n bytes to those of an answer, however many there are. Took must follow.
func (c *Conn) More(n int64) {
	if c != nil {
		c.unread.Add(n)
		c.notice()
	}
}

// Took takes off n bytes of answers which the transport holds no longer.
func (c *Conn) Took(n int64) {
	if c == nil {
		return
	}
	c.unread.Add(-n)
	c.notice()
	if c.waiting.Load() {
		c.mu.Lock()
		c.waiting.Store(false)
		if c.room != nil {
			close(c.room)
			c.room = nil
		}
		c.mu.Unlock()
	}
}

// notice accounts for unread answers in what the connection holds, unless the change is
// little.
func (c *Conn) notice() {
	for {
		now, noticed := c.unread.Load(), c.noticed.Load()
		if change := now - noticed; change < step && change > -step {
			return
		} else if c.noticed.CompareAndSwap(noticed, now) {
			c.Hold(change)
		}
	}
}

// OpenStream reports whether the connection has fewer than limit streams of a kind,
// and counts one if so, and what it holds. CloseStream must follow.
func (c *Conn) OpenStream(limit int64) bool {
	switch {
	case c == nil:
		return true
	case c.streams.Add(1) > limit:
		c.streams.Add(-1)
		return false
	}
	c.Hold(streamBytes)
	return true
}

// CloseStream ends what OpenStream began.
func (c *Conn) CloseStream() {
	if c != nil {
		c.streams.Add(-1)
		c.Hold(-streamBytes)
	}
}

// Read waits until the connection has tokens, and reads.
func (c *Conn) Read(b []byte) (n int, err error) {
	c.Pay()
	for again := true; again; {
		if err := c.reads.begin(c.Conn.SetReadDeadline); err != nil {
			return 0, err
		}
		n, err = c.Conn.Read(b)
		again = c.reads.end(err, c.Conn.SetReadDeadline)
	}
	return n, err
}

// Write writes all of b.
func (c *Conn) Write(b []byte) (n int, err error) {
	for again := true; again; {
		if err := c.writes.begin(c.Conn.SetWriteDeadline); err != nil {
			return n, err
		}
		var part int
		part, err = c.Conn.Write(b[n:])
		n += part
		again = c.writes.end(err, c.Conn.SetWriteDeadline)
	}
	return n, err
}

// Pay waits until the connection has tokens.
func (c *Conn) Pay() {
	if c != nil && c.tokens.Load() < 0 {
		c.wait()
	}
}

// wait waits until the connection has tokens. It returns early if the connection is closed or
// gets a new deadline, which the read then reports; the next one waits again.
func (c *Conn) wait() {
	c.wake.Store(false)
	pause := c.PayNow(0)
	if pause == 0 {
		return
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if pause = c.PayNow(pause); pause == 0 || c.wake.Load() {
				return
			}
			timer.Reset(pause)
		case <-c.done:
			return
		}
	}
}

// PayNow is Pay for owners that must not wait: it pays for the connection, and takes the
// tokens that are missing from the source, as far as that has them. 0 says that the
// connection has tokens and may be read; else it is to be asked again after a pause, with
// this pause, which is 0 at first.
func (c *Conn) PayNow(paused time.Duration) (pause time.Duration) {
	if c == nil || c.tokens.Load() >= 0 {
		return 0
	}
	now := c.listener.quota.cfg.Now
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
	switch {
	case c.tokens.Load() >= 0:
		return 0
	case paused == 0:
		c.listener.slowed.Add(1)
		pause = firstPoll
	default:
		pause = min(2*paused, lastPoll)
	}
	return pause - rand.N(pause/2)
}

// SetDeadline ends a wait too.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline ends a wait too.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.endWait()
	return c.reads.set(t, c.Conn.SetReadDeadline)
}

// SetWriteDeadline sets the deadline of writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.writes.set(t, c.Conn.SetWriteDeadline) }

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
		q.add(c.source, -held, false)
		q.mu.Lock()
		q.leave(c)
		q.mu.Unlock()
	}
	return c.Conn.Close()
}

// makeRoom ends the connection, since another one needs its place. A client whose protocol
// can say so is asked to leave first, and has until the sweep after next.
func (c *Conn) makeRoom() {
	if c.calls.Load() == 0 || c.goAway == nil { // goAway is set before the first call
		c.end(Room)
		return
	}
	c.listener.closed[Room].Add(1)
	q := c.listener.quota
	q.mu.Lock()
	q.leaving = append(q.leaving, c)
	q.mu.Unlock()
	go c.goAway() // Close ends it, if the client does not read.
}

// end closes the connection for a cause.
func (c *Conn) end(cause Cause) {
	c.listener.closed[cause].Add(1)
	if cause == Memory || cause == Stalled {
		c.source.allow(-costShed)
	}
	if tcp, ok := c.Conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0) // what it has not read is of no use, and must not stay in the kernel
	}
	_ = c.Close()
}
