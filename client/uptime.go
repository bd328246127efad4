package client

import (
	"sync/atomic"
	"time"
)

// suspendCheck is how often the boot clock is read at most: reading it takes ten times
// as long as the monotonic clock. The monotonic clock goes on for longer than this
// while processes are frozen for a suspend and resumed after it.
const suspendCheck = time.Millisecond

// uptime is the time since the client began, like Client.since, and counts the time
// that the machine was suspended, when the monotonic clock stops. It never goes back.
// The age of prefetched IDs is measured by it.
type uptime struct {
	begun   time.Time
	boot    func() time.Duration // a clock that goes on in suspend; 0: there is none
	origin  time.Duration        // what boot showed when begun was read
	checked atomic.Int64         // when boot was last read, ns of the monotonic clock since begun
	asleep  atomic.Int64         // ns by which boot went further than the monotonic clock
}

func newUptime(boot func() time.Duration) *uptime {
	return &uptime{begun: time.Now(), boot: boot, origin: boot()}
}

func (u *uptime) now() time.Duration {
	awake := time.Since(u.begun)
	if awake-time.Duration(u.checked.Load()) >= suspendCheck {
		u.check(awake)
	}
	return awake + time.Duration(u.asleep.Load())
}

// check reads the boot clock. awake is the monotonic time since begun.
func (u *uptime) check(awake time.Duration) {
	u.checked.Store(int64(awake))
	asleep := int64(u.boot() - u.origin - awake) // Without such a clock it is negative.
	for {
		known := u.asleep.Load()
		if asleep <= known || u.asleep.CompareAndSwap(known, asleep) {
			return
		}
	}
}
