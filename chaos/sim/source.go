package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// wrongSource sets the wall clocks of all hosts further ahead than is followed, as a time
// source that is wrong does, and restarts some processes meanwhile. The others go on serving as
// long as they may: what has just started knows no other time, and is no evidence of it, and
// it writes no ceiling with that time. Then the clocks are set right, at one moment or one after
// the other, and everybody serves. It draws from numbers of its own.
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
	if len(serving) < 2 {
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
	r.Shuffle(len(serving), func(i, k int) { serving[i], serving[k] = serving[k], serving[i] })
	some := 1 + r.IntN(2)*r.IntN(len(serving)-1)
	others, restarted := serving[some:], []*process(nil)
	sim.late = map[string]bool{}
	for _, p := range serving[:some] {
		p.die("is restarted under a wrong time source")
		sim.start(p.host)
		restarted = append(restarted, p.host.process)
		sim.late[p.host.process.name] = true
		sim.points.hit(StartedUnderWrongSource)
		sim.run(time.Duration(r.Int64N(int64(10 * time.Second))))
	}
	majority := n-some >= n/2+1
	serve := func(for5s int) {
		for range for5s {
			sim.run(5 * time.Second)
			for _, p := range others {
				if why := sim.unable(p); why != nil && (majority || !sim.plan.strict) && len(sim.violations) == 0 {
					sim.violate("liveness", "%s served under a wrong time source until %d of %d were restarted: %v; %s",
						p.name, some, n, why, sim.state(p))
				}
			}
		}
	}
	serve(20)
	if !majority {
		sim.points.hit(OutnumberedUnderWrongSource)
		serve(8) // A strict node has refused for long enough by then to give its sid back.
	}
	sim.repairSource(r, others, serve)
	sim.run(sim.settling())
	sim.late = nil
	for _, p := range append(others, restarted...) {
		p = p.host.process
		why := sim.unable(p)
		if why != nil && !sim.excused(p, why) || p.judge.machine.Verdict().Phase == clock.Shut {
			sim.violate("liveness", "%s does not serve after its time source was set right: %v; %s",
				p.name, why, sim.state(p))
		}
	}
}

// repairSource sets all wall clocks right: at one moment, or one after the other within a minute, and
// then serve is called. When all are right at one moment, the processes that were not restarted may be
// stopped before the others have followed.
func (sim *simulation) repairSource(r *rand.Rand, old []*process, serve func(for5s int)) {
	spread := []time.Duration{1, 1, 3 * time.Second, time.Minute}[r.IntN(4)]
	for _, h := range sim.hosts {
		sim.in(time.Duration(r.Int64N(int64(spread))), func() { sim.fixClock(h) })
	}
	if spread > 1 || r.IntN(2) == 0 {
		serve(int(spread/(5*time.Second)) + 1)
		return
	}
	sim.run(2*sim.plan.tickEvery + time.Duration(r.Int64N(int64(300*time.Millisecond))))
	for _, p := range old {
		p.host.stop()
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
