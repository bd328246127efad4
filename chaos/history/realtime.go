package history

import (
	"fmt"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// covered is what the two checks of I5 share: the answers that it is promised for.
type covered struct {
	calls
	faults
	setup   *Setup
	verdict map[string]string // the gate's, by node, as last sampled
}

// VerdictOpen is the verdict of a sample whose node confirms its clock. A node that
// was never sampled counts as one.
const VerdictOpen = "open"

// recovery is how long after a clock fault or a pause I5 is promised again.
//
// Source: docs/DESIGN.md, I5.
const recovery = clock.Mono(4e9)

// promised takes op and returns the call it answers, if I5 is promised for it:
// the node confirms its clock, and no fault of its clocks or pause of its process
// reaches into the call. An answer whose node is not known may be any node's.
func (j *covered) promised(op *Op) (a asked, ok bool) {
	if op.Setup != nil {
		j.setup = op.Setup
	}
	j.faults.take(op)
	if op.Sample != nil && op.Sample.Verdict != "" {
		if j.verdict == nil {
			j.verdict = map[string]string{}
		}
		j.verdict[op.Node] = op.Sample.Verdict
	}
	a, done := j.calls.take(op)
	if !done || op.Type != OK || j.setup == nil {
		return a, false
	}
	for node, v := range j.verdict {
		if v != VerdictOpen && (op.Node == node || op.Node == "") {
			return a, false
		}
	}
	ok = true
	for _, i := range j.recent {
		if c := i.fault.Class; c != ClassClock && c != ClassProcess || op.Node != "" && !i.targets(op.Node) {
			continue
		}
		ok = ok && (i.at > op.Time || i.stopped >= 0 && i.stopped+recovery < a.at)
	}
	return a, ok
}

// RealTime checks the order of I5: while verdicts are open, an ID's time lies at
// most 2·max_skew + max_lead before that of any ID that was answered before it
// was asked for, on any node. It measures how far it does.
type RealTime struct {
	findings
	covered
	all  highest
	late spread
}

// NewRealTime returns the check.
func NewRealTime() *RealTime { return &RealTime{} }

// Add takes everything.
func (r *RealTime) Add(op *Op) {
	a, ok := r.promised(op)
	if r.seq%forgetEvery == 0 {
		r.all.forget(r.oldest())
	}
	if !ok {
		return
	}
	f := r.setup.Format()
	if before, ok := r.all.before(a.seq); ok {
		late := f.UnixMilli(before) - f.UnixMilli(op.Block.First)
		r.late.add(max(late, 0))
		if bound := 2*r.setup.MaxSkewMs + r.setup.MaxLeadMs; late > bound {
			r.add("I5", op.Time, "%s answered %v, whose time is %d ms before that of %v, which was answered before "+
				"it was asked for: more than %d ms",
				op.who(), op.Block.First, late, before, bound)
		}
	}
	r.all.add(r.seq, op.Block.Last())
}

// Finish returns what was found.
func (r *RealTime) Finish() Result {
	missing := ""
	switch {
	case r.setup == nil:
		missing = "the history does not say what the run is"
	case r.late.n == 0:
		missing = "no two answers in turn while verdicts were open"
	}
	res := r.result("real time", "I5",
		fmt.Sprintf("%d answers, at most %d ms behind one before", r.late.n, r.late.max), missing)
	res.Measurements = r.late.measurements("inversion")
	return res
}

// Truth checks the other half of I5: while verdicts are open, an ID's time is
// within max_skew + max_lead of the observer's, which stands for the cluster's:
// they run on one machine, or on clocks as good.
type Truth struct {
	findings
	covered
	off spread
}

// NewTruth returns the check.
func NewTruth() *Truth { return &Truth{} }

// Add takes everything.
func (t *Truth) Add(op *Op) {
	a, ok := t.promised(op)
	if !ok {
		return
	}
	f := t.setup.Format()
	for _, id := range [...]flake.ID{op.Block.First, op.Block.Last()} {
		// The ID was made at some time between the two.
		from, to := t.setup.StartMs+int64(a.at)/1e6, t.setup.StartMs+int64(op.Time)/1e6
		ms := f.UnixMilli(id)
		off := max(from-ms, ms-to, 0)
		t.off.add(off)
		if bound := t.setup.MaxSkewMs + t.setup.MaxLeadMs; off > bound {
			t.add("I5", op.Time, "%s answered %v of millisecond %d to a call from %d to %d: %d ms off, more than %d ms",
				op.who(), id, ms, from, to, off, bound)
			return
		}
	}
}

// Finish returns what was found.
func (t *Truth) Finish() Result {
	missing := ""
	switch {
	case t.setup == nil:
		missing = "the history does not say what the run is"
	case t.off.n == 0:
		missing = "no answers while verdicts were open"
	}
	res := t.result("truth", "I5", fmt.Sprintf("%d times, at most %d ms off", t.off.n, t.off.max), missing)
	res.Measurements = t.off.measurements("off by")
	return res
}

// spread counts milliseconds, for exact quantiles below its reach.
type spread struct {
	n, max int64
	at     [4096]int64 // the last holds all that are larger
}

func (s *spread) add(ms int64) {
	s.n++
	s.max = max(s.max, ms)
	s.at[min(ms, int64(len(s.at)-1))]++
}

// quantile returns the smallest value that a share of all does not exceed.
func (s *spread) quantile(share float64) int64 {
	need, sum := int64(share*float64(s.n)), int64(0)
	for ms, n := range s.at {
		if sum += n; sum > need || sum == s.n {
			if ms == len(s.at)-1 {
				return s.max
			}
			return int64(ms)
		}
	}
	return s.max
}

func (s *spread) measurements(name string) []Measurement {
	if s.n == 0 {
		return nil
	}
	return []Measurement{
		{name + " p50", float64(s.quantile(.5)), "ms"},
		{name + " p99", float64(s.quantile(.99)), "ms"},
		{name + " max", float64(s.max), "ms"},
	}
}
