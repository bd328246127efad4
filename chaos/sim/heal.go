package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/guard"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/node"
)

// calm is how slow a working link may be: what is required of a repaired
// cluster is asked for by the second.
const calm = 10 * time.Millisecond

// heal ends all faults: clocks are set right, links work, etcd has a
// leader, nobody is paused, and each host has a process.
func (sim *simulation) heal() {
	sim.note(nil, "all faults end")
	sim.stage = healed
	sim.plan.latency, sim.plan.gossipLatency = min(sim.plan.latency, calm), min(sim.plan.gossipLatency, calm)
	if sim.now < sim.etcd.away {
		sim.run(sim.etcd.away - sim.now)
	}
	for _, p := range sim.processes {
		if p.gone {
			continue
		}
		if p.host.process != p || p.host != sim.hostOf(p.host.node) {
			p.die("is removed") // a second one of its name
			continue
		}
		p.resumes = sim.now
		p.resume()
	}
	for _, g := range sim.generators {
		g.asleep, g.ahead = sim.now, 0
	}
	for _, h := range sim.hosts {
		h.at = min(h.at, sim.now)
		sim.fixClock(h)
		h.noRequests, h.noReplies = 0, 0
		sim.start(h)
	}
}

func (sim *simulation) hostOf(node string) *host {
	for _, h := range sim.hosts {
		if h.node == node {
			return h
		}
	}
	return nil
}

// settling is how long a repaired cluster may take: leases run out, windows of ended
// processes pass, gates see ten seconds of calm, steps of two seconds are slewed.
func (sim *simulation) settling() time.Duration {
	// Holders spread their lists over this time after a change.
	spread := time.Duration(min(sim.plan.format.Layout.Holders(), lease.MaxSIDs)) * 62500 * time.Microsecond
	return 60*time.Second + 2*max(sim.plan.window, sim.plan.workers.window) + 2*sim.plan.ttl + spread
}

// expectAlive checks that everybody serves again who can. A process that cannot,
// because its IDs ran far ahead while its clock was wrong, is restarted once, as
// its refusals ask an operator to.
func (sim *simulation) expectAlive() {
	sim.run(max(sim.etcd.view().Era.Value.Floor-sim.trueMillis(), 0).Duration() + sim.settling())
	sim.checkLists()
	sim.checkMarkMoves()
	if sim.plan.mode == Unclocked {
		sim.acceptTime()
	}
	again := false
	registered := map[string]bool{}
	for _, r := range sim.etcd.view().Nodes {
		registered[string(r.Instance)] = true
	}
	for _, h := range sim.hosts {
		if p := h.process; p != nil && !p.gone && !registered[p.name] {
			sim.violate("liveness", "%s is not registered %v after all faults ended: %s",
				p.name, sim.settling(), sim.state(p))
		}
		if m := h.process.judge.machine; m != nil && !h.process.gone && m.Verdict().Phase == clock.Shut {
			sim.violate("liveness", "%s refuses for its clock %v after all faults ended: %s", h.process.name,
				sim.settling(), sim.state(h.process))
		}
		if why := sim.unable(h.process); why != nil && !sim.excused(h.process, why) {
			sim.violate("liveness", "%s does not serve %v after all faults ended: %v; %s", h.process.name,
				sim.settling(), why, sim.state(h.process))
		} else if why != nil {
			again = true
			h.process.die("is restarted, for it refuses: " + why.Error())
			sim.start(h)
		}
	}
	if sim.plan.mode == Everything {
		sim.expectWorkers()
	}
	if !again {
		return
	}
	sim.run(sim.settling())
	for _, h := range sim.hosts {
		// Unclocked, a successor may have taken over a sid whose ceiling a wrong
		// clock wrote: only a clock shows that it is too far ahead.
		stuck := sim.plan.mode == Unclocked && h.process.status.Held || sim.plan.strict && h.noGossip
		if why := sim.unable(h.process); why != nil && sim.free(h.process) >= 0 && !stuck {
			sim.violate("liveness", "%s does not serve after a restart, and sid %d is free: %v; %s",
				h.process.name, sim.free(h.process), why, sim.state(h.process))
		}
	}
}

// acceptTime does what `allocator admin accept-time` does, where a clock that read 1970
// wrote all the records there are: then nodes wait for an operator, as they must.
func (sim *simulation) acceptTime() {
	v, err := sim.etcd.mem.Load(context.Background())
	if err != nil {
		panic(err)
	}
	sim.numbers++
	by := repair.Author{Who: "operator", Now: sim.trueMillis(), Nonce: fmt.Sprintf("x%d", sim.numbers)}
	a, err := repair.AcceptTime(v, 0, sim.repairSlack(), by)
	if err != nil || a.Latest+millis(guard.DowntimeLimit) > sim.trueMillis() {
		return
	}
	sim.note(nil, "an operator accepts the time")
	if err := sim.etcd.mem.AcceptTime(context.Background(), v, a.Accepted); err != nil {
		sim.violate("recover", "the time is not accepted: %v", err)
	}
	sim.run(sim.settling())
}

func (sim *simulation) state(p *process) string {
	gate := clock.Confirmed
	if m := p.judge.machine; m != nil {
		gate = m.Verdict().Phase
	}
	return fmt.Sprintf("%v, gate %v, anchor %+v, %q", p.status.Phase, gate, p.judge.anchor.Stats(), p.status.Problem)
}

// unable returns why a process does not issue now, or nil. Demand is no reason.
func (sim *simulation) unable(p *process) error {
	_, err := p.node.Try(p.Now(), 1, 0)
	if errors.Is(err, &node.Refusal{Reason: node.EntropyOverflow}) {
		return nil
	}
	return err
}

// excused reports that a process may refuse: there is no sid for it, what it
// issued lies ahead of a clock that was set back, or nobody can confirm its clock.
func (sim *simulation) excused(p *process, why error) bool {
	if p.host.noGossip {
		return true // until its restart it may hold to the time from before a step
	}
	if p.status.Held { // then its clock must be why
		s := p.node.Stats()
		used := s.Base >= s.Ceil || s.Now+s.Lead >= s.Ceil-sim.plan.unit() // it has issued from all of its window
		return s.Lead > 0 && (errors.Is(why, &node.Refusal{Reason: node.WindowExhausted}) && used ||
			errors.Is(why, &node.Refusal{Reason: node.ClockRegression}) ||
			errors.Is(why, &node.Refusal{Reason: node.NoSID}) || errors.Is(why, &node.Refusal{Reason: node.Starting}))
	}
	return sim.free(p) < 0
}

// free returns a sid that the process could take, or -1.
func (sim *simulation) free(p *process) int {
	v := sim.etcd.view()
	soon := sim.trueMillis() - millis(5*time.Second)
	if v.Era.Value.Floor > soon {
		return -1
	}
	within := cmp.Or(p.host.sids, sim.plan.sids())
	for sid := within.From; sid < within.To; sid++ {
		s := v.SIDs[sid]
		if s.Holder.Exists() || s.Window.Err != nil || s.Window.Value.TakenByOperator() || s.Window.Value.Ceil > soon {
			continue
		}
		return int(sid)
	}
	return -1
}

// tamper changes what etcd has behind the nodes' backs. Who held what was
// changed has to notice within one extension, and to issue nothing from then on;
// an operator's new era has to bring all of them back, above every ID there is.
func (sim *simulation) tamper() {
	e := sim.etcd
	sim.run(sim.settling())
	backup, since := e.mem.Snapshot(), sim.now
	sim.run(sim.plan.extendEvery + sim.logTime(100*time.Millisecond, time.Minute))
	for _, h := range sim.hosts {
		if h.process.status.Phase != lease.Holding {
			sim.violate("liveness", "%s holds no sid before the tampering: %s", h.process.name, sim.state(h.process))
			return
		}
	}
	victim := sim.hosts[sim.rng.IntN(len(sim.hosts))].process
	sid := victim.status.Grant.SID
	window, holder := fmt.Sprintf("window/%d", sid), fmt.Sprintf("holder/%d", sid)
	v := e.view()
	edit := func(f func(*lease.Window)) func() {
		return func() {
			put := v.SIDs[sid].Window.Value
			f(&put)
			e.mem.Put(window, lease.Encode(put))
		}
	}
	how := []struct {
		name  string
		all   bool // everybody is affected, not the victim alone
		reads bool // the record shows by itself that it is bad: the sid is left alone, and nothing else need stop
		do    func()
	}{
		{"etcd is rewound to a backup", true, false, func() { e.mem.Restore(backup) }},
		{"etcd is rewound to a backup, as another cluster", true, false,
			func() { e.mem.Restore(backup); e.mem.SetCluster(2) }},
		{"a window record is deleted", false, false, func() { e.mem.Delete(window) }},
		{"a window record and its holder are deleted", false, false, func() { e.mem.Delete(window, holder) }},
		{"a window record is damaged", false, true, func() { e.mem.Corrupt(window) }},
		{"a ceiling is lowered by hand", false, false, edit(func(r *lease.Window) { r.Ceil = r.Base })},
		{"a term is lowered by hand", false, false,
			edit(func(r *lease.Window) { r.Term = max(r.Term-1, 1); r.Nonce, r.Instance = "hand", "hand" })},
		{"the config is deleted", true, false, func() { e.mem.Delete("config") }},
		{"the era is deleted", true, false, func() { e.mem.Delete("era") }},
		{"the era is lowered by hand", true, false, func() {
			era := v.Era.Value
			era.Floor--
			e.mem.Put("era", lease.Encode(era))
		}},
	}[sim.rng.IntN(10)]
	all := how.all
	sim.note(nil, "TAMPER: "+how.name+fmt.Sprintf(", backup of %v", since))
	sim.points.hit(Tampering)
	config, _ := e.mem.Raw("config")
	sim.stage = tampered
	sim.marks.rewind()
	e.change(how.do)

	sim.run(sim.plan.extendEvery + sim.plan.timeout + sim.plan.retry + 10*sim.plan.latency)
	for _, h := range sim.hosts {
		if p := h.process; (all || p == victim) && !(p.latched || how.reads && sim.stopped(p, sid)) {
			sim.violate("detection",
				"%s did not notice within an extension that %s: %s", p.name, how.name, sim.state(p))
		}
	}
	sim.run(sim.upTo(20 * time.Second)) // longer than it takes, or not
	sim.recover(config)
}

// stopped reports that the process latched, or gave up the sid for good: the
// window confirmed to it may still serve.
func (sim *simulation) stopped(p *process, sid flake.SID) bool {
	return p.status.Phase == lease.Rewound || p.status.Phase == lease.Lost ||
		p.status.Phase != lease.Holding && p.status.Quarantined[sid] != "" ||
		p.status.Held && p.status.Grant.SID != sid
}

// reports are what the running processes answer to `allocator admin recover`.
func (sim *simulation) reports() []repair.NodeReport {
	var reports []repair.NodeReport
	for _, h := range sim.hosts {
		if p := h.process; p != nil && !p.gone {
			s := p.node.Stats()
			reports = append(reports, repair.NodeReport{Name: p.name, Era: s.Lease.Era.Number, Highest: s.Reserved})
		}
	}
	return reports
}

// repairSlack is the operator's settings. Without clock checks nothing bounds a ceiling,
// and no floor is needed while etcd forgets nothing.
func (sim *simulation) repairSlack() lease.Bounds {
	if sim.plan.mode == Unclocked {
		return lease.Bounds{Window: max(sim.plan.window, sim.plan.workers.window)}
	}
	return lease.Bounds{
		Window:  max(sim.plan.window, sim.plan.workers.window),
		MaxSkew: sim.plan.maxSkew,
		MaxLead: sim.plan.maxLead,
	}
}

// beginEra writes an era that the repair computed. Its floor must not be below that
// of the era before it: windows may begin there.
func (sim *simulation) beginEra(before, next lease.Era) {
	if next.Floor < before.Floor {
		sim.violate("I4", "the floor falls from %d in era %d to %d in era %d",
			sinceStart(before.Floor), before.Number, sinceStart(next.Floor), next.Number)
	}
	sim.note(nil, "an operator begins era %d from %d on", next.Number, sinceStart(next.Floor))
	sim.etcd.change(func() { sim.etcd.mem.Put("era", lease.Encode(next)) })
}

// recover does what `allocator admin recover` does, and waits for its effect.
func (sim *simulation) recover(config string) {
	if err := sim.repair(config); err != nil {
		sim.violate("recover", "the repair is refused: %v", err)
		return
	}
	settled := max(sim.floor-sim.trueMillis(), clock.Millis(0)).Duration() + sim.settling()
	sim.slowGenerators(settled - 30*time.Second - sim.plan.workers.window)
	sim.run(settled)
	for _, h := range sim.hosts {
		if why := sim.unable(h.process); why != nil {
			sim.violate("recover", "%s does not serve after the repair: %v; %s",
				h.process.name, why, sim.state(h.process))
		} else {
			sim.points.hit(Recovered)
		}
	}
	sim.checkMarkMoves()
	sim.expectWorkers()
}

// repair begins a new era, as an operator does.
func (sim *simulation) repair(config string) error {
	e := sim.etcd
	if _, ok := e.mem.Raw("config"); !ok {
		e.change(func() { e.mem.Put("config", config) })
	}
	v, err := e.mem.Load(context.Background())
	if err != nil {
		panic(err)
	}
	next, err := repair.NextEra(v, sim.reports(), 0, sim.repairSlack(), sim.trueMillis())
	if err != nil {
		return err
	}
	sim.beginEra(v.Era.Value, next.Era)
	sim.marks.era = next.Era.Number
	// A process that does not know yet issues from its old window: that ends with the next
	// extension, and below the floor.
	sim.stage, sim.floor, sim.knownBy = repaired, next.Era.Floor,
		sim.now+sim.plan.extendEvery+2*sim.plan.timeout+5*time.Second
	return nil
}
