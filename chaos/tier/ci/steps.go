package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/tier"
)

// A step is what `make check` or `make nightly` runs and reports as one.
type step struct {
	name  string
	night bool     // It is one of make nightly, and not of make check.
	timed bool     // It measures real time, so no other such step runs beside it.
	early bool     // It compiles nothing, and need not wait until all tests are compiled.
	needs []string // programs
	run   func(*job) error
}

func (s step) in(name string) bool { return name == "" || s.night == (name == "nightly") }

// names returns the names of the steps of a tier; of all, if it is empty.
func names(of string) (out []string) {
	for _, s := range table() {
		if s.in(of) {
			out = append(out, s.name)
		}
	}
	return out
}

// install says for each program that a step may need, and Go does not come with, how Debian installs it.
var install = map[string]string{
	"gcc":  "apt-get install gcc",
	"spin": "apt-get install spin", "protoc": "apt-get install protobuf-compiler", "npm": "apt-get install npm",
}

// missing says which programs a step needs that are not installed, or nothing.
func (s step) missing() string {
	var out []string
	for _, name := range s.needs {
		if _, err := exec.LookPath(name); err != nil {
			out = append(out, fmt.Sprintf("%s is not installed (Debian: %s)", name, install[name]))
		}
	}
	return strings.Join(out, ", ")
}

// limits of tiers at night, when nothing is in Go's test cache: of one package, and of the processor time of the whole
// run. Machines differ in how many processors they have, and in what else these do.
var limits = map[string]struct{ each, used time.Duration }{
	tier.Names[0]: {time.Minute, 15 * time.Minute},
	tier.Names[1]: {10 * time.Minute, 75 * time.Minute},
}

// lint are the steps that only read the code.
var lint = []string{"format", "vet", "static", "commits"}

// commands is the package of the command line, which starts processes that are built without the race detector.
const commands = "./cmd/allocator"

// unraced are other packages that make check tests without the race detector. Most run in one goroutine, where
// it finds nothing and costs tenfold; none measures real time. A step of make nightly tests parts of
// chaos/agreement and internal/lease/protocol with it.
var unraced = []string{
	"./chaos/agreement", "./chaos/archtest", "./chaos/build", "./chaos/planted", "./chaos/play/player", "./chaos/sim",
	"./cmd/allocator/internal/ids/adopt", "./internal/audit", "./internal/describe", "./internal/inside/member",
	"./internal/lease/protocol",
}

// withEtcd are packages whose tests start members of etcd in their own process. With the race detector etcd's
// server would be compiled once more and run ten times as slowly, to check the code of etcd; our code has it at night.
var withEtcd = []string{
	"./chaos/etcdsim", "./cmd/allocator/internal/dev", "./cmd/allocator/internal/etcd",
	"./cmd/allocator/internal/etcdpod", "./internal/inside",
	"./internal/inside/etcdserver", "./internal/inside/meet", "./internal/lease/etcdstore",
}

// alone are long tests of one goroutine, in packages whose other tests run with the race detector, which would find
// nothing in them and makes them take ten times as long.
const alone = "^(TestOracle|TestHistories)$"

var withAlone = []string{"./internal/gen", "./internal/clock"}

// twice are packages whose tests do less with the race detector, or cannot measure with it: they run without it, too.
var twice = []string{"./internal/server", "./internal/server/grpcserver"}

// bubbles are packages that run twice, too, and that the race detector sees on one processor: the timers of a
// bubble of testing/synctest share one context of the detector, and two threads that look at their channels at once
// corrupt it (Go 1.26; a SIGSEGV outside Go code). Their time is virtual.
var bubbles = []string{"./chaos/virtual"}

// fewLines are modules of few lines with much to link, which staticcheck reads for minutes: that is for the night.
var fewLines = []string{"chaos/kube", "deploy"}

// mutated are the packages of which a night tries some mutants.
var mutated = "gen lease lease/repair lease/keeper lease/catalog lease/protocol clock agreement node worker " +
	"worker/broker server/quota status/feed operate daemon server/resp server/respserver server/console daemon/agent " +
	"unixsocket wire ../client ../embed ../worker ../cmd/allocator/internal/ids/adopt"

// format names files that gofmt would change.
const format = `
bad=$(git ls-files -z '*.go' ':!*.pb.go' | xargs -0 gofmt -l)
[ -z "$bad" ] || { echo "not formatted, run gofmt -w on:"; echo "$bad"; exit 1; }`

// script returns what runs a shell script.
func script(text string) func(*job) error { return func(j *job) error { return j.sh(text) } }

// tests returns what tests packages of the module in dir.
func tests(dir string, args ...string) func(*job) error {
	return func(j *job) error {
		j.dir = dir
		return j.test(false, args...)
	}
}

// testSite tests the site that make docs has built.
func testSite(j *job, args ...string) error {
	if err := tests("deploy", "-count", "1", "./site")(j); err != nil {
		return err
	}
	j.dir = "chaos/real"
	args = append([]string{"-count", "1", "-timeout", "30m", "./console", "-run", "TestSite"}, args...)
	return j.test(false, args...)
}

func table() []step {
	return slices.Concat(checks(), nights())
}

// compiling is the step that others wait for.
const compiling = "compile"

// checks are the steps of make check. Those that measure time run in this order.
func checks() []step {
	out := []step{
		{name: "format", early: true, run: script(format)},
		{name: "commits", early: true, run: script("tools/check-commits")},
		{name: "openapi", early: true, needs: []string{"npm"}, run: script(`
redocly="npm exec --yes --package @redocly/cli@1.34.5 -- redocly"; export REDOCLY_TELEMETRY=off
$redocly --version >/dev/null 2>&1 || { echo "npm cannot get @redocly/cli"; exit 77; }
mkdir -p bin
$redocly lint --max-problems 0 --format summary api/openapi.yaml 2>&1 | tee bin/redocly.txt
! grep -Eq '[1-9][0-9]* (warning|error)|[1-9][0-9]* problem' bin/redocly.txt`)},
		{name: "model", early: true, needs: []string{"spin", "gcc"}, run: script("chaos/model/run.sh short")},
		{name: compiling, timed: true, run: compileAll},
		{name: "commands", timed: true, run: commandLine},
		{name: "race", timed: true, run: raced},
		{name: "simulated", run: simulated},
	}
	for _, m := range modules() {
		timed := m == "chaos/real" || m == "examples"
		out = append(out, step{name: strings.ReplaceAll(m, "/", "-"), timed: timed, run: moduleTests(m)})
	}
	return append(out, []step{
		{name: "chaos", timed: true, run: script(`
go -C chaos/real build -o "$PWD/bin/chaos" .
rm -rf bin/chaos-ci
code=0; bin/chaos run --for 60s --dir bin/chaos-ci || code=$?
# A machine that stalled is no defect: the step is listed as one that did not run. At night the soak fails.
[ $code != 3 ] || { echo "no verdict: the run shows nothing, and its report says what was unknown"; exit 77; }
exit $code`)},
		{name: "abuse", timed: true, run: script(`
go -C chaos/real build -o "$PWD/bin/abuse" ./abuse && bin/abuse --short --for 4s`)},
		{name: "vet", run: each(func(j *job) error { return j.command("go", "vet", "./...").Run() })},
		{name: "static", run: func(j *job) error {
			build := tool("actionlint", "github.com/rhysd/actionlint/cmd/actionlint")
			if err := j.sh(build + "bin/tools/actionlint .github/workflows/*.yml"); err != nil {
				return err
			}
			return static(j, false)
		}},
		{name: "contracts", run: script("tools/contracts")},
		{name: "generated", needs: []string{"protoc"}, run: script(`
# Not in bin, where tests that read all sources would find it.
out=$(mktemp -d) && trap 'rm -rf "$out"' EXIT && tools/gen "$out"
# The version of protoc itself is in the files, and need not be ours.
for f in allocator.pb.go allocator_grpc.pb.go; do
	diff -u -I '^//.*protoc  *v' api/allocator/v1/$f "$out/api/allocator/v1/$f" || { echo "run make gen"; exit 1; }
done`)},
		{name: "site", needs: []string{"npm"}, run: func(j *job) error {
			j.env = append(j.env, "DOCS_BASE=/allocator/")
			if err := j.sh(`make bin/site/installed || { echo "npm cannot get its packages"; exit 77; }
make docs`); err != nil {
				return err
			}
			return testSite(j)
		}},
	}...)
}

// nights are the steps of make nightly: what finds more the longer it runs, and how long the other tiers take.
// They run one after the other.
func nights() []step {
	out := []step{
		{name: "night-test", run: script("TIER=test GOFLAGS=-count=1 go run ./chaos/tier/ci test -limit")},
		{name: "night-check", run: script("TIER=check GOFLAGS=-count=1 go run ./chaos/tier/ci check -limit")},
		{name: "night-tests", run: tests(".", "-count", "1", "-timeout", "3h", "./...")},
		{name: "night-race", needs: []string{"gcc"}, run: func(j *job) error {
			for _, args := range [][]string{
				{"-cpu", "1", "./chaos/agreement", "-run",
					"TestStart|TestDuplicate|TestReportedRevision|TestTwoDisagree"},
				{"./internal/lease/protocol", "-seeds", "60", "-skip", "TestEveryCallFails"},
				withEtcd,
			} {
				if err := j.test(true, args...); err != nil {
					return err
				}
			}
			j.dir = "chaos/real"
			return j.test(true, "-count", "1", "./...")
		}},
		{name: "night-static", run: func(j *job) error { return static(j, true) }},
		{name: "night-sim", run: script("make sim FOR=1h")},
		{name: "night-soak", run: script("make chaos ARGS='soak --for 2h'")},
		{name: "night-inside", run: script("make chaos ARGS='soak --for 10m --etcd inside'")},
		{name: "night-workers", run: tests("chaos/real",
			"-count", "1", "-timeout", "30m", "./workers", "-ids", "10000000")},
		{name: "night-abuse", run: script("make abuse ARGS='--for 8s' && make abuse ARGS='--for 8s --memory 512'")},
	}
	out = append(out, []step{
		{name: "night-model", needs: []string{"spin", "gcc"}, run: script("make model")},
		{name: "night-bugs", run: script("go run ./chaos/planted")},
		{name: "night-mutation", run: script(`
go build -o bin/planted ./chaos/planted; failed=0
for p in ` + mutated + `; do
	bin/planted -mutate ./$(realpath -m --relative-to . internal/$p) -limit 20 -seed $(date +%Y%m%d) || failed=1
done
exit $failed`)},
		{name: "night-fuzz", run: script("make fuzz")},
		{name: "night-image", run: script("make image DO=twice")},
		{name: "night-release", run: script("make release DO=snapshot && make release DO=test")},
		{name: "night-compose", run: script("make image && deploy/compose-test.sh")},
		{name: "night-chart", run: script("make chart")},
		{name: "night-kube", run: script("make kube")},
		{name: "night-console", run: tests("chaos/real", "-count", "1", "-timeout", "60m", "./console", "-long")},
		{name: "night-docs", needs: []string{"npm"}, run: func(j *job) error {
			j.env = append(j.env, "DOCS_BASE=/")
			if err := j.sh("make docs"); err != nil {
				return err
			}
			return testSite(j, "-long")
		}},
	}...)
	for i := range out {
		out[i].night, out[i].timed = true, true
	}
	return out
}

// detector says whether the race detector can be used, which needs a C compiler.
func detector(j *job) bool {
	_, err := exec.LookPath("gcc")
	if err != nil {
		_, _ = fmt.Fprintln(j.out, "without the race detector, which needs gcc (Debian: apt-get install gcc)")
	}
	return err == nil
}

// compileAll compiles the tests of all steps of make check.
func compileAll(j *job) error {
	without := slices.Concat(unraced, withEtcd, []string{commands})
	rest, err := j.packages(without...)
	if err != nil {
		return err
	}
	if err := j.compile(false, slices.Concat(without, bubbles, withAlone, twice)...); err != nil {
		return err
	}
	if err := j.compile(detector(j), rest...); err != nil {
		return err
	}
	for _, m := range modules() {
		if j.dir = m; j.compile(false, "./...") != nil {
			return fmt.Errorf("module %s does not compile", m)
		}
	}
	return nil
}

// guides are tests of the command line that wait for minutes and hardly use the processor. Go begins them when
// those that do not run in parallel have ended.
const guides = "^TestGuide$"

// commandLine tests the command line, whose processes measure time, with its guides beside the other tests.
func commandLine(j *job) error {
	other := make(chan error)
	go func() { other <- j.test(false, commands, "-run", guides) }()
	return errors.Join(j.test(false, commands, "-skip", guides), <-other)
}

// simulated tests what takes all of a processor, in time of its own.
func simulated(j *job) error {
	return errors.Join(
		j.test(false, append([]string{"-p", "2"}, unraced...)...),
		j.test(false, append([]string{"-run", alone}, withAlone...)...),
		j.test(detector(j), append([]string{"-cpu", "1"}, bubbles...)...),
		j.test(false, bubbles...))
}

// raced tests all other packages with the race detector, and those with etcd without it.
func raced(j *job) error {
	rest, err := j.packages(slices.Concat(unraced, withEtcd, bubbles, []string{commands})...)
	if err != nil {
		return err
	}
	return errors.Join(
		j.test(detector(j), append([]string{"-p", "2", "-skip", alone}, rest...)...),
		j.test(false, slices.Concat([]string{"-p", "2"}, withEtcd, twice)...))
}

// moduleTests tests a module besides the root. Its tests read files outside of it, which Go's test cache ignores.
// Those of the site are a step of their own.
func moduleTests(dir string) func(*job) error {
	return func(j *job) error {
		j.dir = dir
		packages, err := j.packages("./site")
		if err != nil || len(packages) == 0 {
			return err
		}
		return j.test(false, append([]string{"-count", "1"}, packages...)...)
	}
}

// tool returns the line of a script that builds a tool of module tools.
func tool(name, path string) string {
	return fmt.Sprintf("go -C tools build -o \"$PWD/bin/tools/%s\" %s\n", name, path)
}

// each returns what runs something in the directory of each module.
func each(f func(*job) error) func(*job) error {
	return func(j *job) error {
		var failed error
		for _, m := range append([]string{"."}, modules()...) {
			_, _ = fmt.Fprintf(j.out, "== %s\n", m)
			if j.dir = m; f(j) != nil {
				failed = fmt.Errorf("module %s", m)
			}
		}
		return failed
	}
}

// static runs staticcheck in the modules of many lines, or in those of few.
func static(j *job, few bool) error {
	if err := j.sh(tool("staticcheck", "honnef.co/go/tools/cmd/staticcheck")); err != nil {
		return err
	}
	program, err := filepath.Abs("bin/tools/staticcheck")
	if err != nil {
		return err
	}
	return each(func(j *job) error {
		if slices.Contains(fewLines, j.dir) != few {
			return nil
		}
		return j.command(program, "./...").Run()
	})(j)
}
