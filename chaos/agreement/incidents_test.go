package agreement_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/node"
)

// The tests of this file replay how clocks betrayed systems of others;
// docs/INCIDENTS.md has the whole list.

// T07: a machine sleeps for ten minutes, and its monotonic clock with it, so that
// by what it counts no lease has ended. It wakes with a window that is long over,
// issues nothing of it for longer than a tick, and serves again within seconds.
func TestT07AsleepForTenMinutes(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		env.startAll(3)
		time.Sleep(20 * time.Second)
		slept, bad := env.now(), env.members[1]
		env.sleep([]*member{bad}, 10*time.Minute, false)
		woke := env.now()
		time.Sleep(oneTick)
		took := bad.untilReady(30 * time.Second)
		t.Logf("ready %v after it woke", took)
		back := env.now()
		time.Sleep(20 * time.Second)
		bad.served(back, env.now(), sound)
		for _, x := range bad.asked(woke+oneTick, env.now()) {
			if x.refusal != nil && x.refusal.Reason != node.WindowExhausted {
				t.Errorf("refused at %v: %v", x.begin, x.refusal)
			}
			if x.refusal == nil && x.off().Abs() > sound {
				t.Errorf("issued at %v an ID that is %v off", x.begin, x.off())
			}
		}
		env.soundBut(bad, slept)
	})
}

// T43: a check that never fired, since it compared seconds with nanoseconds, and
// checked clocks on one side only. Here the clock is eleven seconds off, on
// either side; the refusal states by how much and in which direction.
func TestT43SkewOfElevenSeconds(t *testing.T) {
	for _, off := range []time.Duration{11 * time.Second, -11 * time.Second} {
		t.Run(fmt.Sprintf("T43 %v", off), func(t *testing.T) {
			t.Parallel()
			runScenario(t, func(env *testEnv) { startsOff(env, 3, off) })
		})
	}
}
