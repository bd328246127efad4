package agreement_test

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// TestNodesWithoutGossipDoNotCount: three nodes with gossip confirm each other beside as
// many without, and refuse one that is wrong. Those without serve unverified.
func TestNodesWithoutGossipDoNotCount(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		for range 3 {
			env.start(options{strict: true})
			env.start(options{noGossip: true})
		}
		time.Sleep(10 * time.Second)
		env.start(options{noGossip: true}).untilReady(3 * time.Second) // now they are more
		bad := env.start(options{strict: true, off: time.Second})
		from := env.now()
		bad.untilRefused(node.ClockSkew, 5*time.Second)
		time.Sleep(2 * grace)
		for _, m := range env.members {
			g, n := m.watch.Report().Gate, len(m.watch.Report().Peers)+1
			switch {
			case m == bad:
				if g.Verdict.Phase != clock.Shut {
					t.Errorf("the wrong one: %+v", g)
				}
			case m.opts.noGossip:
				m.served(from, env.now(), sound)
				if g.Verdict.Phase != clock.Unproven || n != 5 {
					t.Errorf("%s, without gossip: phase %v of %d, want unproven of 5", m.name, g.Verdict.Phase, n)
				}
			default:
				m.served(from, env.now(), sound)
				if g.Verdict.Phase != clock.Confirmed || g.Unverified > 2*time.Second || n != 4 {
					t.Errorf("%s: judged by %d, %+v", m.name, n, g)
				}
			}
		}
	})
}

// TestNoPeerAnswers: a node that is registered with others and gets no answer of
// them is not alone. It is unconfirmed, and follows no step as one alone would,
// whether it has no gossip or all others have none.
func TestNoPeerAnswers(t *testing.T) {
	for name, noGossip := range map[string][]bool{
		"all without":     {true, true, true},
		"one without":     {true, false, false},
		"one with gossip": {false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScenario(t, func(env *testEnv) {
				for _, m := range noGossip {
					env.start(options{noGossip: m})
				}
				time.Sleep(10 * time.Second)
				one := env.members[0]
				strict := env.start(options{noGossip: noGossip[0], strict: true, name: one.name}) // its successor
				one.stop()
				time.Sleep(grace + 5*time.Second)
				strict.untilRefused(node.ClockUnverified, time.Second)
				if p := strict.verdict().Phase; p != clock.Strict {
					t.Errorf("phase %v", p)
				}
				strict.clocks.Step(-time.Second)
				time.Sleep(time.Minute)
				if got, want := strict.clockEvents(), "stepped"; got != want {
					t.Errorf("%q, want %q", got, want)
				}
			})
		})
	}
}

// TestRestartWithoutGossip: the newest process of a name decides whether it counts. One that
// comes back without gossip leaves the others' majority at once, and not when
// the lease of the one before it runs out.
func TestRestartWithoutGossip(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		env.startAll(2)
		time.Sleep(10 * time.Second)
		old := env.members[1]
		third := env.start(options{})
		time.Sleep(10 * time.Second)
		env.start(options{name: old.name, noGossip: true})
		env.cut([]*member{old}, []*member{env.members[0], third})
		from := env.now()
		time.Sleep(2 * grace) // old is still registered: to the last it keeps its lease alive
		for _, m := range []*member{env.members[0], third} {
			m.served(from, env.now(), sound)
			g, n := m.watch.Report().Gate, len(m.watch.Report().Peers)+1
			if g.Verdict.Phase != clock.Confirmed || g.Unverified > 2*time.Second || n != 2 {
				t.Errorf("%s: judged by %d, %+v", m.name, n, g)
			}
		}
	})
}
