//go:build !linux

package client

import "time"

// bootClock returns the wall clock: it goes on in suspend. When it is set forward,
// prefetched IDs are dropped.
func bootClock() time.Duration { return time.Duration(time.Now().UnixNano()) }
