package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/node"
)

// calm is how slow a link that is whole may be: what is asked of a healed
// cluster is asked for by the second.
const calm = 10 * time.Millisecond

// heal ends all trouble: clocks are set right, links are whole, etcd has a
// leader, nobody is paused, and each host has a process.
func (w *world) heal() {
	w.note(nil, "all is healed")
	w.stage = healed
	w.plan.latency, w.plan.gossipLatency = min(w.plan.latency, calm), min(w.plan.gossipLatency, calm)
	if w.now < w.etcd.away {
		w.run(w.etcd.away - w.now)
	}
	for _, p := range w.processes {
		if p.gone {
			continue
		}
		if p.host.process != p || p.host != w.hostOf(p.host.node) {
			p.die("is removed") // a second one of its name
			continue
		}
		p.resumes = w.now
		p.resume()
	}
	for _, h := range w.hosts {
		h.at = min(h.at, w.now)
		w.fixClock(h)
		h.noRequests, h.noReplies = 0, 0
		w.start(h)
	}
}

func (w *world) hostOf(node string) *host {
	for _, h := range w.hosts {
		if h.node == node {
			return h
		}
	}
	return nil
}

// settling is how long a healed cluster may take: leases run out, windows of the
// dead pass, gates see ten seconds of calm, steps of two seconds are slewed.
func (w *world) settling() time.Duration {
	return 60*time.Second + 2*w.plan.window + 2*w.plan.ttl
}

// expectAlive checks that everybody serves again who can. A process that cannot,
// because its IDs ran far ahead while its clock was wrong, is restarted once, as
// its refusals ask an operator to.
func (w *world) expectAlive() {
	w.run(w.settling())
	again := false
	for _, h := range w.hosts {
		if why := w.unable(h.process); why != nil && !w.excused(h.process, why) {
			w.violate("liveness", "%s does not serve %v after all was healed: %v; %s", h.process.name, w.settling(), why, w.state(h.process))
		} else if why != nil {
			again = true
			h.process.die("is restarted, for it refuses: " + why.Error())
			w.start(h)
		}
	}
	if !again {
		return
	}
	w.run(w.settling())
	for _, h := range w.hosts {
		// Unclocked, a successor may have taken over a sid whose ceiling a wrong
		// clock wrote: what tells it that it lies too far ahead is a clock.
		stuck := w.plan.mode == Unclocked && h.process.status.Held || w.plan.strict && h.mute
		if why := w.unable(h.process); why != nil && w.free(h.process) >= 0 && !stuck {
			w.violate("liveness", "%s does not serve after a restart, and sid %d is free: %v; %s",
				h.process.name, w.free(h.process), why, w.state(h.process))
		}
	}
}

func (w *world) state(p *process) string {
	gate := clock.Confirmed
	if m := p.judge.machine; m != nil {
		gate = m.Verdict().Phase
	}
	return fmt.Sprintf("%v, gate %v, anchor %+v, %q", p.status.Phase, gate, p.judge.anchor.Stats(), p.status.Problem)
}

// unable returns why a process does not issue now, or nil. Demand is no reason.
func (w *world) unable(p *process) error {
	_, err := p.node.Try(p.Now(), 1, 0)
	if errors.Is(err, &node.Refusal{Reason: node.EntropyOverflow}) {
		return nil
	}
	return err
}

// excused reports that a process may refuse: there is no sid for it, what it
// issued lies ahead of a clock that was set back, or nobody can confirm its clock.
func (w *world) excused(p *process, why error) bool {
	if p.host.mute {
		return true // until its restart it may hold to the time from before a step
	}
	if p.status.Held { // then its clock must be why
		s := p.node.Stats()
		return s.Lead > 0 && (errors.Is(why, &node.Refusal{Reason: node.WindowExhausted}) && s.Base >= s.Ceil ||
			errors.Is(why, &node.Refusal{Reason: node.ClockRegression}) ||
			errors.Is(why, &node.Refusal{Reason: node.NoSID}) || errors.Is(why, &node.Refusal{Reason: node.Starting}))
	}
	return w.free(p) < 0
}

// free returns a sid that the process could take, or -1.
func (w *world) free(p *process) int {
	v := w.etcd.view()
	soon := w.trueMillis() - millis(5*time.Second)
	if v.Era.Value.Floor > soon {
		return -1
	}
	for sid := range w.plan.spare {
		s := v.SIDs[flake.SID(sid)]
		if s.Holder.Exists() || s.Window.Err != nil || s.Window.Value.State == lease.Quarantined || s.Window.Value.Ceil > soon {
			continue
		}
		return sid
	}
	return -1
}

// tamper changes what etcd has behind the nodes' backs. Who held what was
// changed has to notice within one extension, and to issue nothing from then on;
// an operator's new era has to bring all of them back, above every ID there is.
func (w *world) tamper() {
	e := w.etcd
	w.run(w.settling())
	backup, since := e.mem.Snapshot(), w.now
	w.run(w.plan.extendEvery + w.logTime(100*time.Millisecond, time.Minute))
	for _, h := range w.hosts {
		if h.process.status.Phase != lease.Holding {
			w.violate("liveness", "%s holds no sid before the tampering: %s", h.process.name, w.state(h.process))
			return
		}
	}
	victim := w.hosts[w.rng.IntN(len(w.hosts))].process
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
		reads bool // the record tells by itself that it is bad: the sid is left alone, and nothing else need stop
		do    func()
	}{
		{"etcd is rewound to a backup", true, false, func() { e.mem.Restore(backup) }},
		{"etcd is rewound to a backup, as another cluster", true, false, func() { e.mem.Restore(backup); e.mem.SetCluster(2) }},
		{"a window record is deleted", false, false, func() { e.mem.Delete(window) }},
		{"a window record and its holder are deleted", false, false, func() { e.mem.Delete(window, holder) }},
		{"a window record is damaged", false, true, func() { e.mem.Corrupt(window) }},
		{"a ceiling is lowered by hand", false, false, edit(func(w *lease.Window) { w.Ceil = w.Base })},
		{"a term is lowered by hand", false, false, edit(func(w *lease.Window) { w.Term = max(w.Term-1, 1); w.Nonce, w.Instance = "hand", "hand" })},
		{"the config is deleted", true, false, func() { e.mem.Delete("config") }},
		{"the era is deleted", true, false, func() { e.mem.Delete("era") }},
		{"the era is lowered by hand", true, false, func() {
			era := v.Era.Value
			era.Floor--
			e.mem.Put("era", lease.Encode(era))
		}},
	}[w.rng.IntN(10)]
	all := how.all
	w.note(nil, "TAMPER: "+how.name+fmt.Sprintf(", backup of %v", since))
	w.points.hit(Tampering)
	config, _ := e.mem.Raw("config")
	w.stage = tampered
	e.change(how.do)

	w.run(w.plan.extendEvery + w.plan.timeout + w.plan.retry + 10*w.plan.latency)
	for _, h := range w.hosts {
		if p := h.process; (all || p == victim) && !(p.latched || how.reads && w.stopped(p, sid)) {
			w.violate("detection", "%s did not notice within an extension that %s: %s", p.name, how.name, w.state(p))
		}
	}
	w.run(w.upTo(20 * time.Second)) // longer than it takes, or not
	w.recover(config)
}

// stopped reports that the process latched, or gave up the sid for good: the
// window confirmed to it may still serve.
func (w *world) stopped(p *process, sid flake.SID) bool {
	return p.status.Phase == lease.Rewound || p.status.Phase == lease.Lost ||
		p.status.Phase != lease.Holding && p.status.Quarantined[sid] != "" ||
		p.status.Held && p.status.Grant.SID != sid
}

// recover does what «allocator admin recover» does, and waits for its effect.
func (w *world) recover(config string) {
	e := w.etcd
	if _, ok := e.mem.Raw("config"); !ok {
		e.change(func() { e.mem.Put("config", config) })
	}
	var asked []repair.Witness
	for _, h := range w.hosts {
		s := h.process.node.Stats()
		asked = append(asked, repair.Witness{Name: h.process.name, Era: s.Lease.Era.Number, Highest: s.Reserved})
	}
	v, err := e.mem.Load(context.Background())
	if err != nil {
		panic(err)
	}
	next, err := repair.NextEra(v, asked, 0, repair.Slack{Window: w.plan.window, MaxSkew: w.plan.maxSkew, MaxLead: w.plan.maxLead}, w.trueMillis())
	if err != nil {
		w.violate("recover", "the repair is refused: %v", err)
		return
	}
	w.note(nil, "an operator begins era %d from %d on", next.Era.Number, sinceDawn(next.Era.Floor))
	e.change(func() { e.mem.Put("era", lease.Encode(next.Era)) })
	// Who has not heard yet issues from its old window: that ends with the next
	// extension, and below the floor.
	w.stage, w.floor, w.heard = repaired, next.Era.Floor, w.now+w.plan.extendEvery+2*w.plan.timeout+5*time.Second
	w.run(max(next.Era.Floor-w.trueMillis(), clock.Millis(0)).Duration() + w.settling())
	for _, h := range w.hosts {
		if why := w.unable(h.process); why != nil {
			w.violate("recover", "%s does not serve after the repair: %v; %s", h.process.name, why, w.state(h.process))
		} else {
			w.points.hit(Recovered)
		}
	}
}
