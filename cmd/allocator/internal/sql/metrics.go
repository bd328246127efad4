package sql

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flakelease/allocator/internal/sqlid"
)

// series are what is served of each database.
var series = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(sqlid.Stats) float64
}{
	{desc("allocator_sql_slice_end_timestamp_seconds", "The end of the last slice that was written."),
		prometheus.GaugeValue, func(s sqlid.Stats) float64 { return float64(s.StopMs) / 1e3 }},
	{desc("allocator_sql_slices_total", "Slices that were written."),
		prometheus.CounterValue, func(s sqlid.Stats) float64 { return float64(s.Slices) }},
	{desc("allocator_sql_failures_total", "Slices that were not written, and worker numbers that were not had."),
		prometheus.CounterValue, func(s sqlid.Stats) float64 { return float64(s.Failures) }},
	{desc("allocator_sql_worker", "The worker number; -1: none is held."),
		prometheus.GaugeValue, func(s sqlid.Stats) float64 { return float64(s.SID) }},
}

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"database"}, nil)
}

// collector makes the series at the time of a scrape.
type collector []*sqlid.Runner

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range series {
		ch <- s.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, r := range c {
		stats := r.Stats()
		for _, s := range series {
			ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(stats), r.Database())
		}
	}
}

// healthy returns why a database has no slices, from what its runners here have done. That another one writes them is
// no reason.
func healthy(all ...sqlid.Stats) error {
	for _, s := range all {
		if s.Err != nil && !errors.Is(s.Err, sqlid.ErrOccupied) {
			return s.Err
		}
	}
	return nil
}
