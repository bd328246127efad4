package agreement_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/gossiptest"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// TestPartition: of three nodes whose gossip is cut 2|1 and whose etcd is not,
// the two serve on confirmed; the one serves unconfirmed, and counts it, until
// the grace is over and then by policy.
func TestPartition(t *testing.T) {
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprintf("strict=%v", strict), func(t *testing.T) {
			t.Parallel()
			runScenario(t, func(env *testEnv) {
				for range 3 {
					env.start(options{strict: strict})
				}
				time.Sleep(10 * time.Second)
				lone := env.members[2]
				env.cut(env.members[:2], env.members[2:])
				from := env.now()
				took := env.until(15*time.Second, "the lone node is unconfirmed", func() bool { return lone.verdict().Phase == clock.Grace })
				t.Logf("unconfirmed after %v", took)
				begun := env.now()
				time.Sleep(grace - time.Second)
				lone.served(from, env.now(), sound)
				if g := lone.watch.Report().Gate; g.Unverified < grace-2*time.Second {
					t.Errorf("%v counted unverified, want about %v", g.Unverified, grace)
				}
				time.Sleep(2 * time.Second)
				end := env.now()
				time.Sleep(20 * time.Second)
				if !strict {
					lone.served(end, env.now(), sound)
					if p := lone.verdict().Phase; p != clock.Unproven {
						t.Errorf("phase %v", p)
					}
				} else {
					lone.refused(end, env.now(), node.ClockUnverified)
					if wrote := lone.wrote(begun+grace+time.Second, env.now()); len(wrote) != 0 {
						t.Errorf("refusing, it wrote %+v", wrote)
					}
					time.Sleep(45 * time.Second)
					if _, ok := lone.released(from); !ok {
						t.Error("refusing for a minute, it kept its sid")
					}
				}
				env.soundBut(lone, 5*time.Second)
				for _, m := range env.members[:2] {
					if g := m.watch.Report().Gate; g.Verdict.Phase != clock.Confirmed || g.Unverified > 2*time.Second {
						t.Errorf("%s: %+v", m.name, g)
					}
				}
				env.net.Heal()
				took = lone.untilReady(time.Minute)
				env.until(time.Minute, "the lone node is confirmed", func() bool { return lone.verdict().Phase == clock.Confirmed })
				t.Logf("ready %v after the partition healed", took)
				at := env.now()
				time.Sleep(5 * time.Second)
				lone.served(at, env.now(), sound)
			})
		})
	}
}

// TestOneWay: packets of one node reach no other, and it receives all: it has no
// answers, so it knows no more than one that is cut off.
func TestOneWay(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		env.startAll(3)
		time.Sleep(10 * time.Second)
		silenced := env.members[0]
		for _, m := range env.members[1:] {
			env.net.SetLinkBetween(silenced.net.Addr(), m.net.Addr(), gossiptest.Link{Cut: true})
		}
		from := env.now()
		time.Sleep(40 * time.Second)
		if p := silenced.verdict().Phase; p != clock.Grace {
			t.Errorf("phase %v", p)
		}
		for _, m := range env.members {
			m.served(from, env.now(), sound)
		}
	})
}

// TestLossAndDelay: a third of all packets lost and the rest late and out of
// order costs nobody the confirmation of a good clock.
func TestLossAndDelay(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		env.startAll(5)
		time.Sleep(10 * time.Second)
		env.net.SetLink(gossiptest.Link{Latency: 20 * time.Millisecond, Jitter: 60 * time.Millisecond, Loss: 0.3})
		from := env.now()
		time.Sleep(10 * time.Minute)
		for _, m := range env.members {
			m.served(from, env.now(), sound)
			if g := m.watch.Report().Gate; g.Shuts != 0 || g.Unverified > 10*time.Second {
				t.Errorf("%s: %+v", m.name, g)
			}
		}
	})
}

// TestFleetStepsTogether: agreement cannot see what happens to all clocks at
// once. All follow together and no gate shuts. Where the step leads beyond the
// window, the next one has to be reserved first.
func TestFleetStepsTogether(t *testing.T) {
	for _, step := range []time.Duration{-time.Second, time.Second, 9 * time.Minute} {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			runScenario(t, func(env *testEnv) {
				env.startAll(3)
				time.Sleep(10 * time.Second)
				from := env.now()
				for _, m := range env.members {
					m.clocks.Step(step)
				}
				time.Sleep(30 * time.Second)
				end := env.now()
				for _, m := range env.members {
					for _, x := range m.asked(from, end) {
						if r := x.refusal; r != nil && (step < window || r.Reason != node.WindowExhausted || x.begin > from+2*time.Second) {
							t.Errorf("%s refused at %v: %v", m.name, x.begin, r)
						}
					}
					if got, want := m.clockEvents(), "stepped, followed (peers)"; got != want {
						t.Errorf("%s: %q, want %q", m.name, got, want)
					}
					tries := m.asked(end-2*time.Second, end)
					if off := tries[len(tries)-1].off() - step; off.Abs() > sound {
						t.Errorf("%s is %v off what the fleet agrees on", m.name, off)
					}
				}
			})
		})
	}
}

// TestOthersCutOff: two of three nodes are cut off from everything, and their
// registrations lapse. The third is no majority by itself: it serves unconfirmed, and
// follows no step of its clock. When they come back, a majority refutes the step.
func TestOthersCutOff(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		env.startAll(3)
		time.Sleep(10 * time.Second)
		third, others := env.members[2], env.members[:2]
		for _, m := range others {
			m.outage(true)
		}
		env.cut(others, env.members[2:])
		from := env.now()
		env.until(time.Minute, "two registrations lapse", func() bool { return len(third.keeper.Status().Nodes) == 1 })
		time.Sleep(32*time.Second - (env.now() - from))
		if v := third.verdict(); v.Confirmed() {
			t.Errorf("alone in the registry, it is %+v", v)
		}
		third.clocks.Step(5 * time.Minute)
		time.Sleep(2 * time.Minute)
		for _, m := range others {
			m.outage(false)
		}
		env.net.Heal()
		time.Sleep(30 * time.Second)
		third.served(from, env.now(), sound)
		if got, want := third.clockEvents(), "stepped, refuted"; got != want {
			t.Errorf("clock events %q, want %q", got, want)
		}
		if by := third.beyond(); by > maxSkew {
			t.Errorf("its ceiling is %v beyond true time + W", by)
		}
		for _, m := range env.members {
			if v := m.verdict(); !v.Confirmed() {
				t.Errorf("%s: %+v", m.name, v)
			}
		}
	})
}

// TestCrashesOfOthersNames: programs that crash one after the other, each under a name of its
// own, keep no sound nodes from confirming each other, whose policy is to refuse without that.
func TestCrashesOfOthersNames(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		for range 3 {
			env.start(options{strict: true})
		}
		time.Sleep(10 * time.Second)
		nodes, from := env.members[:3], env.now()
		for range 5 {
			program := env.start(options{})
			program.untilReady(2 * time.Second)
			program.outage(true) // Its release reaches nobody.
			program.stop()
			time.Sleep(30 * time.Second)
		}
		time.Sleep(3 * time.Minute)
		for _, m := range nodes {
			if lapsed := m.keeper.Status().Lapsed; len(lapsed) < 4 {
				t.Errorf("%s knows %d that lapsed", m.name, len(lapsed))
			}
			if v := m.verdict(); !v.Confirmed() {
				t.Errorf("%s: %+v", m.name, v)
			}
			m.served(from, env.now(), sound)
		}
		for _, m := range slices.Clone(nodes) { // An upgrade: whoever starts has seen none of it.
			m.stop()
			m = env.start(options{name: m.name, strict: true})
			m.untilReady(time.Minute)
			from := env.now()
			time.Sleep(grace + 20*time.Second)
			if v := m.verdict(); !v.Confirmed() {
				t.Errorf("%s, restarted: %+v", m.name, v)
			}
			m.served(from, env.now(), sound)
		}
	})
}

// TestOthersStop: a node whose peers stopped and gave their sids back is alone, and
// confirmed. One whose peers crashed is, ten minutes later.
func TestOthersStop(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		env.startAll(3)
		time.Sleep(10 * time.Second)
		last := env.members[2]
		env.members[0].stop()
		env.members[1].stop()
		time.Sleep(40 * time.Second)
		if v := last.verdict(); !v.Confirmed() {
			t.Errorf("the others stopped: %+v", v)
		}
		gone := env.start(options{})
		time.Sleep(20 * time.Second)
		gone.outage(true) // its release reaches nobody
		gone.stop()
		from := env.now()
		time.Sleep(2 * time.Minute)
		if p := last.verdict().Phase; p != clock.Unproven {
			t.Errorf("the other crashed, and the gate is %v", p)
		}
		env.until(10*time.Minute, "it is confirmed", func() bool { return last.verdict().Confirmed() })
		last.served(from, env.now(), sound)
	})
}
