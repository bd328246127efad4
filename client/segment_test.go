package client

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/flake"
)

// prefetching returns a prefetcher that fetches nothing by itself, in the time of a bubble. Its blocks
// have at most 1,000 IDs, which may be given for a second.
func prefetching() *prefetcher {
	c := &Client{o: Options{MaxAge: time.Second, MaxPrefetch: 1000}, uptime: newUptime(func() time.Duration { return 0 })}
	p := newPrefetcher(c)
	p.fetching = true
	return p
}

// block returns a segment of n IDs from first on that was requested now.
func (p *prefetcher) block(first flake.ID, n int) *segment {
	now := p.c.uptime.now()
	return &segment{block: Block{First: first, Count: n, Stride: 1}, fresh: now + p.c.o.MaxAge, used: now, half: int64(n) / 2}
}

// TestSizes: a block that is used up quickly is followed by a larger one, and one that lasts by a
// smaller one; of one that became too old, no more are fetched than were taken twice over.
func TestSizes(t *testing.T) {
	for _, tc := range []struct {
		size, taken int // of 400 IDs
		after       time.Duration
		want        int
		dropped     int64
		stale       int64
	}{
		{400, 400, busy - 1, 800, 0, 0},
		{800, 400, busy - 1, 1000, 0, 0},
		{400, 400, busy, 400, 0, 0},
		{400, 399, busy - 1, 400, 1, 0},
		{400, 400, calm, 400, 0, 0},
		{400, 400, calm + 1, 200, 0, 0},
		{100, 400, calm + 1, 64, 0, 0},
		{400, 0, calm + 1, 200, 400, 0},
		{400, 100, time.Second - 1, 200, 300, 0},
		{400, 100, time.Second, 200, 0, 300},
		{400, 50, time.Second, 100, 0, 350},
		{400, 0, time.Second, 64, 0, 400},
		{400, 400, time.Second, 400, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := prefetching()
			p.size = tc.size
			p.cur.Store(p.block(1, 400))
			for range tc.taken {
				if _, ok := p.takeOne(); !ok {
					t.Fatal("no ID is left")
				}
			}
			time.Sleep(tc.after)
			for range 2 { // The second time changes nothing.
				p.seal()
				if p.size != tc.want || p.c.stats.dropped.Load() != tc.dropped || p.c.stats.stale.Load() != tc.stale ||
					p.taken() != int64(tc.taken) {
					t.Errorf("%+v: size %d, %d dropped, %d stale, %d taken", tc, p.size, p.c.stats.dropped.Load(), p.c.stats.stale.Load(),
						p.taken())
				}
			}
			if _, ok := p.takeOne(); ok {
				t.Error("an ID of a sealed block")
			}
		})
	}
}

// TestNextBlock: calls are served from the block in use while it has as many IDs, then from the next one,
// and from none that is too old or too small.
func TestNextBlock(t *testing.T) {
	for _, tc := range []struct {
		name           string
		n              int
		after          time.Duration // of the block in use; the next one is half a second younger
		spare          int           // IDs of the next block; 0: there is none
		first          flake.ID      // 0: no block
		used           bool          // the next block is in use
		dropped, stale int64
	}{
		{"enough", 10, 0, 10, 1, false, 0, 0},
		{"one more", 11, 0, 11, 101, true, 10, 0},
		{"no next one", 11, 0, 0, 0, false, 0, 0},
		{"the next is too small", 11, 0, 10, 0, false, 10, 0},
		{"old", 10, time.Second, 10, 101, true, 0, 10},
		{"just not old", 10, time.Second - 1, 10, 1, false, 0, 0},
		{"both are old", 10, 3 * time.Second / 2, 10, 0, false, 0, 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := prefetching()
			p.cur.Store(p.block(1, 10))
			if tc.spare > 0 {
				p.spare = p.block(101, tc.spare)
				p.spare.fresh += time.Second / 2
			}
			spare := p.spare
			time.Sleep(tc.after)
			b, ok := p.next(tc.n)
			if ok != (tc.first != 0) || ok && (b.First != tc.first || b.Count != tc.n) {
				t.Errorf("%s: %v, %v", tc.name, b, ok)
			}
			if used := spare != nil && p.cur.Load() == spare; used != tc.used || used && p.spare != nil {
				t.Errorf("%s: the next one is in use: %v", tc.name, used)
			}
			if p.c.stats.dropped.Load() != tc.dropped || p.c.stats.stale.Load() != tc.stale {
				t.Errorf("%s: %d dropped, %d stale", tc.name, p.c.stats.dropped.Load(), p.c.stats.stale.Load())
			}
		})
	}
}

// TestFloor: once a greater ID was given, none below it is, in the order that it was requested in.
func TestFloor(t *testing.T) {
	for _, tc := range []struct {
		name      string
		taken     int
		id, order int64
		unordered bool
		cur       bool // The block in use, IDs 1 to 10, is used on.
		spare     bool // so is the next one, from 101 on
	}{
		{"below", 0, 0, 0, false, true, true},
		{"at the first", 0, 1, 0, false, false, true},
		{"given already", 5, 5, 0, false, true, true},
		{"the next to be given", 5, 6, 0, false, false, true},
		{"above the block", 5, 100, 0, false, false, true},
		{"at the next block", 5, 101, 0, false, false, false},
		{"of an order that ended", 5, 101, 1, false, true, true},
		{"without order", 5, 101, 0, true, true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := prefetching()
			p.c.o.Unordered = tc.unordered
			p.cur.Store(p.block(1, 10))
			p.spare = p.block(101, 10)
			for range tc.taken {
				p.takeOne()
			}
			p.raiseFloor(tc.id, tc.order)
			if _, ok := p.takeOne(); ok != tc.cur || (p.spare != nil) != tc.spare {
				t.Errorf("%s: the block is used on: %v, the next one: %v", tc.name, ok, p.spare != nil)
			}
			if changes := !tc.unordered && tc.order == 0; changes != (p.floor == tc.id) && tc.id != 0 {
				t.Errorf("%s: the floor is %d", tc.name, p.floor)
			}
			p.reset(7)
			if _, ok := p.takeOne(); ok || p.spare != nil || p.floor != 7 {
				t.Errorf("%s: after a reset: an ID %v, the next block %v, floor %d", tc.name, ok, p.spare != nil, p.floor)
			}
		})
	}
}
