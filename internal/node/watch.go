package node

import (
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
)

// state is all that a request consults. It is never changed, only replaced.
type state struct {
	tenure   *gen.Tenure // nil: none, or sealed for good
	verdict  clock.Verdict
	leaving  bool // not ready, and still serving
	draining bool
	drained  clock.Mono    // It drains since then.
	term     int64         // The tenure was granted with this term.
	lease    lease.Status  // as last reported; for refusals, never for permission
	space    uint64        // The ID of lease.Space.
	changed  chan struct{} // closed once another state is stored
}

// Watch returns what Ready returns, and a channel that is closed when the node's state next
// changes, or when time alone makes it ready or ends that. A caller that calls Watch again
// after each close misses no final state, though it may not see each one in between. The
// channel may also be closed without a change.
//
// A lead that a request makes is within its limit, so requests close no channel and pay
// nothing for those who watch. There is nothing to be released.
func (n *Node) Watch() (*Refusal, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, now := n.state.Load(), n.clock.Now().Wall
	if wait := n.turn(s, now); wait > 0 && n.timer == nil {
		n.timer = time.AfterFunc(wait, n.Reconsider)
	}
	return n.ready(s, now), s.changed
}

// Reconsider closes the channels of Watch: readiness may have changed otherwise than by
// what this package is told and by time that passes evenly, such as by a step of the
// clock.
func (n *Node) Reconsider() { n.change(func(*state) {}) }

// change replaces the state by what f makes of it.
func (n *Node) change(f func(*state)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.timer != nil {
		n.timer.Stop()
		n.timer = nil
	}
	old := n.state.Load()
	next := *old
	f(&next)
	next.changed = make(chan struct{})
	n.state.Store(&next)
	close(old.changed)
}

// turn returns the time after which readiness can change while the state does not; 0: it
// does not change.
func (n *Node) turn(s *state, now clock.Millis) time.Duration {
	if n.closed(s) != nil {
		return 0
	}
	if excess := s.tenure.Ahead(now) - n.cfg.Gen.Lead(); excess > 0 {
		return excess.Duration()
	}
	return max(s.tenure.Ceil()-now, 0).Duration()
}

// Lease returns the status of the lease as it was last reported, and a channel that is closed
// when it, or anything else of the node's state, next changes. Both have the limits of Watch.
func (n *Node) Lease() (lease.Status, <-chan struct{}) {
	s := n.state.Load()
	return s.lease, s.changed
}
