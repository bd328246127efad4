package history

import (
	"fmt"
	"slices"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Final checks I9: once a node has shown a watermark, nobody is answered with an ID of a time
// below it, if the call began afterwards. It measures how far above the watermark answers are.
//
// For a node that vanished the claim assumes that its clock went on. So an answer does not count if a fault
// had changed the node's clock and the sid's holder key is gone, or another process's. The holder of a sid keeps to
// the watermark with any clock. While etcd's data is changed behind the nodes' backs, and until an era has begun and
// nodes know of it, nothing is promised.
type Final struct {
	findings
	calls
	faults
	format   flake.Format
	marks    []shown              // They rise.
	holders  map[int64]string     // By sid: the instance in its holder key.
	runs     map[int64]tenancy    // By sid: the process of that instance, if it is known.
	vanished map[int64]clock.Mono // By sid: its holder key was seen to be gone, or another's, at that time.
	above    spread
}

// shown is a watermark, and the number of the op that showed it.
type shown struct {
	seq   int64
	below int64 // Unix ms
}

// NewFinal returns the check.
func NewFinal() *Final {
	return &Final{format: flake.Default, holders: map[int64]string{}, runs: map[int64]tenancy{},
		vanished: map[int64]clock.Mono{}}
}

// Add takes samples, answers and faults.
func (f *Final) Add(op *Op) {
	if op.Setup != nil {
		f.format = op.Setup.Format()
	}
	f.faults.take(op)
	if h := op.Holder; h != nil {
		if was := f.holders[h.SID]; was != "" && (h.Deleted || h.Instance != was) {
			f.vanished[h.SID] = op.Time
		}
		f.holders[h.SID], f.runs[h.SID] = h.Instance, tenancy{op.Run, op.Time}
		if h.Deleted {
			delete(f.runs, h.SID)
		}
	}
	a, done := f.calls.take(op)
	last := len(f.marks) - 1
	if s := op.Sample; s != nil && s.MarkMs > 0 && (last < 0 || s.MarkMs > f.marks[last].below) {
		f.marks = append(f.marks, shown{f.seq, s.MarkMs})
		// Only the latest that the oldest call may have begun after is looked at again.
		old, _ := slices.BinarySearchFunc(f.marks, f.oldest(), func(m shown, seq int64) int { return int(m.seq - seq) })
		f.marks = slices.Delete(f.marks, 0, max(old-1, 0))
	}
	if !done || op.Type != OK {
		return
	}
	before, _ := slices.BinarySearchFunc(f.marks, a.seq, func(m shown, seq int64) int { return int(m.seq - seq) })
	if before == 0 {
		return
	}
	sid := f.format.SID(op.Block.First)
	gone, vanished := f.vanished[int64(sid)]
	if now := f.runs[int64(sid)]; op.Run != "" && now.run == op.Run && now.at < a.at {
		vanished = false // It has the sid again.
	}
	timed := false
	for _, i := range f.recent {
		switch {
		case i.fault.Class == ClassData && i.at <= op.Time && i.end() >= a.at:
			return
		case i.fault.Class != ClassClock || op.Node != "" && !i.targets(op.Node):
		case vanished && gone >= i.at-grace && a.at-grace <= i.end():
			return
		case a.at-grace <= i.end(): // The end of the holder's key may have been seen late.
			timed = true
		}
	}
	m := f.marks[before-1]
	ms := f.format.UnixMilli(op.Block.First)
	f.above.add(max(ms-m.below, 0))
	if ms < m.below {
		f.add("I9", op.Time, "%s answered %v of millisecond %d, and the watermark was %d before it was asked",
			op.who(), op.Block.First, ms, m.below)
		if n := len(f.list); f.count == int64(n) {
			f.list[n-1].Timed = timed
		}
	}
}

// Finish returns what was found.
func (f *Final) Finish() Result {
	missing := ""
	if f.above.n == 0 {
		missing = "no answers after a watermark was seen"
	}
	r := f.result("final", "I9", fmt.Sprintf("%d answers after a watermark was seen", f.above.n), missing)
	r.Measurements = f.above.measurements("above the watermark")
	return r
}
