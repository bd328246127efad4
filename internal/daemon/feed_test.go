package daemon

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// sized is a picture of so many bytes.
type sized int

func (s sized) Size() int { return int(s) }

// Snapshots come each second, soon after an event, and less often where all of them
// together would be too many bytes.
func TestPace(t *testing.T) {
	const second = clock.Mono(time.Second)
	for _, tc := range []struct {
		name     string
		size     int // of the latest, made at 0
		streams  int
		happened bool
		want     time.Duration // until the next
	}{
		{"nobody", 10_000, 0, true, 0},
		{"the first", 0, 1, false, 1},
		{"one stream", 10_000, 1, false, time.Second},
		{"an event", 10_000, 1, true, 250 * time.Millisecond},
		{"many streams", 10_000, 1000, false, 1192 * time.Millisecond},
		{"many streams of a wide space, and an event", 400_000, 100, true, 4768 * time.Millisecond},
	} {
		var p pace
		if tc.size > 0 {
			p.latest = sized(tc.size)
		}
		got := time.Duration(0)
		for now := clock.Mono(1); now < 10*second && got == 0; now += second / 1000 {
			if p.wait(now, tc.streams, tc.happened && now == 1) <= 0 {
				got = max(now.Sub(0).Truncate(time.Millisecond), 1)
			}
		}
		if (got - tc.want).Abs() > 5*time.Millisecond {
			t.Errorf("%s: after %v, want %v", tc.name, got, tc.want)
		}
	}
}
