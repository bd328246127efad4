package sim

import (
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
)

// clockChecks is what the checks of a process's clock remember. They know the
// truth, and count for themselves who answered: they share nothing with the
// machine that they check.
type clockChecks struct {
	shut  bool // the gate is shut
	found bool // It has been, and peers have not confirmed the clock since.
	// At each evaluation since then, enough sound peers had answered twice to find a wrong clock; negative: there
	// was no evaluation yet.
	findableSince time.Duration
	voters        []clock.Member // by whom the clock was judged at the last check
	slept         time.Duration  // The host had slept this long at the last tick.
	sets          int            // The host's wall clock had been set this often at the last tick.
}

// lastAnswer is when, by our raw clock, a process last answered.
type lastAnswer struct {
	at     int64
	now    time.Duration // at true time
	count  int           // It counts the answers since something befell our clock, up to 2.
	newest int64         // No answer had a later raw clock; one answer may overtake another.
	sound  bool          // its clocks never fail, and it is no false peer
}

// slack is how far sound clocks are from the truth: hosts start up to 10 ms off,
// are set to 5, and drift.
const slack = 60 * time.Millisecond

// trusted reports that the cluster's time is known: at most one host of three or
// more is unsound, no peer is false, and no name is used by two processes.
func (p *process) trusted() bool {
	pl := &p.sim.plan
	return pl.mode != Unclocked && pl.faulty <= 1 && !pl.falsePeer && pl.twin == 0 && len(p.status.Nodes) >= 3
}

// offTruth returns how far the issuing clock is from true time.
func (p *process) offTruth() time.Duration {
	return time.Duration(p.judge.anchor.UnixNano(p.readings().Mono) - startTime - int64(p.sim.now))
}

// settled reports that at true time t what befell the clocks of the host, and the
// process, was long enough ago for peers to have noticed.
func (p *process) settled(t time.Duration) bool {
	if p.host.at > p.sim.now { // its clocks are stalled, and so is its gate
		return false
	}
	pl := &p.sim.plan
	notice := 5 * time.Second
	if pl.gossipLost+pl.gossipSlow+pl.gossipCut > 0 || !p.answeredSince(p.host.wrong) {
		notice = clock.Freshness + 5*time.Second
	}
	return t-p.host.wrong >= notice && p.host.wrong <= t && t-p.paused >= notice &&
		(p.resumes <= 0 || t-p.resumes >= notice)
}

// answeredSince reports that so many peers have answered since true time t that without
// them nobody is a majority: the others' last answers count until they are too old.
func (p *process) answeredSince(t time.Duration) bool {
	voters := p.judge.machine.Voters()
	n, count := len(voters)+1, 0
	for _, v := range voters {
		if h, ok := p.answered[v.Instance]; ok && h.now > t {
			count++
		}
	}
	return count >= n-n/2
}

// checkIssued checks I5: an ID of a clock that a majority confirms is near the
// truth. A gate that is shut keeps the node from issuing.
func (p *process) checkIssued(b gen.Block, read time.Duration) {
	sim, pl := p.sim, &p.sim.plan
	if p.checked.shut {
		sim.violate("I5", "%s issued %v while its gate is shut", p.name, b.Last())
	}
	if !p.trusted() || !p.judge.machine.Verdict().Confirmed() || !p.settled(read) {
		return
	}
	if p.judge.weighed < 3 { // It has just heard from etcd that it is not alone, or with one other.
		return
	}
	limit := millis(pl.maxSkew + pl.maxLead + slack)
	truth := clock.Millis((startTime + int64(read)) / 1e6)
	sim.points.hit(HeldAgainstTruth)
	if off := clock.Millis(sim.plan.format.UnixMilli(b.Last())) - truth; off > limit || -off > limit+sim.plan.unit()-1 {
		sim.violate("I5",
			"%s issued %v, %d ms from the cluster's time, with its clock confirmed", p.name, b.Last(), off)
	}
}

// checkMajority checks, after an evaluation, that who is confirmed has answers of
// a majority, and that a wrong clock is found wrong where enough sound peers answer
// for that.
func (p *process) checkMajority(r agreement.Reading) {
	voters := p.judge.machine.Voters()
	n, all, sound, said := len(voters)+1, 0, 0, 0
	for _, v := range voters {
		h, ok := p.answered[v.Instance]
		age := time.Duration(r.Clocks.Raw - h.at)
		if ok && age <= clock.Freshness {
			all++
		}
		// Its second answer that knows what befell our clock counts for certain: the first
		// may contradict what was known, and the question that is then asked at once is lost
		// as often as others.
		if ok && age <= clock.Freshness-2*clock.MaxRoundTrip && h.sound && h.now > p.host.wrong && h.count >= 2 {
			sound++
		}
		if ok && h.sound && h.now > p.host.wrong && h.count >= 2 {
			said++
		}
	}
	quorum := n/2 + 1
	v := p.judge.machine.Verdict()
	p.checked.found = v.Phase == clock.Shut || p.checked.found && !v.Confirmed()
	if v.Confirmed() && all+1 < quorum {
		p.sim.violate("I5", "%s is confirmed, and %d of %d answered within %v", p.name, all, n-1, clock.Freshness)
	}
	if n == 1 && v.Confirmed() {
		p.checkAlone()
	}
	// Peers whose clocks never fail have a wrong time too, if they started under a wrong time source.
	// Nor is a wrong clock found before those that the latest list added have answered: what they answered while
	// a list had them before is forgotten.
	if others := !slices.Equal(voters, p.checked.voters); others || sound < n-quorum+1 ||
		p.checked.findableSince < 0 || p.sim.late != nil {
		p.checked.findableSince, p.checked.voters = p.sim.now, slices.Clone(voters)
	}
	limit := p.sim.plan.maxSkew + 3*slack
	if p.sim.plan.gossipSlow > 0 {
		limit += clock.MaxRoundTrip // an estimate may be as vague as that
	}
	if !p.settled(p.sim.now) || p.offTruth().Abs() <= limit {
		return
	}
	if v.State == clock.Open && p.checked.found && said > n-quorum && p.sim.late == nil {
		p.sim.violate("I5", "%s is in phase %v, and its clock %v from the truth, as %d sound peers have found",
			p.name, v.Phase, p.offTruth(), said)
	}
	// Within 250 ms the finding is made, and 1 s later it is made again, with up to another
	// 250 ms: 1.5 s, however much gossip is lost, and as much again to be sure.
	if p.sim.now-p.checked.findableSince >= 3*time.Second {
		p.sim.points.hit(WrongAndFound)
		if v.Phase != clock.Shut {
			p.sim.violate("I5", "%s is in phase %v, its clock is %v from the truth, and %d sound peers have answered",
				p.name, v.Phase, p.offTruth(), sound)
		}
	}
}

// checkAlone checks, of a process that takes itself for the only one with gossip, that
// the last list which its agreement was told of did not have another that lapsed: neither registered nor a holder, with
// a window that it wrote lately and did not give back.
func (p *process) checkAlone() {
	if !p.host.sound {
		return
	}
	now, current := p.sim.trueMillis(), p.sim.etcd.view()
	for _, h := range p.sim.hosts {
		if h.node == p.host.node || h.noGossip || !h.sound { // a name is one node, on whatever host
			continue
		}
		for sid, s := range p.judge.told.SIDs {
			w := s.Window.Value
			if w.Node != h.node || w.State != lease.Active || s.Holder.Exists() ||
				!s.Window.Same(current.SIDs[sid].Window) || current.SIDs[sid].Holder.Exists() ||
				now-w.Wall > millis(9*time.Minute) || w.Ceil > now+millis(p.sim.plan.window) {
				continue
			}
			p.sim.violate("I5",
				"%s takes itself for the only node, and %s has not given sid %d back", p.name, h.node, sid)
		}
	}
}

// checkFollowed checks that peers have confirmed no false time. What is still to be
// given back slowly does not count: a clock that was wrong is on its way. Nor does a
// machine whose clocks all stopped since its peers answered, which none of them shows.
func (p *process) checkFollowed() {
	if h := p.host; h.stopped > 0 && p.sim.now-h.stopped < clock.Freshness {
		return
	}
	off := p.offTruth() - p.judge.anchor.Stats().Slewing
	if limit := p.sim.plan.maxSkew + slack; p.trusted() && off.Abs() > limit {
		p.sim.violate("I5", "%s followed a step on its peers' word, to a time that is %v from the truth", p.name, off)
	}
}

// checkSuspend checks, after a tick, that the issuing clock followed what the
// machine was suspended since the last, where the wall clock was not set meanwhile.
func (p *process) checkSuspend(followed time.Duration) {
	h, c := p.host, &p.checked
	slept, set := h.slept-c.slept, h.sets != c.sets
	c.slept, c.sets = h.slept, h.sets
	odd := set || h.drift != 0 || h.strobe > 0 || h.frozen > 0
	if off := slept - followed; !odd && off.Abs() > 20*time.Millisecond {
		p.sim.violate("I5", "%s was suspended for %v, and its issuing clock followed %v", p.name, slept, followed)
	}
}

// checkEstimate checks, after an answer, that what the peer's clock is taken for
// is where it is, and that a hold longer than the exchange counts for nothing.
func (p *process) checkEstimate(peer *process, a answer) {
	r := p.clockRead()
	for _, o := range p.judge.machine.Report(r).Peers {
		if o.Instance != peer.name {
			continue
		}
		if o.RTT < 0 {
			p.sim.violate("I5",
				"%s takes an answer of %s that was held for %v longer than the exchange took", p.name, o.Name, -o.RTT)
		}
		rejected := o.Age > 0 // the estimate is of an earlier answer
		if rejected || !o.Fresh || a.lie != 0 || p.host.leapt || peer.host.leapt {
			return
		}
		truth := time.Duration(peer.readings().Raw + a.clocks.Issuing - r.Clocks.Raw - r.Clocks.Issuing)
		if off := truth - o.Offset; off.Abs() > o.Error+time.Microsecond {
			p.sim.violate("I5", "%s takes the clock of %s for %v ± %v from its own, and it is %v",
				p.name, o.Name, o.Offset, o.Error, truth)
		}
		return
	}
}
