package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/protocol"
	"github.com/flakelease/allocator/internal/node"
)

// process is one run of a node: what packages keeper, agreement and clock.System
// wrap in goroutines, moved by events instead. Between any two actions of a step
// it may crash, or pause while clients are served.
type process struct {
	sim    *simulation
	number int
	name   string // unique in the run, and its instance
	host   *host

	config  lease.Config
	machine *protocol.Machine
	watch   watch
	node    *node.Node
	status  lease.Status // as last published
	listed  lease.View   // the last of the whole space that it got
	stepped clock.Reading
	limit   lease.Limit // The machine had this limit at stepped.
	origin  clock.Mono  // its monotonic clock counts from here

	gone     bool
	asleep   bool          // paused, or suspended with its host
	resumes  time.Duration // until then
	paused   time.Duration // when the present or last pause began
	waiting  []event       // what happened meanwhile
	wakes    int           // number of the wake-up that counts
	stalled  bool          // the keeper is paused between two actions
	backlog  []lease.Event // and this waits for it
	follow   []lease.Event // what the machine is notified of before anything else
	stopping bool
	during   func() // happens in the middle of the request under way
	holds    int    // It counts how often the process began to issue.
	latched  bool   // believes that history went back

	judge      judge
	workerList lease.View // the last list that a worker's call asked for
	listedAt   time.Duration

	nonce   int64
	offered map[int64]int64 // questions on their way: nonce to T1

	answered map[string]lastAnswer // by instance; never iterated
	checked  clockChecks
}

var tickEvent lease.Event = lease.Tick{}

// entropy is the generator's source. It is asked between the generator's read
// at its word and the swap that issues: so whatever else the process does at that
// moment can be done from here.
type entropy struct {
	p      *process
	random *rand.PCG // nil: none at all, so that equal states give equal IDs
}

// Uint64 lets the other goroutine run, if there is one, and returns a number.
func (e *entropy) Uint64() uint64 {
	if f := e.p.during; f != nil {
		e.p.during = nil
		e.p.sim.points.hit(Interleaved)
		f()
	}
	if e.random == nil {
		return 0
	}
	return e.random.Uint64()
}

// meanwhile does f, now and then in the middle of a request.
func (p *process) meanwhile(f func()) {
	if p.sim.rng.IntN(3) > 0 {
		f()
		return
	}
	p.during = f
	p.serveNow()
	if f := p.during; f != nil { // the request did not come that far
		p.during = nil
		f()
	}
}

// start begins a process on the host, unless its clock is impossible: then the
// real one ends at once, and is tried again. On a suspended host nothing starts.
func (sim *simulation) start(h *host) {
	if h.process != nil && !h.process.gone {
		return
	}
	if h.at > sim.now {
		sim.in(h.at-sim.now, func() { sim.start(h) })
		return
	}
	if wall := clock.Millis(h.read(sim.now).Wall / 1e6); wall <= clock.Millis(sim.plan.format.Epoch) &&
		sim.plan.mode != Unclocked {
		sim.note(nil, h.node+" does not start with its clock at %d", int64(wall))
		sim.points.hit(RefusedToStart)
		sim.in(time.Second+sim.upTo(time.Second), func() { sim.start(h) })
		return
	}
	h.process = sim.begin(h)
}

// begin makes a process on the host.
func (sim *simulation) begin(h *host) *process {
	p := &process{sim: sim, number: len(sim.processes) + 1, host: h}
	p.name = fmt.Sprintf("%s-%d", h.node, p.number)
	p.origin = h.read(sim.now).Mono
	sim.processes = append(sim.processes, p)
	pl := &sim.plan
	p.config = lease.Config{
		Registration: lease.Registration{
			Instance: lease.Instance(p.name),
			Node:     h.node,
			Version:  "sim",
			Gossip:   h.gossip(),
			Started:  clock.Millis(h.read(sim.now).Wall / 1e6),
		},
		Format:   pl.format,
		SIDRange: h.sids,
		Workers:  pl.workers.sids,
		Bounds: lease.Bounds{
			Window:       pl.window,
			WorkerWindow: pl.workers.window,
			MaxSkew:      pl.maxSkew,
			MaxLead:      pl.maxLead,
		},
		ExtendEvery:    pl.extendEvery,
		TTL:            pl.ttl,
		KeepAliveEvery: pl.keepAlive,
		ReloadEvery:    pl.reload,
		RetryAfter:     pl.retry,
		Mark:           pl.markRules(),
		Gated:          pl.mode != Unclocked,
		Nonce:          func() string { sim.numbers++; return fmt.Sprintf("x%d", sim.numbers) },
		Jitter:         sim.upTo,
	}
	p.machine = protocol.New(p.config)
	source := &entropy{p: p}
	if !pl.plainEntropy {
		source.random = rand.NewPCG(sim.rng.Uint64(), 1)
	}
	p.judge.anchor = clock.NewAnchor(p.readings()) // The node reads the clock.
	p.node = node.New(node.Config{
		Name:     h.node,
		Instance: lease.Instance(p.name),
		MaxSkew:  250 * time.Millisecond,
		Gen: gen.Config{
			Layout:  pl.format.Layout,
			Epoch:   clock.Millis(pl.format.Epoch),
			MaxLead: millis(pl.maxLead),
			MaxStep: pl.maxStep,
		},
	}, p, source)
	p.beginJudging()
	sim.note(p, "starts")
	sim.see(h, Happening{Kind: "start", Process: p.name})
	p.openWatch(sim.etcd.travel())
	p.notify(tickEvent)
	if pl.mode == Unclocked {
		p.notify(lease.Gate{Open: true, Confirmed: true})
	}
	p.plan(sim.upTo(pl.pace), client)
	return p
}

// startTwin begins a second process of the node's name on another machine, as a
// supervisor does that believes the first one dead.
func (sim *simulation) startTwin(h *host) {
	twin := &host{
		node: h.node, rate: h.rate, wrong: -time.Hour, sound: h.sound, noGossip: h.noGossip, sids: h.sids, at: sim.now,
		reading: clock.Readings{Wall: startTime + int64(sim.now), Mono: 1, Raw: 1, Boot: 1},
	}
	sim.note(nil, "a second "+h.node+" starts")
	twin.process = sim.begin(twin)
	sim.points.hit(TwoOfOneName)
	sim.in(sim.upTo(time.Minute), func() { twin.process.die("is removed") })
}

// Now is the issuing clock.
func (p *process) Now() clock.Reading {
	r := p.readings()
	if p.sim.plan.rawClock {
		return clock.Reading{Wall: clock.Millis(r.Wall / 1e6), Mono: r.Mono, Asleep: p.host.slept}
	}
	a := p.judge.anchor
	return clock.Reading{
		Wall:      clock.Millis(a.UnixNano(r.Mono) / 1e6),
		Mono:      r.Mono,
		Asleep:    p.host.slept,
		Undecided: a.Undecided(),
	}
}

func (p *process) readings() clock.Readings {
	r := p.host.read(p.sim.now)
	r.Mono -= p.origin
	return r
}

// pause stops the process: it gets no steps, and what comes for it waits. When it
// wakes, a client is served before anything that waited is delivered.
func (p *process) pause(d time.Duration) {
	sim := p.sim
	if p.asleep && sim.now+d <= p.resumes {
		return
	}
	if !p.asleep {
		p.asleep, p.paused = true, sim.now
		sim.see(p.host, Happening{Kind: "pause", Process: p.name})
	}
	p.resumes = sim.now + d
	sim.note(p, "is paused for %d us", int64(d)/1000)
	sim.in(d, p.resume)
}

func (p *process) resume() {
	sim := p.sim
	if p.gone || !p.asleep || sim.now < p.resumes {
		return
	}
	p.asleep = false
	sim.see(p.host, Happening{Kind: "resume", Process: p.name})
	long := sim.now-p.paused > sim.plan.ttl
	sim.note(p, "continues")
	if issued := p.serveNow(); issued && long {
		sim.points.hit(IssuedAfterLongPause)
	}
	waiting := p.waiting
	p.waiting = nil
	// Which of several channels is read first is chance.
	sim.rng.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
	for _, e := range waiting {
		if !p.gone {
			p.happen(e)
		}
	}
}

// notify passes an event on to the machine, once it has dealt with those before.
func (p *process) notify(ev lease.Event) {
	p.backlog = append(p.backlog, ev)
	p.work()
}

// work steps the machine until no event is left.
func (p *process) work() {
	for !p.gone && !p.stalled && len(p.follow)+len(p.backlog) > 0 {
		list := &p.backlog
		if len(p.follow) > 0 {
			list = &p.follow
		}
		ev := (*list)[0]
		*list = (*list)[1:]
		p.recordGrants(ev)
		p.stepped = p.Now()
		actions := p.machine.Step(p.stepped, ev)
		if w, ok := ev.(lease.Watched); ok && len(w.Changes) > 0 &&
			!slices.Equal(p.machine.Status().Nodes, p.status.Nodes) {
			p.sim.points.hit(KeptByWatch)
		}
		if _, read := ev.(lease.Loaded); read {
			for _, a := range actions {
				switch a.(type) {
				case lease.Begin, lease.Raise:
					p.sim.points.hit(AdoptedUnknown)
				}
			}
		}
		p.carryOut(actions)
	}
	if !p.gone && !p.stalled {
		wait := p.machine.Wake().Sub(p.readings().Mono)
		p.wakes++
		p.plan(min(max(wait, time.Millisecond), time.Second), wake)
	}
}

// recordGrants records what a response of the store shows to be the process's own. It
// reads responses alone, whatever the machine makes of them. It keeps the last list, too.
func (p *process) recordGrants(ev lease.Event) {
	var v lease.View
	switch ev := ev.(type) {
	case lease.Loaded:
		v = ev.View
		if len(v.Nodes) > 0 {
			p.listed = v
		}
	case lease.Committed:
		v = ev.View
	default:
		return
	}
	if p.sim.record() == nil {
		return
	}
	at := p.sim.moment()
	for sid := p.sim.plan.sids().From; sid < p.sim.plan.sids().To; sid++ {
		s, ok := v.SIDs[sid]
		if !ok || s.Window.Err != nil || string(s.Window.Value.Instance) != p.name ||
			s.Window.Value.State != lease.Active {
			continue
		}
		p.sim.granted(p.name, sid, s.Window.Value.Base, s.Window.Value.Ceil, at)
	}
}

// carryOut does what the machine asks for. In between the process may crash,
// pause, or serve.
func (p *process) carryOut(actions []lease.Action) {
	sim, pl := p.sim, &p.sim.plan
	for i, a := range actions {
		if sim.stage == trouble {
			if sim.chance(pl.midCrash) {
				sim.points.hit(CrashedMidStep)
				p.die("crashes between two actions")
				sim.in(sim.upTo(2*pl.ttl), func() { sim.start(p.host) })
				return
			}
			if sim.chance(pl.midStall) {
				p.stalled = true
				p.in(sim.logTime(time.Millisecond, 2*pl.ttl), func() {
					p.stalled = false
					p.carryOut(actions[i:])
					p.work()
				})
				return
			}
		}
		p.do(a)
		if p.gone {
			return
		}
		if sim.rng.IntN(8) == 0 {
			p.serveNow()
		}
	}
	p.publish()
}

// do carries out one action.
func (p *process) do(a lease.Action) {
	sim := p.sim
	switch a := a.(type) {
	case lease.Begin:
		sim.note(p, "BEGIN sid=%d term=%d window=[%d,%d)",
			int64(a.Grant.SID), a.Grant.Term, sinceStart(a.Grant.Base), sinceStart(a.Grant.Ceil))
		p.meanwhile(func() {
			p.node.Begin(a.Grant)
			p.holds++
		})
		p.seeWindow(a.Grant.Ceil)
		switch l := sim.plan.format.Layout; {
		case l == flake.Fleet:
			sim.points.hit(HeldInFleet)
		case l.SIDFirst():
			sim.points.hit(HeldSIDFirst)
		}
		if u := sim.plan.unit(); u > 1 && (a.Grant.Base-clock.Millis(sim.plan.format.Epoch))%u != 0 {
			sim.points.hit(HeldWithinAUnit)
		}
		if sim.plan.halves {
			sim.points.hit(HeldInRange)
		}
		if !sim.plan.part.All() {
			sim.points.hit(HeldInPart)
		}
		for _, o := range sim.processes {
			if o != p && !o.gone && o.status.Held && o.status.Grant.SID == a.Grant.SID {
				sim.points.hit(TwoHeldOneSID)
			}
		}
	case lease.Lift:
		sim.note(p, "LIFT floor=%d", sinceStart(a.Floor))
		p.meanwhile(func() { p.node.Lift(a.Floor) })
	case lease.Raise:
		sim.note(p, "RAISE ceil=%d", sinceStart(a.Ceil))
		p.meanwhile(func() { p.node.Raise(a.Ceil) })
		p.seeWindow(a.Ceil)
	case lease.Seal:
		var ceil clock.Millis
		p.meanwhile(func() { ceil = p.node.Seal() })
		sim.note(p, "SEAL below %d", sinceStart(ceil))
		sim.see(p.host, Happening{Kind: "seal", Process: p.name, SID: p.status.Grant.SID, Ceil: ceil})
		p.follow = append(p.follow, lease.Sealed{Ceil: ceil})
	case lease.Alarm:
		sim.note(p, "ALARM "+string(a.Kind)+": "+a.Message)
		sim.points.alarm(a.Kind)
	case lease.Rewatch:
		sim.note(p, "opens its watch again")
		sim.points.hit(WatchGivenUp)
		p.openWatch(sim.etcd.travel())
	case lease.Fail:
		if !errors.Is(a.Err, lease.ErrOtherPool) {
			sim.violate("liveness", "%s failed: %v", p.name, a.Err)
		}
		p.end("fails")
	case lease.Done:
		p.end("is done")
	default:
		sim.etcd.request(p, a)
	}
}

// publish makes the machine's status known, as the keeper does after each step.
func (p *process) publish() {
	old, quarantined := p.status.Phase, len(p.status.Quarantined)
	p.status, p.limit = p.machine.Status(), p.machine.Limit(p.stepped)
	if len(p.status.Quarantined) > quarantined {
		p.sim.points.hit(Quarantined)
	}
	p.node.Report(p.status)
	p.latched = p.status.Phase == lease.Rewound
	p.leaseChanged()
	if p.status.Phase == old {
		return
	}
	p.sim.note(p, "is "+p.status.Phase.String()+" "+p.status.Problem)
	switch p.status.Phase {
	case lease.Standby:
		p.sim.points.hit(OnStandby)
	case lease.Lost:
		p.sim.points.hit(LostSID)
	case lease.Rewound:
		p.sim.points.hit(Latched)
	}
}

// end is the end of a process that chose it: its node is sealed, and a
// supervisor starts the next one.
func (p *process) end(how string) {
	p.node.Seal()
	p.die(how)
	sim := p.sim
	sim.in(sim.upTo(5*time.Second), func() { sim.start(p.host) })
}

// die ends the process at once, with whatever it was about to do.
func (p *process) die(how string) {
	if p.gone {
		return
	}
	p.sim.note(p, how)
	p.sim.see(p.host, Happening{Kind: "end", Process: p.name})
	p.gone, p.waiting, p.backlog, p.follow = true, nil, nil, nil
}

// crash ends the host's process; a supervisor starts the next one, at once or late.
func (h *host) crash(sim *simulation) {
	if h.process == nil || h.process.gone {
		return
	}
	h.process.die("is killed")
	sim.in(sim.logTime(10*time.Millisecond, 4*sim.plan.ttl), func() { sim.start(h) })
}

// stop asks the host's process to end.
func (h *host) stop() {
	p := h.process
	if p == nil || p.gone || p.stopping {
		return
	}
	p.stopping = true
	p.in(0, func() {
		p.sim.note(p, "is asked to stop")
		p.node.Drain()
		p.notify(lease.Stop{})
	})
	p.in(5*time.Second, func() { p.end("gave up on giving back") })
}
