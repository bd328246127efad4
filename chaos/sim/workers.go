package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker"
)

// workerPlan is what a seed has in store for workers. Rates are per minute.
type workerPlan struct {
	count                       int // generators
	sids                        lease.SIDRange
	window                      time.Duration
	kill, pause, setClock, give float64
	lost, late, slow            float64 // chances: of a call twice, and of a pause within Permit
	nodeCrash                   float64 // It is the chance that a node ends between a transaction and its answer.
	tells                       bool    // They tell floors, so that the watermark covers them.
}

// drawWorkers returns the plan of workers, none in half of the seeds, and leaves nodes fewer
// sids where needed. It draws from numbers of its own, as drawWithoutGossip does.
func drawWorkers(r *rand.Rand, p *plan) (w workerPlan) {
	w.count = 1 + r.IntN(4)
	n := 1 + r.IntN(w.count+1) // often too few
	last := min(p.format.Layout.Holders(), lease.MaxSIDs)
	spare := min(p.spare, last-n)
	if r.IntN(2) == 0 || !p.part.All() || spare < min(p.nodes, p.spare) || p.halves && spare < 2*p.nodes {
		return workerPlan{}
	}
	p.spare = spare
	from := last - n
	if p.ranges {
		from = spare // beside those of nodes
	}
	w.sids = lease.SIDRange{From: flake.SID(from), To: flake.SID(from + n)}
	some := func(rate float64) float64 { return rate * float64(r.IntN(3)) }
	w.window = []time.Duration{p.window / 2, p.window, 2 * p.window, time.Minute}[r.IntN(4)]
	w.kill, w.pause, w.setClock, w.give = some(0.5), some(1), some(1), some(1)
	w.lost, w.late, w.slow, w.nodeCrash = some(0.1), some(0.1), some(0.05), some(0.01)
	w.tells = r.IntN(2) == 0
	return w
}

// generator is a generator of another system, on a machine of its own. It holds a sid as a
// worker, by calls that any node serves, and asks before it uses an ID, as package worker
// does. Its clock may be wrong, it is paused and killed; its calls are lost, and repeated
// through other nodes while they are on their way. Some have one name.
type generator struct {
	sim    *simulation
	name   string
	ahead  time.Duration // Its clock is ahead of true time by this; negative is behind.
	asleep time.Duration // until then
	runs   int
	run    *workerRun // the latest; nil: none yet
}

// workerRun is a generator from its secret to its end: to the record, a process.
type workerRun struct {
	*generator
	id       string
	secret   string
	handle   worker.Handle // zero: it has none yet
	from, to clock.Millis  // as it was told
	floor    clock.Millis  // It permits nothing below it from then on.
	extendAt time.Duration
	calls    int  // on their way
	closed   bool // it permits nothing any more, and gives its sid back
	lost     bool // a node said so: it may use its interval to the end
	gone     bool
	repaired bool // it acquired after the repair

	series
	used clock.Millis // the end of the last unit that it asked for
	end  clock.Millis // the end of the last unit that it was permitted
	cut  clock.Millis // it gave the sid back with this ceiling; 0: it did not
}

// addGenerators starts the seed's generators, and plans their faults.
func (sim *simulation) addGenerators() {
	w := &sim.plan.workers
	if w.count == 0 {
		return
	}
	sim.runs = map[lease.Instance]*workerRun{}
	for i := range w.count {
		g := &generator{sim: sim, name: fmt.Sprintf("w%d", 1+i*2/3)}
		sim.generators = append(sim.generators, g)
		sim.in(sim.upTo(sim.plan.startWithin+time.Second), g.manage)
		sim.in(sim.upTo(sim.plan.pace), g.make)
	}
	any := func(f func(g *generator)) func() {
		return func() { f(sim.generators[sim.rng.IntN(len(sim.generators))]) }
	}
	n := float64(w.count)
	sim.every(w.kill*n, any(func(g *generator) {
		if g.run != nil {
			sim.note(nil, g.run.id+" is killed")
			g.run.gone = true
		}
	}))
	sim.every(w.pause*n, any(func(g *generator) {
		g.asleep = max(g.asleep, sim.now+sim.logTime(50*time.Millisecond, 3*w.window))
		sim.note(nil, g.name+" is paused until %d", int64(g.asleep))
	}))
	sim.every(w.setClock*n, any(func(g *generator) {
		g.ahead = sim.logTime(11*time.Millisecond,
			time.Hour) * sim.sign() * time.Duration(sim.rng.IntN(3)/2+sim.rng.IntN(2))
		sim.note(nil, "clock of "+g.name+" is off by %d us", int64(g.ahead)/1000)
	}))
	sim.every(w.give*n, any(func(g *generator) {
		if r := g.run; r != nil && r.handle.Term != 0 && !r.gone && sim.now >= g.asleep {
			r.closed = true
			r.ask(r.release())
		}
	}))
}

// manage has the generator acquire, extend and give back.
func (g *generator) manage() {
	sim := g.sim
	sim.in(sim.upTo(sim.plan.workers.window/4), g.manage)
	r := g.run
	switch {
	case sim.now < g.asleep:
	case r == nil || r.gone || r.closed && sim.rng.IntN(3) == 0:
		g.begin()
	case r.closed:
		r.ask(r.release()) // again
	case r.handle.Term == 0:
		r.ask(worker.Acquire{
			Name:   g.name,
			Secret: r.secret,
			Given:  true,
			Clock:  clock.Millis(sim.rng.IntN(2)) * g.now(),
			Owner:  "sim",
			Quota:  sim.plan.workers.sids.Len() + 1,

			TellsFloor: sim.plan.workers.tells,
		})
	case r.lost && (sim.rng.IntN(2) == 0 || sim.trueMillis() >= r.to):
		r.gone = true
	case !r.lost && (sim.now >= r.extendAt || sim.rng.IntN(8) == 0):
		if sim.plan.workers.tells {
			r.floor = max(r.floor, min(r.to, g.now()-1000)-sim.plan.unit())
		}
		r.ask(worker.Extend{Handle: r.handle, NotAfter: r.to, Floor: r.floor})
	}
}

func (g *generator) begin() {
	sim := g.sim
	g.runs++
	g.run = &workerRun{
		generator: g,
		id:        fmt.Sprintf("%s/%d", g.name, len(sim.runs)+1),
		secret:    fmt.Sprintf("%016x%016x", sim.rng.Uint64(), sim.rng.Uint64()),
	}
	sim.runs[worker.Instance(g.run.secret)] = g.run
}

// now is the generator's clock.
func (g *generator) now() clock.Millis {
	return clock.Millis((startTime + int64(g.sim.now+g.ahead)) / 1e6)
}

// slowGenerators sets clocks of generators back for some time: the mark has to wait for what they make.
func (sim *simulation) slowGenerators(until time.Duration) {
	if !sim.plan.workers.tells {
		return
	}
	for i, g := range sim.generators {
		g.ahead = -sim.plan.workers.window / 4 * time.Duration(i+1)
		sim.in(until, func() { g.ahead = 0 })
	}
}

// release states what was asked for, or nothing.
func (r *workerRun) release() worker.Release {
	return worker.Release{Handle: r.handle, UsedUntil: r.used * clock.Millis(min(r.sim.rng.IntN(4), 1))}
}

// ask sends a call to some node.
func (r *workerRun) ask(req worker.Request) {
	sim, w := r.sim, &r.sim.plan.workers
	travel := func() (d time.Duration, lost bool) {
		d = sim.upTo(10 * time.Millisecond)
		if sim.stage == trouble && sim.chance(w.late) {
			d = sim.logTime(time.Millisecond, 2*w.window)
		}
		return d, sim.stage == trouble && sim.chance(w.lost)
	}
	p := sim.hosts[sim.rng.IntN(len(sim.hosts))].process
	d, lost := travel()
	if p == nil || p.gone || lost {
		return
	}
	sent := sim.now
	r.calls++
	if r.calls > 1 {
		sim.points.hit(WorkerAsksTwice)
	}
	sim.in(sim.plan.timeout+4*time.Second, func() { r.calls-- })
	p.in(d, func() {
		p.serveWorker(req, func(a worker.Action) {
			if d, lost := travel(); !lost {
				sim.in(d, func() { r.hear(a, sent) })
			}
		})
	})
}

// hear takes an answer. One that begins elsewhere than the worker is not of its interval.
func (r *workerRun) hear(a worker.Action, sent time.Duration) {
	sim := r.sim
	if sim.now < r.asleep {
		sim.in(r.asleep-sim.now, func() { r.hear(a, sent) })
		return
	}
	if refused, ok := a.(worker.Refused); ok {
		if refused.Refusal.Reason == node.UnknownWorker && r.handle.Term != 0 && !r.lost {
			sim.points.hit(WorkerLost)
			r.lost = true
		}
		// Its secret is of a number whose interval has passed: it draws another one.
		r.gone = r.gone || refused.Refusal.Reason == node.InvalidFormat && r.handle.Term == 0
		return
	}
	w := a.(worker.Done).Worker
	switch {
	case r.gone || r.closed || w.Handle.Term == 0:
		return
	case r.handle.Term == 0:
		r.handle, r.from, r.used, r.repaired = w.Handle, w.NotBefore, w.NotBefore, sim.stage == repaired
		sim.note(nil, r.id+" acquires sid %d, term %d, window [%d,%d)", int64(w.Handle.SID), w.Handle.Term,
			sinceStart(w.NotBefore), sinceStart(w.NotAfter))
		sim.points.hit(WorkerAcquired)
	case w.Handle != r.handle || w.NotBefore != r.from:
		return
	}
	r.floor = max(r.floor, w.Floor)
	if w.NotAfter <= r.to {
		return
	}
	if r.to != 0 {
		sim.points.hit(WorkerExtended)
	}
	r.to, r.extendAt = w.NotAfter, sent+(w.ExtendAt-w.Now).Duration()
	if sim.record() != nil {
		sim.granted(r.id, r.handle.SID, r.from, r.to, sim.moment())
	}
}

// make makes an ID by the generator's clock, and asks whether it may be used: it raises the
// latest time asked for, and then looks at the interval. Between the two it may be paused.
func (g *generator) make() {
	sim, r, unit := g.sim, g.run, g.sim.plan.unit()
	sim.in(sim.upTo(2*sim.plan.pace), g.make)
	if sim.now < g.asleep || r == nil || r.gone || r.closed || r.handle.Term == 0 {
		return
	}
	id, ok := r.next(sim.plan.format, r.handle.SID, g.now(), 0)
	if !ok {
		return
	}
	at := r.at
	if !r.inside(at) || at < r.floor {
		sim.points.hit(WorkerOutside)
		return
	}
	r.checkMark(at)
	r.used = max(r.used, at+unit)
	begin := sim.moment()
	use := func() {
		switch {
		case r.gone:
		case r.closed || !r.inside(at):
			sim.points.hit(WorkerClosedMeanwhile)
		default:
			r.use(id, at, begin)
		}
	}
	if sim.stage == trouble && sim.chance(sim.plan.workers.slow) {
		sim.in(sim.logTime(time.Millisecond, 10*time.Second), use)
		return
	}
	use()
}

func (r *workerRun) inside(at clock.Millis) bool { return at >= r.from && at+r.sim.plan.unit() <= r.to }

// use records an ID that was permitted.
func (r *workerRun) use(id flake.ID, at clock.Millis, begin clock.Mono) {
	sim := r.sim
	r.end = max(r.end, at+sim.plan.unit())
	if r.cut != 0 && r.end > r.cut {
		sim.violate("I4",
			"%s is permitted %v of sid %d, which it gave back with the ceiling %d", r.id, id, r.handle.SID, r.cut)
	}
	if sim.etcd.windowOf(r.handle.SID).Instance != worker.Instance(r.secret) {
		sim.points.hit(WorkerUsedAfterLoss)
	}
	old := sim.stage == repaired && !r.repaired // its interval is of the history that was lost
	if old && at+sim.plan.unit() > sim.floor {
		sim.violate("recover", "%s is permitted %v by an interval of before the repair, above the floor", r.id, id)
	}
	if sim.stage != repaired || old {
		sim.highest = max(sim.highest, id)
	}
	sim.note(nil, r.id+" uses %d", int64(id))
	if !old {
		sim.made(r.id, id, begin)
	}
}

// serveWorker serves a call with the code that nodes have, and replies unless it ends.
func (p *process) serveWorker(req worker.Request, reply func(worker.Action)) {
	sim := p.sim
	c := worker.NewCall(worker.Config{
		SIDs: sim.plan.workers.sids, Bounds: p.config.Bounds,
		Nonce: p.config.Nonce, Random: sim.rng.IntN,
	}, req)
	wrote := false
	var step func(a worker.Answer)
	step = func(a worker.Answer) {
		act := c.Step(p.Now(), worker.Knowledge{Status: p.status, Limit: p.limit, Closed: p.node.Barred()}, a)
		var revoke lease.LeaseID
		switch act := act.(type) {
		case worker.Done:
			sim.checkAnswer(p, act.Worker)
			if e, ok := req.(worker.Extend); ok && !wrote && act.Worker.NotAfter > e.NotAfter {
				sim.points.hit(WorkerAdopted)
			}
			revoke = act.Revoke
		case worker.Refused:
			revoke = act.Revoke
			sim.note(p, "refuses a worker: "+act.Refusal.Reason.String())
		default:
			sim.etcd.ask(p, act, func(a worker.Answer) {
				_, commit := act.(worker.Commit)
				wrote = wrote || commit
				if commit && sim.stage == trouble && sim.chance(sim.plan.workers.nodeCrash) {
					sim.points.hit(WorkerAnswerDied)
					p.host.crash(sim)
					return
				}
				step(a)
			})
			return
		}
		if revoke != 0 {
			sim.etcd.ask(p, lease.Revoke{Lease: revoke}, func(worker.Answer) {})
		}
		reply(act)
	}
	step(worker.Answer{})
}

// checkAnswer checks I3: an interval that a worker is told was written for it, as a whole.
func (sim *simulation) checkAnswer(p *process, w worker.Worker) {
	if w.Handle.Term == 0 || sim.stage == tampered {
		return
	}
	for i := len(sim.written) - 1; i >= 0; i-- {
		x := sim.written[i]
		if x.Instance == worker.Instance(w.Handle.Secret) && x.Term == w.Handle.Term && x.Since == w.NotBefore &&
			x.Ceil >= w.NotAfter {
			return
		}
	}
	sim.violate("I3", "%s tells worker %s [%d,%d), which was not written for it",
		p.name, w.Handle.ID(), w.NotBefore, w.NotAfter)
}

// writtenFor notes a write of a worker's record, and checks what it gives back.
func (sim *simulation) writtenFor(t lease.Txn) {
	sim.written = append(sim.written, t.Window)
	r := sim.runs[t.Window.Instance]
	switch {
	case t.Op == lease.Rehold:
		sim.points.hit(WorkerReheld)
	case t.Op == lease.Release && sim.stage != tampered && r.handle.Term == t.Window.Term &&
		r.repaired == (sim.stage == repaired):
		sim.points.hit(WorkerReleased)
		r.cut = t.Window.Ceil
		if r.end > r.cut {
			sim.violate("I4",
				"%s gave sid %d back with the ceiling %d, and was permitted IDs up to %d", r.id, t.SID, r.cut, r.end)
		}
	}
	if !sim.plan.workers.sids.Has(t.SID) {
		sim.violate("part", "%s acquired sid %d, and workers have %v", r.id, t.SID, sim.plan.workers.sids)
	}
}

// expectWorkers checks that each generator has a number by which it makes IDs now, if there
// is one for it. A generator asks any host, so nothing is expected where most refuse.
func (sim *simulation) expectWorkers() {
	now, v := sim.trueMillis(), sim.etcd.view()
	able := 0
	for _, h := range sim.hosts {
		if p := h.process; p.node.Barred() == nil && p.limit.Permits(p.Now(), true) {
			able++
		}
	}
	free := 0
	for sid := sim.plan.workers.sids.From; sid < sim.plan.workers.sids.To; sid++ {
		s := v.SIDs[sid]
		if !s.Holder.Exists() && !s.Window.Value.TakenByOperator() && s.Window.Err == nil &&
			s.Window.Value.Ceil < now-millis(5*time.Second) {
			free++
		}
	}
	for _, g := range sim.generators {
		r := g.run
		without := r.handle.Term == 0 || r.lost || r.gone || r.closed || now >= r.to
		if 2*able >= len(sim.hosts) && free > 0 && without {
			sim.violate("liveness", "%s has no number after all faults ended, and %d are free: %+v", g.name, free, *r)
		}
	}
}
