package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// realLimit bounds a run of the harness, with compiling.
const realLimit = 5 * time.Minute

// harness builds command chaos without the bug, once: a bug belongs into the
// allocator, never into its checks.
func harness(ctx context.Context, root, dir string) (string, error) {
	at := filepath.Join(dir, "chaos")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", at, ".")
	cmd.Dir = filepath.Join(root, harnessDir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the harness: %w\n%s", err, out)
	}
	return at, nil
}

// tryReal runs the harness on a cluster of allocators with the changed files in.
// The harness builds them itself, and the go command it uses is told of the
// changed files by its environment.
func tryReal(ctx context.Context, root string, changed map[string]string, c Catch) (Finding, error) {
	dir, err := os.MkdirTemp("", "planted-")
	if err != nil {
		return Finding{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	list, err := overlay(root, dir, changed)
	if err != nil {
		return Finding{}, err
	}
	chaos, err := harness(ctx, root, dir)
	if err != nil {
		return Finding{}, err
	}
	if len(changed) > 0 {
		if err := planted(ctx, root, dir, list); err != nil {
			return Finding{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, realLimit)
	defer cancel()
	run := filepath.Join(dir, "run")
	cmd := exec.CommandContext(ctx, chaos, append([]string{"run", "--dir", run}, c.Args[1:]...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+list))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it then stops what it started
	cmd.WaitDelay = time.Minute
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	failed := cmd.Run()
	raw, err := os.ReadFile(filepath.Join(run, "results.json"))
	if err != nil {
		said := strings.Split(strings.TrimSpace(out.String()), "\n")
		return Finding{Outcome: Unknown, Says: said[len(said)-1]}, errors.Join(failed, ctx.Err())
	}
	return readReal(raw)
}

// outcome is the part of results.json that is read.
type outcome struct {
	Verdict string
	Why     []string
	Seed    uint64
	Checks  []struct {
		Check, Claim, Verdict string
		Violations            []struct {
			Claim, Detail string
			At            time.Duration `json:"at_ns"`
		}
	}
}

// readReal reads the results of a run. Only failed checks count: a run that failed
// because of the machine, or whose faults had no effect, has found nothing. Of several
// violations the earliest is reported; those found at the end of a run have no time.
func readReal(results []byte) (Finding, error) {
	var o outcome
	if err := json.Unmarshal(results, &o); err != nil {
		return Finding{Outcome: Unknown, Says: err.Error()}, nil
	}
	f := Finding{Outcome: Caught, Seed: fmt.Sprint(o.Seed)}
	var by []string
	for _, c := range o.Checks {
		if c.Verdict != "fail" || len(c.Violations) == 0 {
			continue
		}
		by = append(by, c.Check)
		for _, v := range c.Violations {
			if f.Says == "" || v.At > 0 && (f.After == 0 || v.At < f.After) {
				f.After, f.Says = v.At, v.Claim+": "+v.Detail
			}
		}
	}
	switch {
	case len(by) > 0 && o.Verdict == "fail":
		f.Test = strings.Join(by, ", ")
		return f, nil
	case o.Verdict == "pass":
		return Finding{Outcome: Missed}, nil
	}
	return Finding{Outcome: Unknown, Says: strings.Join(append([]string{o.Verdict}, o.Why...), "; ")}, nil
}

// errNotIn: the bug is not in the program.
var errNotIn = errors.New("the allocator is the same with the bug and without it")

// planted builds the allocator as the harness will, with the bug and without it,
// and returns an error unless that makes two programs.
func planted(ctx context.Context, root, dir, list string) error {
	var sums [2][sha256.Size]byte
	for i, more := range [][]string{nil, {"-overlay=" + list}} {
		at := filepath.Join(dir, "allocator")
		// Without the version stamp, which may change at any time.
		args := append([]string{"build", "-buildvcs=false", "-o", at}, more...)
		cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/allocator")...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build the allocator: %w\n%s", err, out)
		}
		raw, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		sums[i] = sha256.Sum256(raw)
	}
	if sums[0] == sums[1] {
		return errNotIn
	}
	return nil
}
