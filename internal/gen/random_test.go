package gen

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// chiSquare returns how far counts are from equal, in standard deviations of
// what chance does.
func chiSquare(counts []int) float64 {
	total := 0
	for _, c := range counts {
		total += c
	}
	mean := float64(total) / float64(len(counts))
	sum := 0.0
	for _, c := range counts {
		d := float64(c) - mean
		sum += d * d / mean
	}
	free := float64(len(counts) - 1)
	return (sum - free) / math.Sqrt(2*free)
}

// The first ID of a millisecond is anywhere in its lower half, and every bit
// below the top one takes part.
func TestStartIsUniform(t *testing.T) {
	for _, l := range []flake.Layout{flake.Scalable, flake.Standalone, flake.Fleet} {
		f := flake.Format{Layout: l, Epoch: int64(epoch)}
		g := tenure(t, Config{Layout: l, MaxLead: 250, MaxStep: 255}, t0, t0+1<<30, rand.NewPCG(uint64(l.Number()), 99))
		k := l.SequenceBits()
		counts := make([]int, 64)
		ones := make([]int, k)
		const n = 64_000
		for i := range n {
			now := t0 + clock.Millis(i)
			b := issue(t, g, now, now, 1, 0)
			e := f.Entropy(b.First)
			if e>>(k-1) != 0 || f.UnixMilli(b.First) != int64(now) {
				t.Fatalf("%v: entropy %#x at %d: the top bit is headroom", l, e, f.UnixMilli(b.First))
			}
			counts[e>>(k-1-6)]++
			for bit := range ones {
				ones[bit] += int(e >> bit & 1)
			}
		}
		if x := chiSquare(counts); x > 4 || x < -4 {
			t.Errorf("%v: starts lie %.1f standard deviations from uniform: %v", l, x, counts)
		}
		for bit, c := range ones[:k-1] {
			if c < n/2-600 || c > n/2+600 { // 600 is 4.7 standard deviations
				t.Errorf("%v: bit %d is set in %d of %d starts", l, bit, c, n)
			}
		}
	}
}

// The step between requests in one millisecond is uniform in 1..MaxStep, and 1 as
// soon as the word is ahead of the clock.
func TestStepIsUniform(t *testing.T) {
	for _, most := range []uint32{1, 7, 255} {
		g := tenure(t, Config{Layout: flake.Standalone, MaxLead: 250, MaxStep: most}, t0, t0+1<<30, rand.NewPCG(uint64(most), 98))
		counts := make([]int, most)
		total := 1000 * int(most)
		now := t0
		for done := 0; done < total; now++ {
			last := issue(t, g, now, now, 1, 0).First
			for range 1000 {
				b := issue(t, g, now, now, 3, 0) // the step is between blocks
				step := int64(b.First - last)
				if step < 1 || step > int64(most) {
					t.Fatalf("max step %d: step %d", most, step)
				}
				counts[step-1]++
				last = b.Last()
				done++
			}
			ahead := issue(t, g, now, now, 1, at(now+1, 0, 0, flake.Standalone))
			for range 20 {
				b := issue(t, g, now, now, 2, 0)
				if b.First != ahead.Last()+1 {
					t.Fatalf("max step %d: step %d ahead of the clock", most, b.First-ahead.Last())
				}
				ahead = b
			}
			now += 3
		}
		if most == 1 {
			continue
		}
		if x := chiSquare(counts); x > 4 || x < -4 {
			t.Errorf("steps to %d lie %.1f standard deviations from uniform", most, x)
		}
	}
}

// Random is not the same twice, and no bit of it is constant.
func TestRandom(t *testing.T) {
	r := Random()
	and, or := r.Uint64(), uint64(0)
	for range 200 {
		x := r.Uint64()
		and &= x
		or |= x
	}
	if and != 0 || or != 1<<64-1 {
		t.Errorf("constant bits: and %#x, or %#x", and, or)
	}
}
