package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/tier"
)

// report prints which tests were not run, and why; with limits also the slowest of those that were.
func (c *ci) report() {
	left := map[string][]record{} // by tier
	var less, skipped, tests []record
	for _, r := range c.records {
		switch {
		case r.Test == "":
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
	_, _ = fmt.Fprintln(c.out)
	for _, name := range tier.Names {
		list(c.out, left[name], fmt.Sprintf("left to make %s", name))
	}
	list(c.out, less, "did less than it can")
	list(c.out, skipped, "not run here")
	if !c.limit {
		return
	}
	slices.SortStableFunc(tests, func(a, b record) int { return cmp.Compare(b.Seconds, a.Seconds) })
	_, _ = fmt.Fprintln(c.out, "the slowest tests:")
	for _, r := range tests[:min(10, len(tests))] {
		_, _ = fmt.Fprintf(c.out, "  %8s  %s %s\n", elapsed(r.Seconds), r.Package, r.Test)
	}
}

// exceeded returns which limits of a tier a run exceeded that used so much processor time.
func (c *ci) exceeded(name string, used time.Duration) error {
	l := limits[name]
	if !c.limit {
		return nil
	}
	var errs []error
	for _, p := range c.records {
		if p.Test == "" && l.each > 0 && p.Seconds > l.each.Seconds() {
			errs = append(errs,
				fmt.Errorf("%s took %s; the limit of a package is %v", p.Package, elapsed(p.Seconds), l.each))
		}
	}
	if l.used > 0 && used > l.used {
		errs = append(errs,
			fmt.Errorf("all of it used %v of processor time; the limit is %v", used.Round(time.Second), l.used))
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
	plural := "s"
	if len(records) == 1 {
		plural = ""
	}
	_, _ = fmt.Fprintf(out, "%s, %d test%s:\n", title, len(records), plural)
	for _, p := range slices.Sorted(maps.Keys(count)) {
		_, _ = fmt.Fprintf(out, "  %3d  %-28s %s\n", count[p], p, strings.Join(reasons[p], "; "))
	}
}

func elapsed(s float64) string { return seconds(time.Duration(s * float64(time.Second))) }
