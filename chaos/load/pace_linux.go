package load

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// sleepUntil returns at t, or soon after ctx ends. The runtime's timers may be
// late by a millisecond, which is more than an answer takes: the last of the
// wait is the kernel's.
func sleepUntil(ctx context.Context, t time.Time) {
	const own = 2 * time.Millisecond
	if d := time.Until(t); d > own {
		select {
		case <-time.After(d - own):
		case <-ctx.Done():
			return
		}
	}
	if d := time.Until(t); d > 0 {
		left := unix.NsecToTimespec(d.Nanoseconds())
		_ = unix.Nanosleep(&left, nil) // a signal ends it early, which harms little
	}
}
