package sim

import (
	"time"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// judge is what a process knows of its clock and its peers': the anchor, as
// clock.System has it, and the very machine that a node has.
type judge struct {
	anchor  *clock.Anchor
	machine *agreement.Machine // nil in mode Unclocked
	changed bool               // a LeaseChanged is on its way
	told    lease.View         // the last whole list when machine was told of the lease
	weighed int                // registered nodes, this one with them, when the verdict was last formed
	wakes   int                // number of the tick that counts

	uncertain time.Duration // a majority is at most this far from the clock, as last judged, where somebody watches
}

func (p *process) beginJudging() {
	j, pl := &p.judge, &p.sim.plan
	p.checked = clockChecks{slept: p.host.slept, sets: p.host.sets, findableSince: -1}
	if pl.mode == Unclocked {
		p.node.SetVerdict(clock.Verdict{State: clock.Open})
		if !pl.rawClock {
			p.plan(pl.tickEvery, tick)
		}
		return
	}
	j.machine = agreement.New(agreement.Config{
		Name: p.host.node, Instance: lease.Instance(p.name),
		Gate: clock.GateConfig{MaxSkew: pl.maxSkew, Strict: pl.strict},
	})
	p.offered, p.answered = map[int64]int64{}, map[string]lastAnswer{}
	p.node.SetVerdict(j.machine.Verdict())
	p.plan(pl.tickEvery, tick)
	p.plan(startingEvery, echo)
}

// tickAnchor compares the wall clock with issuing time.
func (p *process) tickAnchor() {
	sim := p.sim
	p.plan(sim.plan.tickEvery, tick)
	vote := clock.PeerVote{Vote: clock.VoteAlone} // unclocked: follow the wall clock
	if p.judge.machine != nil {
		vote = p.judge.machine.PeerVote(p.clockRead())
	}
	before := p.judge.anchor.Stats().Asleep
	for _, e := range p.judge.anchor.Tick(p.readings(), clock.Kernel{}, vote) {
		sim.points.anchor(e)
		if e.Kind != clock.Nudged {
			sim.note(p, "clock "+e.Kind.String()+", held %d us, jump %d us", int64(e.Held)/1000, int64(e.Jump)/1000)
		}
		if e.Kind == clock.Followed && e.By == clock.ByPeers {
			p.checkFollowed()
		}
	}
	p.checkSuspend(p.judge.anchor.Stats().Asleep - before)
}

// clockRead is what clock.System.Snapshot and Stats return.
func (p *process) clockRead() agreement.Reading {
	r, a := p.readings(), p.judge.anchor
	return agreement.Reading{
		Mono:   r.Mono,
		Clocks: clock.Snapshot{Raw: r.Raw, Issuing: a.UnixNano(r.Mono) - r.Raw, Wall: r.Wall - r.Raw},
		Anchor: a.Stats(),
	}
}

// leaseChanged has the machine notified of the present status, soon.
func (p *process) leaseChanged() {
	j := &p.judge
	if j.machine == nil || j.changed {
		return
	}
	j.changed = true
	p.in(0, func() {
		j.changed = false
		j.told = p.listed
		p.agree(agreement.LeaseChanged{Status: p.status})
	})
}

// agree steps the machine by an event, and carries out its actions.
func (p *process) agree(ev agreement.Event) {
	sim, m := p.sim, p.judge.machine
	r := p.clockRead()
	before, wake := m.Verdict().Phase, m.Wake()
	actions := m.Step(r, ev)
	// Of a host whose clocks have stopped the next tick is due at the same reading.
	if _, ticked := ev.(agreement.Tick); ticked || m.Wake() != wake {
		p.judge.wakes++
		p.planNumbered(m.Wake().Sub(r.Mono), evaluate, p.judge.wakes)
	}
	if after := m.Verdict().Phase; after != before {
		j := m.Report(r).Gate.Judgement
		sim.note(p, "gate "+after.String()+" on "+j.Finding.String()+", offset %d us, %d registered",
			int64(j.Offset)/1000, int64(j.Registered))
		if after == clock.Confirmed && sim.plan.withoutGossip*2 >= len(sim.hosts) && j.Registered > 1 {
			sim.points.hit(MostWithoutGossip)
		}
	}
	if sim.watch != nil {
		p.judge.uncertain = m.Report(r).Gate.Judgement.Bound
	}
	if _, ok := ev.(agreement.Tick); ok {
		p.judge.weighed = len(m.Voters()) + 1
		p.checkMajority(r)
	}
	for _, a := range actions {
		switch a := a.(type) {
		case agreement.SetVerdict:
			p.node.SetVerdict(a.Verdict)
		case agreement.SetGate:
			p.notify(a.Gate)
		case agreement.Notify:
			switch a.Event.(type) {
			case lease.GiveUp:
				sim.points.hit(GaveUp)
			case lease.ReportedRevision:
				sim.points.hit(LaterRevisionReported)
			case lease.Changed:
				sim.points.hit(Duplicated)
			}
			p.notify(a.Event)
		case agreement.Ask:
			p.ask(a.Instance)
		case agreement.SetPeers: // askPeers takes the voters as they are
		case agreement.GateTransition:
			sim.points.gate(a.Transition)
			if a.Kind == clock.PhaseChanged {
				p.checked.shut = a.To == clock.Shut
				if a.From == clock.Shut && a.To != clock.Confirmed {
					sim.points.hit(Unopposed)
				}
			}
		case agreement.PeerClockJumped:
			sim.points.hit(Discontinuous)
		}
		if p.gone {
			return
		}
	}
}
