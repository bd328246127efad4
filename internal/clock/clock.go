package clock

import (
	"math"
	"time"
)

// Millis is a wall-clock time: milliseconds since 1970-01-01T00:00:00Z, or a
// difference of two such times.
type Millis int64

// MillisOf returns d rounded down to whole milliseconds.
func MillisOf(d time.Duration) Millis { return Millis(d / time.Millisecond) }

// Duration returns m, a difference of two wall times, as a duration: at most the longest, 292
// years. Times of foreign IDs and records may be further apart.
func (m Millis) Duration() time.Duration {
	const most = Millis(math.MaxInt64 / int64(time.Millisecond))
	return time.Duration(max(min(m, most), -most)) * time.Millisecond
}

// Time returns m as a UTC time.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// Mono is monotonic time: nanoseconds since an origin fixed when the process
// started. It never goes back; readings of two processes are not comparable.
type Mono int64

// Add returns the time d after m.
func (m Mono) Add(d time.Duration) Mono { return m + Mono(d) }

// Sub returns the time from earlier to m.
func (m Mono) Sub(earlier Mono) time.Duration { return time.Duration(m - earlier) }

// Reading is one read of the clock: the time to put into IDs and the
// monotonic time it was taken at, from a single read.
type Reading struct {
	Wall Millis
	Mono Mono
	// Asleep is for how long the machine was suspended in all, since an unknown
	// origin: time in which Mono did not run.
	Asleep time.Duration
	// Undecided: the wall clock was set lately, and neither peers nor time have decided yet whether it is
	// right or Wall is. A sid acquired now might have a ceiling of the wrong one.
	Undecided bool
}

// Elapsed returns the time since an unknown origin, suspends included.
func (r Reading) Elapsed() time.Duration { return time.Duration(r.Mono) + r.Asleep }

// Source gives the time. Implementations are safe for concurrent use and
// cost one monotonic read.
type Source interface {
	Now() Reading
}
