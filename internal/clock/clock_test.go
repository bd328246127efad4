package clock_test

import (
	"math"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// TestDuration: a difference of times that no duration can hold is the longest one, and not another.
func TestDuration(t *testing.T) {
	const longest = math.MaxInt64 / time.Millisecond * time.Millisecond
	const year = clock.Millis(365 * 24 * time.Hour / time.Millisecond)
	for m, want := range map[clock.Millis]time.Duration{
		0: 0, 1: time.Millisecond, -1: -time.Millisecond, 290 * year: 290 * 365 * 24 * time.Hour,
		300 * year: longest, 10_000 * year: longest, math.MaxInt64: longest,
		-300 * year: -longest, math.MinInt64: -longest,
	} {
		if got := m.Duration(); got != want {
			t.Errorf("%d ms are %v, want %v", m, got, want)
		}
	}
}
