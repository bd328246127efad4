package node

import (
	"fmt"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
)

// Begin starts issuing from a confirmed grant. A tenure still issuing is sealed
// first; the new one starts above everything this process issued (I2).
//
// It panics if the grant cannot be one: it was confirmed by the store, so a
// claim does not hold and the process must not go on.
func (n *Node) Begin(g lease.Grant) {
	n.change(func(s *state) {
		n.seal(s)
		base := max(g.Base, n.high)
		// An ID above the old sid's may lie above the new window: then it is
		// empty until the keeper raises it.
		t, err := gen.NewTenure(n.cfg.Gen, g.SID, base, max(base, g.Ceil), n.rnd)
		if err != nil {
			panic(fmt.Sprintf("node: grant %v: %v", g, err))
		}
		s.tenure, s.term = t, g.Term
	})
	n.NoteReserved(g.Ceil)
}

// Raise lets the present tenure issue up to ceil, which etcd has confirmed.
func (n *Node) Raise(ceil clock.Millis) {
	n.change(func(s *state) {
		if s.tenure != nil {
			s.tenure.Raise(ceil)
		}
	})
	n.NoteReserved(ceil)
}

// Lift has the present tenure issue nothing with a time below floor from now on.
func (n *Node) Lift(floor clock.Millis) {
	if t := n.state.Load().tenure; t != nil {
		t.Lift(floor)
	}
}

// NoteReserved keeps the highest ceiling that etcd confirmed, to this process or through
// it to a worker, also after the tenure: after etcd was restored from a backup it may be
// known nowhere else.
func (n *Node) NoteReserved(ceil clock.Millis) {
	for {
		old := n.reserved.Load()
		if int64(ceil) <= old || n.reserved.CompareAndSwap(old, int64(ceil)) {
			return
		}
	}
}

// Seal ends the present tenure and returns the ceiling below which everything
// lies that it issued. No ID of it is issued afterwards.
func (n *Node) Seal() clock.Millis {
	var ceil clock.Millis
	n.change(func(s *state) { ceil = n.seal(s) })
	return ceil
}

// seal is called with mu held.
func (n *Node) seal(s *state) clock.Millis {
	if s.tenure == nil {
		return n.high
	}
	ceil := s.tenure.Seal()
	if _, ok := s.tenure.Issued(); ok {
		n.high = max(n.high, ceil)
	}
	s.tenure = nil
	return ceil
}

// Report passes the status of the lease to the node, for the messages of refusals.
func (n *Node) Report(l lease.Status) {
	n.change(func(s *state) { s.lease, s.space = l, l.Space.ID() })
}

// SetVerdict opens or closes the gate.
func (n *Node) SetVerdict(v clock.Verdict) { n.change(func(s *state) { s.verdict = v }) }

// Drain makes every later request refuse with DRAINING. Requests that wait for
// lead are refused when they next try.
func (n *Node) Drain() { n.change(func(s *state) { s.draining, s.drained = true, n.clock.Now().Mono }) }

// Undrain undoes Drain.
func (n *Node) Undrain() { n.change(func(s *state) { s.draining = false }) }

// Leave makes Ready refuse with DRAINING while requests are served on, so that
// load balancers choose other nodes before requests are refused.
func (n *Node) Leave() { n.change(func(s *state) { s.leaving = true }) }

// Ready returns nil if a request for one ID would not be refused now, and else
// why it would be.
func (n *Node) Ready() *Refusal { return n.ready(n.state.Load(), n.clock.Now().Wall) }

func (n *Node) ready(s *state, now clock.Millis) *Refusal {
	if r := n.closed(s); r != nil {
		return r
	}
	if s.leaving {
		return refuse(Draining, 0, "node %s is about to shut down: try another node", n.cfg.Name)
	}
	if lead, limit := s.tenure.Ahead(now), n.cfg.Gen.Lead(); lead > limit {
		_, issued := s.tenure.Issued()
		cause := gen.ErrOverflow
		switch { // as the generator would answer a request now
		case clock.Millis(n.seen.Load())-now > lead-limit:
			cause = gen.ErrRegression
		case !issued:
			cause = gen.ErrNotBegun
		}
		return n.explainLead(s, &gen.LeadError{Err: cause, Lead: lead, Limit: limit}).Refusal
	}
	if now >= s.tenure.Ceil() {
		return refuse(WindowExhausted, retryWindow,
			"the window reserved in etcd is used up%s", because(s.lease.Problem))
	}
	return nil
}

// Stats is a copy of the node's counters and state.
type Stats struct {
	Name       string
	Instance   lease.Instance
	Issued     int64             // IDs
	Unverified int64             // IDs issued while no majority confirmed the clock
	Refused    [NumReasons]int64 // requests, by reason
	Now        clock.Millis      // issuing clock, Unix ms
	Base       clock.Millis      // first ms of the present tenure; 0 without one
	Ceil       clock.Millis      // end of the present tenure's window; 0 without one
	Lead       clock.Millis      // the last ID's time minus the clock; negative: behind
	Holding    bool
	SID        flake.SID // The present tenure issues IDs of this sid; 0 without one.
	Term       int64     // The present tenure has this term; 0 without one.
	Draining   bool
	Verdict    clock.Verdict
	Lease      lease.Status
	Reserved   clock.Millis // highest ceiling ever confirmed to this process; 0: none
}

// Stats returns the node's counters and state.
func (n *Node) Stats() Stats {
	s := n.state.Load()
	st := Stats{
		Name: n.cfg.Name, Instance: n.cfg.Instance,
		Issued: n.issued.Load(), Unverified: n.unverified.Load(),
		Now: n.clock.Now().Wall, Draining: s.draining, Verdict: s.verdict, Lease: s.lease,
		Reserved: clock.Millis(n.reserved.Load()),
	}
	for _, r := range Reasons {
		st.Refused[r] = n.refused[r].Load()
	}
	if t := s.tenure; t != nil {
		st.Holding, st.SID, st.Term, st.Lead = true, t.SID(), s.term, t.Ahead(st.Now)
		st.Base, st.Ceil = t.Base(), t.Ceil()
	}
	return st
}

// WindowLeft returns how much of the window is still to be used, in ms: of one
// that has not begun, its length. It is 0 without one.
func (s Stats) WindowLeft() clock.Millis { return max(s.Ceil-max(s.Now, s.Base), 0) }
