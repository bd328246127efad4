package agreement

import (
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestPartners: clocks are exchanged with all in gossip, up to 64 of them, and
// above that with the voters. Members without gossip change nothing about it.
func TestPartners(t *testing.T) {
	for _, c := range []struct{ with, without, want int }{
		{0, 0, 0}, {1, 0, 0}, {3, 0, 0}, {3, 3, 0}, {3, 100, 0}, {1, 3, 0}, {1, 100, 0}, {64, 0, 0}, {64, 64, 0}, {65, 0, 31}, {65, 10, 31},
	} {
		m := New(Config{Name: "n0", Instance: "0", Gate: clock.GateConfig{MaxSkew: 250 * time.Millisecond}})
		list := func(with, without int) (names []string, set bool) {
			status := lease.Status{Listed: true}
			for i := range with + without {
				r := lease.Registration{Node: fmt.Sprint("n", i), Instance: lease.Instance(fmt.Sprint(i))}
				if i < with {
					r.Gossip = "somewhere"
				}
				status.Nodes = append(status.Nodes, r)
			}
			for _, a := range m.Step(Reading{}, LeaseChanged{status}) {
				if a, ok := a.(SetVoters); ok {
					names, set = a.Names, true
				}
			}
			return names, set
		}
		names, set := list(c.with, c.without)
		if len(names) != c.want || set != (c.want > 0) {
			t.Errorf("%d with gossip and %d without: exchanges with %d by name (%v), want %d", c.with, c.without, len(names), names, c.want)
		}
		if names, set := list(2, 0); set != (c.want > 0) || names != nil {
			t.Errorf("%d with gossip, then two: set is %v, to %v", c.with, set, names)
		}
	}
}
