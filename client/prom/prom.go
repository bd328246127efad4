// Package prom exports the counters of a client as Prometheus metrics. It is apart
// from package client so that programs without Prometheus do not compile it.
//
//	prometheus.MustRegister(prom.New(c, nil)) // c is a *client.Client
package prom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/flakelease/allocator/client"
)

// Collector collects the metrics of one client. It is a prometheus.Collector.
type Collector struct {
	c                                            *client.Client
	ids, batches, retries, dropped               *prometheus.Desc
	requests, refusals, failures, nodes, backoff *prometheus.Desc
}

// New returns a collector of c, to be registered by the caller. labels are those
// of every metric, and distinguish several clients of one program; nil is none.
func New(c *client.Client, labels prometheus.Labels) *Collector {
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("allocator_client_"+name, help, variable, labels)
	}
	return &Collector{
		c:       c,
		ids:     desc("ids_total", "IDs that calls returned."),
		batches: desc("batches_total", "Requests that were answered with the IDs of coalesced calls."),
		retries: desc("retries_total", "Attempts that were followed by another."),
		dropped: desc("dropped_ids_total",
			"IDs that no call returned: their callers had gone (abandoned), or they were older than MaxAge (stale).",
			"reason"),
		requests: desc("requests_total", "Requests and streams started, by the node's address.", "node"),
		refusals: desc("refusals_total", "Answers without IDs, by the node's address.", "node"),
		failures: desc("failures_total", "Requests without an answer, or with a wrong one, by the node's address.",
			"node"),
		nodes:   desc("connected", "1 for nodes that are connected, 0 for others, by the node's address.", "node"),
		backoff: desc("backoff_seconds", "How long a node will not be asked, since it refused or failed.", "node"),
	}
}

// Describe sends the descriptions of all metrics.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.ids, c.batches, c.retries, c.dropped, c.requests, c.refusals, c.failures,
		c.nodes, c.backoff} {
		out <- d
	}
}

// Collect sends their values. Nodes come and go with the addresses that the targets
// resolve to: at most 16 at a time.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	s := c.c.Stats()
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count(c.ids, s.IDs)
	count(c.batches, s.Batches)
	count(c.retries, s.Retries)
	count(c.dropped, s.Dropped, "abandoned")
	count(c.dropped, s.Stale, "stale")
	for _, n := range s.Nodes {
		count(c.requests, n.Requests, n.Address)
		count(c.refusals, n.Refusals, n.Address)
		count(c.failures, n.Failures, n.Address)
		connected := 0.0
		if n.State == "ready" {
			connected = 1
		}
		gauge(c.nodes, connected, n.Address)
		gauge(c.backoff, n.Backoff.Seconds(), n.Address)
	}
}
