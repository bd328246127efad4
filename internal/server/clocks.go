package server

import (
	"slices"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/clock"
)

// clockView is what the node knows of its clock and the cluster's. Times are in
// microseconds; the contract says what each is.
type clockView struct {
	State         string     `json:"state"`
	Phase         string     `json:"phase"`
	Finding       string     `json:"finding"`
	Known         bool       `json:"known"`
	Offset        int64      `json:"offset_us"`
	Uncertainty   int64      `json:"uncertainty_us"`
	Limit         int64      `json:"limit_us"`
	Registered    int        `json:"registered"`
	Quorum        int        `json:"quorum"`
	Agree         int        `json:"agree"`
	Disagree      int        `json:"disagree"`
	Ambiguous     int        `json:"ambiguous"`
	Silent        int        `json:"silent"`
	Falsetickers  []string   `json:"falsetickers"`
	Shuts         uint64     `json:"shuts"`
	Unverified    int64      `json:"unverified_us"`
	StepsForward  int64      `json:"steps_forward"`
	StepsBack     int64      `json:"steps_back"`
	StepPending   bool       `json:"step_pending"`
	StepBlocked   bool       `json:"step_blocked"`
	Held          int64      `json:"held_us"`
	Suspends      int64      `json:"suspends"`
	Stalls        int64      `json:"stalls"`
	Kernel        kernelView `json:"kernel"`
	GossipMembers int        `json:"gossip_members"`
	GossipAddress string     `json:"gossip_address"`
}

type kernelView struct {
	Known        bool  `json:"known"`
	Synchronized bool  `json:"synchronized"`
	MaxError     int64 `json:"max_error_us"`
}

// peerView is one node's clock, as the node that answers sees it.
type peerView struct {
	Verdict     string `json:"verdict"` // what it says of itself
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

// boundMicros rounds up: a bound must hold what d held.
func boundMicros(d time.Duration) int64 {
	us := d.Microseconds()
	if time.Duration(us)*time.Microsecond < d {
		us++
	}
	return us
}

// stateOf returns what a gate allows. Before its first evaluation it has said
// nothing, and the phase alone is true.
func stateOf(g clock.GateStats) clock.State { return g.Verdict.Phase.State() }

func viewClock(r clock.Report) *clockView {
	j, a := r.Gate.Judgement, r.Anchor
	return &clockView{
		State: stateOf(r.Gate).String(), Phase: r.Gate.Verdict.Phase.String(), Finding: j.Finding.String(),
		Known: j.Known, Offset: micros(j.Offset), Uncertainty: boundMicros(j.Uncertainty),
		Limit:      micros(r.Gate.Verdict.Limit.Duration()),
		Registered: j.Registered, Quorum: j.Quorum,
		Agree: j.Agree, Disagree: j.Disagree, Ambiguous: j.Ambiguous, Silent: j.Silent,
		Falsetickers: append([]string{}, j.Falsetickers...), // a list, also if it is empty
		Shuts:        r.Gate.Shuts, Unverified: micros(r.Gate.Unverified),
		StepsForward: a.StepsForward, StepsBack: a.StepsBack, StepPending: a.Pending, StepBlocked: a.Blocked,
		Held: micros(a.Held), Suspends: a.Suspends, Stalls: a.Stalls,
		Kernel:        kernelView{r.Kernel.Known, r.Kernel.Synchronized, boundMicros(r.Kernel.MaxError)},
		GossipMembers: r.Gossip, GossipAddress: r.Address,
	}
}

// fillClocks adds what r says of the clocks of the nodes listed, and of this
// node's own. Nodes never heard from have none.
func (c *clusterView) fillClocks(r clock.Report) {
	c.Self.Clock = viewClock(r)
	peers := make(map[string]clock.PeerReport, len(r.Peers))
	for _, p := range r.Peers {
		peers[p.Instance] = p
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.Instance == c.Self.Instance {
			n.Clock = &peerView{
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
		n.Clock = &peerView{
			Verdict: p.Verdict.String(), SID: p.SID, Fresh: p.Fresh,
			Offset: micros(p.Offset), Error: boundMicros(p.Error), Wall: micros(p.Wall),
			RTT: micros(p.RTT), Age: micros(p.Age),
			Falseticker: slices.Contains(r.Gate.Judgement.Falsetickers, p.Name),
		}
	}
}

func (v *clockView) proto() *pb.Clock {
	if v == nil {
		return nil
	}
	return &pb.Clock{
		State: v.State, Phase: v.Phase, Finding: v.Finding,
		Known: v.Known, OffsetUs: v.Offset, UncertaintyUs: v.Uncertainty, LimitUs: v.Limit,
		Registered: int32(v.Registered), Quorum: int32(v.Quorum),
		Agree: int32(v.Agree), Disagree: int32(v.Disagree), Ambiguous: int32(v.Ambiguous), Silent: int32(v.Silent),
		Falsetickers: v.Falsetickers, Shuts: int64(v.Shuts), UnverifiedUs: v.Unverified,
		StepsForward: v.StepsForward, StepsBack: v.StepsBack, StepPending: v.StepPending, StepBlocked: v.StepBlocked,
		HeldUs: v.Held, Suspends: v.Suspends, Stalls: v.Stalls,
		Kernel:        &pb.KernelClock{Known: v.Kernel.Known, Synchronized: v.Kernel.Synchronized, MaxErrorUs: v.Kernel.MaxError},
		GossipMembers: int32(v.GossipMembers), GossipAddress: v.GossipAddress,
	}
}

func (v *peerView) proto() *pb.PeerClock {
	if v == nil {
		return nil
	}
	return &pb.PeerClock{
		Verdict: v.Verdict, Sid: int32(v.SID), Fresh: v.Fresh, OffsetUs: v.Offset, ErrorUs: v.Error,
		WallOffsetUs: v.Wall, RttUs: v.RTT, AgeUs: v.Age, Self: v.Self, Falseticker: v.Falseticker,
	}
}

// clockLine tells the clock's condition in words.
func clockLine(r clock.Report) string {
	g := r.Gate
	text := "verdict " + stateOf(g).String() + " (" + g.Verdict.Phase.String() + ", " + g.Judgement.Finding.String() + ")"
	if g.Judgement.Known {
		text += ", the cluster's time is ours " + clock.FormatOffset(g.Judgement.Offset, g.Judgement.Uncertainty)
	}
	if limit := g.Verdict.Limit.Duration(); limit > 0 {
		text += ", limit " + limit.String()
	}
	if r.Anchor.Pending {
		text += ", a step of the wall clock by " + r.Anchor.Held.Round(time.Millisecond).String() + " is held back"
	}
	return text
}
