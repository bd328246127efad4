package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/worker"
)

var errLost = errors.New("deadline exceeded")

const pool = "0c9e0b8e-63a5-4f3b-8d2c-5a4c1b2f7e10"

// etcd is a store whose requests and replies travel: either may be lost, late or
// doubled. What it carries out, it carries out whole and in one order.
type etcd struct {
	sim     *simulation
	mem     *storetest.Memory
	away    time.Duration // until then there is no leader: nothing is carried out, and no lease ends
	renewed time.Duration // until then leaders change so often that no lease ends
	waiting []func()      // what reached it meanwhile

	heldSince map[flake.SID]time.Duration // when a held sid was acquired; never iterated
}

// newEtcd makes an initialized space. Sids beyond the spare ones are quarantined, where
// neither the space nor a node has a range of its own.
func newEtcd(sim *simulation) *etcd {
	e := &etcd{sim: sim, mem: storetest.NewMemory(1), heldSince: map[flake.SID]time.Duration{}}
	if _, _, err := e.mem.Init(context.Background(), lease.Space{
		Layout: sim.plan.format.Layout, Epoch: clock.Millis(sim.plan.format.Epoch), Pool: pool, Part: sim.plan.part,
	}, sim.trueMillis()); err != nil {
		panic(err)
	}
	if sim.plan.mode == Unclocked { // Nobody has a clock by which the floor of the era could pass.
		e.mem.Put("mark", lease.Encode(lease.Mark{Era: 1}))
	}
	for sid := sim.plan.spare; !sim.plan.ranges && sim.plan.part.All() &&
		sid < sim.plan.format.Layout.Holders()-sim.plan.workers.sids.Len(); sid++ {
		e.mem.Put(fmt.Sprintf("window/%d", sid), lease.Encode(lease.Window{
			Era:      1,
			Term:     1,
			Instance: "operator",
			Nonce:    "aside",
			Base:     sim.trueMillis(),
			Ceil:     sim.trueMillis(),
			State:    lease.Quarantined,
		}))
	}
	const scan = 500 * time.Millisecond
	var expire func()
	expire = func() {
		if sim.stage == trouble && sim.now < e.renewed {
			e.mem.Renew()
		}
		if sim.now >= e.away {
			e.change(func() { e.mem.Advance(scan) })
		}
		sim.in(scan, expire)
	}
	sim.in(scan, expire)
	return e
}

// change edits the store behind the nodes' backs, or lets its time pass, and
// hints at it.
func (e *etcd) change(edit func()) {
	before := e.revision()
	edit()
	switch now := e.revision(); {
	case now < before:
		e.breakWatches()
	case now > before:
		e.hint()
	}
}

func (e *etcd) view() lease.View {
	v, err := e.mem.Load(context.Background())
	if err != nil {
		panic(err)
	}
	return v
}

func (e *etcd) revision() int64 { return e.mem.Revision() }

func (e *etcd) windowOf(sid flake.SID) lease.Window {
	v, err := e.mem.Read(context.Background(), sid)
	if err != nil {
		panic(err)
	}
	return v.SIDs[sid].Window.Value
}

// travel is how long a message to or from etcd takes.
func (e *etcd) travel() time.Duration {
	sim := e.sim
	d := sim.plan.latency/4 + sim.upTo(sim.plan.latency)
	if sim.rng.IntN(64) == 0 {
		d *= 8
	}
	return d
}

// request sends a request of the machine.
func (e *etcd) request(p *process, a lease.Action) {
	if e.sim.trace.out != nil {
		e.sim.say(p, "asks: "+describe(a))
	}
	exchange(e, p, a, storetest.Failed(a, errLost), p.notify,
		func(up time.Duration) func(time.Duration, func(lease.Event)) {
			if r, ok := a.(lease.Register); ok {
				return e.register(p, r, min(up, e.travel()))
			}
			return func(d time.Duration, done func(lease.Event)) {
				arrive(e, d, p, func() lease.Event { return e.carryOut(p, a) }, done)
			}
		})
}

// ask sends a request of a worker's call.
func (e *etcd) ask(p *process, a any, answer func(worker.Answer)) {
	l, list := a.(worker.List)
	if list && !l.Fresh && p.listedAt != 0 && e.sim.now-p.listedAt < time.Second {
		p.in(0, func() { answer(worker.Answer{View: p.workerList}) })
		return
	}
	took := func(res worker.Answer) {
		if list && res.Err == nil {
			p.workerList, p.listedAt = res.View, e.sim.now
		}
		answer(res)
	}
	exchange(e, p, a, worker.Answer{Err: errLost}, took, func(time.Duration) func(time.Duration, func(worker.Answer)) {
		return func(d time.Duration, done func(worker.Answer)) {
			arrive(e, d, p, func() worker.Answer { return e.carryOutForWorker(p, a) }, done)
		}
	})
}

// exchange sends a request and has it answered once: by etcd, or by its own deadline. sender
// returns what sends it, when it has been drawn for how long it travels.
func exchange[T any](e *etcd, p *process, a any, failed T, hear func(T),
	sender func(up time.Duration) func(time.Duration, func(T))) {
	sim, pl := e.sim, &e.sim.plan
	noisy := sim.noisy()
	answered := false
	answer := func(res T) {
		if !answered {
			answered = true
			hear(res)
		}
	}
	deadline := pl.timeout
	if noisy && (sim.chance(pl.lost) || sim.now < p.host.noRequests) {
		if sim.chance(pl.refusedFast) {
			deadline = e.travel()
		}
		sim.sent(p, nil, pl.latency, true, a)
		p.in(deadline, func() { answer(failed) })
		return
	}
	p.in(deadline, func() { answer(failed) })
	up := e.travel()
	if noisy && sim.chance(pl.late) {
		up = deadline + sim.logTime(time.Millisecond, 2*pl.window)
	}
	send := sender(up)
	sim.sent(p, nil, up, false, a)
	send(up, func(res T) {
		if sim.noisy() && (sim.chance(pl.replyLost) || sim.now < p.host.noReplies) {
			sim.sent(nil, p, pl.latency, true, a)
			return
		}
		down := e.travel()
		sim.sent(nil, p, down, false, a)
		p.in(down, func() { answer(res) })
	})
	if noisy && (sim.chance(pl.twice) || sim.now < p.host.again) {
		again := up + sim.logTime(time.Millisecond, pl.window)
		sim.sent(p, nil, again, false, a)
		send(again, func(T) { sim.points.hit(SentTwice) })
	}
}

// register starts a registration, which is several requests to etcd, after first. It
// returns what sends the last one, which writes: that alone can be carried out after
// the node has given the call up, or twice.
func (e *etcd) register(p *process, r lease.Register,
	first time.Duration) (send func(time.Duration, func(lease.Event))) {
	var id lease.LeaseID
	var finish func(context.Context) error
	arrive(e, first, p, func() lease.Event {
		var err error
		id, finish, err = e.mem.StartRegister(context.Background(), r.Lease, r.TTL, r.Registration)
		if err != nil {
			panic(err)
		}
		return nil
	}, func(lease.Event) {})
	return func(d time.Duration, done func(lease.Event)) {
		arrive(e, d, p, func() lease.Event {
			if finish == nil { // the first request was lost
				return lease.Registered{Err: errLost}
			}
			err := finish(context.Background())
			e.hint()
			if err != nil {
				return lease.Registered{Err: err}
			}
			return lease.Registered{Lease: id}
		}, done)
	}
}

// arrive has etcd carry a request out when it has arrived, or when there is a leader.
func arrive[T any](e *etcd, d time.Duration, p *process, carryOut func() T, done func(T)) {
	sim := e.sim
	var carry func()
	carry = func() {
		if sim.now < e.away {
			if sim.rng.IntN(2) == 0 { // a proposal that survives the election
				e.waiting = append(e.waiting, carry)
			}
			return
		}
		if p.gone {
			sim.points.hit(AppliedForDeadProcess)
		}
		done(carryOut())
	}
	sim.in(d, carry)
}

// carryOut asks the store, and records what it wrote.
func (e *etcd) carryOut(p *process, a lease.Action) (answer lease.Event) {
	switch a := a.(type) {
	case lease.Commit:
		applied, v, err := e.commit(p, a.Txn)
		return lease.Committed{Applied: applied, View: v, Err: err}
	case lease.PutMark:
		return e.putMark(p, a)
	case lease.Revoke:
		e.change(func() { answer = e.carryOutPlain(a) })
	default:
		answer = e.carryOutPlain(a)
	}
	return answer
}

func (e *etcd) carryOutPlain(a lease.Action) lease.Event {
	_, answer, _ := keeper.Ask(context.Background(), e.mem, a)
	return answer
}

// carryOutForWorker is carryOut for a worker's call.
func (e *etcd) carryOutForWorker(p *process, a any) (res worker.Answer) {
	ctx := context.Background()
	switch a := a.(type) {
	case worker.List:
		res.View, res.Err = e.mem.Load(ctx)
	case worker.Read:
		res.View, res.Err = e.mem.Read(ctx, a.SID)
	case worker.TakeLease:
		res.Lease, res.Err = e.mem.Grant(ctx, a.TTL)
	case worker.KeepAlive:
		res.Err = e.mem.KeepAlive(ctx, a.Lease)
	case worker.Commit:
		_, res.View, res.Err = e.commit(p, a.Txn)
	case lease.Revoke:
		e.change(func() { res.Err = e.mem.Revoke(ctx, a.Lease) })
	default:
		panic(fmt.Sprintf("sim: unknown request %T", a))
	}
	return res
}

// commit carries a transaction out, and records and checks what it wrote.
func (e *etcd) commit(p *process, t lease.Txn) (bool, lease.View, error) {
	sim, old := e.sim, t.Seen.Window
	applied, v, err := e.mem.Commit(context.Background(), t)
	if !applied {
		sim.note(p, "etcd does not apply "+t.Op.String()+" of sid %d over revision %d", int64(t.SID), old.Rev)
		sim.points.hit(RefusedByCompare)
		return false, v, err
	}
	if t.Op == lease.Expire {
		sim.note(p, "etcd applies expire of sid %d", int64(t.SID))
		sim.points.hit(ExpiredAlive)
		e.hint()
		return true, v, err
	}
	put := v.SIDs[t.SID].Window
	sim.note(p, "etcd applies "+t.Op.String()+" of sid %d: term %d window [%d,%d) at revision %d", int64(t.SID),
		put.Value.Term, sinceStart(put.Value.Base), sinceStart(put.Value.Ceil), put.Rev)
	if (t.Op == lease.Acquire || t.Op == lease.Reclaim) && put.Value.Base < v.Era.Value.Floor {
		sim.violate("I4", "%s acquired sid %d from %d on, below the floor %d of era %d",
			p.name, t.SID, put.Value.Base, v.Era.Value.Floor, v.Era.Value.Number)
	}
	if t.Window.Worker {
		sim.writtenFor(t)
	} else {
		sim.points.op(t, old)
		e.notPoisoned(p, t)
		by := t.Window.Wall - sim.trueMillis()
		if t.Op != lease.Release && sim.late[p.name] && by > millis(10*time.Minute) {
			sim.violate("poison", "%s started under a wrong time source, and wrote sid %d with a clock %v ahead",
				p.name, t.SID, by.Duration())
		}
		if !sim.plan.sids().Has(t.SID) {
			sim.violate("part", "%s wrote sid %d, and nodes have %v", p.name, t.SID, sim.plan.sids())
		}
		if t.Op == lease.Release && sim.stage != tampered {
			sim.terms.release(sim, p, t.SID, put.Value.Ceil)
		}
	}
	if h := sim.record(); h != nil {
		h.Writes = append(h.Writes, history.Write{
			SID: t.SID, Rev: put.Rev, Term: put.Value.Term, Base: put.Value.Base, Ceil: put.Value.Ceil,
			Released: put.Value.State == lease.Released,
		})
	}
	if t.Op != lease.Extend {
		e.hint()
	}
	return true, v, err
}

// longHeld is for how long a sid must have been held for every list of the space
// to show it.
const longHeld = 90 * time.Second

// notPoisoned checks that a clock minutes ahead writes no ceiling, where another
// node has long held a sid by a clock that is right: the store itself shows it.
func (e *etcd) notPoisoned(p *process, t lease.Txn) {
	sim := e.sim
	switch t.Op {
	case lease.Extend:
		return
	case lease.Release:
		delete(e.heldSince, t.SID)
		return
	case lease.Acquire, lease.Reclaim:
		e.heldSince[t.SID] = sim.now
	}
	const most = 4 * time.Minute // what the guard allows, and what delays add
	if sim.plan.mode != Everything || sim.plan.faulty != 1 || sim.plan.twin > 0 || p.host.sound ||
		t.Window.Wall < sim.trueMillis()+millis(most) {
		return
	}
	v := e.view()
	for sid := sim.plan.sids().From; sid < sim.plan.sids().To; sid++ {
		since, held := e.heldSince[sid]
		if s := v.SIDs[sid]; held && sid != t.SID && sim.now-since > longHeld && s.Holder.Exists() &&
			s.Holder.Value.Node != p.host.node && s.Window.Value.State == lease.Active {
			sim.violate("poison", "%s acquired sid %d by a clock that reads %d ms ahead, while sid %d has long been "+
				"held by another",
				p.name, t.SID, t.Window.Wall-sim.trueMillis(), sid)
			return
		}
	}
}

// describe prints a request.
func describe(a lease.Action) string {
	switch a := a.(type) {
	case lease.Read:
		return fmt.Sprintf("read sid=%d", a.SID)
	case lease.Commit:
		put := a.Txn.Window
		return fmt.Sprintf("%s sid=%d term=%d window=[%d,%d) over revision %d",
			a.Txn.Op, a.Txn.SID, put.Term, sinceStart(put.Base), sinceStart(put.Ceil), a.Txn.Seen.Window.Rev)
	}
	return fmt.Sprintf("%T", a)[len("lease."):]
}

// leaderless takes the leader away for a while. The next one begins every
// lease's time to live anew.
func (e *etcd) leaderless(d time.Duration) {
	sim := e.sim
	if sim.now+d <= e.away {
		return
	}
	e.away = sim.now + d
	sim.see(nil, Happening{Kind: "away", Until: e.away})
	sim.note(nil, "etcd has no leader for %d us", int64(d)/1000)
	e.breakWatches()
	sim.in(d, func() {
		if sim.now < e.away {
			return
		}
		sim.note(nil, "etcd has a leader")
		sim.points.hit(LeaderChanged)
		e.mem.Renew()
		waiting := e.waiting
		e.waiting = nil
		for _, f := range waiting {
			f()
		}
	})
}

// expireEarly ends some lease before its time, as an old leader may.
func (e *etcd) expireEarly() {
	if ids := e.mem.Leases(); len(ids) > 0 && e.sim.now >= e.away {
		id := ids[e.sim.rng.IntN(len(ids))]
		e.sim.note(nil, "lease %d ends early", int64(id))
		e.sim.points.hit(ExpiredEarly)
		e.change(func() { e.mem.Expire(id) })
	}
}

// deleteKey deletes a holder's key or a registration, as an operator might: no claim
// rests on them.
func (e *etcd) deleteKey() {
	sim := e.sim
	sid := sim.anySID()
	if p := sim.hosts[sim.rng.IntN(len(sim.hosts))].process; p != nil && sim.rng.IntN(2) == 0 {
		sim.note(nil, "the registration of "+p.name+" is deleted")
		e.change(func() { e.mem.Delete("node/" + p.name) })
		return
	}
	sim.note(nil, "the holder key of sid %d is deleted", int64(sid))
	e.change(func() { e.mem.Delete(fmt.Sprintf("holder/%d", sid)) })
}

// bumpEra begins a new era, as an operator may at any time. If the repair is refused
// because of ceilings far in the future, the operator sets the floor that it names.
func (e *etcd) bumpEra() {
	sim, v := e.sim, e.view()
	next, err := repair.NextEra(v, sim.reports(), 0, sim.repairSlack(), sim.trueMillis())
	if err != nil {
		next, err = repair.NextEra(v, sim.reports(), next.Era.Floor, sim.repairSlack(), sim.trueMillis())
	}
	if err != nil {
		sim.violate("recover", "a new era is refused: %v", err)
		return
	}
	sim.beginEra(v.Era.Value, next.Era)
	sim.points.hit(EraBegan)
}

// anySID draws one of the sids that nodes or workers may take.
func (sim *simulation) anySID() flake.SID {
	nodes, workers := sim.plan.sids(), sim.plan.workers.sids
	i := sim.rng.IntN(sim.plan.spare + workers.Len())
	if i < sim.plan.spare {
		return nodes.From + flake.SID(i)
	}
	return workers.From + flake.SID(i-sim.plan.spare)
}

// quarantineSID quarantines a sid by an operator's word, or gives one back.
func (e *etcd) quarantineSID() {
	sim, v := e.sim, e.view()
	sid := sim.anySID()
	sim.numbers++
	by := repair.Author{Instance: "operator", Nonce: fmt.Sprintf("x%d", sim.numbers), Now: sim.trueMillis()}
	var w repair.Write
	var err error
	switch window := v.SIDs[sid].Window; {
	case !window.Exists() || window.Err != nil:
		return
	case window.Value.State == lease.Quarantined:
		var r repair.Release
		r, err = repair.ReleaseSID(v, nil, sid, 0, sim.repairSlack(), by)
		w = r.Write
	default:
		w, err = repair.Quarantine(v, false, sid, "", true, by)
	}
	if err != nil { // It is reserved, or a wrong clock wrote its ceiling.
		return
	}
	sim.note(nil, "an operator makes sid %d "+string(w.Window.State), int64(sid))
	sim.points.hit(OperatorQuarantined)
	e.change(func() {
		e.mem.Delete(fmt.Sprintf("holder/%d", sid))
		e.mem.Put(fmt.Sprintf("window/%d", sid), lease.Encode(w.Window))
	})
}
