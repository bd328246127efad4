//go:build !linux

package clock

import "time"

// machine reads the clocks of the machine we run on, as far as Go offers them:
// a suspend cannot be distinguished from a step here, and nothing reports whether the
// clock is disciplined.
type machine struct {
	origin time.Time // carries the monotonic reading that Mono counts from
}

// Read reads the wall clock and the monotonic clock, which is used for the rest.
func (m machine) Read() Readings {
	elapsed := time.Since(m.origin)
	return Readings{Wall: time.Now().UnixNano(), Mono: Mono(elapsed), Raw: int64(elapsed), Boot: int64(elapsed)}
}

// Kernel returns that nothing is known.
func (m machine) Kernel() Kernel { return Kernel{} }
