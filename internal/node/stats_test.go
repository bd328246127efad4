package node_test

import (
	"testing"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// A window that has not begun is as long as it is, not longer by the wait for it.
func TestWindowLeft(t *testing.T) {
	for _, tc := range []struct{ now, base, ceil, want clock.Millis }{
		{100, 50, 130, 30},
		{100, 5000, 5030, 30},
		{130, 50, 130, 0},
		{200, 50, 130, 0},
		{100, 0, 0, 0}, // none
	} {
		if got := (node.Stats{Now: tc.now, Base: tc.base, Ceil: tc.ceil}).WindowLeft(); got != tc.want {
			t.Errorf("now %d, window [%d,%d): got %d, want %d", tc.now, tc.base, tc.ceil, got, tc.want)
		}
	}
}
