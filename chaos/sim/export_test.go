package sim

import "github.com/flakelease/allocator/flake"

// Count returns what the counter of a run makes of blocks.
func Count(blocks []Happening) (ids, duplicates, disorder int, twin flake.ID) {
	c := newCounter()
	for _, b := range blocks {
		c.take(b)
	}
	if c.twin != nil {
		twin = c.twin.ID
	}
	return c.ids, c.duplicates, c.disorder, twin
}

// Kept returns how many blocks the history of a run has, and its counter of one sid at most.
func (l *Live) Kept() (history, sid int) {
	for _, list := range l.count.issued {
		sid = max(sid, len(list))
	}
	return len(l.sim.before.Issues), sid
}
