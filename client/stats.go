package client

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/connectivity"
)

// counters are what Stats reads.
type counters struct {
	ids, batches, retries, dropped, stale atomic.Int64
}

// Stats is what a client has done so far. All counts only grow.
type Stats struct {
	// IDs that calls were given.
	IDs int64
	// Batches is requests that Coalesce was answered with IDs for: IDs divided by
	// Batches is how many share one.
	Batches int64
	// Retries is attempts after which another was made.
	Retries int64
	// Dropped is IDs that nobody was given: their callers had gone, or they would
	// have broken the order.
	Dropped int64
	// Stale is IDs that Prefetch dropped since they were older than MaxAge. Those
	// that were found to be when they were about to be given are in IDs as well.
	Stale int64
	// Nodes are those that the targets stand for now.
	Nodes []NodeStats
}

// NodeStats is what a client knows of a node.
type NodeStats struct {
	Target  string // as in Options
	Address string // host:port
	State   string // of the connection: idle, connecting, ready, failing or closed
	// Resting is for how long the node is left alone, since it refused or failed.
	Resting time.Duration

	Requests int64 // requests and streams begun
	Refusals int64 // answers without IDs
	Failures int64 // no answer, or a wrong one
}

// Stats returns what the client has done. It is cheap enough to be asked for by
// every scrape.
func (c *Client) Stats() Stats {
	s := Stats{
		IDs: c.stats.ids.Load(), Batches: c.stats.batches.Load(), Retries: c.stats.retries.Load(),
		Dropped: c.stats.dropped.Load(), Stale: c.stats.stale.Load(),
	}
	if c.prefetch != nil {
		s.IDs += c.prefetch.taken()
	}
	now := c.since()
	for _, e := range *c.pool.list.Load() {
		s.Nodes = append(s.Nodes, NodeStats{
			Target: e.target, Address: e.addr, State: stateNames[e.conn.Load().GetState()],
			Resting:  max(0, time.Duration(e.until.Load())-now),
			Requests: e.requests.Load(), Refusals: e.refusals.Load(), Failures: e.failures.Load(),
		})
	}
	return s
}

var stateNames = map[connectivity.State]string{
	connectivity.Idle: "idle", connectivity.Connecting: "connecting", connectivity.Ready: "ready",
	connectivity.TransientFailure: "failing", connectivity.Shutdown: "closed",
}
