//go:build !linux

package client

import "time"

// bootClock returns 0: the wall clock shows that the machine was suspended.
func bootClock() time.Duration { return 0 }
