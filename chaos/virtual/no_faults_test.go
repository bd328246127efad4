package virtual

import (
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// TestNoFaults: without a fault no request is refused, whatever is late in the
// real stack.
func TestNoFaults(t *testing.T) {
	slow(t)
	long := map[int]time.Duration{3: time.Hour, 5: 10 * time.Minute}
	for n, long := range long {
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
