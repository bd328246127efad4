package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// A skip is the reason why a step was not run.
type skip string

func (s skip) Error() string { return string(s) }

// A report lists the steps that ran, those that did not, and their durations.
type report struct {
	out     io.Writer
	started time.Time
	failed  []string
	skipped []string
	passed  int
}

// part prints a heading.
func (r *report) part(name string) {
	fmt.Fprintf(r.out, "\n== %s (%s)\n", name, time.Since(r.started).Round(time.Second))
}

// run runs one step with a timeout. A step that fails does not end the run; run
// reports whether it passed.
func (r *report) run(ctx context.Context, name string, limit time.Duration, step func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begun := time.Now()
	err := step(ctx)
	took := time.Since(begun).Round(100 * time.Millisecond)
	var why skip
	switch {
	case err == nil:
		r.passed++
		fmt.Fprintf(r.out, "  passed   %-7s %s\n", took, name)
		return true
	case errors.As(err, &why):
		r.skip(name, string(why))
	default:
		r.failed = append(r.failed, name)
		fmt.Fprintf(r.out, "  FAILED   %-7s %s\n      %s\n", took, name,
			strings.ReplaceAll(err.Error(), "\n", "\n      "))
	}
	return false
}

// skip reports that a step was not run, and why.
func (r *report) skip(name, why string) {
	r.skipped = append(r.skipped, name)
	fmt.Fprintf(r.out, "  not run: %s: %s\n", name, why)
}

// end prints the totals and returns an error if anything failed.
func (r *report) end() error {
	fmt.Fprintf(r.out, "\nkube: %d passed, %d failed, %d not run, in %s\n", r.passed, len(r.failed),
		len(r.skipped), time.Since(r.started).Round(time.Second))
	if len(r.failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(r.failed, "; "))
	}
	return nil
}
