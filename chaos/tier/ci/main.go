// Command ci runs what must hold, from one table of steps:
//
//	ci test [-race] [PACKAGE…]   compiles tests, and then runs them; of all packages without PACKAGE
//	ci check [STEP…]             runs the steps before a merge
//	ci nightly [STEP…]           runs those of a night
//	ci lint                      runs those that only read
//	ci list TIER                 prints the names of the steps of a tier as JSON
//
// The compiler never runs beside tests that measure real time: all tests are compiled first, and steps that
// measure run one after the other. Beside them, at a low priority, run the steps that do not. What a step
// prints is in bin/TIER/STEP.log, and is printed if the step fails. A step whose tool is missing is skipped,
// by name and with what to install. Nothing is run again: a test that failed once failed. Therefore this is
// not gotestsum, which knows neither what a tier left out nor which tests did less than they can.
//
// With -limit, a tier that uses more time than it may fails, and the slowest tests are listed. Exit codes: 0 all
// passed or skipped, 1 something failed, 2 wrong usage.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flakelease/allocator/chaos/tier"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("ci", flag.ContinueOnError)
	flags.SetOutput(errs)
	limit := flags.Bool("limit", false, "fail if the tier takes longer than it may")
	race := flags.Bool("race", false, "test with the race detector")
	wrong := func(format string, a ...any) int {
		_, _ = fmt.Fprintf(errs, "ci: "+format+"\n", a...)
		return 2
	}
	if len(args) == 0 {
		return wrong("no command: use test, check, nightly, lint or list")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return 2
	}
	if t := os.Getenv(tier.Variable); t != "" && !slices.Contains(tier.Names, t) {
		return wrong("%s=%s: there is no such tier: use %s", tier.Variable, t, strings.Join(tier.Names, ", "))
	}
	c := &ci{out: out, limit: *limit, dir: filepath.Join("bin", args[0])}
	switch rest := flags.Args(); args[0] {
	case "test":
		return c.test(ctx, *race, rest)
	case "check", "nightly":
		return c.steps(ctx, args[0], rest)
	case "lint":
		return c.steps(ctx, "check", lint)
	case "list":
		if len(rest) != 1 || !slices.Contains(tier.Names, rest[0]) {
			return wrong("list: name one of the tiers %s", strings.Join(tier.Names, ", "))
		}
		_ = json.NewEncoder(out).Encode(names(rest[0]))
		return 0
	default:
		return wrong("there is no command %q: use test, check, nightly, lint or list", args[0])
	}
}

// test compiles and runs the tests of packages, in the tier that the environment chooses.
func (c *ci) test(ctx context.Context, race bool, patterns []string) int {
	began := time.Now()
	j := c.job(ctx, cmp.Or(os.Getenv(tier.Variable), tier.Names[0]), c.out)
	all := len(patterns) == 0
	if all {
		patterns = []string{"./..."}
	}
	module, inside, err := locate(patterns)
	if err == nil && all {
		err = j.sh(format)
	}
	if err == nil {
		j.dir, patterns = module, inside
		if err = j.compile(race, patterns...); err == nil {
			err = j.test(race, patterns...)
		}
	}
	c.report()
	if err == nil && !slices.ContainsFunc(c.records, func(r record) bool { return r.Result != "skip" }) {
		err = fmt.Errorf("there are no tests in %s", strings.Join(patterns, " "))
	}
	if err == nil {
		err = c.exceeded(tier.Names[0], used())
	}
	outcome := "passed in"
	if err != nil {
		outcome = "failed after"
	}
	_, _ = fmt.Fprintf(c.out, "%s %s, and %s of processor time", outcome, seconds(time.Since(began)), seconds(used()))
	if err != nil {
		_, _ = fmt.Fprintf(c.out, ": %v\n", err)
		return 1
	}
	_, _ = fmt.Fprintln(c.out)
	return 0
}

// locate returns the directory of the module that packages are in, and the packages as patterns there.
func locate(patterns []string) (module string, inside []string, err error) {
	for _, p := range patterns {
		dir, below := strings.CutSuffix(p, "/...")
		if s, err := os.Stat(dir); err != nil || !s.IsDir() {
			return "", nil, fmt.Errorf("there is no directory %s: packages are directories such as ./internal/gen, "+
				"or ./internal/... for all below one", dir)
		}
		m := filepath.Clean(dir)
		for ; m != "." && m != "/"; m = filepath.Dir(m) {
			if _, err := os.Stat(filepath.Join(m, "go.mod")); err == nil {
				break
			}
		}
		if module != "" && m != module {
			return "", nil, fmt.Errorf("%s is in module %s, and the others in %s: test them one after the other",
				p, m, module)
		}
		module = m
		rel, err := filepath.Rel(m, dir)
		if err != nil {
			return "", nil, err
		}
		if rel = "./" + rel; below {
			rel += "/..."
		}
		inside = append(inside, rel)
	}
	return module, inside, nil
}

// files returns those that a command of git names.
func files(args ...string) []string {
	out, err := exec.Command("git", append([]string{"-c", "color.ui=false"}, args...)...).Output()
	if err != nil {
		return nil
	}
	return strings.Fields(string(out))
}

// modules returns the directories of all modules but the root and that of tools, which has no packages.
func modules() (dirs []string) {
	for _, f := range files("ls-files", "*go.mod") {
		if dir := filepath.Dir(f); dir != "." && dir != "tools" {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
