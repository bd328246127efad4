package agreement_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

var day = flag.Bool("day", false, "let the calm of three nodes last a day, and that of 32 an hour")

// TestCalm: whole clusters whose clocks are as good as NTP keeps them refuse
// nobody for hours, and every ID is true to 20 ms.
func TestCalm(t *testing.T) {
	long := map[int]time.Duration{3: time.Hour, 5: 20 * time.Minute, 32: time.Minute}
	if *day {
		long = map[int]time.Duration{3: 24 * time.Hour, 5: 4 * time.Hour, 32: time.Hour}
	}
	for n, d := range long {
		t.Run(fmt.Sprintf("%d for %v", n, d), func(t *testing.T) {
			t.Parallel()
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
