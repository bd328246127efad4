package fence

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flakelease/allocator/internal/fence"
)

// series are what is served of each table.
var series = []struct {
	name, help string
	kind       prometheus.ValueType
	value      func(s fence.Stats, now time.Time) float64
}{
	{"allocator_fence_mark_timestamp_seconds", "The last mark that fences follow.", prometheus.GaugeValue,
		func(s fence.Stats, _ time.Time) float64 { return float64(s.Mark) / 1e3 }},
	{"allocator_fence_floor_timestamp_seconds", "Rows with IDs below this time are refused.", prometheus.GaugeValue,
		func(s fence.Stats, _ time.Time) float64 { return float64(s.Floor) / 1e3 }},
	{"allocator_fence_readable_timestamp_seconds", "Rows with IDs below this time are in the view.",
		prometheus.GaugeValue, func(s fence.Stats, _ time.Time) float64 { return float64(s.Readable) / 1e3 }},
	{"allocator_fence_blocking_transactions", "Transactions that the move in progress waits for.",
		prometheus.GaugeValue, func(s fence.Stats, _ time.Time) float64 { return float64(len(s.BlockedBy)) }},
	{"allocator_fence_oldest_transaction_seconds", "How long the oldest of these runs; 0 if it may not be seen.",
		prometheus.GaugeValue, func(s fence.Stats, now time.Time) float64 {
			oldest := now
			for _, h := range s.BlockedBy {
				if h.Since != nil && h.Since.Before(oldest) {
					oldest = *h.Since
				}
			}
			return now.Sub(oldest).Seconds()
		}},
	{"allocator_fence_rows_ahead", "Rows an hour ahead of the clock or more, up to 1,000, as of the last minute.",
		prometheus.GaugeValue, func(s fence.Stats, _ time.Time) float64 { return float64(s.Ahead.Rows) }},
	{"allocator_fence_moves_total", "Moves that were finished.", prometheus.CounterValue,
		func(s fence.Stats, _ time.Time) float64 { return float64(s.Moves) }},
	{"allocator_fence_wait_seconds_total", "How long these waited for transactions.",
		prometheus.CounterValue, func(s fence.Stats, _ time.Time) float64 { return s.Waited.Seconds() }},
	{"allocator_fence_failures_total", "Moves, and calls for a mark, that failed.", prometheus.CounterValue,
		func(s fence.Stats, _ time.Time) float64 { return float64(s.Failures) }},
}

// collector makes the series at the time of a scrape.
type collector struct {
	movers *fence.Movers
	desc   []*prometheus.Desc // in the order of series
}

func newCollector(m *fence.Movers) *collector {
	c := &collector{movers: m}
	for _, s := range series {
		c.desc = append(c.desc, prometheus.NewDesc(s.name, s.help, []string{"database", "table"}, nil))
	}
	return c
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.desc {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	c.movers.Stats(func(t *fence.Table, stats fence.Stats) {
		for i, s := range series {
			ch <- prometheus.MustNewConstMetric(c.desc[i], s.kind, s.value(stats, now), t.Database(), t.String())
		}
	})
}

// healthy reports whether all tables could be moved last time, or another process moves them.
func healthy(m *fence.Movers) (err error) {
	m.Stats(func(_ *fence.Table, s fence.Stats) {
		if s.Err != nil && !errors.Is(s.Err, fence.ErrOtherMover) {
			err = s.Err
		}
	})
	return err
}
