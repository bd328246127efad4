package virtual

import (
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/internal/clock"
)

// TestNoFaults: without a fault no request is refused, whatever is late in the
// real stack.
func TestNoFaults(t *testing.T) {
	slow(t)
	for n, minutes := range map[int]int{
		3: tier.Of(t, "minutes of three nodes", 3, 60, 600),
		5: tier.Of(t, "minutes of five nodes", 1, 10, 100),
	} {
		long := time.Duration(minutes) * time.Minute
		t.Run(fmt.Sprintf("%d for %v", n, long), func(t *testing.T) {
			began := time.Now()
			run(t, func(e *env) {
				nodes := e.startAll(n)
				from := e.now()
				time.Sleep(long)
				for _, m := range nodes {
					m.served(span{from, e.now()}, 2*time.Millisecond)
					if g := m.d.Clocks().Gate; g.Shuts != 0 || g.Verdict.Phase != clock.Confirmed {
						t.Errorf("%s: %+v", m.name, g)
					}
				}
				t.Logf("%d IDs, %d revisions", e.ids(), e.etcd.Revision())
			})
			t.Logf("%v took %v", long, time.Since(began))
		})
	}
}
