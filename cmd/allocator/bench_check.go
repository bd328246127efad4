package main

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/flakelease/allocator/flake"
)

// span is a run of IDs of one sid, stride apart, or a single ID.
type span struct {
	sid         flake.SID // 0 for single IDs: they are compared whole
	first, last flake.ID
	stride      int64
}

// shared returns how many IDs s has in common with a span of the same sid that
// does not begin after it.
func (s span) shared(before span) int64 {
	if s.first > before.last {
		return 0
	}
	return int64(min(s.last, before.last)-s.first)/s.stride + 1
}

// idCheck looks for IDs that came twice, and for callers whose IDs did not rise.
// It is safe for concurrent use.
//
// It keeps the spans of the last seconds alone, since an ID shows its time: what
// is older than the newest by checkKeep is compared and forgotten, except for how
// far that went. An ID that comes later than that is counted as unchecked. So
// memory is bounded by the rate.
type idCheck struct {
	mu         sync.Mutex // guards all below
	fresh      []span     // as they came
	newest     flake.ID
	checked    int64 // IDs
	twice      int64
	disordered int64
	unchecked  int64

	pending []span             // sorted; only settle's
	done    map[flake.SID]span // of what was compared and forgotten, the one that goes furthest
}

// checkKeep is how long spans are kept, in ms of their IDs' time: longer than an
// answer takes, and than clocks of a cluster differ.
const checkKeep = 3000

func newIDCheck() *idCheck { return &idCheck{done: map[flake.SID]span{}} }

// add takes an answer of a caller whose IDs so far went up to last, and returns
// how far they go now.
func (c *idCheck) add(d answered, last flake.ID) flake.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checked += int64(d.size())
	one := func(s span) {
		if s.first <= last {
			c.disordered++
		}
		last = max(last, s.last)
		c.newest = max(c.newest, s.last)
		c.fresh = append(c.fresh, s)
	}
	if d.list == nil {
		one(span{d.sid, d.first, d.first + flake.ID(int64(d.count-1)*d.stride), max(d.stride, 1)})
		return last
	}
	for _, id := range d.list {
		one(span{first: id, last: id, stride: 1})
	}
	return last
}

// run settles what is old, until ctx ends, and then all.
func (c *idCheck) run(ctx context.Context) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.settle(false)
		case <-ctx.Done():
			c.settle(true)
			return
		}
	}
}

// settle compares what is old enough, or all. It must not run twice at a time.
func (c *idCheck) settle(all bool) {
	c.mu.Lock()
	fresh, newest := c.fresh, c.newest
	c.fresh = nil
	c.mu.Unlock()
	c.pending = append(c.pending, fresh...)
	slices.SortFunc(c.pending, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.sid, b.sid), cmp.Compare(a.first, b.first))
	})
	kept := c.pending[:0]
	until := newest - checkKeep<<flake.LowBits
	var twice, unchecked int64
	for _, s := range c.pending {
		if !all && s.last > until {
			kept = append(kept, s)
			continue
		}
		before, known := c.done[s.sid]
		switch {
		case !known:
		case s.first >= before.first:
			twice += s.shared(before)
		default: // what it would have to be compared with is forgotten
			unchecked += int64(s.last-s.first)/s.stride + 1
		}
		if !known || s.last > before.last {
			c.done[s.sid] = s
		}
	}
	c.pending = kept
	c.mu.Lock()
	c.twice, c.unchecked = c.twice+twice, c.unchecked+unchecked
	c.mu.Unlock()
}
