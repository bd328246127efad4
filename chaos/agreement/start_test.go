package agreement_test

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// TestStart: how long a fresh node waits before it trusts its clock.
//
// Incident T21 (a clock of the future), docs/INCIDENTS.md.
func TestStart(t *testing.T) {
	t.Run("alone at once", func(t *testing.T) {
		runScenario(t, func(env *testEnv) {
			m := env.start(options{})
			took := m.untilReady(time.Second)
			t.Logf("ready after %v", took)
			if took > 200*time.Millisecond || m.verdict().Phase != clock.Confirmed {
				t.Errorf("ready after %v, %+v", took, m.verdict())
			}
		})
	})
	t.Run("beside two good ones as soon as echoes are in", func(t *testing.T) {
		runScenario(t, func(env *testEnv) {
			env.startAll(2)
			time.Sleep(10 * time.Second)
			m := env.start(options{})
			took := m.untilReady(time.Second)
			t.Logf("ready after %v", took)
			g := m.watch.Report().Gate
			if took > 500*time.Millisecond || g.Verdict.Phase != clock.Confirmed || g.Unverified != 0 {
				t.Errorf("ready after %v, %+v", took, g)
			}
		})
	})
	t.Run("beside silent ones after a second, unverified", func(t *testing.T) {
		runScenario(t, func(env *testEnv) {
			env.startAll(2)
			time.Sleep(10 * time.Second)
			m := env.start(options{})
			env.cut(env.members[:2], env.members[2:])
			took := m.untilReady(2 * time.Second)
			t.Logf("ready after %v", took)
			time.Sleep(10 * time.Second)
			g := m.watch.Report().Gate
			if took < time.Second || took > 1500*time.Millisecond || g.Verdict.Phase != clock.Grace || g.Unverified < 9*time.Second {
				t.Errorf("ready after %v, %+v", took, g)
			}
		})
	})
	// Whoever lists the space first does not see who registers next, and may find
	// itself in an even split with the one whose clock is wrong.
	t.Run("three at once, one of them wrong", func(t *testing.T) {
		for bad := range 3 {
			runScenario(t, func(env *testEnv) {
				for i := range 3 {
					o := options{}
					if i == bad {
						o.off = time.Second
					}
					env.start(o)
				}
				for i, m := range env.members {
					if i != bad {
						m.untilReady(3 * time.Second)
					}
				}
				time.Sleep(4 * time.Second)
				from := env.now()
				time.Sleep(10 * time.Second)
				env.soundBut(env.members[bad], from)
				env.members[bad].refused(from, env.now(), node.ClockSkew)
			})
		}
	})
	// The first to register would be alone, and believed: it waits for the others.
	t.Run("three expected, the first of them wrong", func(t *testing.T) {
		runScenario(t, func(env *testEnv) {
			bad := env.start(options{expect: 3, off: time.Hour})
			for range 2 {
				time.Sleep(1500 * time.Millisecond)
				env.start(options{expect: 3})
			}
			for _, m := range env.members[1:] {
				m.untilReady(3 * time.Second)
			}
			bad.untilRefused(node.ClockSkew, 3*time.Second)
			from := env.now()
			time.Sleep(time.Minute)
			if wrote := bad.wrote(0, env.now()); len(wrote) != 0 {
				t.Errorf("it wrote %+v", wrote)
			}
			bad.refused(from, env.now(), node.ClockSkew)
		})
	})
	t.Run("three expected, and two come", func(t *testing.T) {
		runScenario(t, func(env *testEnv) {
			m := env.start(options{expect: 3})
			time.Sleep(time.Second)
			env.start(options{expect: 3})
			took := m.untilReady(6 * time.Second)
			if took < 4*time.Second-100*time.Millisecond || m.verdict().Phase != clock.Confirmed {
				t.Errorf("ready after %v, %+v", took, m.verdict())
			}
		})
	})
	// Cut off from peers that would disagree, the store keeps it out.
	for name, cut := range map[string]bool{"a day ahead": false, "a day ahead, beside silent ones": true} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, func(env *testEnv) {
				env.startAll(2)
				time.Sleep(10 * time.Second)
				m := env.start(options{off: 24 * time.Hour})
				want := node.ClockSkew
				if cut {
					env.cut(env.members[:2], env.members[2:])
					want = node.Starting
				}
				time.Sleep(5 * time.Second)
				from := env.now()
				time.Sleep(3 * time.Minute)
				m.refused(from, env.now(), want)
				if wrote := m.wrote(0, env.now()); len(wrote) != 0 {
					t.Errorf("it wrote %+v", wrote)
				}
				env.soundBut(m, 5*time.Second)
				m.clocks.Right()
				env.net.Heal()
				took := m.untilReady(2 * time.Minute)
				t.Logf("ready %v after it was set right", took)
			})
		})
	}
}
