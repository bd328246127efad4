package main

import (
	"context"
	"sync"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/internal/clock"
)

// Late is when the harness, and with it the network that it carries, did not get
// to run in time: this machine had too much to do.
type Late struct {
	FromMs int64 `json:"from_ms"` // on the history's clock
	ToMs   int64 `json:"to_ms"`
}

// Bounds of being late. Clients give a call up after 2 s, and etcd elects a leader
// anew after one.
const (
	lateFrom  = 250 * time.Millisecond // a tick that much too late counts
	lateReach = 4000                   // ms after it, in which what is late may be late for it
	lateMost  = 1000                   // of them are kept
)

// latecomer keeps when the harness was late. It is safe for concurrent use.
type latecomer struct {
	now func() clock.Mono

	mu   sync.Mutex // guards all below
	list []Late
}

// watch looks until ctx ends.
func (l *latecomer) watch(ctx context.Context) {
	const every = 20 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := l.now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			last = l.looked(last, l.now())
		}
	}
}

// looked notes how far two looks lie apart.
func (l *latecomer) looked(last, now clock.Mono) clock.Mono {
	if now-last < clock.Mono(lateFrom) {
		return now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	from, to := int64(last)/1e6, int64(now)/1e6
	if n := len(l.list); n > 0 && (n == lateMost || from-l.list[n-1].ToMs < lateReach) {
		l.list[n-1].ToMs = to // one with the one before
	} else {
		l.list = append(l.list, Late{from, to})
	}
	return now
}

func (l *latecomer) all() []Late {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Late(nil), l.list...)
}

// forLate reports whether a violation may be one of a machine that was late, and
// of nobody else.
func forLate(late []Late, check string, v history.Violation) bool {
	for _, l := range late {
		if at := int64(v.At) / 1e6; timed(check) && l.FromMs <= at && at <= l.ToMs+lateReach {
			return true
		}
	}
	return false
}

// allForLate reports whether all that is told of a check's violations may be.
func allForLate(late []Late, c *history.Result) bool {
	for _, v := range c.Violations {
		if !forLate(late, c.Check, v) {
			return false
		}
	}
	return len(c.Violations) > 0
}
