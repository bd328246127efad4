package agreement_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/internal/clock"
)

// TestCalm: whole clusters whose clocks are as good as NTP keeps them refuse
// nobody for hours, and every ID is true to 20 ms.
func TestCalm(t *testing.T) {
	for n, minutes := range map[int]int{
		3:  tier.Of(t, "minutes of 3 nodes", 10, 60, 24*60),
		5:  tier.Of(t, "minutes of 5 nodes", 5, 20, 4*60),
		32: tier.Of(t, "minutes of 32 nodes", 0, 1, 60),
	} {
		d := time.Duration(minutes) * time.Minute
		t.Run(fmt.Sprintf("%d for %v", n, d), func(t *testing.T) {
			t.Parallel()
			if minutes == 0 {
				tier.Check(t, "32 whole nodes")
			}
			runScenario(t, func(env *testEnv) {
				for i := range n {
					m := env.start(options{off: time.Duration(i%5-2) * 3 * time.Millisecond, pace: time.Second, kernel: "good"})
					m.clocks.Drift(int64(i%3 - 1)) // of the wall clock against the disciplined one
				}
				for _, m := range env.members {
					m.untilReady(3 * time.Second)
				}
				from := env.now()
				for env.now() < from+d {
					time.Sleep(min(10*time.Minute, d))
					for _, m := range env.members { // what NTP would do
						m.clocks.Right()
					}
				}
				for _, m := range env.members {
					m.served(from, env.now(), 20*time.Millisecond)
					g := m.watch.Report().Gate
					if g.Shuts != 0 || g.Verdict.Phase != clock.Confirmed || g.Unverified > 2*time.Second {
						t.Errorf("%s: %+v", m.name, g)
					}
				}
			})
		})
	}
}
