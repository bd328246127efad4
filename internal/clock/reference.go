package clock

import "time"

// Reference is where the wall clock would be if nobody had set it: a wall time that
// was trusted, plus the time elapsed since. How far a clock is ahead of it is how far
// it was set, however many steps that took.
//
// Elapsed time counts suspends, from an origin that stays the same. A Reference is a
// value with one owner; the zero value is not set.
type Reference struct {
	wall int64 // Unix ns
	at   time.Duration
	set  bool
}

// Exists reports whether the reference was set.
func (r *Reference) Exists() bool { return r.set }

// Set trusts Unix ns wall, read when elapsed time had passed.
func (r *Reference) Set(wall int64, elapsed time.Duration) { *r = Reference{wall, elapsed, true} }

// Ahead returns how far Unix ns wall is ahead of the reference; it is negative if
// behind.
func (r *Reference) Ahead(wall int64, elapsed time.Duration) time.Duration {
	return time.Duration(wall - r.wall - int64(elapsed-r.at))
}

// Follow lets the reference approach Unix ns wall by 1 ms a second: twice the kernel's
// fastest slew, so that corrections of many months do not add up to a step, and so
// slow that a step is forgotten only after days.
func (r *Reference) Follow(wall int64, elapsed time.Duration) {
	ahead := r.Ahead(wall, elapsed)
	most := (elapsed - r.at) / forgetting
	r.wall += int64(elapsed-r.at) + int64(min(max(ahead, -most), most))
	r.at = elapsed
}
