package client

import "sync/atomic"

// counters are what Stats reads. They only grow.
type counters struct {
	ids, retries, dropped atomic.Int64
}
