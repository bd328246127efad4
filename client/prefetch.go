package client

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/flake"
)

// Sizes of prefetched blocks follow demand: a block that is used up sooner than
// busy is followed by a larger one, and one that lasts longer than calm by a
// smaller one.
const (
	firstPrefetch = 64
	busy          = 10 * time.Millisecond // some tens of round trips
	calm          = 100 * time.Millisecond
)

// sealed is a cursor beyond every count: nothing more is taken.
const sealed = 1 << 60

// segment is a block that calls are served from. Only the cursor changes.
type segment struct {
	block Block
	fresh time.Duration // until when its IDs may be given, by Client.uptime
	used  time.Duration // since when it is used, by the same
	half  int64         // the next block is fetched when this many are taken
	renew time.Duration // or when a call comes after this, by the same; 0: however old it is

	renewed atomic.Bool // a call came after renew

	_      [64]byte // a cache line of its own for the cursor
	cursor atomic.Int64
	_      [56]byte
}

// prefetcher serves calls from a block, while the next one is being fetched.
//
//  1. Every ID of a segment is greater than those of the segments before it: it
//     was requested after them.
//  2. A segment is sealed before its successor is used.
//  3. An ID is taken first and its age is checked afterwards.
type prefetcher struct {
	c    *Client
	ctx  context.Context
	end  context.CancelFunc
	work sync.WaitGroup // fetches

	cur atomic.Pointer[segment]

	mu       sync.Mutex // guards the rest, and replacing cur
	closed   bool
	spare    *segment // follows cur; nil: not there yet
	fetching bool
	size     int           // IDs of the next block, if callers that wait need no more
	wanted   int           // IDs that callers who wait need
	limit    int           // largest block
	floor    int64         // IDs up to here are not given
	changed  chan struct{} // closed when a fetch ends
	fetches  int           // begun
	failed   int           // the number of the last that failed
	err      error         // why that fetch failed
	given    int64         // IDs of sealed segments that calls took

	last atomic.Pointer[error] // nil if the last attempt to fetch did not fail
}

func newPrefetcher(c *Client) *prefetcher {
	p := &prefetcher{
		c:       c,
		size:    firstPrefetch,
		limit:   maxBlock,
		changed: make(chan struct{}),
	}
	p.ctx, p.end = context.WithCancel(context.Background())
	none := &segment{}
	none.cursor.Store(sealed)
	p.cur.Store(none)
	return p
}

// close ends, once no call waits any more and none can begin to.
func (p *prefetcher) close() {
	p.mu.Lock()
	p.closed = true
	p.seal(1)
	p.mu.Unlock()
	p.end()
	p.work.Wait()
}

// takeOne takes one ID of cur, if it has one that is fresh. It has no loop: a call
// that comes too late moves the cursor beyond the end, which has no effect.
func (p *prefetcher) takeOne() (flake.ID, bool) {
	s := p.cur.Load()
	i := s.cursor.Add(1) - 1
	if i >= int64(s.block.Count) {
		return 0, false
	}
	now := p.c.uptime.now()
	if now >= s.fresh {
		p.c.stats.stale.Add(1)
		return 0, false
	}
	if i == s.half || s.old(now) {
		p.fetchNext(s)
	}
	return s.block.First + flake.ID(i*s.block.Stride), true
}

// old reports whether the block is to be renewed now, once.
func (s *segment) old(now time.Duration) bool {
	return s.renew > 0 && now >= s.renew && !s.renewed.Load() && s.renewed.CompareAndSwap(false, true)
}

// isAbove reports whether all IDs that will be given are greater than id, as far as is known
// without a lock: those of cur that are left, and with them all later ones.
func (p *prefetcher) isAbove(id int64) bool { return p.cur.Load().isAbove(id) }

func (s *segment) isAbove(id int64) bool {
	i := s.cursor.Load()
	return i < int64(s.block.Count) && int64(s.block.First)+i*s.block.Stride > id
}

// take returns n IDs that are next to each other.
func (p *prefetcher) take(ctx context.Context, n int) (Block, error) {
	if b, ok := p.takeFrom(p.cur.Load(), n); ok {
		return b, nil
	}
	return p.takeSlow(ctx, n)
}

// takeFrom takes n IDs of s if it still has as many, and they are fresh.
func (p *prefetcher) takeFrom(s *segment, n int) (Block, bool) {
	b, fetch, ok := p.cut(s, n)
	if fetch {
		p.fetchNext(s)
	}
	return b, ok
}

// cut is takeFrom that fetches nothing: fetch says that it is time for the next block.
func (p *prefetcher) cut(s *segment, n int) (b Block, fetch, ok bool) {
	for {
		i := s.cursor.Load()
		end := i + int64(n)
		if end > int64(s.block.Count) {
			return Block{}, false, false
		}
		if !s.cursor.CompareAndSwap(i, end) {
			continue
		}
		now := p.c.uptime.now()
		if now >= s.fresh {
			p.c.stats.stale.Add(int64(n))
			return Block{}, false, false
		}
		return s.block.part(int(i), n), i <= s.half && s.half < end || s.old(now), true
	}
}

// takeSpare is take without a wait, where cur has not as many IDs above after: it takes them of the
// spare, which then becomes cur. Else it changes nothing.
func (p *prefetcher) takeSpare(n int, after int64) (Block, bool) {
	if !p.mu.TryLock() {
		return Block{}, false
	}
	defer p.mu.Unlock()
	s := p.spare
	if p.closed || s == nil || s.block.Count < n || int64(s.block.First) <= after || p.c.uptime.now() >= s.fresh {
		return Block{}, false
	}
	if !p.isAbove(after) {
		p.seal(n)
	}
	return p.next(n)
}

// fetchNext starts to fetch the block after s.
func (p *prefetcher) fetchNext(s *segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && p.cur.Load() == s && p.spare == nil {
		p.fetch()
	}
}

// takeSlow waits until there is a segment with n IDs, and takes them.
func (p *prefetcher) takeSlow(ctx context.Context, n int) (Block, error) {
	if !p.c.enter() {
		return Block{}, ErrClosed
	}
	defer p.c.calls.Done()
	p.mu.Lock()
	// The failure of a fetch that began before this call does not count.
	before := p.fetches
	var timeout <-chan time.Time // no bound
	for first := true; ; first = false {
		b, ok := p.next(n)
		if ok {
			p.mu.Unlock()
			return b, nil
		}
		p.size = min(max(p.size, 2*n), p.limit)
		if n > p.limit {
			p.mu.Unlock()
			return p.c.alone(ctx, n, 0, p.c.order.Load())
		}
		if p.failed > before {
			err := p.err
			p.mu.Unlock()
			return Block{}, err
		}
		p.wanted += n
		p.fetch()
		changed := p.changed
		p.mu.Unlock()
		if first && p.c.o.Timeout > 0 {
			t := time.NewTimer(p.c.o.Timeout)
			defer t.Stop()
			timeout = t.C
		}
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = gaveUp(ctx.Err(), p.fetchError(), 0)
		case <-timeout:
			if err = p.fetchError(); err == nil && !first {
				err = errOld
			}
			err = gaveUp(nil, err, p.c.o.Timeout)
		}
		p.mu.Lock()
		p.wanted -= n
		if err != nil {
			p.mu.Unlock()
			return Block{}, err
		}
	}
}

// fetchError returns why fetches do not succeed, or nil if that is not known.
func (p *prefetcher) fetchError() error {
	if last := p.last.Load(); last != nil {
		return *last
	}
	return p.c.pool.lastError(nil)
}

var errOld = errors.New("blocks arrive older than Options.MaxAge, or are used up before: allow a greater age or " +
	"larger blocks")

// next takes n IDs from cur or, where that has not as many, from the spare, which
// then becomes cur. p.mu is held.
func (p *prefetcher) next(n int) (Block, bool) {
	for {
		now := p.c.uptime.now()
		if s := p.cur.Load(); now < s.fresh {
			b, fetch, ok := p.cut(s, n)
			if fetch && p.spare == nil && !p.closed {
				p.fetch()
			}
			if ok {
				return b, true
			}
		}
		if p.spare == nil {
			return Block{}, false
		}
		if p.spare.fresh <= now || p.spare.block.Count < n {
			p.dropSpare(p.spare.fresh <= now)
			return Block{}, false
		}
		p.seal(n)
		p.spare.used = now
		p.cur.Store(p.spare)
		p.spare = nil
	}
}

// seal ends cur, and sets the size of the next block by how long cur was used. It is used up if it
// has not the n IDs that a call needs. IDs that are left are dropped. p.mu is held.
func (p *prefetcher) seal(n int) {
	s := p.cur.Load()
	count := int64(s.block.Count)
	taken := s.cursor.Swap(sealed)
	if taken >= sealed {
		return // before
	}
	taken = min(taken, count)
	p.given += taken
	now := p.c.uptime.now()
	stale := now >= s.fresh
	p.discard(count-taken, stale)
	switch lived := now - s.used; {
	case stale:
		p.size = min(p.size, max(int(2*taken), 1))
	case count-taken < int64(n) && lived < busy:
		p.size *= 2
	case lived > calm:
		p.size /= 2
	}
	p.size = min(max(p.size, min(firstPrefetch, p.limit)), p.limit)
}

// discard counts IDs that are not used.
func (p *prefetcher) discard(ids int64, stale bool) {
	if stale {
		p.c.stats.stale.Add(ids)
	} else {
		p.c.stats.dropped.Add(ids)
	}
}

// dropSpare drops the spare if there is one. p.mu is held.
func (p *prefetcher) dropSpare(stale bool) {
	if p.spare != nil {
		p.discard(int64(p.spare.block.Count), stale)
		p.spare = nil
	}
}

// fetch starts to fetch the spare, which is nil, unless a fetch is under way. p.mu is held.
func (p *prefetcher) fetch() {
	if p.fetching {
		return
	}
	p.fetching = true
	p.fetches++
	size, order := min(max(p.size, p.wanted), p.limit), p.c.order.Load()
	p.work.Go(func() {
		b, sent, err := p.c.request(p.ctx, size, 0, 0, func(err error) { p.last.Store(&err) })
		p.mu.Lock()
		defer p.mu.Unlock()
		p.fetching = false
		if err == nil {
			p.last.Store(nil)
		}
		switch r := (*Refusal)(nil); {
		case err == nil && (int64(b.First) <= p.floor || order != p.c.order.Load()) && !p.c.o.Unordered:
			p.c.stats.dropped.Add(int64(b.Count))
		case err == nil:
			p.spare = &segment{block: b, fresh: sent + p.c.o.MaxAge, half: int64(b.Count) / 2}
			if p.c.o.RenewEarly {
				p.spare.renew = sent + p.c.o.MaxAge/2
			}
		case errors.As(err, &r) && r.Reason == InvalidCount && limitOf(r) > 0 && limitOf(r) < size:
			p.limit = limitOf(r)
		default:
			p.failed, p.err = p.fetches, err
		}
		close(p.changed)
		p.changed = make(chan struct{})
	})
}

// limitOf returns the largest count that an InvalidCount names; 0: it names none.
func limitOf(r *Refusal) int {
	n, _ := strconv.Atoi(r.Metadata["limit"])
	return n
}

// raiseFloor drops IDs that are not greater than id, unless the order that id was
// requested in has ended: in the new one id may be far ahead of all that nodes give.
func (p *prefetcher) raiseFloor(id, order int64) {
	if p.c.o.Unordered {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c.order.Load() != order {
		return
	}
	p.floor = max(p.floor, id)
	if s := p.cur.Load(); int64(s.block.First)+min(s.cursor.Load(), int64(s.block.Count))*s.block.Stride <= id {
		p.seal(1)
	}
	if p.spare != nil && int64(p.spare.block.First) <= id {
		p.dropSpare(false)
	}
}

// reset drops all blocks: those of an order that has ended may be far ahead.
func (p *prefetcher) reset(floor int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.floor = floor
	p.seal(1)
	p.dropSpare(false)
	p.last.Store(nil)
}

// taken returns how many IDs calls were given.
func (p *prefetcher) taken() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.cur.Load()
	i := s.cursor.Load()
	if i >= sealed {
		i = 0
	}
	return p.given + min(i, int64(s.block.Count))
}
