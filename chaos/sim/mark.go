package sim

import (
	"context"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
)

// marks is the watermark as an observer sees it who sees all: the highest that the store ever
// had. Any node may have answered it.
type marks struct {
	at clock.Millis
	// doubtful: a clock that was confirmed, and wrong, has let the mark pass a window. Of holders
	// that vanished nothing is promised then.
	doubtful bool
	// restored: the store was changed behind the nodes' backs. Nothing is promised until an operator
	// begins era. From then on whoever holds a sid in that era issues nothing below at, and no
	// answer is below it.
	restored bool
	era      int64
	// unnamed has, by sid, the highest mark that did not name the sid as not covered.
	unnamed map[flake.SID]clock.Millis
}

// note takes a mark that the store has.
func (m *marks) note(sids lease.SIDRange, mark lease.Mark) {
	m.at = max(m.at, mark.At)
	if m.unnamed == nil {
		m.unnamed = map[flake.SID]clock.Millis{}
	}
	for sid := sids.From; sid < sids.To; sid++ {
		if !mark.Names(sid) {
			m.unnamed[sid] = max(m.unnamed[sid], mark.At)
		}
	}
}

// rewind says that the store was changed now, whatever was repaired before.
func (m *marks) rewind() { m.restored, m.era = true, 0 }

// promised reports whether a claim of the watermark holds in an era.
func (m *marks) promised(era int64) bool { return !m.restored || m.era > 0 && era >= m.era }

// markRules are those of the seed's nodes.
func (p *plan) markRules() lease.MarkRules {
	return lease.MarkRules{Every: p.extendEvery / 4, Grace: p.markGrace, Late: p.extendEvery + p.timeout}
}

// putMark has the store write the mark, and notes what that promises.
func (e *etcd) putMark(p *process, a lease.PutMark) (answer lease.Event) {
	sim := e.sim
	v, err := e.mem.Read(context.Background(), 0)
	if err != nil {
		panic(err)
	}
	before := v.Mark.Value
	e.change(func() { answer = e.carryOutPlain(a) })
	m := answer.(lease.Marked)
	if !m.Applied {
		sim.points.hit(MarkRefused)
		return answer
	}
	at := m.Mark.Value.At
	sim.note(p, "etcd has the mark %d", sinceStart(at))
	if at < before.At {
		sim.violate("I9", "%s lowered the mark from %d to %d", p.name, before.At, at)
	}
	if at > before.At {
		sim.points.hit(MarkRaised)
	}
	if now := v.Era.Value.Number; m.Mark.Value.Era == now && sim.marks.promised(now) {
		if at < sim.marks.at {
			sim.violate("I9", "%s raised the mark to %d in era %d, and %d was answered before",
				p.name, at, now, sim.marks.at)
		}
		if sim.marks.restored {
			sim.points.hit(MarkAfterRestore)
		}
	}
	if m.Mark.Value.Rests != before.Rests || m.Mark.Value.Era != before.Era {
		sim.points.hit(MarkPassedVanished)
		if off := a.Txn.Mark.Wall - sim.trueMillis(); off > millis(sim.plan.maxSkew+slack) {
			sim.marks.doubtful = true
		}
	}
	sim.marks.note(sim.plan.workers.sids, m.Mark.Value)
	return answer
}

// checkMark checks I9 of an answer: its time is not below a mark that the store has had. asked is
// what the clock read for the request.
//
// A holder that vanished is excused where its clock, or its request, was paused.
func (p *process) checkMark(b gen.Block, asked clock.Millis) {
	sim := p.sim
	time := clock.Millis(sim.plan.format.UnixMilli(b.First))
	if time >= sim.marks.at {
		return
	}
	s := sim.etcd.view().SIDs[b.SID]
	if !sim.marks.promised(s.Window.Value.Era) {
		return
	}
	if s.Holder.Exists() && string(s.Holder.Value.Instance) == p.name {
		sim.violate("I9", "%s holds sid %d and issued %v of time %d, below the mark %d",
			p.name, b.SID, b.First, time, sim.marks.at)
		return
	}
	behind := sim.trueMillis() - asked
	if sim.marks.restored { // It may have vanished from a history that was lost.
		return
	}
	if sim.marks.doubtful || behind > millis(sim.plan.markGrace-sim.plan.maxSkew-slack) {
		sim.points.hit(MarkRestedOnClock)
		return
	}
	sim.violate("I9", "%s vanished from sid %d and issued %v of time %d, below the mark %d; its clock is %d ms behind",
		p.name, b.SID, b.First, time, sim.marks.at, behind)
}

// checkMark checks I9 of a time that a worker is permitted. One whose interval the mark has passed
// is excused: it had vanished, and its clock, or its call, was paused. Nothing is promised of one
// whose interval is of a history that was lost: those of the era after it begin at its floor. To one
// that tells no floors, marks that name its sid promise nothing.
func (r *workerRun) checkMark(at clock.Millis) {
	sim := r.sim
	if sim.marks.restored && (sim.marks.era == 0 || r.from < sim.floor) {
		return
	}
	mark := sim.marks.at
	if !sim.plan.workers.tells {
		mark = sim.marks.unnamed[r.handle.SID]
	} else if sim.marks.restored {
		sim.points.hit(MarkWorkerAfterRestore)
	}
	if at >= mark {
		return
	}
	if sim.marks.doubtful || r.to+millis(sim.plan.markGrace-sim.plan.maxSkew-slack) <= sim.trueMillis() {
		sim.points.hit(MarkRestedOnClock)
		return
	}
	sim.violate("I9", "%s is permitted the time %d of sid %d, below the mark %d, and its interval ends at %d",
		r.id, at, r.handle.SID, mark, r.to)
}

// checkMarkMoves checks, once all faults have ended or a restore was repaired, and everybody had time
// to settle, that the mark follows the clock.
func (sim *simulation) checkMarkMoves() {
	if sim.plan.mode == Unclocked {
		return
	}
	confirmed := false
	for _, h := range sim.hosts {
		p := h.process
		confirmed = confirmed || p != nil && !p.gone && p.status.Held && p.judge.machine.Verdict().Confirmed()
	}
	v := sim.etcd.view()
	// A holder that gave its sid back since the last raise was there at that time.
	held := func(sid flake.SID) bool {
		return v.SIDs[sid].Holder.Exists() || v.SIDs[sid].Window.Value.Wall >= v.Mark.Value.Wall
	}
	lag := sim.trueMillis() - v.Mark.Value.At
	limit := 2*sim.plan.extendEvery + 10*time.Second
	if sim.plan.workers.tells {
		limit += sim.plan.workers.window // They tell floors a third of it apart, and up to a quarter later.
	}
	if !confirmed || lag <= millis(limit) {
		return
	}
	for _, b := range v.Mark.Value.Blocked {
		switch {
		case b.Why == lease.BlockedUnreadable && sim.plan.mode == Tampered:
			return // It was damaged on purpose, and an operator has to release it.
		case sim.plan.mode == Tampered: // Nothing else holds it once a restore is repaired.
		case b.Why == lease.BlockedSilent && held(b.SID):
			return // A live node that writes no ceilings holds it, and is named: its clock was wrong.
		case b.Ceil > sim.trueMillis():
			return // A wrong clock wrote that ceiling, and it is named.
		}
	}
	sim.violate("liveness", "the mark is %d ms behind, and names %+v", lag, v.Mark.Value.Blocked)
}
