package main

import (
	"context"
	"sync"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/internal/clock"
)

// Delay is a time in which this machine was overloaded: the harness, and with it
// the network that it forwards, was not scheduled in time.
type Delay struct {
	FromMs    int64 `json:"from_ms"` // by the history's clock
	ToMs      int64 `json:"to_ms"`
	LongestMs int64 `json:"longest_ms"` // the longest time without a tick in it
}

// Limits of delays. A call times out after 2 s, and etcd starts an election after 1 s.
const (
	delayLimit  = 250 * time.Millisecond // a tick that is later counts
	delayEffect = 4000                   // ms after it, besides twice its longest time, in which its effects may show
	maxDelays   = 1000                   // are kept
)

// delayMonitor records when the harness was delayed. It is safe for concurrent use.
type delayMonitor struct {
	now func() clock.Mono

	mu   sync.Mutex // guards all below
	list []Delay
}

// watch runs until ctx ends.
func (l *delayMonitor) watch(ctx context.Context) {
	const every = 20 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := l.now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			last = l.tick(last, l.now())
		}
	}
}

// tick records the time between two ticks if it is too long.
func (l *delayMonitor) tick(last, now clock.Mono) clock.Mono {
	if now-last < clock.Mono(delayLimit) {
		return now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	from, to := int64(last)/1e6, int64(now)/1e6
	if n := len(l.list); n > 0 && (n == maxDelays || from-l.list[n-1].ToMs < delayEffect) {
		last := &l.list[n-1] // merged with the one before
		last.ToMs, last.LongestMs = to, max(last.LongestMs, to-from)
	} else {
		l.list = append(l.list, Delay{from, to, to - from})
	}
	return now
}

func (l *delayMonitor) all() []Delay {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Delay(nil), l.list...)
}

// explainedBy reports whether a delay of this machine may be the cause of a
// violation.
func explainedBy(delays []Delay, check string, v history.Violation) bool {
	for _, l := range delays {
		at, until := int64(v.At)/1e6, l.ToMs+2*l.LongestMs+delayEffect
		if (timed(check) || v.Timed) && l.FromMs <= at && at <= until {
			return true
		}
	}
	return false
}

// allExplainedBy reports whether delays may be the cause of all violations of a check.
func allExplainedBy(delays []Delay, c *history.Result) bool {
	for _, v := range c.Violations {
		if !explainedBy(delays, c.Check, v) {
			return false
		}
	}
	return len(c.Violations) > 0 && c.Count == int64(len(c.Violations))
}
