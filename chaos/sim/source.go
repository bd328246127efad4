package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// wrongSource sets the wall clocks of all hosts further ahead than is followed, as a time
// source that is wrong does, and restarts one process meanwhile. The fleet served before, so
// it goes on serving: what has just started knows no other time, and is no evidence of it.
// Once the clocks are right everybody serves. It draws from numbers of its own.
//
// Processes whose clock was ever wrong are restarted before: one that was ahead and set back
// follows its clock ahead again. What wrong clocks have written stays, and shows nobody the time.
func (sim *simulation) wrongSource(r *rand.Rand) {
	if len(sim.violations) > 0 {
		return
	}
	poisoned := r.IntN(2) == 0 && sim.poison()
	for _, h := range sim.hosts {
		if !h.sound || poisoned {
			h.process.die("is restarted with its clock right")
			sim.start(h)
		}
	}
	sim.run(sim.settling())
	var serving []*process
	n := 0 // It counts the nodes with gossip.
	for _, h := range sim.hosts {
		if h.noGossip || h.process.gone {
			continue
		}
		n++
		if sim.unable(h.process) == nil && h.process.judge.machine.Verdict().Confirmed() {
			serving = append(serving, h.process)
		}
	}
	// Of fewer nobody would be confirmed when one is away, and a strict node then refuses.
	if len(serving) < 2 || sim.plan.strict && len(serving)-1 < n/2+1 {
		return
	}
	step := 11*time.Minute + time.Duration(r.Int64N(int64(24*time.Hour)))
	sim.note(nil, "all clocks step by %d us", int64(step)/1000)
	for _, h := range sim.hosts {
		h.settle(sim.now)
		h.wrong, h.reading.Wall = sim.now, h.reading.Wall+int64(step)
		h.sets++
	}
	sim.run(15 * time.Second)
	i := r.IntN(len(serving))
	restarted, others := serving[i].host, append(serving[:i:i], serving[i+1:]...)
	restarted.process.die("is restarted under a wrong time source")
	sim.start(restarted)
	sim.points.hit(StartedUnderWrongSource)
	for range 20 {
		sim.run(5 * time.Second)
		for _, p := range others {
			if why := sim.unable(p); why != nil {
				sim.violate("liveness", "%s served under a wrong time source until %s was restarted: %v; %s",
					p.name, restarted.node, why, sim.state(p))
				return
			}
		}
	}
	for _, h := range sim.hosts {
		sim.fixClock(h)
	}
	sim.run(sim.settling())
	for _, p := range append(others, restarted.process) {
		why := sim.unable(p)
		if why != nil && !sim.excused(p, why) || p.judge.machine.Verdict().Phase == clock.Shut {
			sim.violate("liveness", "%s does not serve after its time source was set right: %v; %s",
				p.name, why, sim.state(p))
		}
	}
}

// poison leaves the record of a node whose clock was a year ahead, on a sid that nobody ever
// had. It does nothing if there is no such sid.
func (sim *simulation) poison() bool {
	v := sim.etcd.view()
	sids := sim.plan.sids()
	for sid := sids.To - 1; sid >= sids.From && sid < sids.To; sid-- {
		if s := v.SIDs[sid]; s.Window.Exists() || s.Holder.Exists() {
			continue
		}
		wall := sim.trueMillis() + millis(365*24*time.Hour)
		sim.note(nil, "a clock a year ahead wrote sid %d", int64(sid))
		sim.etcd.change(func() {
			sim.etcd.mem.Put(fmt.Sprintf("window/%d", sid), lease.Encode(lease.Window{
				Era:      v.Era.Value.Number,
				Term:     1,
				Instance: "ahead",
				Node:     "ahead",
				Nonce:    "ahead",
				Base:     wall,
				Ceil:     wall + millis(sim.plan.window),
				State:    lease.Active,
				Wall:     wall,
				Gossip:   true,
			}))
		})
		sim.points.hit(StartedBesidePoison)
		return true
	}
	return false
}
