package worker

import (
	"fmt"
	"time"
)

// Limits of what two clocks show of a copied memory.
const (
	// leap is by how much the wall clock is set forward at least to count. Daemons step clocks that are
	// half a second off.
	leap = time.Second
	// lookAhead is how far beyond the clock the time of an ID may be before the clocks are compared again.
	lookAhead = 100 * time.Millisecond
)

// aheadSince returns a function that says by how much the wall clock is ahead of the monotonic clock. Where the
// thread is stopped between the two it shows too little, so it reads twice.
func aheadSince(begun time.Time) func() time.Duration {
	read := func() time.Duration {
		now := time.Now()
		return time.Duration(now.UnixNano()) - now.Sub(begun)
	}
	return func() time.Duration { return max(read(), read()) }
}

// look compares the clocks. The worker is lost if the wall clock was set forward: a machine that was saved and
// copied goes on with old clocks, and the other copies hold the worker too.
func (w *Worker) look() bool {
	sound := time.Now().Add(lookAhead).UnixMilli() // Read first: the machine may be saved and copied in between.
	ahead := w.ahead()
	if by := ahead - time.Duration(w.seen.Swap(int64(ahead))); by >= leap {
		w.lose(fmt.Errorf("the wall clock was set forward by %v: it was wrong, or this machine was suspended, or is a "+
			"copy of one that was saved", by.Round(time.Millisecond)))
		return false
	}
	w.sound.Store(sound)
	return true
}
