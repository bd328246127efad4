// Package duplicates finds IDs that came twice, among those that callers of running nodes were given.
package duplicates

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// span is a run of IDs of one sid, stride apart, or a single ID.
type span struct {
	sid         flake.ID // the low bits; 0 for single IDs of an unknown layout: they are compared whole
	first, last flake.ID
	stride      int64
}

func spanOf(b client.Block) span {
	s := span{first: b.First, last: b.Last(), stride: max(b.Stride, 1)}
	s.sid = s.first & flake.ID(s.stride-1) // strides are powers of two
	return s
}

func (s span) size() int64 { return int64(s.last-s.first)/s.stride + 1 }

// shared returns how many IDs s has in common with a span of the same sid that
// does not begin after it.
func (s span) shared(before span) int64 {
	if s.first > before.last {
		return 0
	}
	return int64(min(s.last, before.last)-s.first)/s.stride + 1
}

// Checks is what a Checker has found, in IDs.
type Checks struct {
	Checked    int64
	Duplicates int64
	OutOfOrder int64 // blocks that are not above what their worker had before
	Unchecked  int64 // came too late to be compared
}

// Checker finds duplicate IDs, and workers whose IDs did not rise.
// It is safe for concurrent use.
//
// IDs contain their time, so it keeps only the spans of the last seconds: spans that
// are older than the newest by checkKeep are compared and dropped, except for the
// last of each sid. An ID that comes later than that counts as unchecked. So memory
// is bounded by the rate.
type Checker struct {
	mu     sync.Mutex // guards fresh, newest and found
	fresh  []span     // spans in order of arrival
	newest flake.ID
	found  Checks
	keep   flake.ID // checkKeep in IDs

	pending []span            // sorted; only settle's
	done    map[flake.ID]span // sid to the furthest span that was compared and forgotten
}

// checkKeep is how long spans are kept, in ms of their IDs' time: longer than the
// time of an answer and the skew of a cluster's clocks.
const checkKeep = 3000

// NewChecker returns a Checker that has seen nothing.
func NewChecker() *Checker { return &Checker{done: map[flake.ID]span{}} }

// Checks returns what was found so far.
func (c *Checker) Checks() Checks {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.found
}

// Add takes an answer of a worker whose IDs so far go up to last.
func (c *Checker) Add(b client.Block, last flake.ID) {
	s := spanOf(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found.Checked += int64(b.Count)
	if s.first <= last {
		c.found.OutOfOrder++
	}
	c.newest = max(c.newest, s.last)
	layout := cmp.Or(b.Format.Layout, flake.Scalable) // RESP and HTTP do not name it
	c.keep = flake.ID(checkKeep/layout.Unit()) << layout.LowBits()
	c.fresh = append(c.fresh, s)
}

// Run settles old spans until ctx ends, and then all.
func (c *Checker) Run(ctx context.Context) {
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

// settle compares the spans that are old enough, or all. One goroutine at a time may
// call it.
func (c *Checker) settle(all bool) {
	c.mu.Lock()
	fresh, newest, keep := c.fresh, c.newest, c.keep
	c.fresh = nil
	c.mu.Unlock()
	c.pending = append(c.pending, fresh...)
	slices.SortFunc(c.pending, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.sid, b.sid), cmp.Compare(a.first, b.first))
	})
	kept := c.pending[:0]
	until := newest - keep
	var duplicates, unchecked int64
	for _, s := range c.pending {
		if !all && s.last > until {
			kept = append(kept, s)
			continue
		}
		before, known := c.done[s.sid]
		switch {
		case !known:
		case s.first >= before.first:
			duplicates += s.shared(before)
		default: // the spans to compare it with were dropped
			unchecked += s.size()
		}
		if !known || s.last > before.last {
			c.done[s.sid] = s
		}
	}
	c.pending = kept
	c.mu.Lock()
	c.found.Duplicates, c.found.Unchecked = c.found.Duplicates+duplicates, c.found.Unchecked+unchecked
	c.mu.Unlock()
}
