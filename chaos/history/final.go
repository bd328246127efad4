package history

import (
	"fmt"
	"slices"

	"github.com/flakelease/allocator/flake"
)

// Final checks I9: once a node has shown a watermark, nobody is answered with an ID of a time
// below it, if the call began afterwards. It measures how far above the watermark answers are.
//
// Of a node that vanished that rests on its clock. So answers of a node whose clock a fault
// changed are left out; and after etcd's data was changed behind the nodes' backs nothing is
// promised any more.
type Final struct {
	findings
	calls
	faults
	format   flake.Format
	marks    []shown // They rise.
	tampered bool
	above    spread
}

// shown is a watermark, and the number of the op that showed it.
type shown struct {
	seq   int64
	below int64 // Unix ms
}

// NewFinal returns the check.
func NewFinal() *Final { return &Final{format: flake.Default} }

// Add takes samples, answers and faults.
func (f *Final) Add(op *Op) {
	if op.Setup != nil {
		f.format = op.Setup.Format()
	}
	f.faults.take(op)
	f.tampered = f.tampered || op.Fault != nil && op.Fault.Class == ClassData
	a, done := f.calls.take(op)
	last := len(f.marks) - 1
	if s := op.Sample; s != nil && s.MarkMs > 0 && (last < 0 || s.MarkMs > f.marks[last].below) {
		f.marks = append(f.marks, shown{f.seq, s.MarkMs})
		// Only the latest that the oldest call may have begun after is looked at again.
		old, _ := slices.BinarySearchFunc(f.marks, f.oldest(), func(m shown, seq int64) int { return int(m.seq - seq) })
		f.marks = slices.Delete(f.marks, 0, max(old-1, 0))
	}
	if !done || op.Type != OK || f.tampered {
		return
	}
	before, _ := slices.BinarySearchFunc(f.marks, a.seq, func(m shown, seq int64) int { return int(m.seq - seq) })
	if before == 0 {
		return
	}
	for _, i := range f.recent {
		if i.fault.Class == ClassClock && (op.Node == "" || i.targets(op.Node)) {
			return
		}
	}
	m := f.marks[before-1]
	ms := f.format.UnixMilli(op.Block.First)
	f.above.add(max(ms-m.below, 0))
	if ms < m.below {
		f.add("I9", op.Time, "%s answered %v of millisecond %d, and the watermark was %d before it was asked",
			op.who(), op.Block.First, ms, m.below)
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
