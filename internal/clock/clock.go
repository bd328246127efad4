package clock

import (
	"sync"
	"sync/atomic"
	"time"
)

// Millis is a wall-clock time: milliseconds since 1970-01-01T00:00:00Z, or a
// difference of two such times.
type Millis int64

// MillisOf returns d rounded down to whole milliseconds.
func MillisOf(d time.Duration) Millis { return Millis(d / time.Millisecond) }

// Duration returns m, a difference of two wall times, as a duration.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// Time returns m as a UTC time.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// Mono is monotonic time: nanoseconds since an origin fixed when the process
// started. It never goes back; readings of two processes are not comparable.
type Mono int64

// Add returns the time d after m.
func (m Mono) Add(d time.Duration) Mono { return m + Mono(d) }

// Sub returns the time from earlier to m.
func (m Mono) Sub(earlier Mono) time.Duration { return time.Duration(m - earlier) }

// Reading is one look at the clock: the time to put into IDs and the
// monotonic time it was taken at, from a single read.
type Reading struct {
	Wall Millis
	Mono Mono
}

// Source gives the time. Implementations are safe for concurrent use and
// cost one monotonic read.
type Source interface {
	Now() Reading
}

// System is the machine's clock: wall time read once, when the anchor is set,
// plus monotonic time elapsed since. Its zero value is not usable; see
// [NewSystem]. It is safe for concurrent use.
type System struct {
	origin time.Time // carries the monotonic reading that Mono counts from
	anchor atomic.Int64
}

// NewSystem returns a clock anchored at the machine's present wall time.
func NewSystem() *System {
	s := &System{origin: time.Now()}
	s.anchor.Store(s.origin.UnixNano())
	return s
}

// Now returns anchored time. It reads the monotonic clock once and the wall
// clock never.
func (s *System) Now() Reading {
	elapsed := time.Since(s.origin)
	return Reading{
		Wall: Millis((s.anchor.Load() + int64(elapsed)) / int64(time.Millisecond)),
		Mono: Mono(elapsed),
	}
}

// Raw reads the machine's wall clock as it stands, steps and all. It is for
// comparing with anchored time, never for an ID.
func (s *System) Raw() Millis { return Millis(time.Now().UnixMilli()) }

// Manual is a clock that tests move by hand. It is safe for concurrent use.
type Manual struct {
	mu  sync.Mutex // guards now
	now Reading
}

// NewManual returns a clock that stands at wall time w and monotonic time 0.
func NewManual(w Millis) *Manual { return &Manual{now: Reading{Wall: w}} }

// Now returns the time the clock was last moved to.
func (m *Manual) Now() Reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Advance lets d pass on both clocks.
func (m *Manual) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Mono = m.now.Mono.Add(d)
	m.now.Wall += MillisOf(d)
}

// Step moves the wall time alone, forward or back, as a bad clock would.
func (m *Manual) Step(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Wall += MillisOf(d)
}
