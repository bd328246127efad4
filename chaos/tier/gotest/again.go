package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// failure is a package that failed.
type failure struct {
	path  string
	tests []string
	late  bool // They may have failed since the machine was busy: see pack.late.
}

// few is how many tests may be run again: more do not fail by chance.
const few = 3

// never is what tests print about what no load excuses: I1 to I9 are the claims of DESIGN.md.
var never = regexp.MustCompile(`panic: |fatal error: |duplicate|twice|\bshare an ID\b|\blost\b|out of order|` +
	`unordered|\bnot in (the )?order\b|\bnot above\b|\bissued below\b|\bI[1-9]\b`)

// none is said where nothing is wrong: reports of loads end with "0 duplicates, 0 out of order".
var none = regexp.MustCompile(`(^|\s)(0|no) (duplicates|out of order|lost)\b`)

// race is what is printed about a data race. The detector does not know which test runs, so its
// report can be among the lines of one that passes, or of none.
var race = regexp.MustCompile(`DATA RACE|race detected (during|outside)`)

// late reports whether the tests of a package may have failed because the machine was busy:
// each ended, and said nothing that must never happen.
func (p *pack) late() bool {
	for test := range p.open {
		if whole, _, _ := strings.Cut(test, "/"); !slices.Contains(p.failed, whole) {
			return false
		}
	}
	return len(p.failed) > 0 && !slices.ContainsFunc(p.lines, func(l event) bool {
		return race.MatchString(l.Output) || (l.Test == "" || p.open[l.Test]) &&
			never.MatchString(none.ReplaceAllString(l.Output, ""))
	})
}

// again runs the tests that failed once more, each package by itself, and reports whether all
// passed. Those that did are recorded: a test that passes only alone is a defect, of the test
// or of what it tests.
func again(failed []failure, args []string, out, errs io.Writer, file *json.Encoder) (passed bool, err error) {
	total := 0
	for _, f := range failed {
		if total += len(f.tests); !f.late {
			return false, nil
		}
	}
	if total == 0 || total > few {
		return false, nil
	}
	for _, f := range failed {
		_, _ = fmt.Fprintf(out, "again, alone: %s %s\n", strings.TrimPrefix(f.path, module), strings.Join(f.tests, " "))
		once := append([]string{f.path}, flagsOf(args)...)
		once = append(once, "-count", "1", "-run", "^("+strings.Join(f.tests, "|")+")$")
		code, _, err := test(once, out, errs, json.NewEncoder(io.Discard))
		if err != nil || code != 0 {
			return false, err
		}
		for _, name := range f.tests {
			r := record{Package: strings.TrimPrefix(f.path, module), Test: name, Result: "again", Why: name}
			if err := file.Encode(r); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// flagsOf returns arguments of go test without its packages.
func flagsOf(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(a string) bool {
		return strings.HasPrefix(a, "./") || strings.HasPrefix(a, module) || a+"/" == module
	})
}
