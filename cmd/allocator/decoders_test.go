package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// must runs a command and returns its lines.
func must(t *testing.T, args ...string) []string {
	t.Helper()
	code, out, errs := allocator(args...)
	if code != cli.ExitOK || errs != "" {
		t.Fatalf("%q: exit code %d, stderr %q", args, code, errs)
	}
	return strings.Fields(out)
}

// TestThousandOfOneMillisecond: a thousand IDs of one millisecond, made in
// batches of separate runs, shuffled and sorted as text, are in the order in
// which they were made. The batches that follow a clock that went back, and one
// that did not advance, are above those before.
func TestThousandOfOneMillisecond(t *testing.T) {
	for _, kind := range [][]string{{}, {"--kind", "flake", "--entropy", "0"}, {"--kind", "flake", "--layout", "standalone"}, {"--as", "uuid"}} {
		var ids []string
		for batch := range 10 {
			at := "2026-11-20T16:36:28.444Z"
			if len(kind) < 2 || kind[0] == "--as" { // a ULID's series outlives a clock that goes back
				at = []string{at, "2026-11-20T16:36:28.443Z", "2026-11-19", at}[batch%4]
			}
			args := append([]string{"monotonic", "100", "--at", at}, kind...)
			if batch == 0 {
				// Begin in the first half, so that a thousand fit whatever is drawn.
				one := slices.Replace(slices.Clone(args), 1, 2, "1")
				for ids = must(t, one...); !roomy(ids[0], kind); ids = must(t, one...) {
				}
				args[1] = "99"
			}
			ids = append(ids, must(t, append(args, "--after", ids[len(ids)-1])...)...)
		}
		shuffled := slices.Clone(ids)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		slices.Sort(shuffled)
		if !slices.Equal(shuffled, ids) || len(slices.Compact(shuffled)) != 1000 {
			t.Errorf("%v: not in order, or not different", kind)
		}
	}
}

// roomy reports whether a first ID, if a flake, has its entropy in the lower half.
func roomy(id string, kind []string) bool {
	return len(kind) == 0 || kind[0] == "--as" || id[9] < 'G' // the 20 low bits begin with the tenth letter
}
