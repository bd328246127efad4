package agreement_test

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// issuing returns a node on the machine's clock, with a window of hours.
func issuing() *node.Node {
	src := clock.NewSystem(clock.SystemConfig{})
	n := node.New(node.Config{
		Name: "a", Instance: "a-1", MaxSkew: maxSkew,
		Gen: gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: clock.MillisOf(maxLead), MaxStep: 255},
	}, src, gen.Random())
	now := src.Now().Wall
	n.Begin(lease.Grant{SID: 1, Term: 1, Base: now, Ceil: now + clock.MillisOf(10*time.Hour)})
	return n
}

// TestGateCostsNothing: the verdict is behind the pointer that a request loads
// anyway for its tenure, so the gate is one comparison on the issue path, and no
// load, lock or allocation more. A verdict that changes meanwhile is published as
// a whole, like a tenure.
func TestGateCostsNothing(t *testing.T) {
	n := issuing()
	for _, v := range []clock.Verdict{{}, {Phase: clock.Confirmed, Finding: clock.Agreed, Limit: 250}, {Phase: clock.Unproven}} {
		n.SetVerdict(v)
		if allocs := testing.AllocsPerRun(2000, func() {
			if _, err := n.Try(n.Clock().Now(), 1, 0); err != nil {
				t.Fatal(err)
			}
		}); allocs != 0 {
			t.Errorf("%v: %v allocations an ID, want none", v.Phase, allocs)
		}
	}
}

// BenchmarkTry is an ID with its clock read, under a verdict.
func BenchmarkTry(b *testing.B) {
	b.ReportAllocs()
	n := issuing()
	n.SetVerdict(clock.Verdict{Phase: clock.Confirmed, Finding: clock.Agreed})
	for b.Loop() {
		if _, err := n.Try(n.Clock().Now(), 1, 0); err != nil {
			b.Fatal(err)
		}
	}
}
