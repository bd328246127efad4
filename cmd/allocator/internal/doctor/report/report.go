// Package report is a list of checks with their results, as doctor prints it.
package report

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// State is the result of a check.
type State string

// The results.
const (
	OK      State = "ok"
	Warn    State = "warn"
	Fail    State = "fail"
	Skipped State = "skipped"
)

// Check is one check with its result.
type Check struct {
	Name   string `json:"check"`
	State  State  `json:"state"`
	Detail string `json:"detail"`
	Do     string `json:"do,omitempty"` // what to do about it
}

// Report collects checks.
type Report []Check

// Add appends a check; do says what to do about it, and is empty if nothing is to be done.
func (r *Report) Add(name string, s State, do, format string, args ...any) {
	*r = append(*r, Check{name, s, fmt.Sprintf(format, args...), do})
}

// Has reports whether a check of that name was added.
func (r Report) Has(name string) bool {
	return slices.ContainsFunc(r, func(c Check) bool { return c.Name == name })
}

// Sound adds that all is well with what a check is about, unless a check of that name was added.
func (r *Report) Sound(name, format string, args ...any) {
	if !r.Has(name) {
		r.Add(name, OK, "", format, args...)
	}
}

// Wrong reports whether a check of that name found something to warn of.
func (r Report) Wrong(name string) bool {
	return slices.ContainsFunc(r, func(c Check) bool {
		return c.Name == name && (c.State == Warn || c.State == Fail)
	})
}

// Failed reports whether a check failed.
func (r Report) Failed() bool {
	return slices.ContainsFunc(r, func(c Check) bool { return c.State == Fail })
}

// Print writes a line for each check, below it what to do, and a tally.
func (r Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	tally := map[State]int{}
	for _, c := range r {
		tally[c.State]++
		fmt.Fprintf(t, "%s\t%s\t%s\n", c.State, c.Name, c.Detail)
		if c.Do != "" {
			fmt.Fprintf(t, "\t\t→ %s\n", c.Do)
		}
	}
	fmt.Fprintf(t, "\n%d ok, %d warn, %d fail, %d skipped\n", tally[OK], tally[Warn], tally[Fail], tally[Skipped])
	return t.Flush()
}
