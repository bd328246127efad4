// Package tier decides which tests run in which of the three commands that check this
// project:
//
//	make test       after each change: 2 to 4 minutes, and needs Go, git and make alone
//	make check      before a merge: with the race detector, and what takes longer
//	make nightly    hours
//
// The variable TIER of the environment chooses: test, check or nightly. Without it the tier
// is test, so that `go test ./...` runs what `make test` runs. Each tier includes the ones
// before it, and a test that calls nothing of this package is in all three.
//
// A test belongs into the first tier that has the time for it. Command ci lists at the
// end of a run what was left to later tiers. Only tests import this package.
package tier

import (
	"os"
	"slices"
	"testing"
)

// Variable is the name of the variable that chooses the tier.
const Variable = "TIER"

// Names are those of the tiers, in order.
var Names = []string{"test", "check", "nightly"}

// Check skips a test unless the tier is check or nightly. The reason says in a few words
// what takes so long, such as "three real etcd members".
func Check(t testing.TB, reason string) {
	t.Helper()
	from(t, 1, reason)
}

// Nightly skips a test unless the tier is nightly.
func Nightly(t testing.TB, reason string) {
	t.Helper()
	from(t, 2, reason)
}

// Of returns how many of something a test does in this tier: seeds, schedules, calls.
func Of(t testing.TB, something string, test, check, nightly int) int {
	t.Helper()
	n := []int{test, check, nightly}
	if i := chosen(t); n[i] < nightly {
		t.Logf("tier %s: %d %s; in check %d, in nightly %d", Names[i], n[i], something, check, nightly)
	}
	return n[chosen(t)]
}

func from(t testing.TB, first int, reason string) {
	t.Helper()
	if chosen(t) < first {
		t.Skipf("tier %s: %s", Names[first], reason)
	}
}

// chosen returns the place of the tier in Names.
func chosen(t testing.TB) int {
	t.Helper()
	name := os.Getenv(Variable)
	if name == "" {
		return 0
	}
	i := slices.Index(Names, name)
	if i < 0 {
		t.Fatalf("%s=%s: there is no such tier; use one of %q", Variable, name, Names)
	}
	return i
}
