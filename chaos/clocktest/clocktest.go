// Package clocktest has a clock that tests move by hand, for whatever takes a
// [clock.Source]. Where timers matter, tests run in a bubble of testing/synctest instead.
package clocktest

import (
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Manual is a clock that tests move by hand. It is safe for concurrent use.
type Manual struct {
	mu  sync.Mutex // guards now
	now clock.Reading
}

// NewManual returns a clock that shows wall time w and monotonic time 0.
func NewManual(w clock.Millis) *Manual { return &Manual{now: clock.Reading{Wall: w}} }

// Now returns the time the clock was last moved to.
func (m *Manual) Now() clock.Reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Advance lets d pass on both clocks.
func (m *Manual) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Mono = m.now.Mono.Add(d)
	m.now.Wall += clock.MillisOf(d)
}

// Suspend suspends the machine for d: the wall clock goes on alone.
func (m *Manual) Suspend(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Wall += clock.MillisOf(d)
	m.now.Asleep += d
}

// SetUndecided says whether a step of the wall clock is undecided.
func (m *Manual) SetUndecided(undecided bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Undecided = undecided
}

// Step moves the wall time alone, forward or back, as a bad clock would.
func (m *Manual) Step(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Wall += clock.MillisOf(d)
}
