package status

import (
	"cmp"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// State is what a node does, as far as the one that answers can tell.
type State string

// The states of nodes.
const (
	Serving  State = "serving"
	Refusing State = "refusing"
	Standby  State = "standby" // it holds no sid, and waits for one
	Silent   State = "silent"  // it answered by gossip once, and does not lately
	Unknown  State = "unknown" // it was never heard, as a node without gossip
	Gone     State = "gone"    // it vanished, and has not released its sid: Cluster.Vanished
)

// StateOf judges a node by what is known of it at time now, and returns why it refuses. The
// first of these rules that applies decides:
//
//  1. It reports a reason to refuse, other than that it holds no sid.
//  2. Its clock was measured once, and is not lately: it is silent.
//  3. It reports with its clock's samples that its clock keeps it from issuing, and has not
//     reported since that it serves.
//  4. There is neither a report nor a measurement: it is unknown.
//  5. It holds no sid: it is a standby.
//  6. Its window has ended.
//
// A clock that a majority finds wrong decides nothing here, but the node itself, by rule 1 or
// 3. Until then it issues, and Problems says what is wrong with it.
func StateOf(n Node, now int64) (State, node.Reason) {
	reports, measured, verdict := node.Reason(0), n.Clock, ""
	if measured != nil {
		verdict = measured.Verdict
	}
	if n.Report != nil {
		reports = n.Report.Refusing
		if reports == 0 && measured != nil && n.Report.Age*1000 < measured.Age {
			verdict = ""
		}
	}
	switch {
	case reports != 0 && reports != node.NoSID:
		return Refusing, reports
	case measured != nil && !measured.Fresh:
		return Silent, 0
	case verdict == clock.Skewed.String():
		return Refusing, node.ClockSkew
	case verdict == clock.Unverified.String():
		return Refusing, node.ClockUnverified
	case measured == nil && n.Report == nil:
		return Unknown, 0
	case n.SID < 0, reports == node.NoSID:
		return Standby, 0
	case n.Ceil != 0 && n.Ceil <= now:
		return Refusing, node.WindowExhausted
	}
	return Serving, 0
}

// What names what a judged node does: its state, or the reason why it refuses.
func (n Node) What() string { return cmp.Or(n.Refusing.String(), string(n.State)) }

// The states of sids. The record of a sid has one of the first five. A sid that is held is
// shown as one of the others if nothing is issued from it.
const (
	Free        = "free"
	Held        = "held"
	Waiting     = "waiting" // its ceiling lies ahead of the clock, and nobody holds it
	Quarantined = "quarantined"
	Reserved    = "reserved"  // for a generator outside of the cluster
	HeldRefused = "refusing"  // its holder refuses
	HeldEnded   = "exhausted" // its window has ended
)

// SIDState returns what is to be shown of a sid at time now. holder is the node that holds
// it, or nil: a worker does, or a node that is not registered.
func SIDState(s SID, holder *Node, now int64) string {
	switch {
	case s.State == Waiting && s.Ceil <= now:
		return Free
	case s.State != Held:
		return s.State
	case holder != nil && holder.State == Refusing && holder.Refusing != node.WindowExhausted:
		return HeldRefused
	case s.End(holder) <= now:
		return HeldEnded
	}
	return Held
}

// End returns the end of the window of a sid: the one in etcd, or the one that its holder
// reports to have had confirmed since.
func (s SID) End(holder *Node) int64 {
	if holder != nil && holder.SID == s.SID {
		return max(s.Ceil, holder.Ceil)
	}
	return s.Ceil
}

// Judge fills in what follows from the rest of c: the states of nodes, the problems, and the
// sentence about all. Lists that are nil become empty ones.
func (c *Cluster) Judge() {
	c.judgeNodes()
	c.conclude(nil)
}

// conclude fills in what follows from judged nodes, with since when they are in their states, as Problems takes it.
func (c *Cluster) conclude(since map[string]int64) {
	c.SIDs = append([]SID{}, c.SIDs...)
	c.Problems = Problems(*c, since)
	c.Summary = Summarize(*c)
}

// judgeNodes fills in the states of nodes.
func (c *Cluster) judgeNodes() {
	c.Nodes = append([]Node{}, c.Nodes...)
	ceilings := make(map[int]int64, len(c.SIDs))
	for _, s := range c.SIDs {
		ceilings[s.SID] = s.Ceil
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.Instance == c.Self.Instance {
			n.judgeSelf(c.Self)
			continue
		}
		n.Ceil = 0
		if n.SID >= 0 {
			n.Ceil = ceilings[n.SID]
		}
		if n.Report != nil {
			n.Ceil = max(n.Ceil, n.Report.Ceil)
		}
		n.State, n.Refusing = StateOf(*n, c.Self.Now)
	}
}

// judgeSelf fills in what the node that answers knows of itself.
func (n *Node) judgeSelf(self Self) {
	n.SID, n.Ceil = self.SID, self.Ceil
	report := self.report()
	n.Report = &report
	n.State, n.Refusing = StateOf(*n, self.Now)
}

// report returns what the node says of its work.
func (s Self) report() Report {
	return Report{Rate: s.Rate, Lead: s.Lead, Ceil: s.Ceil, Refusing: s.Refusing, Work: s.Work}
}
