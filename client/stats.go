package client

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/connectivity"
)

// counters are the source of Stats.
type counters struct {
	ids, batches, retries, dropped, stale atomic.Int64
}

// Stats are the counters of a client. All counts only grow.
type Stats struct {
	// IDs that calls returned.
	IDs int64
	// Batches is the number of requests of Coalesce that were answered with IDs: IDs
	// divided by Batches is the mean number of IDs per request.
	Batches int64
	// Retries is the number of attempts that were followed by another.
	Retries int64
	// Dropped is the number of IDs that no call returned: their callers had gone, or
	// they would have broken the order.
	Dropped int64
	// Stale is the number of IDs that Prefetch dropped since they were older than
	// MaxAge. Those that a call had already taken count in IDs as well.
	Stale int64
	// Nodes are those that the targets resolve to now.
	Nodes []NodeStats
}

// NodeStats are the state and the counters of one node.
type NodeStats struct {
	Target  string // as in Options
	Address string // host:port
	State   string // its connection is idle, connecting, ready, failing or closed
	// Backoff is how long the node will not be asked, since it refused or failed.
	Backoff time.Duration

	Requests int64 // requests and streams started
	Refusals int64 // answers without IDs
	Failures int64 // no answer, or a wrong one
}

// Stats returns the counters of the client. It is cheap enough for every scrape.
func (c *Client) Stats() Stats {
	s := Stats{
		IDs: c.stats.ids.Load(), Batches: c.stats.batches.Load(), Retries: c.stats.retries.Load(),
		Dropped: c.stats.dropped.Load(), Stale: c.stats.stale.Load(),
	}
	if c.prefetch != nil {
		s.IDs += c.prefetch.taken()
	}
	now := c.since()
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	for _, e := range c.pool.nodes.Nodes {
		s.Nodes = append(s.Nodes, NodeStats{
			Target: e.Target, Address: e.Addr, State: stateNames[e.conn.Load().GetState()], Backoff: e.Paused(now),
			Requests: e.requests.Load(), Refusals: e.Refusals, Failures: e.Failures,
		})
	}
	return s
}

var stateNames = map[connectivity.State]string{
	connectivity.Idle: "idle", connectivity.Connecting: "connecting", connectivity.Ready: "ready",
	connectivity.TransientFailure: "failing", connectivity.Shutdown: "closed",
}
