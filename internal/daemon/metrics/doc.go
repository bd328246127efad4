// Package metrics exports the state and counters of a running node as Prometheus
// series.
//
// A scrape reads Stats snapshots, so issuing IDs costs nothing for metrics; only
// request latencies are observed as they happen. Labels come from closed sets, and
// every series of a counter exists from the start, with 0, so that rate() counts
// the first event too.
//
// definitions.go lists all series; make docs writes them as a page, by a test.
package metrics
