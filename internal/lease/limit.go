package lease

import "github.com/flakelease/allocator/internal/clock"

// Limit is up to which wall time this process may write ceilings, for itself and for
// workers: a copy of what the poison guard knew at monotonic time At. The zero value
// permits nothing.
type Limit struct {
	At              clock.Mono
	Extend, Acquire clock.Millis
}

// Permits reports whether a ceiling may be written at a later reading of the clock.
func (l Limit) Permits(now clock.Reading, acquiring bool) bool {
	until := l.Extend
	if acquiring {
		until = l.Acquire
	}
	// Not until + elapsed: until may be the end of time.
	return now.Wall-clock.MillisOf(now.Mono.Sub(l.At)) <= until
}
