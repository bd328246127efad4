package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/tier"
)

// limits are how long a package and a whole run may take, 0 for any time, and how long the
// run took.
type limits struct{ each, all, took time.Duration }

// report prints what was not run. It returns an error if a limit is exceeded.
func report(out io.Writer, records []record, l limits) error {
	left := map[string][]record{} // by tier
	var less, skipped, packages, tests []record
	for _, r := range records {
		switch {
		case r.Test == "":
			packages = append(packages, r)
		case r.Result == "skip" && r.Tier != "":
			left[r.Tier] = append(left[r.Tier], r)
		case r.Result == "skip":
			skipped = append(skipped, r)
		default:
			if r.Why != "" {
				less = append(less, r)
			}
			if !strings.Contains(r.Test, "/") {
				tests = append(tests, r)
			}
		}
	}
	for _, name := range tier.Names {
		list(out, left[name], fmt.Sprintf("left to make %s", name))
	}
	list(out, less, "did less than it can")
	list(out, skipped, "not run here")
	if l.each == 0 && l.all == 0 {
		return nil
	}
	var errs []error
	for _, p := range packages {
		if l.each > 0 && p.Seconds > l.each.Seconds() {
			errs = append(errs,
				fmt.Errorf("%s took %s; the limit of a package is %v", p.Package, seconds(p.Seconds), l.each))
		}
	}
	if l.all > 0 && l.took > l.all {
		errs = append(errs, fmt.Errorf("all of it took %v; the limit is %v", l.took, l.all))
	}
	slices.SortStableFunc(tests, func(a, b record) int { return int(1000 * (b.Seconds - a.Seconds)) })
	_, _ = fmt.Fprintln(out, "the slowest tests:")
	for _, r := range tests[:min(10, len(tests))] {
		_, _ = fmt.Fprintf(out, "  %8s  %s %s\n", seconds(r.Seconds), r.Package, r.Test)
	}
	return errors.Join(errs...)
}

// list prints how many tests of each package there are, and their reasons.
func list(out io.Writer, records []record, title string) {
	if len(records) == 0 {
		return
	}
	count, reasons := map[string]int{}, map[string][]string{}
	for _, r := range records {
		count[r.Package]++
		if !slices.Contains(reasons[r.Package], r.Why) {
			reasons[r.Package] = append(reasons[r.Package], r.Why)
		}
	}
	_, _ = fmt.Fprintf(out, "%s, %s:\n", title, tests(len(records)))
	for _, p := range slices.Sorted(maps.Keys(count)) {
		_, _ = fmt.Fprintf(out, "  %3d  %-28s %s\n", count[p], p, strings.Join(reasons[p], "; "))
	}
}

func tests(n int) string {
	if n == 1 {
		return "1 test"
	}
	return fmt.Sprintf("%d tests", n)
}
