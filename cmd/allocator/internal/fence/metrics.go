package fence

import (
	"time"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/fence"
)

// series are what is served of each table.
var series = []cli.Series[fence.Stats]{
	cli.Gauge("allocator_fence_mark_timestamp_seconds", "The last mark that fences follow.",
		func(s fence.Stats) float64 { return float64(s.Mark) / 1e3 }),
	cli.Gauge("allocator_fence_floor_timestamp_seconds", "Rows with IDs below this time are refused.",
		func(s fence.Stats) float64 { return float64(s.Floor) / 1e3 }),
	cli.Gauge("allocator_fence_readable_timestamp_seconds", "Rows with IDs below this time are in the view.",
		func(s fence.Stats) float64 { return float64(s.Readable) / 1e3 }),
	cli.Gauge("allocator_fence_blocking_transactions", "Transactions that the move in progress waits for.",
		func(s fence.Stats) float64 { return float64(len(s.BlockedBy)) }),
	cli.Gauge("allocator_fence_oldest_transaction_seconds",
		"How long the oldest of these runs; 0 if it may not be seen.",
		func(s fence.Stats) float64 {
			var oldest time.Duration
			for _, h := range s.BlockedBy {
				if h.Since != nil {
					oldest = max(oldest, time.Since(*h.Since))
				}
			}
			return oldest.Seconds()
		}),
	cli.Gauge("allocator_fence_rows_ahead",
		"Rows an hour ahead of the clock or more, up to 1,000, as of the last minute.",
		func(s fence.Stats) float64 { return float64(s.Ahead.Rows) }),
	cli.Counter("allocator_fence_moves_total", "Moves that were finished.",
		func(s fence.Stats) float64 { return float64(s.Moves) }),
	cli.Counter("allocator_fence_wait_seconds_total", "How long these waited for transactions.",
		func(s fence.Stats) float64 { return s.Waited.Seconds() }),
	cli.Counter("allocator_fence_failures_total", "Moves, and calls for a mark, that failed.",
		func(s fence.Stats) float64 { return float64(s.Failures) }),
}

// collector returns what makes the series of all tables.
func collector(m *fence.Movers) cli.Collector[fence.Stats] {
	return cli.Collector[fence.Stats]{
		Labels: []string{"database", "table"},
		Series: series,
		All: func(yield func(fence.Stats, ...string)) {
			m.Stats(func(t *fence.Table, s fence.Stats) { yield(s, t.Database(), t.String()) })
		},
		Err:   func(s fence.Stats) error { return s.Err },
		Other: fence.ErrOtherMover,
	}
}
