package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Outcome is the result of a test with a bug.
type Outcome string

// The outcomes.
const (
	Caught  Outcome = "caught"
	Missed  Outcome = "MISSED"  // the test passed
	Unknown Outcome = "unknown" // the test has no result; see Finding.Says
)

// Finding is one test run with one bug.
type Finding struct {
	Outcome Outcome
	Test    string        // No other test failed before this one.
	Seed    string        // The run with this seed showed the bug; "" if no seed is known.
	Tier    string        // test or check, where the test found it; empty: in real processes
	After   time.Duration // from the start of the test program to its failure
	Says    string        // its first message
}

// harnessDir is the module of the harness, in the repository.
const harnessDir = "chaos/real"

// limits of one test.
const (
	testLimit = 5 * time.Minute // by go test itself, which then prints where it hangs
	runLimit  = 7 * time.Minute // with compiling, on an overloaded machine
)

// overlay writes changed files into dir, and the list of them that the go command
// asks for. It returns the list's path.
func overlay(root, dir string, changed map[string]string) (string, error) {
	list := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range changed {
		at := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			return "", err
		}
		list.Replace[filepath.Join(root, filepath.FromSlash(file))] = at
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return "", err
	}
	at := filepath.Join(dir, "overlay.json")
	return at, os.WriteFile(at, raw, 0o600)
}

// writeOverlay writes the overlay of the only bug of list.
func writeOverlay(root, dir string, list []Bug) error {
	if len(list) != 1 {
		return fmt.Errorf("-overlay is of one bug, and -bugs finds %d", len(list))
	}
	changed, err := list[0].apply(root)
	if err == nil {
		_, err = overlay(root, dir, changed)
	}
	return err
}

// tiers are those of package chaos/tier in which tests are tried. One that takes the hours
// of make nightly to find a bug does not count.
var tiers = []string{"test", "check"}

// tryTiers tries one tier after the other until the test of c finds the changes.
func tryTiers(ctx context.Context, root string, changed map[string]string, c Catch) (f Finding, err error) {
	for _, tier := range tiers {
		if f, err = try(ctx, root, changed, c, tier); err != nil || c.Kind == Real {
			return f, err
		}
		if f.Outcome == Caught {
			f.Tier = tier
			return f, nil
		}
	}
	return f, nil
}

// try runs the test of c as in a tier with the changed files in place, none of them for a
// control.
func try(ctx context.Context, root string, changed map[string]string, c Catch, tier string) (Finding, error) {
	if c.Kind == Real {
		return tryReal(ctx, root, changed, c)
	}
	temp, err := os.MkdirTemp("", "planted-")
	if err != nil {
		return Finding{}, err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	list, err := overlay(root, temp, changed)
	if err != nil {
		return Finding{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	args := []string{
		"test", "-overlay=" + list, "-json", "-count=1", "-vet=off", "-failfast", "-timeout=" + testLimit.String(),
	}
	dir, what := root, slices.Clone(c.Args)
	if inside, ok := strings.CutPrefix(what[0], "./"+harnessDir+"/"); ok {
		dir, what[0] = filepath.Join(root, harnessDir), "./"+inside
	}
	cmd := exec.CommandContext(ctx, "go", append(args, what...)...)
	cmd.Dir = dir
	// With -json, transcripts would log each command that prints what it should.
	cmd.Env = append(os.Environ(), "DATADRIVEN_QUIET_LOG=true", "TIER="+tier)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go test then ends its tests
	cmd.WaitDelay = 10 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	failed := cmd.Run()
	if ctx.Err() != nil {
		return Finding{Outcome: Unknown, Says: "no result within " + runLimit.String()}, context.Cause(ctx)
	}
	f := read(&out)
	if f.Outcome == Missed && failed != nil && errs.Len() > 0 {
		f = Finding{Outcome: Unknown, Says: firstLine(errs.String())}
	}
	return f, nil
}

// event is one of test2json's.
type event struct {
	Time                              time.Time
	Action, Test, Output, FailedBuild string
}

var (
	// said is a line of a test's own report.
	said = regexp.MustCompile(`^\s*[a-zA-Z0-9_]+\.go:\d+: (.*)$`)
	// seeded is the seed that a simulation tells of.
	seeded = regexp.MustCompile(`\bseed (\d+)`)
	// own is a panic in words of the product, where a claim does not hold.
	own = regexp.MustCompile(`^panic: ((?:node|lease|gen|clock|flake|ulid): .*)$`)
)

// read judges the output of go test -json. A test is believed to have found
// something if it failed in its own words: of the lines of the failed test, those
// that only say what a run came to lack are not counted.
func read(out *bytes.Buffer) Finding {
	var began time.Time
	var build, timedOut string
	var ran, failed, lacking bool
	lines := map[string][]string{} // The output of each test is kept, by its name.
	f := Finding{Outcome: Missed}
	for d := json.NewDecoder(out); ; {
		var e event
		if d.Decode(&e) != nil {
			break
		}
		line := strings.TrimRight(e.Output, "\n")
		ran = ran || e.Test != ""
		switch e.Action {
		case "start":
			began = e.Time
		case "build-output":
			build += e.Output
		case "output":
			if strings.Contains(line, "panic: test timed out") {
				timedOut = line
			}
			if m := own.FindStringSubmatch(line); m != nil && f.Outcome != Caught {
				f = Finding{Outcome: Caught, Test: e.Test, After: e.Time.Sub(began), Says: m[1]}
			}
			lines[e.Test] = append(lines[e.Test], line)
		case "fail":
			if e.FailedBuild != "" {
				return Finding{Outcome: Unknown, Says: "does not compile: " + firstLine(build)}
			}
			failed = true
			words, lacks := failureMessage(lines[e.Test])
			lacking = lacking || lacks
			if e.Test != "" && words != "" && f.Outcome != Caught {
				f = Finding{Outcome: Caught, Test: e.Test, After: e.Time.Sub(began), Says: words}
				if m := seeded.FindStringSubmatch(strings.Join(lines[e.Test], " ")); m != nil {
					f.Seed = m[1]
				}
			}
		}
	}
	switch {
	case f.Outcome == Caught:
	case timedOut != "":
		return Finding{Outcome: Unknown, Says: timedOut}
	case !ran:
		return Finding{Outcome: Unknown, Says: "no test was run"}
	case failed && !lacking:
		return Finding{Outcome: Unknown, Says: "it failed without a message"}
	}
	return f
}

// failureMessage returns the first line in which a failed test reports what is wrong,
// and whether it reports that the run proves nothing: no violation, and no failure of
// the test either. go test does not mark lines as errors or logs, so logs are
// recognized by their text.
func failureMessage(lines []string) (words string, lacks bool) {
	for i, l := range lines {
		switch m := said.FindStringSubmatch(l); {
		case m == nil || note.MatchString(m[1]):
		case strings.HasPrefix(m[1], "unknown: "):
			lacks = true
		case words == "":
			words = m[1]
			for _, more := range lines[i+1:] { // go test indents the rest of a message
				if !strings.HasPrefix(more, "        ") || said.MatchString(more) || len(words) > 300 {
					break
				}
				words = strings.TrimSpace(words + " " + strings.TrimSpace(more))
			}
		}
	}
	return words, lacks
}

// note is how the logs of the simulation and of package tier begin.
var note = regexp.MustCompile(`^tier \w+: |^seeds \d+ to \d+$|^\d+ seeds, |` +
	`^(everything|unclocked|tampered), \d+ seeds: |^\d+ schedules, |^\d+ served, `)

func firstLine(s string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return line
		}
	}
	return "no message"
}

// String returns the finding in one line.
func (f Finding) String() string {
	switch f.Outcome {
	case Caught:
		where := cmp.Or(f.Tier, "real processes")
		return fmt.Sprintf("%s after %.1f s by %s in %s: %s", f.Outcome, f.After.Seconds(), f.Test, where, f.Says)
	case Missed:
		return string(f.Outcome)
	}
	return fmt.Sprintf("%s: %s", f.Outcome, f.Says)
}
