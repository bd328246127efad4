package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootClock returns the time since the machine started, suspended or not. It returns 0
// in a sandbox without that clock.
func bootClock() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
