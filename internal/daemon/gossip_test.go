package daemon

import (
	"fmt"
	"testing"

	"github.com/flakelease/allocator/internal/clock"
)

// TestWitnesses: all of gossip are asked, up to 64 of them; above, those chosen.
// Members without gossip change nothing about it.
func TestWitnesses(t *testing.T) {
	members := func(heard, mute int) (out []clock.Member) {
		for i := range heard + mute {
			out = append(out, clock.Member{Name: fmt.Sprint("n", i), Instance: fmt.Sprint(i), NoGossip: i >= heard})
		}
		return out
	}
	for _, c := range []struct{ heard, mute, want int }{
		{0, 0, 0}, {1, 0, 0}, {3, 0, 0}, {3, 3, 0}, {3, 100, 0}, {1, 3, 0}, {1, 100, 0}, {64, 0, 0}, {64, 64, 0}, {65, 0, 31}, {65, 10, 31},
	} {
		got := witnesses("n0", members(c.heard, c.mute))
		if len(got) != c.want || c.want == 0 && got != nil {
			t.Errorf("%d with gossip and %d without: asks %d by name (%v), want %d", c.heard, c.mute, len(got), got, c.want)
		}
	}
}
