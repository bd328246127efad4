package status

import (
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Clock is what a node has measured of its own clock and the cluster's time. Times
// are in microseconds. The proto file and openapi.yaml describe each field.
type Clock struct {
	State         string      `json:"state"`
	Phase         string      `json:"phase"`
	Finding       string      `json:"finding"`
	Known         bool        `json:"known"`
	Offset        int64       `json:"offset_us"`
	Uncertainty   int64       `json:"uncertainty_us"`
	Limit         int64       `json:"limit_us"`
	Registered    int         `json:"registered"`
	Quorum        int         `json:"quorum"`
	Agree         int         `json:"agree"`
	Disagree      int         `json:"disagree"`
	Ambiguous     int         `json:"ambiguous"`
	Silent        int         `json:"silent"`
	Falsetickers  []string    `json:"falsetickers"`
	Shuts         uint64      `json:"shuts"`
	Unverified    int64       `json:"unverified_us"`
	StepsForward  int64       `json:"steps_forward"`
	StepsBack     int64       `json:"steps_back"`
	StepPending   bool        `json:"step_pending"`
	StepBlocked   bool        `json:"step_blocked"`
	Held          int64       `json:"held_us"`
	Suspends      int64       `json:"suspends"`
	Stalls        int64       `json:"stalls"`
	Kernel        KernelClock `json:"kernel"`
	GossipMembers int         `json:"gossip_members"`
	GossipAddress string      `json:"gossip_address"`
}

// KernelClock is what the kernel reports of the wall clock.
type KernelClock struct {
	Known        bool  `json:"known"`
	Synchronized bool  `json:"synchronized"`
	MaxError     int64 `json:"max_error_us"`
}

// PeerClock is the clock of one node, as measured by the node that answers.
type PeerClock struct {
	Verdict     string `json:"verdict"` // that it reports of itself
	SID         int    `json:"sid"`     // the same; -1: none
	Fresh       bool   `json:"fresh"`
	Offset      int64  `json:"offset_us"`
	Error       int64  `json:"error_us"`
	Wall        int64  `json:"wall_offset_us"`
	RTT         int64  `json:"rtt_us"`
	Age         int64  `json:"age_us"`
	Self        bool   `json:"self"`
	Falseticker bool   `json:"falseticker"`
}

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
		Shuts:        r.Gate.Shuts, Unverified: micros(r.Gate.Unverified),
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
