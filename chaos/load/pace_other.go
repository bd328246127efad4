//go:build !linux

package load

import (
	"context"
	"time"
)

// sleepUntil returns at t, or once ctx ends.
func sleepUntil(ctx context.Context, t time.Time) {
	d := time.Until(t)
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
