package client

import (
	"sync/atomic"
	"time"
)

// suspendCheck is how often the other clocks are read at most: reading them takes ten times
// as long as the monotonic clock. The monotonic clock goes on for longer than this
// while processes are frozen for a suspend and resumed after it.
const suspendCheck = time.Millisecond

// smallestLeap is by how much the wall clock is set forward at least to count: two clocks are not read at once.
const smallestLeap = 10 * time.Millisecond

// uptime is the time since the client began, like Client.since, and counts the time
// that the machine was suspended, when the monotonic clock stops, and what the wall clock was set
// forward: the memory may be that of a machine which was saved then. It never goes back.
// The age of prefetched IDs is measured by it.
type uptime struct {
	begun   time.Time
	boot    func() time.Duration // a clock that goes on in suspend; 0: there is none
	wall    func() time.Duration // the wall clock is ahead of the monotonic clock by this
	origin  time.Duration        // what boot showed when begun was read
	checked atomic.Int64         // when they were last read, ns of the monotonic clock since begun
	asleep  atomic.Int64         // ns by which boot went further than the monotonic clock
	ahead   atomic.Int64         // what wall showed last, ns
	leapt   atomic.Int64         // ns by which the wall clock was set forward, in all
}

func newUptime(boot func() time.Duration) *uptime {
	u := &uptime{begun: time.Now(), boot: boot, origin: boot()}
	u.wall = func() time.Duration {
		now := time.Now()
		return time.Duration(now.UnixNano()) - now.Sub(u.begun)
	}
	u.ahead.Store(int64(u.wall()))
	return u
}

func (u *uptime) now() time.Duration {
	awake := time.Since(u.begun)
	if awake-time.Duration(u.checked.Load()) >= suspendCheck {
		u.check(awake)
	}
	return awake + time.Duration(u.asleep.Load()+u.leapt.Load())
}

// check reads the other clocks. awake is the monotonic time since begun.
func (u *uptime) check(awake time.Duration) {
	u.checked.Store(int64(awake))
	ahead := int64(u.wall())
	if leap := ahead - u.ahead.Swap(ahead); leap > int64(smallestLeap) {
		u.leapt.Add(leap)
	}
	asleep := int64(u.boot() - u.origin - awake) // Without such a clock it is negative.
	for {
		known := u.asleep.Load()
		if asleep <= known || u.asleep.CompareAndSwap(known, asleep) {
			return
		}
	}
}
