package clock_test

import (
	"math"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

func TestApart(t *testing.T) {
	for _, tc := range []struct {
		offset, uncertainty time.Duration
		want                string
	}{
		{0, 0, "+0.0ms ±0.0ms"},
		{120 * time.Microsecond, 260 * time.Microsecond, "+0.1ms ±0.3ms"},
		{0, 1, "+0.0ms ±0.1ms"}, // a bound holds
		{0, 100 * time.Microsecond, "+0.0ms ±0.1ms"},
		{-1500 * time.Microsecond, time.Millisecond, "-1.5ms ±1.0ms"},
		{time.Second, 2 * time.Millisecond, "+1000.0ms ±2.0ms"},
		{-61 * time.Second, 12 * time.Second, "-61.0s ±12.0s"},
		{26 * time.Hour, 0, "+26h0m0s ±0.0ms"},
		{math.MinInt64, 0, "-2562047h47m16.854775808s ±0.0ms"}, // there is none as long without the sign
	} {
		if got := clock.FormatOffset(tc.offset, tc.uncertainty); got != tc.want {
			t.Errorf("%v, %v: got %s, want %s", tc.offset, tc.uncertainty, got, tc.want)
		}
	}
}
