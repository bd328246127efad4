package fence

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/fence"
)

// lag is how far marks are behind the clock.
const lag = 400 * time.Millisecond

// TestReaders has IDs that rise over all writers, and the clock for marks.
func TestReaders(t *testing.T) {
	tier.Check(t, "a PostgreSQL server under load")
	program, err := build.Allocator(t.Context(), t.TempDir())
	fatal.If(t, err)
	smallest := func(ago time.Duration) (fence.Mark, error) {
		ms := time.Now().Add(-ago).UnixMilli()
		id, err := flake.Default.Min(ms)
		return fence.Mark{UnixMs: ms, ID: id.Int64()}, err
	}
	var last atomic.Int64
	Run(t, Config{
		Next: func(context.Context) (flake.ID, error) {
			m, err := smallest(0)
			for {
				before := last.Load()
				if id := max(before+1, m.ID); last.CompareAndSwap(before, id) {
					return flake.ID(id), err
				}
			}
		},
		Mark:    func(context.Context) (fence.Mark, error) { return smallest(lag) },
		Mover:   []string{program, "fence", "run", "--clock-lag", lag.String()},
		Writers: 32,
		For:     time.Duration(tier.Of(t, "seconds", 0, 15, 300)) * time.Second,
		Late:    4 * lag,
		Settle:  time.Minute,
	})
}
