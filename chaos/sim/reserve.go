package sim

import (
	"fmt"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// outsider is a generator outside of the cluster. It has a sid that an operator reserved, knows
// nothing of leases, and issues by its clock from the ceiling on that the operator was shown.
// In the record it is a process with one grant.
type outsider struct {
	sim     *simulation
	id      string
	sid     flake.SID
	from    clock.Millis
	ahead   time.Duration // Its clock is ahead of true time by this; negative is behind.
	stopped bool
	series
}

// series numbers the IDs that a generator of another system makes.
type series struct {
	at  clock.Millis // the unit of time of its last ID; 0: it made none
	seq uint32
}

// next makes the next ID by a clock, and none of a time before from.
func (s *series) next(f flake.Format, sid flake.SID, now, from clock.Millis) (id flake.ID, ok bool) {
	epoch := clock.Millis(f.Epoch)
	at := now - (now-epoch)%clock.Millis(f.Layout.Unit())
	switch {
	case at < max(s.at, from, epoch): // it waits for its clock
		return 0, false
	case at == s.at:
		s.seq++
	default:
		s.at, s.seq = at, 0
	}
	id, err := f.Make(int64(at), s.seq, sid)
	return id, err == nil // or this unit has no more
}

// reserveSID reserves a sid by an operator's word, and starts a generator with it. If it is
// reserved, the generator stops and the operator gives the sid back.
func (e *etcd) reserveSID() {
	sim, v := e.sim, e.view()
	sid := sim.anySID()
	sim.numbers++
	by := repair.Author{
		Instance: "operator",
		Nonce:    fmt.Sprintf("x%d", sim.numbers),
		Now:      sim.trueMillis(),
	}
	o := sim.outsiders[sid]
	var w repair.Write
	var err error
	if o == nil {
		w, _, err = repair.Reserve(v, sid, "", by)
	} else {
		above := clock.Millis(0)
		if o.at != 0 && (o.ahead > 0 || sim.rng.IntN(2) == 0) {
			above = o.at + sim.plan.unit()
		}
		w, err = repair.Unreserve(v, sid, above, sim.repairSlack(), by)
	}
	if err != nil {
		return
	}
	if o != nil {
		if end := o.at + sim.plan.unit(); o.at != 0 && w.Window.Ceil < end {
			sim.violate("I4", "sid %d is given back with the ceiling %d, and %s issued up to %d",
				sid, w.Window.Ceil, o.id, end)
		}
		o.stopped = true
		delete(sim.outsiders, sid)
		sim.points.hit(Unreserved)
	} else {
		sim.points.hit(Reserved)
		o = &outsider{
			sim:   sim,
			id:    fmt.Sprintf("outside/%d", sim.numbers),
			sid:   sid,
			from:  w.Window.Ceil,
			ahead: sim.upTo(time.Second) * sim.sign() * time.Duration(sim.rng.IntN(2)),
		}
		sim.outsiders[sid] = o
		sim.granted(o.id, sid, o.from, 1<<62, sim.moment())
		sim.in(sim.upTo(2*sim.plan.pace), o.make)
	}
	sim.note(nil, "an operator makes sid %d "+string(w.Window.State), int64(sid))
	e.change(func() { e.mem.Put(fmt.Sprintf("window/%d", sid), lease.Encode(w.Window)) })
}

// make issues an ID by the generator's clock. The generator ends with the faults.
func (o *outsider) make() {
	sim := o.sim
	if o.stopped || sim.stage != trouble {
		return
	}
	sim.in(sim.upTo(2*sim.plan.pace), o.make)
	now := clock.Millis((startTime + int64(sim.now+o.ahead)) / 1e6)
	id, ok := o.next(sim.plan.format, o.sid, now, o.from)
	if !ok {
		return
	}
	sim.points.hit(IssuedOutside)
	sim.highest = max(sim.highest, id)
	sim.note(nil, o.id+" issues %d", int64(id))
	sim.made(o.id, id, sim.moment())
}

// granted records that a process may use a window.
func (sim *simulation) granted(process string, sid flake.SID, base, ceil clock.Millis, at clock.Mono) {
	if h := sim.record(); h != nil {
		g := history.Grant{Process: process, SID: sid, Base: base, Ceil: ceil, At: at, True: sim.trueMillis()}
		h.Grants = append(h.Grants, g)
	}
}

// made records an ID that a generator of another system made.
func (sim *simulation) made(process string, id flake.ID, begin clock.Mono) {
	if h := sim.record(); h != nil {
		stride := sim.plan.format.Layout.Stride()
		h.Issues = append(h.Issues, history.Issue{
			Process: process, First: id, Count: 1, Stride: stride, Begin: begin, End: sim.moment(),
		})
	}
}
