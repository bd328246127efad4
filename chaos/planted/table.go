package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// transcript is the message of a transcript that differs, up to the difference. The
// name of the test states which one.
var transcript = regexp.MustCompile(`^testdata/\S+:\d+: .*?(expected|output didn't match expected):( --- \+\+\+)?`)

// tally counts results, by outcome.
func tally(results []Result) string {
	n, bugs := map[Outcome]int{}, map[string]bool{}
	for _, r := range results {
		n[r.Outcome]++
		bugs[r.Bug.Name] = true
	}
	return fmt.Sprintf("%d bugs, %d tests of them: %d caught, %d missed, %d unknown",
		len(bugs), len(results), n[Caught], n[Missed], n[Unknown])
}

// table returns a page with a row for each test of each bug.
func table(list []Bug, results []Result, took time.Duration) string {
	var s strings.Builder
	fmt.Fprintf(&s, "# Planted bugs\n\n%s. %d processors, %s, compiling included.\n\n", tally(results),
		runtime.NumCPU(), took.Round(time.Second))
	s.WriteString("| bug | breaks | incidents | kind | tier | seconds | found by | message |\n")
	s.WriteString("|-----|--------|-----------|------|------|--------:|----------|---------|\n")
	for _, b := range list {
		said := b.Says
		for _, r := range results {
			if r.Bug.Name != b.Name {
				continue
			}
			by, after, says := string(r.Outcome), "", r.Says
			if r.Outcome == Caught {
				by, after = "`"+r.Test+"`", fmt.Sprintf("%.1f", r.After.Seconds())
				if r.Seed != "" {
					by += ", seed " + r.Seed
				}
			}
			name := ""
			if said != "" {
				name, said = fmt.Sprintf("**%s**: %s", b.Name, said), ""
			}
			kind := string(r.Catch.Kind)
			if r.Catch.Kind == Real && len(r.Catch.Args) > 1 { // the fault that it takes
				kind += ", `" + strings.Join(r.Catch.Args[1:], " ") + "`"
			}
			row := []string{name, b.Breaks, b.Incidents, kind, r.Tier, after, by,
				shorten(transcript.ReplaceAllString(says, "the transcript differs:"), 110)}
			if name == "" {
				row[1], row[2] = "", ""
			}
			for i := range row {
				row[i] = strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(row[i])
			}
			fmt.Fprintf(&s, "| %s |\n", strings.Join(row, " | "))
		}
	}
	return s.String()
}

// writeTable writes the table to a file, in a directory that is made for it.
func writeTable(file string, list []Bug, results []Result, took time.Duration) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(table(list, results, took)), 0o644)
}

// shorten cuts s to at most n characters, on one line.
func shorten(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
