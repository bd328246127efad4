package embed

import (
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/internal/clock"
)

// Status is a copy of the allocator's state.
type Status struct {
	Node     string // the program's name as a node
	Instance string // Instance identifies this process in etcd.

	Refusing client.Reason // why a call would be refused now; "": it would be served
	Message  string        // Message explains Refusing to people.

	SID        int           // -1: none
	Term       int64         // Each holder of the sid has a greater term; 0 without a sid.
	WindowLeft time.Duration // for which IDs can be issued without etcd
	Lead       time.Duration // The last ID is ahead of the clock by this; negative is behind.

	SIDs     string // The program may take these sids, as first-last.
	PoolSize int    // number of these sids
	PoolHeld int    // This many of these sids were held when last listed.

	Verdict   string // about this clock: open, skewed or unverified
	Confirmed bool   // a majority of the cluster confirms this clock
	// Offset is the cluster's time minus this clock; 0 while unknown.
	Offset     time.Duration
	Issued     int64 // IDs
	Unverified int64 // This many of Issued were issued while no majority confirmed the clock.
}

// Status returns the allocator's state.
func (a *Allocator) Status() Status {
	st := a.node.Stats()
	s := Status{
		Node:     st.Name,
		Instance: string(st.Instance),
		SID:      -1,
		SIDs:     st.Lease.SIDs.String(),
		PoolSize: st.Lease.Pool.Size,
		PoolHeld: st.Lease.Pool.Held,
		Verdict:  st.Verdict.State.String(),
		Confirmed: st.Verdict.State == clock.Open &&
			st.Verdict.Confirmed(),
		Offset:     st.Verdict.Offset.Duration(),
		Issued:     st.Issued,
		Unverified: st.Unverified,
	}
	if r := a.node.Ready(); r != nil {
		s.Refusing, s.Message = client.Reason(r.Reason.String()), r.Message
	}
	if st.Holding {
		s.SID, s.Term = int(st.SID), st.Term
		s.WindowLeft, s.Lead = st.WindowLeft().Duration(), st.Lead.Duration()
	}
	return s
}
