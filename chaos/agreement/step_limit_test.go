package agreement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// setTogether sets all wall clocks, as a time source that is wrong does.
func (env *testEnv) setTogether(step time.Duration) {
	for _, m := range env.members {
		m.clocks.Step(step)
	}
}

// TestFleetStepsTooFar: a fleet whose clocks are all set far ahead for a minute keeps its
// time. Nobody refuses, then or later, and no ceiling and no sid has to wait.
func TestFleetStepsTooFar(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, 10 * year} {
		for _, size := range []int{1, 3, 32} {
			t.Run(fmt.Sprintf("%d by %v", size, step), func(t *testing.T) {
				t.Parallel()
				if size == 32 {
					tier.Check(t, "32 whole nodes")
				}
				runScenario(t, func(env *testEnv) {
					env.startAll(size)
					time.Sleep(10 * time.Second)
					from := env.now()
					env.setTogether(step)
					time.Sleep(time.Minute)
					for _, m := range env.members {
						if got, want := m.clockEvents(), "stepped, blocked"; got != want {
							t.Errorf("%s: %q, want %q", m.name, got, want)
						}
					}
					env.setTogether(-step)
					time.Sleep(time.Minute)
					for _, m := range env.members {
						for _, x := range m.asked(from, env.now()) {
							if x.refusal != nil {
								t.Fatalf("%s refused at %v: %v", m.name, x.begin, x.refusal)
							} else if off := x.off(); off.Abs() > sound {
								history.Violated(t, "I5", "%s issued an ID that is %v off", m.name, off)
								break
							}
						}
						if bad := m.keeper.Status().Quarantined; len(bad) > 0 {
							t.Errorf("%s: %v", m.name, bad)
						}
					}
					for _, p := range env.puts {
						if latest := clocktest.TrueMillis(p.at) + clock.MillisOf(window+maxSkew); p.window.Ceil > latest {
							t.Fatalf("%v at %v: ceiling %v too high", p.op, p.at, (p.window.Ceil - latest).Duration())
						}
					}
				})
			})
		}
	}
}

// TestRestartUnderWrongSource: the wall clocks of a fleet are all an hour ahead, and it keeps
// its time. Nodes that are restarted or added meanwhile know no other time: the others follow
// them nowhere and go on serving, and those that started issue nothing. When the clocks are
// right all serve. Where the policy is to refuse without a majority, the others serve as long
// as they are one.
func TestRestartUnderWrongSource(t *testing.T) {
	for name, tc := range map[string]struct {
		size, restarted, added int
		majority               bool
	}{
		"1 of 2":      {2, 1, 0, false},
		"1 of 3":      {3, 1, 0, true},
		"2 of 3":      {3, 2, 0, false},
		"2 of 5":      {5, 2, 0, true},
		"from 1 to 2": {1, 0, 1, false},
		"from 2 to 3": {2, 0, 1, true},
		"from 2 to 5": {2, 0, 3, false},
	} {
		for _, strict := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, strict=%v", name, strict), func(t *testing.T) {
				t.Parallel()
				runScenario(t, func(env *testEnv) {
					for range tc.size {
						env.start(options{strict: strict})
					}
					old := slices.Clone(env.members)
					time.Sleep(10 * time.Second)
					from := env.now()
					env.setTogether(time.Hour)
					time.Sleep(30 * time.Second)
					var late []*member
					for i := range tc.restarted + tc.added {
						o := options{off: time.Hour, strict: strict}
						if i < tc.restarted {
							old[0].outage(true) // It is killed.
							old[0].stop()
							o.name, old = old[0].name, old[1:]
						}
						late = append(late, env.start(o))
						time.Sleep(20 * time.Second)
					}
					time.Sleep(150 * time.Second)
					serves := tc.majority || !strict
					for _, m := range old {
						if serves {
							m.served(from, env.now(), sound)
							continue
						}
						m.refused(env.now()-time.Minute, env.now(), node.ClockUnverified)
						for _, x := range m.asked(from, env.now()) {
							if x.refusal == nil && x.off().Abs() > sound {
								history.Violated(t, "I5", "%s issued an ID at %v that is %v off", m.name, x.begin, x.off())
								break
							}
						}
					}
					for _, m := range late {
						if wrote := m.wrote(0, env.now()); len(wrote) > 0 {
							t.Errorf("%s wrote %+v", m.name, wrote)
						}
					}
					repaired := env.now()
					env.setTogether(-time.Hour)
					time.Sleep(2 * time.Minute)
					for _, m := range old {
						if serves {
							m.served(repaired, env.now(), sound)
						}
					}
					for _, m := range append(old, late...) {
						m.served(env.now()-time.Minute, env.now(), sound)
					}
				})
			})
		}
	}
}

// TestPausedBesideStandbys: a hypervisor pauses a machine, and no clock of it notices; then its wall clock is set
// right. Those that ran beside it have the time, and most of them hold no sid: it follows them all the same.
func TestPausedBesideStandbys(t *testing.T) {
	for _, standbys := range []int{0, 5} {
		runScenario(t, func(env *testEnv) {
			for i := range 3 + standbys {
				m := env.start(options{keep: func(c *lease.Config) { c.SIDRange = lease.SIDRange{To: 3} }})
				if i < 3 { // It holds a sid: the keeper of a paused standby asks for one without an end.
					m.untilReady(10 * time.Second)
				}
			}
			time.Sleep(20 * time.Second)
			bad := env.members[1]
			bad.setAway(true)
			bad.outage(true)
			env.cut([]*member{bad}, slices.DeleteFunc(slices.Clone(env.members), func(o *member) bool { return o == bad }))
			bad.clocks.Leap(-15 * time.Minute)
			env.net.Heal()
			bad.outage(false)
			bad.setAway(false)
			time.Sleep(5 * time.Second)
			bad.clocks.Right()
			env.until(30*time.Second, fmt.Sprintf("it follows, beside %d standbys", standbys), func() bool {
				off := bad.system.Now().Wall - clocktest.TrueMillis(env.now())
				return max(off, -off) < 250
			})
		})
	}
}

// TestRestartAllUnderWrongSource: as long as one of the nodes lives that have not been
// restarted, it serves with its time, and no other issues. When the last is restarted as
// well, nobody knows another time than the wrong one.
func TestRestartAllUnderWrongSource(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		old := slices.Clone(env.startAll(3))
		time.Sleep(10 * time.Second)
		from := env.now()
		env.setTogether(time.Hour)
		time.Sleep(30 * time.Second)
		var late []*member
		for _, m := range old[:2] {
			m.stop()
			late = append(late, env.start(options{name: m.name, off: time.Hour}))
			time.Sleep(2 * time.Minute)
			old[2].served(from, env.now(), sound)
			for _, l := range late {
				if wrote := l.wrote(0, env.now()); len(wrote) > 0 {
					t.Errorf("%s wrote %+v", l.name, wrote)
				}
			}
		}
		old[2].stop()
		env.start(options{name: old[2].name, off: time.Hour})
		for _, m := range late {
			m.untilReady(time.Minute)
		}
	})
}

// TestOldPoison: a record that a clock a year ahead wrote, and that nobody holds any more, and
// one that an operator wrote whose clock was, show nobody the time: nodes that start beside
// them are held to the limit of steps as without them.
func TestOldPoison(t *testing.T) {
	for name, edit := range map[string]func(*lease.Window){
		"of a wrong clock": func(w *lease.Window) { w.Base, w.Ceil = w.Wall, w.Wall+clock.MillisOf(window) },
		"quarantined":      func(w *lease.Window) { w.State = lease.Quarantined },
		"by an operator":   func(w *lease.Window) { w.Node, w.State = lease.Operator, lease.Released },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScenario(t, func(env *testEnv) {
				w := lease.Window{
					Era:      1,
					Term:     1,
					Instance: "old",
					Node:     "old",
					Nonce:    "old",
					State:    lease.Active,
					Wall:     clocktest.TrueMillis(year),
					Gossip:   true,
				}
				edit(&w)
				env.store.Put("window/9", lease.Encode(w))
				env.startAll(3)
				time.Sleep(10 * time.Second)
				from := env.now()
				env.setTogether(time.Hour)
				time.Sleep(time.Minute)
				for _, m := range env.members {
					if got, want := m.clockEvents(), "stepped, blocked"; got != want {
						t.Errorf("%s: %q, want %q", m.name, got, want)
					}
					m.served(from, env.now(), sound)
				}
			})
		})
	}
}

// TestPoisonWhileStarting: nodes start while one whose clock is a year ahead is alone and holds a
// sid. Once a majority confirms their clocks its record shows them no time any more, and they
// are held to the limit of steps.
func TestPoisonWhileStarting(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		bad := env.start(options{off: year})
		bad.untilReady(5 * time.Second)
		nodes := env.startAll(3)
		time.Sleep(10 * time.Second)
		bad.stop()
		time.Sleep(30 * time.Second)
		from := env.now()
		env.setTogether(time.Hour)
		time.Sleep(time.Minute)
		for _, m := range nodes {
			if got, want := m.clockEvents(), "stepped, blocked"; got != want {
				t.Errorf("%s: %q, want %q", m.name, got, want)
			}
			m.served(from, env.now(), sound)
		}
	})
}

// TestFleetIsAccepted: clocks that were an hour behind when their nodes started are all
// set right. Nobody follows until an operator accepts the time; then all do. At most the
// rest of an extension is refused, and some seconds by a node that reads of it last.
func TestFleetIsAccepted(t *testing.T) {
	for _, size := range []int{1, 3} {
		t.Run(map[int]string{1: "alone", 3: "three"}[size], func(t *testing.T) {
			t.Parallel()
			runScenario(t, func(env *testEnv) {
				for range size {
					env.start(options{off: -time.Hour})
				}
				time.Sleep(10 * time.Second)
				env.setTogether(time.Hour)
				time.Sleep(time.Minute)
				accepted := env.now()
				seen, err := env.store.Load(env.ctx)
				fatal.If(t, err)
				if err := env.store.AcceptTime(env.ctx, seen, lease.AcceptedTime{
					Era: 1, Until: clocktest.TrueMillis(accepted + time.Hour), Nonce: "x", By: "ann", At: clocktest.TrueMillis(accepted),
				}); err != nil {
					t.Fatal(err)
				}
				// A list is asked for every 30 s, and at once where a hint comes.
				time.Sleep(45 * time.Second)
				for _, m := range env.members {
					// The last to read the acceptance finds that the others issue with the new time.
					if got, want := m.clockEvents(), "stepped, blocked, followed ("; !strings.HasPrefix(got, want) {
						t.Errorf("%s: %q, want %q", m.name, got, want)
					}
					for _, x := range m.asked(0, env.now()) {
						switch {
						case x.refusal == nil && x.begin > env.now()-5*time.Second && x.off().Abs() > sound:
							t.Fatalf("%s: at %v an ID is %v off", m.name, x.begin, x.off())
						case x.refusal != nil && x.refusal.Reason == node.ClockSkew && x.begin > accepted && x.begin < accepted+20*time.Second:
							// Some read the acceptance before others. Until all have, one is wrong to a majority, and
							// it refuses until they have agreed for 10 s.
						case x.refusal != nil && x.begin > 2*time.Second && (x.begin < accepted || x.refusal.Reason != node.WindowExhausted):
							t.Fatalf("%s refused at %v: %v", m.name, x.begin, x.refusal)
						}
					}
				}
				late := env.start(options{})
				time.Sleep(15 * time.Second)
				if got := late.asked(env.now()-5*time.Second, env.now()); len(got) == 0 || got[0].refusal != nil || got[0].off().Abs() > sound {
					t.Errorf("a node that starts then: %+v", got)
				}
			})
		})
	}
}
