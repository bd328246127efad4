package clock

import "time"

// Readings are the machine's clocks at one instant. Only
// differences of Mono, Raw and Boot between two readings of one process mean
// anything: each has an origin of its own.
type Readings struct {
	Wall int64 // Unix ns, CLOCK_REALTIME: steps whenever somebody sets it
	Mono Mono  // ns; NTP slews it together with Wall; stops while suspended
	Raw  int64 // ns, CLOCK_MONOTONIC_RAW: the bare oscillator, for measuring peers
	Boot int64 // ns, CLOCK_BOOTTIME: like Mono, and counts while suspended
}

// Offset returns wall time minus monotonic time. It is constant but for steps,
// suspends and, on some systems, slewing.
func (r Readings) Offset() time.Duration { return time.Duration(r.Wall - int64(r.Mono)) }

// WallMillis returns the wall clock. It is for comparing, never for an ID.
func (r Readings) WallMillis() Millis { return Millis(r.Wall / int64(time.Millisecond)) }

// slept returns time suspended since an unknown origin.
func (r Readings) slept() time.Duration { return time.Duration(r.Boot - int64(r.Mono)) }

// Kernel is what the kernel's clock discipline reports about the wall clock. It
// is a hint: chrony without rtcsync never reports a good clock as synchronized,
// and timesyncd writes a MaxError of zero at every poll.
type Kernel struct {
	Known        bool          // false: not Linux, or the sandbox forbids asking; the rest is then zero
	Synchronized bool          // some daemon has disciplined the clock, and within the last 9 hours
	MaxError     time.Duration // its bound for the error; grows by 500 ppm between updates
}
