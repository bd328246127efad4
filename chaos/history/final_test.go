package history

import (
	"slices"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// TestFinal: only an answer below a watermark that was seen before its call began breaks I9.
func TestFinal(t *testing.T) {
	const at = flake.DefaultEpoch + 1_000_000
	id := func(ms int64) flake.ID {
		out, err := flake.Default.Make(ms, 5, 3)
		fatal.If(t, err)
		return out
	}
	mark := func(ms int64) Op {
		return Op{F: FSample, Process: Sampler, Type: Info, Node: "n2", Sample: &Sample{MarkMs: ms}}
	}
	ask := Op{F: FAllocate, Process: "1", Type: Invoke, Node: "n1"}
	got := func(ms int64) Op {
		return Op{F: FAllocate, Process: "1", Type: OK, Node: "n1", Block: Block{First: id(ms), Count: 1, Stride: 32}}
	}
	fault := func(class, phase string, targets ...string) Op {
		return Op{F: "a fault", Process: Nemesis, Type: Info, Fault: &Fault{ID: 1, Phase: phase, Class: class, Targets: targets}}
	}
	holder := func(instance string) Op {
		return Op{F: FHolder, Process: Etcd, Type: Info, Holder: &Holder{SID: 3, Instance: instance, Deleted: instance == ""}}
	}
	run := func(op Op) Op {
		op.Run = "n1#0"
		return op
	}
	later := func(op Op) Op {
		op.Time = 3 * grace
		return op
	}
	holds := func(instance string) Op { return run(holder(instance)) }
	for name, tc := range map[string]struct {
		ops  []Op
		want Verdict
	}{
		"no watermark":                    {[]Op{ask, got(at)}, Unknown},
		"at it":                           {[]Op{mark(at), ask, got(at)}, Pass},
		"below it":                        {[]Op{mark(at), ask, got(at - 1)}, Broken},
		"below it, asked before":          {[]Op{mark(at - 9), ask, mark(at), got(at - 1)}, Pass},
		"below an earlier one":            {[]Op{mark(at), mark(at + 5), ask, got(at - 1)}, Broken},
		"below the highest":               {[]Op{mark(at), mark(at - 5), ask, got(at - 1)}, Broken},
		"a clock was changed":             {[]Op{mark(at), holder("i"), fault(ClassClock, FaultStart, "n1"), ask, got(at - 1)}, Broken},
		"and it vanished":                 {[]Op{mark(at), holder("i"), fault(ClassClock, FaultStart, "n1"), holder(""), ask, got(at - 1), ask}, Unknown},
		"and it was replaced":             {[]Op{mark(at), holder("i"), fault(ClassClock, FaultStart, "n1"), holder("j"), ask, got(at - 1), ask}, Unknown},
		"and it holds the sid again":      {[]Op{mark(at), holds("i"), fault(ClassClock, FaultStart, "n1"), holds(""), holds("j"), ask, run(got(at - 1)), ask}, Broken},
		"and it got the sid again later":  {[]Op{mark(at), holds("i"), fault(ClassClock, FaultStart, "n1"), holds(""), ask, holds("j"), run(got(at - 1)), ask}, Unknown},
		"and the fault is long over":      {[]Op{mark(at), holds("i"), fault(ClassClock, FaultStart, "n1"), holds(""), fault(ClassClock, FaultStop, "n1"), later(ask), later(run(got(at - 1)))}, Broken},
		"and it had vanished long before": {[]Op{mark(at), holds("i"), holds(""), later(fault(ClassClock, FaultStart, "n1")), later(ask), later(run(got(at - 1)))}, Broken},
		"and its key is gone":             {[]Op{mark(at), holds("i"), fault(ClassClock, FaultStart, "n1"), holds(""), ask, run(got(at - 1)), ask}, Unknown},
		"and another process has it":      {[]Op{mark(at), holds("i"), fault(ClassClock, FaultStart, "n1"), holder("j"), ask, run(got(at - 1)), ask}, Unknown},
		"it vanished, its clock right":    {[]Op{mark(at), holder("i"), holder(""), ask, got(at - 1), ask}, Broken},
		"the clock of another":            {[]Op{mark(at), fault(ClassClock, FaultStart, "n2"), ask, got(at - 1)}, Broken},
		"a process was paused":            {[]Op{mark(at), fault(ClassProcess, FaultStart, "n1"), ask, got(at - 1)}, Broken},
		"etcd's data was changed":         {[]Op{mark(at), fault(ClassData, FaultStart), ask, got(at - 1)}, Unknown},
		"and an era began":                {[]Op{mark(at), fault(ClassData, FaultStart), fault(ClassData, FaultStop), ask, got(at - 1)}, Broken},
		"asked before the era began":      {[]Op{mark(at), fault(ClassData, FaultStart), ask, fault(ClassData, FaultStop), got(at - 1)}, Unknown},
		"after many calls and marks":      {append(many(mark, ask, got, at), ask, got(at+97)), Broken},
		"the last of many, well above":    {append(many(mark, ask, got, at), ask, got(at+99)), Pass},
	} {
		f := NewFinal()
		for i, op := range tc.ops {
			op.Time += clock.Mono(i)
			f.Add(&op)
		}
		if r := f.Finish(); r.Verdict != tc.want {
			t.Errorf("%s: %+v, want %s", name, r, tc.want)
		} else if tc.want == Broken && r.Violations[0].Timed != slices.Contains([]string{"a clock was changed", "and it holds the sid again", "and it had vanished long before"}, name) {
			t.Errorf("%s: %+v", name, r.Violations)
		}
		if len(f.marks) > 3 {
			t.Errorf("%s: keeps %d marks", name, len(f.marks))
		}
	}
}

func many(mark func(int64) Op, ask Op, got func(int64) Op, at int64) (ops []Op) {
	for i := range int64(99) {
		ops = append(ops, mark(at+i), ask, got(at+i))
	}
	return ops
}
