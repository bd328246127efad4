// Package history records what was seen of a run, and checks the claims of
// docs/DESIGN.md on the record: I1 (unique), I2 (ordered), I3 (reserved), I4
// (disjoint), I5 (close to real time), I6 (causal on request) and I9 (final).
//
// Simulations and real clusters share it, so that a claim means the same in both. The checks look
// only at what happened, never at how it was decided, and each answers pass, fail or unknown: a run
// that shows nothing has not passed.
//
// There are two records. History holds a run in memory, for tests. A file of Ops,
// one a line, holds a run of any length; a Suite of Checkers takes it op by op.
// The package is core: it reads and writes what it is given, and opens nothing.
package history

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Issue is a block of IDs that a process answered a caller with.
type Issue struct {
	Process    string     // one process from its start to its end
	First      flake.ID   // the block is First, First+Stride, …
	Count      int        // at least 1
	Stride     int64      // 2^(sid bits)
	Begin, End clock.Mono // when the call began and returned, by one observer's clock
	// Off is how far the process's wall clock was from the truth, where the observer knows it.
	Off time.Duration
}

// Last returns the greatest ID of the block.
func (i Issue) Last() flake.ID { return i.First + flake.ID(int64(i.Count-1)*i.Stride) }

// Grant is a ceiling that the store confirmed to a process: it may use the
// milliseconds [Base, Ceil) of the sid from At on.
type Grant struct {
	Process    string
	SID        flake.SID
	Base, Ceil clock.Millis // Unix ms
	At         clock.Mono
	True       clock.Millis // True is the true time then, in Unix ms, where the observer knows it.
}

// Write is a version of a sid's window record, as the store had it. Writes are
// recorded in the order in which the store applied them.
type Write struct {
	SID        flake.SID
	Rev        int64
	Term       int64
	Base, Ceil clock.Millis // Unix ms
	Released   bool         // Ceil was lowered to what had been used
}

// Mark is the watermark as the store had it from At on.
type Mark struct {
	Below clock.Millis // No ID with a time below it is issued any more, in Unix ms.
	At    clock.Mono
}

// History is a record of one run. It is not safe for concurrent use.
type History struct {
	Format flake.Format
	Issues []Issue
	Grants []Grant
	Writes []Write
	Marks  []Mark // in the order in which the store had them
}

// Violation is a claim that does not hold, with the evidence.
type Violation struct {
	Claim  string     `json:"claim"` // I1 … I8
	Detail string     `json:"detail"`
	At     clock.Mono `json:"at_ns"` // when it was seen; 0 where the record has no times
	// Timed says that the claim may hold if something was seen too late.
	Timed bool `json:"timed,omitempty"`
}

// Error returns claim and detail.
func (v Violation) Error() string { return v.Claim + ": " + v.Detail }

// maxListed bounds how many violations of one claim have their evidence.
const maxListed = 1000

// Check holds the record against the checks of runs of Ops, and returns the violations found, at most ten of each
// check. Here the observer sees each grant and mark at once, so I3 allows no lag, and marks must rise.
func (h *History) Check() []Violation {
	order, intervals, confirmed, final := NewOrder(), NewIntervals(), NewConfirmed(0), NewFinal()
	order.format, intervals.format, confirmed.format, final.format = h.Format, h.Format, h.Format, h.Format
	suite := Suite{NewUnique(0, nil), intervals, confirmed, final}
	h.play(func(op *Op) {
		suite.Add(op)
		op.Node = "" // Order by sid would blame a process that holds a sid twice, with another one in between.
		order.Add(op)
	})
	windows := NewReserved() // the order in which the store applied them, whatever the times of calls
	for _, w := range h.Writes {
		windows.Add(&Op{Process: Etcd, F: FWindow, Window: &Window{
			SID: int64(w.SID), Rev: w.Rev, Term: w.Term, Base: int64(w.Base), Ceil: int64(w.Ceil), Released: w.Released,
		}})
	}
	var out []Violation
	for _, r := range append(suite.Finish(), order.Finish(), windows.Finish()) {
		out = append(out, r.Violations[:min(len(r.Violations), 10)]...)
	}
	if len(h.Issues) > 0 && len(h.Grants) == 0 {
		out = append(out, Violation{Claim: "I3", Detail: "IDs were issued, and no window was confirmed"})
	}
	for i := 1; i < len(h.Marks); i++ {
		if a, b := h.Marks[i-1], h.Marks[i]; b.Below < a.Below {
			detail := fmt.Sprintf("the mark fell from %d to %d", a.Below, b.Below)
			out = append(out, Violation{Claim: "I9", Detail: detail})
		}
	}
	return out
}

// play gives add the grants, calls and marks as Ops, in the order of their times. At one time a grant comes before
// calls, which may use it, and a mark after calls, which may not know it.
func (h *History) play(add func(*Op)) {
	type moment struct {
		at   clock.Mono
		kind int // 0: grants, 1: calls that begin, 2: calls that end, 3: marks
		n    int // the index in its list
	}
	all := make([]moment, 0, len(h.Grants)+2*len(h.Issues)+len(h.Marks))
	for n, g := range h.Grants {
		all = append(all, moment{g.At, 0, n})
	}
	for n, i := range h.Issues {
		all = append(all, moment{i.Begin, 1, n}, moment{i.End, 2, n})
	}
	for n, m := range h.Marks {
		all = append(all, moment{m.At, 3, n})
	}
	slices.SortFunc(all, func(a, b moment) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.n, b.n))
	})
	var last clock.Mono
	for _, m := range all {
		last = m.at
		op := Op{Time: m.at, Type: Info}
		switch m.kind {
		case 0:
			g := h.Grants[m.n]
			op.Process, op.F, op.Node, op.Run = Etcd, FWindow, g.Process, g.Process
			op.Window = &Window{SID: int64(g.SID), Base: int64(g.Base), Ceil: int64(g.Ceil)}
		case 1, 2:
			i := h.Issues[m.n]
			op.Process, op.Type, op.F, op.Node, op.Run = strconv.Itoa(m.n), Invoke, FAllocate, i.Process, i.Process
			op.Block = Block{i.First, int64(i.Count), i.Stride}
			if m.kind == 2 {
				op.Type = OK
			}
		default:
			op.Process, op.F, op.Sample = Sampler, FSample, &Sample{MarkMs: int64(h.Marks[m.n].Below)}
		}
		add(&op)
	}
	add(&Op{Time: last + 1, Process: Harness, Type: Info, F: FSetup}) // Nothing is confirmed any more.
}

// T is the part of a testing.TB that fails a test.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

// Violated fails a test because a claim of docs/DESIGN.md does not hold, so that the output names the claim.
func Violated(t T, claim, format string, args ...any) {
	t.Helper()
	t.Errorf("%s is violated: %s", claim, fmt.Sprintf(format, args...))
}

// Hold fails a test for each violation that Check finds.
func (h *History) Hold(t T) {
	t.Helper()
	for _, v := range h.Check() {
		Violated(t, v.Claim, "%s", v.Detail)
	}
}

// IDs returns how many IDs were issued.
func (h *History) IDs() int {
	n := 0
	for _, i := range h.Issues {
		n += i.Count
	}
	return n
}
