package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("planted", flag.ContinueOnError)
	which := flags.String("bugs", "", "only bugs whose name this regular expression finds")
	kind := flags.String("kind", "", "only tests of this kind: unit, sim, virtual or real; empty: all but real")
	atOnce := flags.Int("at-once", runtime.NumCPU(), "how many tests to run at once")
	mutants := flags.String("mutate", "",
		"instead of the bugs, run the tests of a package with each mutant of this package or file")
	limit := flags.Int("limit", 0, "how many mutants to draw; 0: all")
	seed := flags.Uint64("seed", 1, "for drawing mutants")
	write := flags.String("write", "", "write a table of the results to this file")
	into := flags.String("overlay", "",
		"write the files that the bug of -bugs changes into this directory, with overlay.json")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	wanted, err := regexp.Compile(*which)
	if flags.NArg() > 0 || *atOnce < 1 {
		err = errors.Join(err, errors.New("there are no arguments, and -at-once is at least 1"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		return 2
	}
	root, err := rootOf(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		return 2
	}
	if *mutants != "" {
		switch err := mutate(ctx, root, *mutants, *limit, *atOnce, *seed); {
		case errors.Is(err, errMissed):
			fmt.Fprintln(os.Stderr, "planted:", err)
			return 1
		case err != nil:
			fmt.Fprintln(os.Stderr, "planted:", err)
			return 3
		}
		return 0
	}
	list, err := all()
	if err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		return 3
	}
	list = slices.DeleteFunc(list, func(b Bug) bool { return !wanted.MatchString(b.Name) })
	if *into != "" {
		if err := writeOverlay(root, *into, list); err != nil {
			fmt.Fprintln(os.Stderr, "planted:", err)
			return 3
		}
		return 0
	}
	for i := range list {
		list[i].Catches = slices.DeleteFunc(list[i].Catches, func(c Catch) bool {
			return *kind == "" && c.Kind == Real || *kind != "" && string(c.Kind) != *kind
		})
	}
	began := time.Now()
	results := plantAll(ctx, root, list, *atOnce)
	took := time.Since(began)
	code := 0
	for _, r := range results {
		switch {
		case r.Outcome == Missed:
			code = 1
		case r.Outcome == Unknown && code == 0:
			code = 3
		}
	}
	fmt.Printf("%s; %v\n", tally(results), took.Round(time.Second))
	if *write != "" && ctx.Err() == nil {
		if err := writeTable(*write, list, results, took); err != nil {
			fmt.Fprintln(os.Stderr, "planted:", err)
			return 3
		}
	}
	return code
}

// Result is what one test found with one bug.
type Result struct {
	Bug   Bug
	Catch Catch
	Finding
}

// plantAll runs every test of every bug, and before them each test without a bug: a
// test that fails anyway finds nothing.
func plantAll(ctx context.Context, root string, list []Bug, atOnce int) []Result {
	healthy := map[string]Finding{}
	var controls []Catch
	var out []Result
	for _, b := range list {
		for _, c := range b.Catches {
			if _, ok := healthy[c.String()]; !ok {
				healthy[c.String()] = Finding{}
				controls = append(controls, c)
			}
			out = append(out, Result{Bug: b, Catch: c})
		}
	}
	checked := make([]Finding, len(controls))
	each(len(controls), atOnce, func(i int) {
		if ctx.Err() != nil {
			return
		}
		f, err := try(ctx, root, nil, controls[i], tiers[len(tiers)-1])
		if err != nil {
			f = Finding{Outcome: Unknown, Says: err.Error()}
		}
		checked[i] = f
		word := "passes"
		if f.Outcome != Missed {
			word = "FAILS: " + shorten(f.Says, 120)
		}
		fmt.Printf("%-12s without a bug %s: %s\n", controls[i].Kind, word, controls[i])
	})
	for i, c := range controls {
		healthy[c.String()] = checked[i]
	}
	each(len(out), atOnce, func(i int) {
		r := &out[i]
		if ctx.Err() != nil {
			r.Finding = Finding{Outcome: Unknown, Says: "interrupted before it ran"}
			return
		}
		if f := healthy[r.Catch.String()]; f.Outcome != Missed {
			r.Finding = Finding{
				Outcome: Unknown,
				Says:    fmt.Sprintf("the test fails without the bug: %s%s", f.Says, f.Test),
			}
		} else if changed, err := r.Bug.apply(root); err != nil {
			r.Finding = Finding{Outcome: Unknown, Says: err.Error()}
		} else if r.Finding, err = tryTiers(ctx, root, changed, r.Catch); err != nil {
			r.Finding = Finding{Outcome: Unknown, Says: err.Error()}
		}
		fmt.Printf("%-28s %-8s %s\n", r.Bug.Name, r.Catch.Kind, shorten(r.Finding.String(), 160))
	})
	return out
}

// each calls f for 0 to n-1, atOnce of them concurrently.
func each(n, atOnce int, f func(int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// rootOf returns dir or the directory above it that has a go.mod.
func rootOf(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod found: start the program in the repository")
		}
		dir = up
	}
}
