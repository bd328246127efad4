package ids

import (
	"strings"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/ids/adopt"
)

// TestAdoptionSaysEpochs: what is found of epochs is printed.
func TestAdoptionSaysEpochs(t *testing.T) {
	none := []adopt.Verdict{{Layout: "twitter", Why: "other"}}
	for want, r := range map[string]adopt.Report{
		"try         --layout A, that of B: its newest": {Layouts: none, Hints: []adopt.Hint{{Layout: "A", Library: "B"}}},
		"try         --layout A, if the newest ID":      {Layouts: none, Hints: []adopt.Hint{{Layout: "A"}}},
		"up to 7 (T), 8 hours ahead?\n": {
			Layouts: none,
			Plan:    &adopt.Plan{Future: 1, Last: "7", LastAt: "T", Ahead: ", 8 hours ahead?"},
		},
		"IDs of sid 3 go back by 8h in line 9": {
			Layouts: none,
			Plan:    &adopt.Plan{StepBack: &adopt.StepBack{SID: 3, Line: 9, By: "8h"}},
		},
	} {
		var out strings.Builder
		if printAdoption(&out, &r); !strings.Contains(out.String(), want) {
			t.Errorf("%s\nhas no %q", out.String(), want)
		}
	}
}
