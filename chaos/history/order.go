package history

import (
	"fmt"
	"maps"
	"slices"

	"github.com/flakelease/allocator/flake"
)

// Order checks I2: of two calls, one answered before the other began, the first
// got the smaller IDs; per process of a node, per sid, and per session of a
// client that asks with after.
//
// A sid's IDs rise across its holders too, restarts included. One exception is
// no violation: a holder that lost its sid and lives may answer from the window
// it still has while its successor already answers from the next one, which
// begins above. Its IDs then lie below all of the successor's.
type Order struct {
	findings
	calls
	format   flake.Format
	runs     map[string]*highest
	sessions map[string]*highest
	sids     map[flake.SID]*sidOrder
	checked  int64
}

type sidOrder struct {
	all  highest
	runs map[string]*runOnSID
}

type runOnSID struct {
	highest
	smallest flake.ID // This process answered with no smaller ID.
}

// NewOrder returns the check.
func NewOrder() *Order {
	return &Order{
		format:   flake.Default,
		runs:     map[string]*highest{},
		sessions: map[string]*highest{},
		sids:     map[flake.SID]*sidOrder{},
	}
}

// Add takes calls, and the layout from the setup.
func (o *Order) Add(op *Op) {
	if op.Setup != nil {
		o.format = op.Setup.Format()
	}
	a, done := o.take(op)
	if o.seq%forgetEvery == 0 {
		o.forget()
	}
	if !done || op.Type != OK {
		return
	}
	o.checked++
	first, last := op.Block.First, op.Block.Last()
	if op.Run != "" {
		h := marks(o.runs, op.Run)
		if id, ok := h.before(a.seq); ok && first <= id {
			o.add("I2", op.Time, "%s had answered %v before the call began that got %v", op.Run, id, first)
		}
		h.add(o.seq, last)
	}
	if a.session != "" && a.after != 0 {
		h := marks(o.sessions, a.session)
		if id, ok := h.before(a.seq); ok && first <= id {
			o.add("I2", op.Time, "session %s had %v before it asked, after %v, and got %v of %s",
				a.session, id, a.after, first, op.who())
		}
		h.add(o.seq, last)
	}
	if op.Node != "" { // or it is not known whose order it is part of
		o.sid(op, a)
	}
}

func (o *Order) sid(op *Op, a asked) {
	first, last := op.Block.First, op.Block.Last()
	sid, who := o.format.SID(first), op.who()
	s := o.sids[sid]
	if s == nil {
		s = &sidOrder{runs: map[string]*runOnSID{}}
		o.sids[sid] = s
	}
	if id, ok := s.all.before(a.seq); ok && first <= id {
		for _, other := range slices.Sorted(maps.Keys(s.runs)) {
			r := s.runs[other]
			if id, ok := r.before(a.seq); ok && other != who && first <= id && last >= r.smallest {
				o.add("I2", op.Time,
					"sid %d: %s had answered %v before the call began that got %v of %s", sid, other, id, first, who)
			}
		}
		if r := s.runs[who]; r != nil && op.Run == "" {
			if id, ok := r.before(a.seq); ok && first <= id {
				o.add("I2", op.Time, "sid %d: %s had answered %v before the call began that got %v",
					sid, who, id, first)
			}
		}
	}
	r := s.runs[who]
	if r == nil {
		r = &runOnSID{smallest: first}
		s.runs[who] = r
	}
	r.smallest = min(r.smallest, first)
	r.add(o.seq, last)
	s.all.add(o.seq, last)
}

// forget drops what no call in flight can ask for.
func (o *Order) forget() {
	seq := o.oldest()
	for _, h := range o.runs {
		h.forget(seq)
	}
	for _, h := range o.sessions {
		h.forget(seq)
	}
	for _, s := range o.sids {
		s.all.forget(seq)
		for _, r := range s.runs {
			r.forget(seq)
		}
	}
}

func marks(m map[string]*highest, k string) *highest {
	h := m[k]
	if h == nil {
		h = new(highest)
		m[k] = h
	}
	return h
}

// Finish returns what was found.
func (o *Order) Finish() Result {
	missing := ""
	if o.checked < 2 {
		missing = "fewer than two calls were answered"
	}
	return o.result("order", "I2", fmt.Sprintf("%d answers of %d processes, %d sids and %d sessions",
		o.checked, len(o.runs), len(o.sids), len(o.sessions)), missing)
}

// Causal checks I6: an ID asked for after another is greater.
type Causal struct {
	findings
	calls
	checked int64
}

// NewCausal returns the check.
func NewCausal() *Causal { return &Causal{} }

// Add takes calls.
func (c *Causal) Add(op *Op) {
	a, done := c.take(op)
	if !done || op.Type != OK || a.after == 0 {
		return
	}
	c.checked++
	if op.Block.First <= a.after {
		c.add("I6", op.Time, "%s answered %v to after %v", op.who(), op.Block.First, a.after)
	}
}

// Finish returns what was found.
func (c *Causal) Finish() Result {
	missing := ""
	if c.checked == 0 {
		missing = "no call with after was answered"
	}
	return c.result("causal", "I6", fmt.Sprintf("%d answers to calls with after", c.checked), missing)
}
