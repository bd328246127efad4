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
}

// Error returns claim and detail.
func (v Violation) Error() string { return v.Claim + ": " + v.Detail }

// maxShown bounds how many violations of one claim are listed.
const maxShown = 10

// Check returns the violations found, at most ten of each claim.
func (h *History) Check() []Violation {
	var out []Violation
	for _, check := range []func() []Violation{h.unique, h.perProcess, h.reserved, h.disjoint, h.final} {
		found := check()
		out = append(out, found[:min(len(found), maxShown)]...)
	}
	return out
}

// IDs returns how many IDs were issued.
func (h *History) IDs() int {
	n := 0
	for _, i := range h.Issues {
		n += i.Count
	}
	return n
}

// unique checks I1. The IDs of a block are of one sid, and all that it can have
// between First and Last, so two blocks share an ID exactly if they overlap.
func (h *History) unique() []Violation {
	issues := slices.Clone(h.Issues)
	slices.SortFunc(issues, func(a, b Issue) int {
		return cmp.Or(cmp.Compare(h.Format.SID(a.First), h.Format.SID(b.First)), cmp.Compare(a.First, b.First))
	})
	var out []Violation
	for _, i := range issues {
		if from, to := h.Format.SID(i.First), h.Format.SID(i.Last()); from != to {
			out = append(out, Violation{
				Claim: "I1",
				Detail: fmt.Sprintf("%s issued %d from %v: they run from sid %d into sid %d",
					i.Process, i.Count, i.First, from, to),
			})
		}
	}
	for i := 1; i < len(issues); i++ {
		a, b := issues[i-1], issues[i]
		if h.Format.SID(a.First) != h.Format.SID(b.First) {
			continue
		}
		if b.First <= a.Last() {
			out = append(out, Violation{
				Claim: "I1",
				Detail: fmt.Sprintf("%s issued %d from %v, and %s issued %d from %v",
					a.Process, a.Count, a.First, b.Process, b.Count, b.First),
			})
		}
		if b.Last() < a.Last() {
			issues[i] = a // a reaches further: the next block is held against it
		}
	}
	return out
}

// perProcess checks I2 within each process: what was answered before a call
// began is smaller than what that call got.
func (h *History) perProcess() []Violation {
	byProcess := map[string][]Issue{}
	for _, i := range h.Issues {
		byProcess[i.Process] = append(byProcess[i.Process], i)
	}
	var out []Violation
	for process, begun := range byProcess {
		ended := slices.Clone(begun)
		slices.SortFunc(begun, func(a, b Issue) int { return cmp.Compare(a.Begin, b.Begin) })
		slices.SortFunc(ended, func(a, b Issue) int { return cmp.Compare(a.End, b.End) })
		highest, next := flake.ID(-1), 0
		for _, i := range begun {
			for ; next < len(ended) && ended[next].End < i.Begin; next++ {
				highest = max(highest, ended[next].Last())
			}
			if i.First <= highest {
				out = append(out, Violation{
					Claim: "I2",
					Detail: fmt.Sprintf("%s had answered %v before the call that got %v",
						process, highest, i.First),
				})
			}
		}
	}
	return out
}

// reserved checks I3: each millisecond of an issue's units of time lies in windows that had been
// confirmed to its process when the call returned.
func (h *History) reserved() []Violation {
	type key struct {
		process string
		sid     flake.SID
	}
	granted := map[key][]Grant{}
	for _, g := range h.Grants {
		k := key{g.Process, g.SID}
		granted[k] = append(granted[k], g)
	}
	for _, gs := range granted {
		slices.SortFunc(gs, func(a, b Grant) int { return cmp.Compare(a.Base, b.Base) })
	}
	var out []Violation
	for _, i := range h.Issues {
		from := clock.Millis(h.Format.UnixMilli(i.First))
		to := clock.Millis(h.Format.UnixMilli(i.Last()) + h.Format.Layout.Unit() - 1)
		sid := h.Format.SID(i.First)
		need := from // the first millisecond not yet found covered
		for _, g := range granted[key{i.Process, sid}] {
			if g.At <= i.End && g.Base <= need && need < g.Ceil {
				need = g.Ceil
			}
		}
		if need <= to {
			out = append(out, Violation{
				Claim: "I3",
				Detail: fmt.Sprintf("%s issued %v, and millisecond %d of sid %d was not confirmed to it",
					i.Process, i.First, need, sid),
			})
		}
	}
	return out
}

// final checks I9: what is issued to a call that began after a mark was in the store is not below
// that mark. Marks rise.
func (h *History) final() []Violation {
	var out []Violation
	for i := 1; i < len(h.Marks); i++ {
		if a, b := h.Marks[i-1], h.Marks[i]; b.Below < a.Below {
			detail := fmt.Sprintf("the mark fell from %d to %d", a.Below, b.Below)
			out = append(out, Violation{Claim: "I9", Detail: detail})
		}
	}
	for _, i := range h.Issues {
		n, _ := slices.BinarySearchFunc(h.Marks, i.Begin, func(m Mark, at clock.Mono) int {
			return cmp.Compare(m.At, at)
		})
		if n == 0 {
			continue
		}
		if ms, m := clock.Millis(h.Format.UnixMilli(i.First)), h.Marks[n-1]; ms < m.Below {
			out = append(out, Violation{
				Claim:  "I9",
				Detail: fmt.Sprintf("%s issued %v of time %d after the mark was %d", i.Process, i.First, ms, m.Below),
			})
		}
	}
	return out
}

// disjoint checks I4 on the store's own record: each window starts at or above
// the ceiling of the one before, and terms rise.
func (h *History) disjoint() []Violation {
	writes := slices.Clone(h.Writes)
	// Not by revision: a store restored from a backup counts again through
	// numbers it has used.
	slices.SortStableFunc(writes, func(a, b Write) int { return cmp.Compare(a.SID, b.SID) })
	var out []Violation
	for i := 1; i < len(writes); i++ {
		a, b := writes[i-1], writes[i]
		switch {
		case a.SID != b.SID:
		case b.Released && b.Term == a.Term && b.Ceil <= a.Ceil:
		case b.Base < a.Ceil:
			out = append(out, Violation{
				Claim: "I4",
				Detail: fmt.Sprintf("sid %d: window [%d,%d) at revision %d follows a ceiling of %d",
					b.SID, b.Base, b.Ceil, b.Rev, a.Ceil),
			})
		case b.Term < a.Term:
			out = append(out, Violation{
				Claim: "I4",
				Detail: fmt.Sprintf("sid %d: term %d at revision %d follows term %d",
					b.SID, b.Term, b.Rev, a.Term),
			})
		}
	}
	return out
}
