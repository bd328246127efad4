package sql

import (
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/sqlid"
)

// series are what is served of each database.
var series = []cli.Series[sqlid.Stats]{
	cli.Gauge("allocator_sql_slice_end_timestamp_seconds", "The end of the last slice that was written.",
		func(s sqlid.Stats) float64 { return float64(s.StopMs) / 1e3 }),
	cli.Counter("allocator_sql_slices_total", "Slices that were written.",
		func(s sqlid.Stats) float64 { return float64(s.Slices) }),
	cli.Counter("allocator_sql_failures_total", "Slices that were not written, and worker numbers that were not had.",
		func(s sqlid.Stats) float64 { return float64(s.Failures) }),
	cli.Gauge("allocator_sql_worker", "The worker number; -1: none is held.",
		func(s sqlid.Stats) float64 { return float64(s.SID) }),
}

// collector returns what makes the series of all databases.
func collector(runners []*sqlid.Runner) cli.Collector[sqlid.Stats] {
	return cli.Collector[sqlid.Stats]{
		Labels: []string{"database"},
		Series: series,
		All: func(yield func(sqlid.Stats, ...string)) {
			for _, r := range runners {
				yield(r.Stats(), r.Database())
			}
		},
		Err:   func(s sqlid.Stats) error { return s.Err },
		Other: sqlid.ErrOccupied,
	}
}
