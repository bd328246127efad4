package status

import (
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

func micros(d time.Duration) int64 { return d.Microseconds() }

// boundMicros rounds up, so that the result is still an upper bound.
func boundMicros(d time.Duration) int64 {
	us := d.Microseconds()
	if time.Duration(us)*time.Microsecond < d {
		us++
	}
	return us
}

func viewClock(r clock.Report) *Clock {
	j, a := r.Gate.Judgement, r.Anchor
	return &Clock{
		State: r.Gate.Verdict.Phase.State().String(), // State itself is not set before the first evaluation
		Phase: r.Gate.Verdict.Phase.String(), Finding: j.Finding.String(),
		Known: j.Known, Offset: micros(j.Offset), Uncertainty: boundMicros(j.Uncertainty),
		Limit:      micros(r.Gate.Verdict.Limit.Duration()),
		Registered: j.Registered, Quorum: j.Quorum,
		Agree: j.Agree, Disagree: j.Disagree, Ambiguous: j.Ambiguous, Silent: j.Silent,
		Falsetickers: append([]string{}, j.Falsetickers...), // a list, also if it is empty
		Shuts:        int64(r.Gate.Shuts), Unverified: micros(r.Gate.Unverified),
		StepsForward: a.StepsForward, StepsBack: a.StepsBack, StepPending: a.Pending, StepBlocked: a.Blocked,
		Held: micros(a.Held), Suspends: a.Suspends, Stalls: a.Stalls,
		Kernel:        KernelClock{r.Kernel.Known, r.Kernel.Synchronized, boundMicros(r.Kernel.MaxError)},
		GossipMembers: r.Gossip, GossipAddress: r.Address,
	}
}

// fillClocks adds the clocks of the listed nodes and of this node. A node that was
// never measured has none.
func (c *Cluster) fillClocks(r clock.Report) {
	c.Self.Clock = viewClock(r)
	peers := make(map[string]clock.PeerReport, len(r.Peers))
	for _, p := range r.Peers {
		peers[p.Instance] = p
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.Instance == c.Self.Instance {
			n.Clock = &PeerClock{
				Verdict: c.Self.Clock.State, SID: c.Self.SID, Fresh: true, Self: true,
				Wall:        micros(r.Anchor.Held - r.Anchor.Slewing),
				Falseticker: r.Gate.Judgement.Finding == clock.SelfFalse,
			}
			continue
		}
		p, ok := peers[n.Instance]
		if !ok || p.Age == 0 && p.RTT == 0 && p.Stats.Samples == 0 {
			continue
		}
		n.Clock = &PeerClock{
			Verdict: p.Verdict.String(), SID: p.SID, Fresh: p.Fresh,
			Offset: micros(p.Offset), Error: boundMicros(p.Error), Wall: micros(p.Wall),
			RTT: micros(p.RTT), Age: micros(p.Age),
			Falseticker: slices.Contains(r.Gate.Judgement.Falsetickers, p.Name),
		}
	}
}
