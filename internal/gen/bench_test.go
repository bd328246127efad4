package gen

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

var sink flake.ID

// BenchmarkFloor is the minimum that one ID can cost: a clock read and a
// compare-and-swap.
func BenchmarkFloor(b *testing.B) {
	var word atomic.Uint64
	origin := time.Now()
	for b.Loop() {
		w := word.Load()
		if d := uint64(time.Since(origin)); !word.CompareAndSwap(w, w+d|1) {
			b.Fatal("contended")
		}
	}
}

// BenchmarkNext1 asks for one ID at a time: as fast as the loop goes, so mostly
// ahead of the clock (live), and with a clock that makes every call draw (draw).
func BenchmarkNext1(b *testing.B) {
	b.Run("live", func(b *testing.B) {
		src := clock.NewSystem(nil)
		g := benchTenure(b, src.Now().Wall)
		b.ReportAllocs()
		for b.Loop() {
			now := src.Now().Wall
			blk, err := g.Next(now, now, 1, 0)
			fatal.If(b, err)
			sink = blk.First
		}
	})
	b.Run("draw", func(b *testing.B) {
		src := clock.NewSystem(nil)
		g := benchTenure(b, src.Now().Wall)
		b.ReportAllocs()
		var calls uint
		for b.Loop() {
			now := src.Now().Wall + clock.Millis(calls>>6) // 64 calls a millisecond
			calls++
			blk, err := g.Next(now, now, 1, 0)
			fatal.If(b, err)
			sink = blk.First
		}
	})
}

func BenchmarkNext1Parallel(b *testing.B) {
	src := clock.NewSystem(nil)
	g := benchTenure(b, src.Now().Wall)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var last flake.ID
		for pb.Next() {
			now := src.Now().Wall
			blk, err := g.Next(now, now, 1, 0)
			if err != nil || blk.First <= last {
				b.Error(err)
				return
			}
			last = blk.First
		}
	})
}

// BenchmarkBlock1000 asks for 1,000 IDs and writes them out.
func BenchmarkBlock1000(b *testing.B) {
	src := clock.NewSystem(nil)
	g := benchTenure(b, src.Now().Wall)
	dst := make([]flake.ID, 1000)
	b.ReportAllocs()
	for b.Loop() {
		now := src.Now().Wall
		blk, err := g.Next(now, now, len(dst), 0)
		fatal.If(b, err)
		blk.Fill(dst)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/ID")
}

// benchTenure returns a tenure that no benchmark can exhaust.
func benchTenure(b *testing.B, now clock.Millis) *Tenure {
	return tenure(b, Config{MaxLead: 1 << 42, MaxStep: 255}, now, epoch+1<<43, Random())
}
