package embed

import (
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/internal/clock"
)

// Status is a copy of how the allocator stands.
type Status struct {
	Node     string // the program's name as a node
	Instance string // of this process, in etcd

	// Refusing is why a call would be refused now, "" if it would not, and Message
	// says more for a person.
	Refusing client.Reason
	Message  string

	SID        int           // -1: none
	Term       int64         // which tenure of the sid this is; 0: none
	WindowLeft time.Duration // for which IDs can be issued though etcd be away
	Lead       time.Duration // how far the last ID lies ahead of the clock; negative: behind

	SIDs     string // that may be taken, as first-last
	PoolSize int    // how many these are
	PoolHeld int    // of these, with a holder, when last listed

	Verdict   string // about this clock: open, skewed or unverified
	Confirmed bool   // a majority of the cluster confirms this clock
	// Offset is the cluster's clock minus this one, as far as known.
	Offset     time.Duration
	Issued     int64 // IDs
	Unverified int64 // of these, while no majority confirmed the clock
}

// Status returns how the allocator stands.
func (a *Allocator) Status() Status {
	st := a.node.Stats()
	s := Status{
		Node: st.Name, Instance: string(st.Instance), SID: -1,
		SIDs: st.Lease.SIDRange.In(a.format.Layout).String(), PoolSize: st.Lease.PoolSize, PoolHeld: st.Lease.PoolHeld,
		Verdict: st.Verdict.State.String(), Confirmed: st.Verdict.State == clock.Open && st.Verdict.Confirmed(), Offset: st.Verdict.Offset.Duration(),
		Issued: st.Issued, Unverified: st.Unverified,
	}
	if r := a.node.Ready(); r != nil {
		s.Refusing, s.Message = client.Reason(r.Reason), r.Message
	}
	if st.Holding {
		s.SID, s.Term = int(st.SID), st.Lease.Grant.Term
		s.WindowLeft, s.Lead = st.WindowLeft().Duration(), st.Lead.Duration()
	}
	return s
}
