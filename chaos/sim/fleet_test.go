package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/flake"
)

// calmCluster is a simulation of seed in which nothing fails.
func calmCluster(seed uint64) *simulation {
	sim := &simulation{rng: rand.New(rand.NewPCG(seed, 0x5eed)), trace: newTrace(nil)}
	p := draw(sim.rng, Everything, time.Minute)
	sim.plan = plan{
		mode: p.mode, virtual: p.virtual, format: flake.Default, nodes: 3 + int(seed%4), spare: 32,
		window: p.window, extendEvery: p.extendEvery, ttl: p.ttl, keepAlive: p.keepAlive, reload: p.reload, retry: p.retry, timeout: p.timeout,
		maxSkew: p.maxSkew, maxLead: p.maxLead, tickEvery: p.tickEvery, pace: p.pace,
		latency: time.Millisecond, gossipLatency: time.Millisecond, faulty: 8,
	}
	sim.before.Format, sim.after.Format = flake.Default, flake.Default
	sim.etcd = newEtcd(sim)
	for i := range sim.plan.nodes {
		sim.addHost(fmt.Sprintf("n%d", i+1))
	}
	sim.run(30 * time.Second)
	return sim
}

// setTogether sets the wall clocks of all hosts.
func (sim *simulation) setTogether(step time.Duration) {
	for _, h := range sim.hosts {
		h.settle(sim.now)
		h.reading.Wall += int64(step)
		h.sets++
		h.wrong = sim.now
	}
}

// TestClocksSetTogether: a wrong time source sets all clocks for a minute, and nodes
// restart meanwhile. Once it is right, all serve within minutes and without an operator;
// only processes that began an hour ahead have to be restarted once more, since no process
// issues below its own IDs.
// While processes run on, no ceiling is beyond the limit of steps; where they restart,
// none is beyond the limit of downtime.
func TestClocksSetTogether(t *testing.T) {
	const downtime = 60 * 24 * time.Hour
	for _, step := range []time.Duration{time.Hour, 10 * 365 * 24 * time.Hour, -time.Hour} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, restarts=%v", step, restarts), func(t *testing.T) {
				for seed := range tier.Of(t, "seeds", 1, 3, 20) {
					sim := calmCluster(uint64(seed))
					issued := sim.before.IDs()
					limit := sim.plan.window + sim.plan.maxSkew + time.Second
					if restarts {
						limit += min(max(step, 0), downtime)
					}
					sim.setTogether(step)
					highest := func() {
						for sid, s := range sim.etcd.view().SIDs {
							if ahead := (s.Window.Value.Ceil - sim.trueMillis()).Duration(); ahead > limit {
								t.Fatalf("seed %d: sid %d has a ceiling %v ahead, at most %v is allowed", seed, sid, ahead, limit)
							}
						}
					}
					for second := range 60 {
						sim.run(time.Second)
						highest()
						if restarts && second%20 == 0 {
							h := sim.hosts[second/20%len(sim.hosts)]
							h.process.die("is restarted")
							sim.start(h)
						}
					}
					if !restarts && step > 0 && sim.before.IDs() == issued {
						t.Errorf("seed %d: nothing was issued meanwhile", seed)
					}
					sim.setTogether(-step)
					sim.run(sim.settling())
					highest()
					if restarts && step > 0 && step < downtime {
						for _, h := range sim.hosts {
							if sim.unable(h.process) != nil {
								h.process.die("is restarted, for it refuses")
								sim.start(h)
							}
						}
						sim.run(sim.settling())
					}
					for _, h := range sim.hosts {
						if why := sim.unable(h.process); why != nil {
							t.Errorf("seed %d: %s does not serve %v after the fault: %v; %s", seed, h.process.name, sim.settling(), why, sim.state(h.process))
						}
					}
					sim.judge()
					for _, v := range sim.violations {
						t.Errorf("seed %d: %v", seed, v)
					}
					if t.Failed() {
						return
					}
				}
			})
		}
	}
}
