package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// machine reads the clocks of the machine we run on.
type machine struct {
	origin time.Time // carries the monotonic reading that Mono counts from
}

// A reading is of one instant as far as it took no longer than tight; one that
// was interrupted is repeated. Four plain reads take about 1 µs.
const (
	tight    = 20 * time.Microsecond
	attempts = 4
)

// Read reads the four clocks, Mono being the middle of the time it took. Where
// the scheduler interrupts every attempt it returns the quickest.
func (m machine) Read() (best Readings) {
	shortest := time.Duration(-1)
	for range attempts {
		// Since and not Sub: Sub would go by wall clocks beyond the year 2157.
		before := time.Since(m.origin)
		wall, raw, boot := time.Now().UnixNano(), nanos(unix.CLOCK_MONOTONIC_RAW), nanos(unix.CLOCK_BOOTTIME)
		took := time.Since(m.origin) - before
		if shortest < 0 || took < shortest {
			mono := int64(before + took/2)
			best, shortest = Readings{Wall: wall, Mono: Mono(mono), Raw: raw, Boot: boot}, took
		}
		if took <= tight {
			break
		}
	}
	// A sandbox without them: the monotonic clock is used for both.
	if best.Raw == 0 {
		best.Raw = int64(best.Mono)
	}
	if best.Boot == 0 {
		best.Boot = int64(best.Mono)
	}
	return best
}

// nanos returns a clock of the kernel in nanoseconds, or 0 where a sandbox does
// not have it.
func nanos(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// Kernel asks for the status of the clock discipline, which needs no right. A
// sandbox that forbids it (EPERM) or lacks it (ENOSYS) makes it unknown.
func (m machine) Kernel() Kernel {
	var t unix.Timex // modes 0: change nothing
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return Kernel{}
	}
	return kernelOf(state, &t)
}

// kernelOf translates what the kernel returned. It gives the error in
// microseconds, whatever STA_NANO means for other fields.
func kernelOf(state int, t *unix.Timex) Kernel {
	return Kernel{
		Known:        true,
		Synchronized: state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0,
		MaxError:     time.Duration(t.Maxerror) * time.Microsecond,
	}
}
