package daemon

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Incident T40 (time bits run out), docs/INCIDENTS.md.
func TestPlausibleClock(t *testing.T) {
	epoch := clock.Millis(flake.DefaultEpoch)
	built := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		now  clock.Millis
		ok   bool
	}{
		{"1970", 0, false},
		{"the epoch", epoch, false},
		{"before the build", epoch + 1, false},
		{"the build", clock.Millis(built.UnixMilli()), true},
		{"the last ID", epoch + (1<<43 - 1), true},
		{"past it", epoch + (1<<43 - 1) + 1, false},
	} {
		if err := checkClock(tt.now, epoch, flake.Scalable, built); (err == nil) != tt.ok {
			t.Errorf("%s: got %v, want ok %v", tt.name, err, tt.ok)
		}
	}
	var unknown time.Time
	if checkClock(epoch, epoch, flake.Scalable, unknown) == nil || checkClock(epoch+1, epoch, flake.Scalable, unknown) != nil {
		t.Error("without a build time, clocks up to the epoch are refused and later ones are not")
	}
}
