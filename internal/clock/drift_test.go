package clock

import (
	"testing"
	"time"
)

// TestSteadyDriftIsFollowed: a wall clock that runs away from the monotonic one
// in many small moves is followed both ways. Backwards each move begins a line
// with a grace of its own: they must not put slewing off forever.
func TestSteadyDriftIsFollowed(t *testing.T) {
	for _, ppm := range []int64{900, 300, 20, -20, -300, -900} {
		c := newManualClocks(began)
		a := NewAnchor(AnchorConfig{}, c.Read())
		c.Drift(ppm)
		for i := range 20 * 600 {
			c.Advance(tickEvery)
			a.Tick(c.Read(), Kernel{}, PeerVote{})
			r := c.Read()
			if off := time.Duration(a.UnixNano(r.Mono) - r.Wall); off.Abs() > time.Millisecond {
				t.Errorf("%d ppm: after %v issuing time is %v from the wall clock", ppm, time.Duration(i)*tickEvery, off)
				break
			}
		}
	}
}
