// Package metrics turns the figures of a running node into Prometheus series.
//
// It reads Stats snapshots when scraped, so that issuing IDs costs nothing for
// it; only latencies are told as they happen. Labels come from closed sets, and
// every one of them is there from the start, with 0, so that a rate over it is
// right from the first event on.
//
// The table in definitions.go is the list of all series; the reference page
// docs/reference/metrics.md is made from it.
package metrics
