package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/client/internal/balance"
	"github.com/flakelease/allocator/flake"
)

// inFlight is the maximum number of requests of one stream that are under way. They
// are answered in order, so that IDs rise from one to the next. With more than one
// the node works while answers are given to callers; with many, each would serve
// few callers.
const inFlight = 2

// rotateEvery is how long a stream is used: after half to all of this time the
// client changes to another node, if there is one, without a pause. So the clients
// of a fleet spread to nodes that were restarted.
const rotateEvery = time.Minute

// batch is a set of callers that share one request.
type batch struct {
	done   chan struct{} // closed once block or err is set
	block  Block
	err    error
	cursor atomic.Int64 // IDs of block that callers have taken

	// Guarded by coalescer.mu.
	want      int           // IDs
	live      int           // callers that wait
	abandoned int           // IDs of callers that have gone since it was sealed
	callers   int           // all who ever waited, also those who have gone
	sealed    bool          // want does not change any more
	begun     time.Duration // since the client's start
	sent      time.Duration // when the last attempt was sent, since the client's start
	last      error         // why the last attempt failed
	after     flake.ID      // what the last attempt had to exceed
	order     int64         // Client.order when it was sent
}

// errRejoin makes callers of a batch that was too large join another one.
var errRejoin = errors.New("client: batch above the limit")

// coalescer puts callers into batches, and sends these over one stream. A batch
// that was refused or lost goes to another node, ahead of younger ones.
type coalescer struct {
	c    *Client
	ctx  context.Context // ends when all batches are answered and the client closes
	end  context.CancelFunc
	work sync.WaitGroup // goroutines
	open sync.WaitGroup // batches without an answer

	sending sync.Mutex // held from taking a batch until it is sent, so that they are sent in order; taken before mu

	mu         sync.Mutex // guards the rest
	closed     bool
	limit      int      // largest batch
	forming    *batch   // nil: no caller waits to be sent
	queue      []*batch // sealed, to be sent before forming
	cur        *stream  // takes batches; nil: there is none
	connecting bool     // a goroutine runs findStream or replace
}

func newCoalescer(c *Client) *coalescer {
	co := &coalescer{c: c, limit: maxBlock}
	co.ctx, co.end = context.WithCancel(context.Background())
	return co
}

// close waits for the answers of all batches, and ends. Later calls return
// ErrClosed.
func (co *coalescer) close() {
	co.mu.Lock()
	co.closed = true
	co.mu.Unlock()
	co.open.Wait()
	co.end()
	co.work.Wait()
}

// take returns n IDs from a batch.
func (co *coalescer) take(ctx context.Context, n int) (Block, error) {
	for {
		b, err := co.join(n)
		if err != nil {
			return Block{}, err
		}
		if done := ctx.Done(); done == nil {
			<-b.done
		} else {
			select {
			case <-b.done:
			case <-done:
				if gone, err := co.leave(b, n, ctx.Err()); gone {
					return Block{}, err
				}
			}
		}
		switch b.err {
		case nil:
			end := b.cursor.Add(int64(n))
			return b.block.part(int(end)-n, n), nil
		case errRejoin:
			if err := ctx.Err(); err != nil {
				return Block{}, err
			}
		default:
			return Block{}, b.err
		}
	}
}

// join adds n IDs to the batch that is forming. The caller that begins one while the
// stream is idle sends it, after other runnable goroutines had a chance to join.
func (co *coalescer) join(n int) (*batch, error) {
	co.mu.Lock()
	if co.closed {
		co.mu.Unlock()
		return nil, ErrClosed
	}
	b, first := co.forming, false
	if b != nil && b.want+n > co.limit && b.want > 0 {
		b.sealed = true
		co.queue = append(co.queue, b)
		b = nil
	}
	if b == nil {
		b, first = &batch{done: make(chan struct{}), begun: co.c.since()}, true
		co.forming = b
		co.open.Add(1)
	}
	b.want += n
	b.live++
	b.callers++
	idle := first && (co.cur == nil || len(co.cur.sent) < inFlight)
	co.mu.Unlock()
	if idle {
		runtime.Gosched()
		co.flush()
	}
	return b, nil
}

// leave takes back a caller's share and returns the caller's error, unless the
// batch has just been answered: then the caller has its share all the same.
func (co *coalescer) leave(b *batch, n int, cause error) (gone bool, err error) {
	co.mu.Lock()
	select {
	case <-b.done:
		co.mu.Unlock()
		return false, nil
	default:
	}
	b.live--
	if b.sealed {
		b.abandoned += n
	} else {
		b.want -= n
	}
	last, waits := b.last, co.cur == nil
	co.mu.Unlock()
	if waits {
		last = co.c.pool.lastError(last)
	} else if last == nil {
		return true, cause
	}
	return true, gaveUp(cause, last, 0)
}

// flush sends waiting batches, up to inFlight, or has a stream opened.
func (co *coalescer) flush() {
	co.sending.Lock()
	defer co.sending.Unlock()
	for {
		co.mu.Lock()
		s := co.cur
		if s == nil {
			co.connect()
			co.mu.Unlock()
			return
		}
		if len(s.sent) >= inFlight {
			co.mu.Unlock()
			return
		}
		b := co.next()
		if b == nil {
			co.mu.Unlock()
			return
		}
		b.order = co.c.order.Load() // before c.after: see Reset
		b.after = co.c.after()
		seq, n, after := s.push(b), b.want, b.after
		co.mu.Unlock()
		s.send(seq, n, after) // an error here is also that of the answer
	}
}

// next takes the batch that is to be sent, or returns nil. co.mu is held.
func (co *coalescer) next() *batch {
	for len(co.queue) > 0 {
		b := co.queue[0]
		co.queue = slices.Delete(co.queue, 0, 1)
		if b.live > 0 {
			return b
		}
		co.finish(b, nil) // all callers have gone
	}
	b := co.forming
	if b == nil {
		return nil
	}
	co.forming = nil
	b.sealed = true
	if b.live == 0 {
		co.finish(b, nil)
		return nil
	}
	return b
}

// finish wakes a batch's callers. co.mu is held.
func (co *coalescer) finish(b *batch, err error) {
	b.err = err
	close(b.done)
	co.open.Done()
}

// answered takes a stream's answer to its oldest request.
func (co *coalescer) answered(s *stream) {
	co.mu.Lock()
	b := s.pop()
	if b == nil {
		co.mu.Unlock()
		return
	}
	block, err := s.result(b)
	if err != nil {
		co.refused(s, b, err)
	} else {
		b.block = block
		co.c.raise(block.Last(), b.order) // before any of it is given
		co.c.stats.ids.Add(int64(block.Count - b.abandoned))
		co.c.stats.dropped.Add(int64(b.abandoned))
		co.c.stats.batches.Add(1)
		co.finish(b, nil)
	}
	hangUp := s.retired && len(s.sent) == 0
	co.mu.Unlock()
	if hangUp {
		s.end() // streamEnded then sends what this answer has put back
		return
	}
	runtime.Gosched() // callers that were just woken may join
	co.flush()
}

// refused deals with a batch that a node answered without IDs. co.mu is held.
func (co *coalescer) refused(s *stream, b *batch, err error) {
	o := balance.Outcome{Kind: balance.Failed, Err: err}
	r := (*Refusal)(nil)
	if errors.As(err, &r) {
		o = r.outcome(true)
	}
	s.e.ended(s.conn, o)
	if r != nil && r.Reason.callerError() {
		if limit := limitOf(r); r.Reason == InvalidCount && b.callers > 1 && 0 < limit && limit < b.want {
			co.limit = limit
			err = errRejoin
		}
		co.finish(b, err)
		return
	}
	co.retire(s)
	co.requeue(b, err)
}

// requeue puts a batch back, ahead of those that came later. co.mu is held.
func (co *coalescer) requeue(b *batch, err error) {
	b.last = err
	if b.live == 0 || co.expired(b) {
		co.finish(b, gaveUp(nil, err, co.c.o.Timeout))
		return
	}
	b.want, b.abandoned = b.want-b.abandoned, 0
	co.c.stats.retries.Add(1)
	at := slices.IndexFunc(co.queue, func(q *batch) bool { return q.begun > b.begun })
	if at < 0 {
		at = len(co.queue)
	}
	co.queue = slices.Insert(co.queue, at, b)
}

func (co *coalescer) expired(b *batch) bool {
	return co.c.o.Timeout > 0 && co.c.since() >= b.begun+co.c.o.Timeout
}

// retire stops sending over s. co.mu is held.
func (co *coalescer) retire(s *stream) {
	s.retired = true
	if co.cur == s {
		co.cur = nil
	}
}

// streamEnded takes back what a stream that has ended did not answer.
func (co *coalescer) streamEnded(s *stream, err error) {
	co.mu.Lock()
	idle := s.retired && len(s.sent) == 0
	co.retire(s)
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if !idle && co.ctx.Err() == nil {
		err = s.judge(err)
	}
	r := (*Refusal)(nil)
	fault := errors.As(err, &r) && r.Reason.callerError()
	for _, b := range s.sent {
		if fault {
			co.finish(b, err)
		} else {
			co.requeue(b, err)
		}
	}
	s.sent = nil
	co.mu.Unlock()
	co.flush() // the next stream may be idle
}

// connect starts findStream if a stream is needed. co.mu is held.
func (co *coalescer) connect() {
	if co.connecting || co.cur != nil || (len(co.queue) == 0 && co.forming == nil) {
		return
	}
	co.connecting = true
	co.work.Go(co.findStream)
}

// rotate starts replace for a stream that still works. co.mu is held.
func (co *coalescer) rotate(s *stream) {
	if co.connecting || co.cur != s || co.ctx.Err() != nil {
		return
	}
	co.connecting = true
	co.work.Go(func() { co.replace(s) })
}

// replace opens a stream to another node and uses it from then on. old goes on if
// there is no other.
func (co *coalescer) replace(old *stream) {
	e, _, _ := co.c.pool.pick(old.e)
	if e != nil && (e != old.e || !old.healthy()) {
		if s, err := e.stream(co); err == nil {
			co.use(s)
			return
		}
	}
	co.mu.Lock()
	defer co.mu.Unlock()
	co.connecting = false
	co.connect()
}

// findStream opens a stream for the batches that wait, and receives its answers; it
// returns when the stream has ended, or no batch waits for one any more.
func (co *coalescer) findStream() {
	var last error
	var avoid *endpoint
	for {
		deadline, reported, wanted := co.sweep(last)
		if !wanted {
			return
		}
		e, wait, changed := co.c.pool.pick(avoid)
		if e == nil {
			if r := (*Refusal)(nil); errors.As(reported, &r) && r.permanent() {
				co.fail(r)
				continue
			}
			if reported == nil {
				last = co.c.pool.lastError(nil)
			}
			// sweep finds out how the pause ended.
			_ = co.c.pause(co.ctx, min(wait, sweepEvery), deadline, changed)
			avoid = nil
			continue
		}
		s, err := e.stream(co)
		if err == nil {
			co.use(s)
			return
		}
		last, avoid = err, e
		if r := (*Refusal)(nil); errors.As(err, &r) && r.Reason.callerError() {
			co.fail(err)
		}
	}
}

// sweepEvery is how soon it is noticed that all callers of a batch have gone.
const sweepEvery = 100 * time.Millisecond

// use makes s the stream that batches are sent over, and receives its answers.
func (co *coalescer) use(s *stream) {
	co.mu.Lock()
	if old := co.cur; old != nil {
		co.retire(old)
		if len(old.sent) == 0 {
			old.end()
		}
	}
	co.cur = s
	co.connecting = false
	s.rotateAt = co.rotateTime()
	co.mu.Unlock()
	co.flush()
	s.receive()
}

func (co *coalescer) rotateTime() time.Duration {
	return co.c.since() + rotateEvery/2 + rand.N(rotateEvery/2)
}

// sweep ends the batches that no caller waits for, or that have waited too long, and
// notes last, if not nil, as the error of the others. It returns when the oldest of
// these will have waited too long, its error, and whether there is any: if not, the
// search ends.
func (co *coalescer) sweep(last error) (deadline time.Duration, reported error, wanted bool) {
	co.mu.Lock()
	defer co.mu.Unlock()
	ended := func(b *batch) bool {
		if last != nil {
			b.last = last
		}
		if b.live > 0 && !co.expired(b) {
			return false
		}
		b.sealed = true
		co.finish(b, gaveUp(nil, b.last, co.c.o.Timeout))
		return true
	}
	co.queue = slices.DeleteFunc(co.queue, ended)
	if co.forming != nil && ended(co.forming) {
		co.forming = nil
	}
	oldest := co.forming
	if len(co.queue) > 0 {
		oldest = co.queue[0]
	}
	if oldest == nil {
		co.connecting = false
		return 0, nil, false
	}
	if co.c.o.Timeout > 0 {
		deadline = oldest.begun + co.c.o.Timeout
	}
	return deadline, oldest.last, true
}

// fail ends all waiting batches with err.
func (co *coalescer) fail(err error) {
	co.mu.Lock()
	defer co.mu.Unlock()
	all := co.queue
	if co.forming != nil {
		all = append(all, co.forming)
	}
	co.queue, co.forming = nil, nil
	for _, b := range all {
		b.sealed = true
		co.finish(b, err)
	}
}
