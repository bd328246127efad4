package agreement_test

import (
	"fmt"
	"testing"
	"time"
)

// T43: a check that never fired, since it compared seconds with nanoseconds, and
// looked for clocks on one side only. Here the clock is eleven seconds off, on
// either side; the refusal says by how much and in which direction.
// docs/INCIDENTS.md has the whole list.
func TestT43SkewOfElevenSeconds(t *testing.T) {
	for _, off := range []time.Duration{11 * time.Second, -11 * time.Second} {
		t.Run(fmt.Sprintf("T43 %v", off), func(t *testing.T) {
			t.Parallel()
			tell(t, func(w *world) { startsOff(w, 3, off) })
		})
	}
}
