package metrics

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// The closed sets of labels about clocks.
var (
	clockStates = []clock.State{clock.Open, clock.Skewed, clock.Unverified}
	clockPhases = []clock.Phase{
		clock.Starting, clock.Confirmed, clock.Grace, clock.Unproven, clock.Strict, clock.Shut,
	}
	clockFindings = []clock.Finding{clock.Unconfirmed, clock.Agreed, clock.SelfFalse, clock.ClusterSplit}
	opinions      = []string{"agree", "disagree", "ambiguous", "silent"}
	directions    = []string{"forward", "back"}
)

// collectClocks sends the series made from r. sids is those of the space.
func collectClocks(r clock.Report, sids lease.SIDRange, gauge, counter func(name string, v float64, labels ...string)) {
	g, j, a := r.Gate, r.Gate.Judgement, r.Anchor
	now := g.Verdict.Phase // the one field of the verdict that is set before the first evaluation
	for _, s := range clockStates {
		gauge(clockVerdict, flag(s == now.State()), s.String())
	}
	for _, p := range clockPhases {
		gauge(clockPhase, flag(p == now), p.String())
	}
	for _, f := range clockFindings {
		gauge(clockFinding, flag(f == j.Finding), f.String())
	}
	for i, n := range []int{j.Agree, j.Disagree, j.Ambiguous, j.Silent} {
		gauge(clockNodes, float64(n), opinions[i])
	}
	gauge(clockQuorum, float64(j.Quorum))
	gauge(clockFalsetickers, float64(len(j.Falsetickers)))
	if j.Known {
		gauge(clusterOffset, j.Offset.Seconds())
		gauge(clusterUncertainty, j.Uncertainty.Seconds())
	}
	for _, p := range holders(r.Peers, sids) {
		label := strconv.Itoa(p.SID)
		gauge(peerOffset, p.Offset.Seconds(), label)
		gauge(peerUncertainty, p.Error.Seconds(), label)
	}
	counter(clockShuts, float64(g.Shuts))
	counter(clockUnverified, g.Unverified.Seconds())
	counter(clockJumps, float64(r.Discontinuities))
	for i, n := range []int64{a.StepsForward, a.StepsBack} {
		counter(clockSteps, float64(n), directions[i])
	}
	for i, n := range []int64{a.NudgesForward, a.NudgesBack} {
		counter(clockNudges, float64(n), directions[i])
	}
	counter(clockSuspends, float64(a.Suspends))
	counter(clockStalls, float64(a.Stalls))
	gauge(stepPending, flag(a.Pending))
	gauge(clockHeld, a.Held.Seconds())
	gauge(tickDelay, a.TickDelay.Seconds())
	if r.Kernel.Known {
		gauge(kernelSynchronized, flag(r.Kernel.Synchronized))
		gauge(kernelMaxError, r.Kernel.MaxError.Seconds())
	}
	gauge(gossipMembers, float64(r.Gossip))
}

// holders returns the recently measured peers that report a sid, one for each sid:
// of two that report the same sid, the one with the later term. A duplicate series
// would make the whole scrape fail, and a sid outside the space would open the
// closed set of labels.
func holders(peers []clock.PeerReport, sids lease.SIDRange) []clock.PeerReport {
	var out []clock.PeerReport
	for _, p := range peers {
		if p.Fresh && p.SID >= 0 && sids.Has(flake.SID(p.SID)) {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b clock.PeerReport) int {
		return cmp.Or(cmp.Compare(a.SID, b.SID), cmp.Compare(b.Term, a.Term))
	})
	return slices.CompactFunc(out, func(a, b clock.PeerReport) bool { return a.SID == b.SID })
}
