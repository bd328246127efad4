package virtual

import (
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// TestCalm: while nothing happens nobody is refused, whatever runs late in the
// real stack.
func TestCalm(t *testing.T) {
	slow(t)
	long := map[int]time.Duration{3: time.Hour, 5: 10 * time.Minute}
	for n, long := range long {
		t.Run(fmt.Sprintf("%d for %v", n, long), func(t *testing.T) {
			began := time.Now()
			tell(t, func(w *world) {
				nodes := w.startAll(n)
				from := w.now()
				time.Sleep(long)
				for _, m := range nodes {
					m.served(during{from, w.now()}, 2*time.Millisecond)
					if g := m.d.Clocks().Gate; g.Shuts != 0 || g.Verdict.Phase != clock.Confirmed {
						t.Errorf("%s: %+v", m.name, g)
					}
				}
				t.Logf("%d IDs, %d revisions", w.ids(), w.etcd.Revision())
			})
			t.Logf("%v took %v", long, time.Since(began))
		})
	}
}
