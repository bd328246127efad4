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
func collectClocks(r clock.Report, sids lease.SIDRange, out sink) {
	g, j, a := r.Gate, r.Gate.Judgement, r.Anchor
	now := g.Verdict.Phase // the one field of the verdict that is set before the first evaluation
	for _, s := range clockStates {
		out.flag(clockVerdict, s == now.State(), s.String())
	}
	for _, p := range clockPhases {
		out.flag(clockPhase, p == now, p.String())
	}
	for _, f := range clockFindings {
		out.flag(clockFinding, f == j.Finding, f.String())
	}
	for i, n := range []int{j.Agree, j.Disagree, j.Ambiguous, j.Silent} {
		out.send(clockNodes, float64(n), opinions[i])
	}
	out.send(clockQuorum, float64(j.Quorum))
	out.send(clockFalsetickers, float64(len(j.Falsetickers)))
	if j.Known {
		out.send(clusterOffset, j.Offset.Seconds())
		out.send(clusterUncertainty, j.Uncertainty.Seconds())
	}
	for _, p := range holders(r.Peers, sids) {
		label := strconv.Itoa(p.SID)
		out.send(peerOffset, p.Offset.Seconds(), label)
		out.send(peerUncertainty, p.Error.Seconds(), label)
	}
	out.send(clockShuts, float64(g.Shuts))
	out.send(clockUnverified, g.Unverified.Seconds())
	out.send(clockJumps, float64(r.Discontinuities))
	for i, n := range []int64{a.StepsForward, a.StepsBack} {
		out.send(clockSteps, float64(n), directions[i])
	}
	for i, n := range []int64{a.NudgesForward, a.NudgesBack} {
		out.send(clockNudges, float64(n), directions[i])
	}
	out.send(clockSuspends, float64(a.Suspends))
	out.send(clockStalls, float64(a.Stalls))
	out.flag(stepPending, a.Pending)
	out.send(clockHeld, a.Held.Seconds())
	out.send(tickDelay, a.TickDelay.Seconds())
	if r.Kernel.Known {
		out.flag(kernelSynchronized, r.Kernel.Synchronized)
		out.send(kernelMaxError, r.Kernel.MaxError.Seconds())
	}
	out.send(gossipMembers, float64(r.Gossip))
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
