package agreement_test

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/gossiptest"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// sound is how true the IDs of a node are whose clock is right.
const sound = 20 * time.Millisecond

// soundBut checks that all nodes but one served on from a time, and that no gate
// of theirs ever shut.
func (env *testEnv) soundBut(bad *member, from time.Duration) {
	env.t.Helper()
	for _, m := range env.members {
		if m == bad {
			continue
		}
		m.served(from, env.now(), sound)
		if g := m.watch.Report().Gate; g.Shuts != 0 {
			env.t.Errorf("%s: %+v", m.name, g)
		}
	}
}

// TestOneClockIsOff: one node's clock is a second off, from its start or from
// one moment to the next. It is refused, writes nothing, gives its sid back after
// a minute, and resumes by itself once the clock is right; nobody else notices.
func TestOneClockIsOff(t *testing.T) {
	for _, n := range []int{3, 5} {
		for _, off := range []time.Duration{time.Second, -time.Second} {
			t.Run(fmt.Sprintf("%d nodes, %v from the start", n, off), func(t *testing.T) {
				t.Parallel()
				runScenario(t, func(env *testEnv) { startsOff(env, n, off) })
			})
			t.Run(fmt.Sprintf("%d nodes, %v of a sudden", n, off), func(t *testing.T) {
				t.Parallel()
				runScenario(t, func(env *testEnv) { leaps(env, n, off) })
			})
		}
	}
}

func startsOff(env *testEnv, n int, off time.Duration) {
	env.startAll(n - 1)
	time.Sleep(10 * time.Second)
	born := env.now()
	bad := env.start(options{off: off})
	shut := bad.untilRefused(node.ClockSkew, 4*time.Second)
	time.Sleep(30 * time.Second)
	bad.refused(shut, env.now(), node.ClockSkew)
	bad.names(off)
	bad.clocks.Right()
	took := bad.untilReady(30 * time.Second)
	env.t.Logf("ready %v after the clock was set right", took)
	if took < 10*time.Second {
		env.t.Errorf("ready after %v, without 10 s of calm", took)
	}
	resumed := env.now()
	for _, x := range bad.asked(born, resumed) {
		if x.refusal == nil && x.begin < resumed-500*time.Millisecond {
			env.t.Errorf("issued an ID at %v", x.begin)
		}
	}
	if wrote := bad.wrote(born, resumed-time.Second); len(wrote) != 0 {
		env.t.Errorf("with a wrong clock it wrote %+v", wrote)
	}
	time.Sleep(20 * time.Second)
	bad.served(resumed, env.now(), sound)
	env.soundBut(bad, born)
}

// names checks what a refusal states about the clock.
func (m *member) names(off time.Duration) {
	m.env.t.Helper()
	r := m.node.Ready()
	if r == nil || r.Metadata["limit_ms"] != "250" {
		m.env.t.Fatalf("refusal %+v", r)
	}
	if diff := offsetOf(r) + off; diff.Abs() > sound {
		m.env.t.Errorf("refusal %+v, want an offset of %v", r, -off)
	}
}

// offsetOf returns what a refusal states about how far the others' clock is from ours;
// it fails no test, but is nothing like an offset if the refusal has none.
func offsetOf(r *node.Refusal) time.Duration {
	ms, err := strconv.ParseInt(r.Metadata["offset_ms"], 10, 64)
	if err != nil {
		return math.MaxInt64 / 2
	}
	return clock.Millis(ms).Duration()
}

func leaps(env *testEnv, n int, off time.Duration) {
	env.startAll(n)
	time.Sleep(20 * time.Second)
	bad := env.members[n/2]
	bad.clocks.Leap(off)
	from := env.now()
	shut := bad.untilRefused(node.ClockSkew, 8*time.Second)
	if shut-from > 4*time.Second {
		env.t.Errorf("refused only after %v", shut-from)
	}
	bad.names(off)

	// Nothing is written while it refuses, nor from when the leap was seen.
	time.Sleep(58 * time.Second)
	bad.refused(shut, env.now(), node.ClockSkew)
	if _, ok := bad.released(from); ok {
		env.t.Error("gave its sid back before a minute had passed")
	}
	time.Sleep(5 * time.Second)
	at, ok := bad.released(from)
	if !ok || bad.keeper.Status().Held {
		env.t.Errorf("did not give its sid back: %v", bad)
	}
	env.t.Logf("gave its sid back %v after it began to refuse", at-shut)
	if wrote := bad.wrote(shut, env.now()); len(wrote) != 0 {
		env.t.Errorf("while it refused it wrote %+v", wrote)
	}

	bad.clocks.Right()
	set := env.now()
	took := bad.untilReady(time.Minute)
	env.t.Logf("ready %v after the clock was set right", took)
	resumed := env.now()
	if wrote := bad.wrote(shut, resumed-time.Second); len(wrote) != 0 {
		env.t.Errorf("until it was right it wrote %+v", wrote)
	}
	bad.refused(shut, set, node.ClockSkew)
	time.Sleep(20 * time.Second)
	bad.served(resumed, env.now(), sound)
	env.soundBut(bad, 5*time.Second)
	if bad.verdict().Phase != clock.Confirmed {
		env.t.Errorf("verdict %+v", bad.verdict())
	}
}

// TestOneClockDrifts: a wall clock that runs away is followed for as long as it
// is within max-skew, and no longer (I5).
func TestOneClockDrifts(t *testing.T) {
	for _, ppm := range []int64{900, -900} {
		t.Run(fmt.Sprint(ppm), func(t *testing.T) {
			t.Parallel()
			runScenario(t, func(env *testEnv) {
				env.startAll(3)
				time.Sleep(10 * time.Second)
				from, bad := env.now(), env.members[0]
				bad.clocks.Drift(ppm)
				shut := bad.untilRefused(node.ClockSkew, 10*time.Minute)
				off := clocktest.Drifted(shut-from, ppm)
				env.t.Logf("refused at %v off", off)
				if off.Abs() > maxSkew+20*time.Millisecond || off.Abs() < maxSkew-20*time.Millisecond {
					t.Errorf("refused at %v off", off)
				}
				bad.served(from, shut-500*time.Millisecond, maxSkew+20*time.Millisecond)
				bad.clocks.Right()
				bad.untilReady(time.Minute)
				at := env.now()
				time.Sleep(20 * time.Second)
				bad.served(at, env.now(), maxSkew/2+sound)
				env.soundBut(bad, 5*time.Second)
			})
		})
	}
}

// TestTwoDisagree: of two nodes none can decide who is right, so both refuse,
// unless just one kernel knows its clock to be bad.
func TestTwoDisagree(t *testing.T) {
	for _, tc := range []struct {
		first, second string // kernels
		off           time.Duration
		serves        int // which of the two; -1: neither
	}{
		{"", "", time.Second, -1},
		{"good", "good", -time.Second, -1},
		{"bad", "bad", time.Second, -1},
		{"good", "", time.Second, -1},
		{"good", "bad", time.Second, 0},
		{"bad", "good", time.Second, 1},
	} {
		t.Run(fmt.Sprintf("%q %q", tc.first, tc.second), func(t *testing.T) {
			t.Parallel()
			runScenario(t, func(env *testEnv) {
				a := env.start(options{kernel: tc.first})
				a.untilReady(time.Second)
				b := env.start(options{kernel: tc.second, off: tc.off})
				time.Sleep(8 * time.Second) // 4 of them, and b may be listed late
				from := env.now()
				time.Sleep(30 * time.Second)
				for i, m := range env.members {
					if i != tc.serves {
						m.refused(from, env.now(), node.ClockSkew)
					} else {
						m.served(from, env.now(), tc.off+sound)
					}
				}
				b.clocks.Right()
				a.untilReady(30 * time.Second)
				b.untilReady(30 * time.Second)
			})
		})
	}
}

// TestOscillator: a node whose oscillator is off, so that its own measure of its
// peers is as wrong as its time, contradicts every peer with every answer. It is
// refused all the same, as soon as it is max_skew away; nobody else notices.
func TestOscillator(t *testing.T) {
	for _, ppm := range []int64{-200_000, 100_000, -10_000, 3_000, 1_000} {
		t.Run(fmt.Sprintf("%d ppm", ppm), func(t *testing.T) {
			t.Parallel()
			runScenario(t, func(env *testEnv) {
				env.startAll(2)
				bad := env.start(options{})
				time.Sleep(10 * time.Second)
				// Some questions are lost, those among them that would settle
				// a contradiction at once.
				for _, m := range env.members[:2] {
					env.net.SetLinkBetween(bad.net.Addr(), m.net.Addr(), gossiptest.Link{Latency: time.Millisecond, Loss: 0.3})
				}
				from := env.now()
				bad.clocks.Oscillate(ppm)
				// From here on it is off by more than the limit.
				over := maxSkew / time.Duration(max(ppm, -ppm)) * 1_000_000
				bad.untilRefused(node.ClockSkew, over+time.Minute)
				env.soundBut(bad, from)
				env.net.Heal()
				bad.clocks.Oscillate(0)
				bad.clocks.Right()
				bad.untilReady(60 * time.Second)
			})
		})
	}
}
