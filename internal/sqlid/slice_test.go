package sqlid

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
)

// TestCut: slices of a worker are disjoint and rise, begin no earlier than asked and less than a unit later, and each
// word of them is an ID of the worker in the slice's time.
func TestCut(t *testing.T) {
	for _, name := range flake.Layouts() {
		l, err := flake.ParseLayout(name)
		if err != nil || l.SIDBits() == 0 {
			continue
		}
		f := flake.Format{Layout: l, Epoch: flake.DefaultEpoch}
		s := Shape{Format: f, SID: flake.SID(l.Holders() - 1)}
		r := rand.New(rand.NewPCG(1, 2))
		now, after := int64(flake.DefaultEpoch)+1_000_000_007, int64(0)
		for i := range 1000 {
			now += r.Int64N(3000) - 500
			every := time.Duration(r.Int64N(2000)) * time.Millisecond
			if i%10 == 0 {
				every = 0
			}
			got, err := s.Cut(now, after, every)
			begin := max(now, after)
			if err != nil || got.FromMs < begin || got.FromMs >= begin+l.Unit() || got.ToMs-got.FromMs < max(every.Milliseconds(), 1) ||
				got.ToMs-got.FromMs > every.Milliseconds()+2*l.Unit() {
				t.Fatalf("%s: %+v of %d, %d, %v: %v", name, got, now, after, every, err)
			}
			first, last := got.First, got.Stop-s.Step()+int64(s.SID)
			if first&(s.Step()-1) != int64(s.SID) || first >= got.Stop || last < first ||
				f.UnixMilli(flake.ID(first)) != got.FromMs || f.UnixMilli(flake.ID(last)) != got.ToMs-l.Unit() {
				t.Fatalf("%s: words %d to %d of %+v", name, first, last, got)
			}
			after = got.ToMs
		}
		if got, err := s.Cut(f.Epoch-1_000_000, 0, time.Second); err != nil || got.FromMs != f.Epoch {
			t.Errorf("%s: before the epoch: %+v, %v", name, got, err)
		}
		if _, err := s.Cut(f.Epoch+(l.MaxTimestamp()+1)*l.Unit(), 0, time.Second); err == nil {
			t.Errorf("%s: a slice after the end of the layout", name)
		}
	}
}
