package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/output"
)

// tree is a module with tests of every outcome, and a second module.
const tree = `
-- go.mod --
module github.com/flakelease/allocator
go 1.26
-- good/good_test.go --
package good

import "testing"

func TestQuick(t *testing.T)   { t.Log("noise") }
func TestNightly(t *testing.T) { t.Skip("tier nightly: a day") }
func TestFew(t *testing.T)     { t.Log("tier test: 1 seeds; in check 20, in nightly 300") }
func TestParts(t *testing.T) {
	t.Run("a", func(t *testing.T) { t.Skip("tier check: an hour") })
	t.Run("b", func(t *testing.T) { t.Skip("tier check: an hour") })
	t.Run("c", func(t *testing.T) { t.Skip("no terminals") })
}
-- bad/bad_test.go --
package bad

import (
	"os"
	"testing"
)

func TestGood(t *testing.T) { t.Log("noise") }

// TestOnce fails the first time.
func TestOnce(t *testing.T) {
	if f, err := os.OpenFile("failed", os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		f.Close()
		t.Error("it is wrong")
	}
}
-- empty/empty.go --
package empty
-- broken/go.mod --
module github.com/flakelease/allocator/broken
go 1.26
-- broken/broken_test.go --
package broken

func TestX(t *testing.T) {}
`

// enter makes a module the working directory, and returns what runs ci in it.
func enter(t *testing.T) (ci func(want int, args ...string) string) {
	dir := t.TempDir()
	for _, f := range txtar.Parse([]byte(tree)).Files {
		path := filepath.Join(dir, f.Name)
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o700))
		fatal.If(t, os.WriteFile(path, f.Data, 0o600))
	}
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "") // -count=1 would keep all out of the cache
	return func(want int, args ...string) string {
		t.Helper()
		var out, errs output.Text
		if code := run(t.Context(), args, &out, &errs); code != want {
			t.Errorf("%q: code %d, want %d\n%s%s", args, code, want, &out, &errs)
		}
		return regexp.MustCompile(` +[0-9.]+m?s\b`).ReplaceAllString(out.String()+errs.String(), " TIME")
	}
}

func contains(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
}

// TestTest runs the real go command, whose output it reads. What failed once has failed, and no second run of it
// makes the command pass.
func TestTest(t *testing.T) {
	ci := enter(t)
	out := ci(1, "test", "./good", "./bad", "./empty")
	contains(t, out, "compiling tests and what they need", "ok TIME  good\n", "FAIL TIME  bad\n", "it is wrong", "failed after")
	if strings.Contains(out, "noise") || strings.Contains(out, "empty") {
		t.Errorf("what passes is printed:\n%s", out)
	}
	report := `left to make check, 2 tests:
    2  good                         an hour
left to make nightly, 1 test:
    1  good                         a day
did less than it can, 1 test:
    1  good                         1 seeds; in check 20, in nightly 300
not run here, 1 test:
    1  good                         no terminals
`
	contains(t, out, report)
	// What Go has in its cache is reported alike.
	contains(t, ci(0, "test", "./good"), "ok      cached  good\n", report, "passed in")
	contains(t, ci(0, "test", "-limit", "./good"), report, "the slowest tests:\n", "good TestQuick\n")

	contains(t, ci(1, "test", "./broken"), "undefined: testing", "compile: ")
	contains(t, ci(1, "test", "./empty"), "there are no tests in ./empty")
	contains(t, ci(1, "test", "./nothing/..."), "there is no directory ./nothing: packages are directories such as")
	contains(t, ci(1, "test", "./good", "./broken/..."), "./broken/... is in module broken, and the others in .")
	contains(t, ci(2, "tests"), `there is no command "tests": use test, check`)
	contains(t, ci(2), "no command")
	ci(2, "test", "-nothing")
	contains(t, ci(2, "check", "abuse", "everything"), `there is no step "everything": the steps are format commits`)
	contains(t, ci(2, "list", "hourly"), "name one of the tiers test, check, nightly")
}

// TestSteps: what fails is printed and fails the tier; what cannot run is skipped, and says what is missing, once more
// at the end.
func TestSteps(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		step step
		pass bool
		says string
	}{
		"passes":  {step{run: script("echo noise")}, true, "passed"},
		"fails":   {step{run: script("echo it is wrong; false; echo noise")}, false, "it is wrong\n----\n"},
		"skipped": {step{run: script("echo noise; echo npm cannot get it; exit 77")}, true, "skipped: npm cannot get it\n"},
		"missing": {step{needs: []string{"spin-of-nobody", "bash"}}, true, "skipped: spin-of-nobody is not installed"},
	} {
		var out output.Text
		c := &ci{out: &out, dir: dir}
		tc.step.name = name
		if c.step(t.Context(), "check", tc.step) != tc.pass {
			t.Errorf("%s: passed is %v", name, !tc.pass)
		}
		contains(t, out.String(), tc.says)
		if strings.Contains(out.String(), "noise") {
			t.Errorf("%s: what passes is printed:\n%s", name, &out)
		}
	}
	var out output.Text
	c := &ci{out: &out, dir: dir}
	if code := c.all(t.Context(), "check", []step{
		{name: "passes", run: script("true")},
		{name: "tier", run: script("echo passed without model in 3s")},
		{name: "kube", run: script("echo kube: 3 passed, 0 failed, 1 not run, in 3s; echo make: Leaving directory")},
		{name: "whole", run: script("echo kube: 3 passed, 0 failed, 0 not run, in 3s")},
		{name: "model", run: script("exit 77")},
		{name: "site", needs: []string{"npm-of-nobody"}},
	}); code != 0 {
		t.Errorf("with steps that are skipped: code %d", code)
	}
	contains(t, out.String(), "\npassed without parts of tier, parts of kube, model, site in ")
}

// TestOrder: nothing is compiled beside the first step, but what compiles nothing need not wait; what measures time
// runs in order.
func TestOrder(t *testing.T) {
	var order output.Text
	note := func(s step) step {
		s.run = func(*job) error { _, err := order.Write([]byte(s.name + " ")); return err }
		return s
	}
	var out output.Text
	c := &ci{out: &out, dir: t.TempDir()}
	early := make(chan struct{})
	code := c.all(t.Context(), "check", []step{
		{name: "early", early: true, run: func(*job) error { close(early); return nil }},
		note(step{name: "static"}),
		{name: compiling, timed: true, run: func(*job) error {
			<-early
			_, err := order.Write([]byte("compile "))
			return err
		}},
		{name: "chaos", timed: true, run: script("exit 3")},
		note(step{name: "abuse", timed: true}),
	})
	if got := order.String(); code != 1 || !strings.HasPrefix(got, "compile ") || len(strings.Fields(got)) != 3 {
		t.Errorf("code %d, in the order %s", code, got)
	}
	contains(t, out.String(), "chaos          FAILED: exit status 3", ": chaos\n")
}

// TestLimits: a package that takes too long fails when it is asked for, and a run that uses too much.
func TestLimits(t *testing.T) {
	c := &ci{limit: true, records: []record{{Package: "good", Test: "TestSlow", Seconds: 999}, {Package: "good", Seconds: 3.5}}}
	if err := c.exceeded("test", time.Minute); err != nil {
		t.Error(err)
	}
	c.records[1].Seconds = 61
	if err := c.exceeded("test", time.Hour); err == nil || err.Error() !=
		"good took 1m1s; the limit of a package is 1m0s\nall of it used 1h0m0s of processor time; the limit is 20m0s" {
		t.Errorf("got %v", err)
	}
	c.limit = false
	if err := c.exceeded("test", time.Hour); err != nil {
		t.Errorf("without -limit: %v", err)
	}
}

// TestKinds: make check runs the tests of each package, with the race detector where goroutines start, and those
// that do less with it once more. The go command here runs nothing.
func TestKinds(t *testing.T) {
	t.Chdir("../../..")
	real, err := exec.LookPath("go")
	fatal.If(t, err)
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	script := "#!/bin/sh\n[ $1 != list ] || exec " + real + " \"$@\"\necho \"$@\" >>" + log + "\n"
	fatal.If(t, os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var said output.Text
	j := (&ci{out: &said, dir: dir}).job(t.Context(), "check", &said)
	fatal.If(t, errors.Join(commandLine(j), raced(j), simulated(j)))
	text, err := os.ReadFile(log)
	fatal.If(t, err)
	how := map[string]string{}
	for line := range strings.Lines(string(text)) {
		with := "without "
		if strings.Contains(line, " -race ") {
			with = "race "
		}
		for _, p := range strings.Fields(line) {
			if strings.HasPrefix(p, "./") {
				how[p] += with
			}
		}
	}
	has := "{{if or .TestGoFiles .XTestGoFiles}}./{{slice .ImportPath " + strconv.Itoa(len(module)) + "}}{{end}}"
	tested, err := exec.Command(real, "list", "-f", has, "./...").Output()
	fatal.If(t, err)
	for p := range strings.FieldsSeq(string(tested)) {
		if how[p] == "" {
			t.Errorf("no step tests %s", p)
		}
	}
	for p, want := range map[string]string{
		commands:                       "without without ", // its guides beside the others
		bubbles:                        "race without ",
		"./internal/server":            "race without ", // its tests ask whether the detector is there
		"./internal/cluster":           "race ",
		"./flake":                      "race ", // a package that it imports starts goroutines
		"./internal/lease/records":     "without ",
		"./internal/lease/etcdstore":   "without ",
		"./internal/lease/protocol":    "without ",
		"./cmd/allocator/internal/ids": "race ",
	} {
		if how[p] != want {
			t.Errorf("%s is tested %q, want %q", p, how[p], want)
		}
	}
	named := simulations
	simulations = nil
	defer func() { simulations = named }()
	k, err := j.kinds()
	fatal.If(t, err)
	for _, p := range named {
		if !slices.Contains(k.raced, p) {
			t.Errorf("%s would run without the detector if simulations did not name it", p)
		}
	}
}

// TestTable: each package and program that the table names exists, and every module has a step.
func TestTable(t *testing.T) {
	t.Chdir("../../..")
	for _, p := range slices.Concat(simulations, fewLines, []string{commands, bubbles}) {
		if _, err := os.Stat(p); err != nil {
			t.Error(err)
		}
	}
	for _, p := range strings.Fields(mutated) {
		if _, err := os.Stat(p); err != nil {
			t.Error(err)
		}
	}
	seen := names("")
	for _, m := range modules() {
		if !slices.Contains(seen, strings.ReplaceAll(m, "/", "-")) {
			t.Errorf("no step tests module %s", m)
		}
	}
	slices.Sort(seen)
	if n := len(seen); n != len(slices.Compact(seen)) || n < 30 {
		t.Errorf("%d steps, and some share a name", n)
	}
	for _, s := range table() {
		for _, name := range s.needs {
			if install[name] == "" {
				t.Errorf("step %s needs %s, and nothing says how to install it", s.name, name)
			}
		}
	}
	if len(names("check"))+len(names("nightly")) != len(names("")) {
		t.Error("a step is in no tier, or in two")
	}
}

// TestNames: each test that a step or a target names is there: go test passes if nothing has the name.
func TestNames(t *testing.T) {
	for _, file := range []string{"steps.go", "../../../Makefile"} {
		text, err := os.ReadFile(file)
		fatal.If(t, err)
		all := regexp.MustCompile(`\bTest[A-Z][A-Za-z]*`).FindAllString(string(text), -1)
		for _, name := range all {
			if err := exec.Command("git", "-C", "../../..", "grep", "-q", "^func "+name+"[A-Za-z]*(", "--", "*_test.go").Run(); err != nil {
				t.Errorf("%s: there is no %s: %v", file, name, err)
			}
		}
		if len(all) < 3 {
			t.Errorf("%s: only %v", file, all)
		}
	}
}

// TestMake: a target refuses an argument that it would ignore, and one for which there is nothing.
func TestMake(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is not installed")
	}
	for args, want := range map[string]string{
		"-n lint PKG=./flake":       "lint: PKG is an argument of test race fuzz bench",
		"-n check PKG=./flake":      "check: PKG is an argument of test race fuzz bench",
		"-n chart DO=twice":         "chart: DO is an argument of image release",
		"fuzz PKG=./nothing":        "there is no fuzz target in ./nothing",
		"-n fuzz":                   "go -C $dir test", // as a directory of another module needs
		"-n test FOR=1h":            "test: FOR is an argument of sim release",
		"bench PKG=./flake":         "bench: PKG is an argument of WHAT=go",
		"-n test COUNT=20":          "test: COUNT is an argument of bench",
		"-n check TIER=nightly":     "check: TIER is an argument of test race",
		"test TIER=x PKG=./flake":   "TIER=x: there is no such tier",
		"bench WHAT=nothing":        "there is no WHAT=nothing",
		"release DO=nothing":        "there is no DO=nothing",
		"image DO=nothing":          "there is no nothing",
		"-n test PKG=./flake":       "ci test ./flake",
		"-n check STEP=model":       "ci check model",
		"-n sim STEP=x MAKELEVEL=1": "TestSim",
	} {
		cmd := exec.CommandContext(t.Context(), "make", append([]string{"-C", "../../.."}, strings.Fields(args)...)...)
		cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=0", "STEP=of-the-night")
		out, err := cmd.CombinedOutput()
		contains(t, string(out), want)
		if passes := strings.HasPrefix(args, "-n") && !strings.Contains(want, "argument"); (err == nil) != passes {
			t.Errorf("make %s: %v\n%s", args, err, out)
		}
	}
}
