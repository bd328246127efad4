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
	at      clock.Millis  // the unit of time of its last ID; 0: it issued none
	seq     uint32
	stopped bool
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
		h := sim.record()
		h.Grants = append(h.Grants, history.Grant{
			Process: o.id,
			SID:     sid,
			Base:    o.from,
			Ceil:    1 << 62,
			At:      sim.moment(),
			True:    sim.trueMillis(),
		})
		sim.in(sim.upTo(2*sim.plan.pace), o.make)
	}
	sim.note(nil, "an operator makes sid %d "+string(w.Window.State), int64(sid))
	e.change(func() { e.mem.Put(fmt.Sprintf("window/%d", sid), lease.Encode(w.Window)) })
}

// make issues an ID by the generator's clock. The generator ends with the faults.
func (o *outsider) make() {
	sim, unit := o.sim, o.sim.plan.unit()
	if o.stopped || sim.stage != trouble {
		return
	}
	sim.in(sim.upTo(2*sim.plan.pace), o.make)
	epoch := clock.Millis(sim.plan.format.Epoch)
	now := clock.Millis((startTime + int64(sim.now+o.ahead)) / 1e6)
	at := now - (now-epoch)%unit
	switch {
	case at < max(o.at, o.from, epoch):
		return
	case at == o.at:
		o.seq++
	default:
		o.at, o.seq = at, 0
	}
	id, err := sim.plan.format.Make(int64(at), o.seq, o.sid)
	if err != nil { // this unit has no more
		return
	}
	sim.points.hit(IssuedOutside)
	sim.highest = max(sim.highest, id)
	sim.note(nil, o.id+" issues %d", int64(id))
	h, begin := sim.record(), sim.moment()
	h.Issues = append(h.Issues, history.Issue{
		Process: o.id,
		First:   id,
		Count:   1,
		Stride:  sim.plan.format.Layout.Stride(),
		Begin:   begin,
		End:     sim.moment(),
	})
}
