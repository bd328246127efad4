package cluster

import (
	"bufio"
	"strings"
	"testing"

	"github.com/flakelease/allocator/internal/watermark"
)

// TestPrintedWatermark: a line says how far it is, and those below it who holds it back, what it
// rests on, and whom it does not cover.
func TestPrintedWatermark(t *testing.T) {
	const at = 1_769_904_000_000
	for name, tc := range map[string]struct {
		mark watermark.Answer
		want string
	}{
		"held back": {watermark.Answer{At: at, Flake: "0QG", Lag: 20_500, BlockedBy: []watermark.Blocker{
			{Node: "n3", SID: 5, Since: at + 1000, Why: "silent", Text: "node n3 (sid 5) is paused"},
		}, NotCovered: []int{7, 8}}, `2026-02-01T00:00:00.000Z  0QG  20.5s behind
  silent, since 00:00:01: node n3 (sid 5) is paused
  not covered: sids [7 8], of generators outside of the nodes
`},
		"resting on a clock": {watermark.Answer{At: at, Flake: "0QG", Conditional: &watermark.Condition{Node: "n2", SID: 4, Until: at - 60_000}},
			`2026-02-01T00:00:00.000Z  0QG  0.0s behind
  conditional: nothing below 23:59:00 comes of n2 (sid 4), which vanished, if clocks go on
`},
		"resting on the clocks of a lost history": {watermark.Answer{At: at, Flake: "0QG", Conditional: &watermark.Condition{SID: -1, Until: at - 60_000}},
			`2026-02-01T00:00:00.000Z  0QG  0.0s behind
  conditional: nothing below 23:59:00 comes of those of the history before this era, if clocks go on
`},
		"long past that": {watermark.Answer{At: at, Flake: "0QG", Conditional: &watermark.Condition{Node: "n2", SID: 4, Until: at - 3_600_001}},
			"2026-02-01T00:00:00.000Z  0QG  0.0s behind\n"},
	} {
		var out strings.Builder
		w := markWatch{out: bufio.NewWriter(&out)}
		if err := w.print(tc.mark); err != nil || out.String() != tc.want {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}
