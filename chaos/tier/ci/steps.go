package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
	tier.Names[0]: {time.Minute, 20 * time.Minute},
	tier.Names[1]: {10 * time.Minute, 75 * time.Minute},
}

// lint are the steps that only read the code.
var lint = []string{"format", "vet", "static", "commits"}

// commands is the package of the command line, which starts processes that are built without the race detector.
const commands = "./cmd/allocator"

// bubbles is a package that runs twice, too, and that the race detector sees on one processor: the timers of a
// bubble of testing/synctest share one context of the detector, and two threads that look at their channels at once
// corrupt it (Go 1.26; a SIGSEGV outside Go code). Its time is virtual.
const bubbles = "./chaos/virtual"

// simulations run for minutes in one goroutine, though what they import starts others, and with the race detector for
// ten times as long, which is more than the limit of a package. A step of make nightly tests parts of chaos/agreement
// and internal/lease/protocol with it.
var simulations = []string{
	"./chaos/agreement", "./chaos/archtest", "./chaos/play/player", "./chaos/sim", "./internal/lease/protocol",
}

// kinds are the packages of the root that have tests. In a package of one goroutine the race detector finds nothing.
// Where tests start members of etcd, etcd's server would be compiled once more and run ten times as slowly, to check
// the code of etcd; our code has the detector at night.
type kinds struct {
	raced, single, etcd []string
	twice               []string // These do less with the detector, and are in raced, too.
}

// kinds sorts the packages of the root by what their tests depend on: the network, packages whose text starts
// goroutines. Neither commands nor bubbles are in any kind.
func (j *job) kinds() (k kinds, err error) {
	out, err := j.goCommand(false, "list", "-test", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...").Output()
	if err != nil {
		return kinds{}, fmt.Errorf("list packages: %w", err)
	}
	concurrent := map[string]bool{"net": true}
	for _, f := range files("grep", "--untracked", "-lE",
		`(^|[{;[:space:]])go [A-Za-z_][A-Za-z_0-9.]*(\[[^]]*\][A-Za-z_0-9.]*)?\(|`+
			`\.(Go|Parallel|RunParallel)\(|AfterFunc\(`, "--", "*.go") {
		p := module + filepath.Dir(f)
		if strings.HasSuffix(f, "_test.go") {
			p += ".test" // No other package runs it.
		}
		concurrent[p] = true
	}
	if len(concurrent) == 1 {
		return kinds{}, errors.New("git grep finds no goroutine: run this in a clone of the repository, with git")
	}
	less := files("grep", "--untracked", "-lF", "tier.Raced", "--", "*_test.go")
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		dir, ok := strings.CutSuffix(strings.TrimPrefix(words[0], module), ".test")
		p := "./" + dir
		switch {
		case !ok, p == commands, p == bubbles:
		case slices.Contains(words, "go.etcd.io/etcd/server/v3/embed"):
			k.etcd = append(k.etcd, p)
		case slices.Contains(simulations, p), !slices.ContainsFunc(words, func(w string) bool { return concurrent[w] }):
			k.single = append(k.single, p)
		default:
			k.raced = append(k.raced, p)
			if slices.ContainsFunc(less, func(f string) bool { return filepath.Dir(f) == dir }) {
				k.twice = append(k.twice, p)
			}
		}
	}
	return k, nil
}

// fewLines are modules of few lines with much to link, which staticcheck reads for minutes: that is for the night.
var fewLines = []string{"chaos/kube", "deploy"}

// mutated are the packages of which a night tries some mutants.
const mutated = "internal/gen internal/lease internal/lease/repair internal/lease/keeper internal/lease/catalog " +
	"internal/lease/protocol internal/clock internal/agreement internal/node internal/worker internal/worker/broker " +
	"internal/server/quota internal/status/feed internal/operate internal/daemon internal/server/resp " +
	"internal/server/respserver internal/server/console internal/daemon/agent internal/unixsocket internal/wire " +
	"client embed worker cmd/allocator/internal/ids/adopt"

// format names files that gofmt would change.
const format = `
bad=$(git ls-files -z '*.go' ':!*.pb.go' | xargs -0 gofmt -l)
[ -z "$bad" ] || { echo "not formatted, run gofmt -w on:"; echo "$bad"; exit 1; }`

// script returns what runs a shell script.
func script(text string) func(*job) error { return func(j *job) error { return j.sh(text) } }

// tool returns the line of a script that builds a tool of module tools.
func tool(path string) string {
	return fmt.Sprintf("go -C tools build -o \"$PWD/bin/tools/%s\" %s\n", filepath.Base(path), path)
}

// each returns the lines of a script that run a command in the directories of modules, and go on when it fails.
func each(command string, modules ...string) string {
	return "root=$PWD; failed=\nfor m in " + strings.Join(modules, " ") + "; do\n" +
		`echo "== $m"; (cd "$m"; ` + command + `) || failed="$failed $m"` +
		"\ndone\n[ -z \"$failed\" ] || { echo \"failed in$failed\"; exit 1; }"
}

// static returns what runs staticcheck in modules.
func static(modules ...string) string {
	return tool("honnef.co/go/tools/cmd/staticcheck") + each(`"$root/bin/tools/staticcheck" ./...`, modules...)
}

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
	all := append([]string{"."}, modules()...)
	large := slices.DeleteFunc(slices.Clone(all), func(m string) bool { return slices.Contains(fewLines, m) })
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
	for _, m := range all[1:] {
		timed := m == "chaos/real" || m == "examples"
		out = append(out, step{name: strings.ReplaceAll(m, "/", "-"), timed: timed, run: moduleTests(m)})
	}
	return append(out, []step{
		{name: "chaos", timed: true, run: func(j *job) error {
			err := j.sh(`
go -C chaos/real build -o "$PWD/bin/chaos" .
rm -rf bin/chaos-ci
code=0; bin/chaos run --for 60s --dir bin/chaos-ci || code=$?
# A machine that was late is no defect: the step is listed as one that did not run. At night the soak fails.
[ $code != 3 ] || { echo "no verdict: the run shows nothing, and its report says what was unknown"; exit 77; }
exit $code`)
			var run struct{ Level, Undecided string }
			text, _ := os.ReadFile("bin/chaos-ci/results.json")
			_ = json.Unmarshal(text, &run) // A run without results has failed.
			for _, l := range []string{"loopback only", "no clock faults"} {
				if strings.Contains(run.Level, l) {
					j.ci.leave("some real faults (" + l + ")")
				}
			}
			if _, ok := errors.AsType[skipped](err); ok && run.Undecided != "" {
				return fmt.Errorf("%s is unknown, though this machine was never late", run.Undecided)
			}
			return err
		}},
		{name: "abuse", timed: true, run: script(`
go -C chaos/real build -o "$PWD/bin/abuse" ./abuse && bin/abuse --short --for 4s`)},
		{name: "vet", run: script(each("go vet ./...", all...))},
		{name: "static", run: script(tool("github.com/rhysd/actionlint/cmd/actionlint") +
			"bin/tools/actionlint .github/workflows/*.yml\n" + static(large...))},
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
			k, err := j.kinds()
			if err != nil {
				return err
			}
			for _, args := range [][]string{
				{"-cpu", "1", "./chaos/agreement", "-run",
					"TestStart|TestDuplicate|TestReportedRevision|TestTwoDisagree"},
				{"./internal/lease/protocol", "-seeds", "60", "-skip", "TestEveryCallFails"},
				k.etcd,
			} {
				if err := j.test(true, args...); err != nil {
					return err
				}
			}
			j.dir = "chaos/real"
			return j.test(true, "-count", "1", "./...")
		}},
		{name: "night-static", run: script(static(fewLines...))},
		{name: "night-sim", run: script("make sim FOR=1h")},
		{name: "night-soak", run: script("make chaos ARGS='soak --for 2h'")},
		{name: "night-inside", run: script("make chaos ARGS='soak --for 10m --etcd inside'")},
		{name: "night-workers", run: tests("chaos/real",
			"-count", "1", "-timeout", "30m", "./workers", "-ids", "10000000")},
		{name: "night-abuse", run: script("make abuse ARGS='--for 8s' && make abuse ARGS='--for 8s --memory 512'")},
		{name: "night-model", needs: []string{"spin", "gcc"}, run: script("make model")},
		{name: "night-bugs", run: script("go run ./chaos/planted")},
		{name: "night-mutation", run: script(`
go build -o bin/planted ./chaos/planted; failed=0
for p in ` + mutated + `; do
	bin/planted -mutate ./$p -limit 20 -seed $(date +%Y%m%d) || failed=1
done
exit $failed`)},
		{name: "night-fuzz", run: script("make fuzz")},
		{name: "night-image", run: script("make image DO=twice")},
		{name: "night-release", run: script("make release DO=snapshot && make release DO=test")},
		{name: "night-compose", run: script("make image && deploy/compose-test.sh")},
		{name: "night-chart", run: script("deploy/helm/chart-test.sh\ndeploy/monitoring/test.sh")},
		{name: "night-kube", run: script("make kube")},
		{name: "night-console", run: tests("chaos/real", "-count", "1", "-timeout", "60m", "./console", "-long")},
		{name: "night-docs", needs: []string{"npm"}, run: func(j *job) error {
			j.env = append(j.env, "DOCS_BASE=/")
			if err := j.sh("make docs"); err != nil {
				return err
			}
			return testSite(j, "-long")
		}},
	}
	for i := range out {
		out[i].night, out[i].timed = true, true
	}
	return out
}

// detector says whether the race detector can be used, which needs a C compiler.
func detector(j *job) bool {
	_, err := exec.LookPath("gcc")
	if err != nil {
		j.ci.leave("the race detector, which needs gcc (Debian: apt-get install gcc)")
	}
	return err == nil
}

// compileAll compiles the tests of all steps of make check.
func compileAll(j *job) error {
	k, err := j.kinds()
	if err != nil {
		return err
	}
	if err := j.compile(false, slices.Concat(k.single, k.etcd, k.twice, []string{commands, bubbles})...); err != nil {
		return err
	}
	if err := j.compile(detector(j), append(k.raced, bubbles)...); err != nil {
		return err
	}
	for _, m := range modules() {
		if j.dir = m; j.compile(false, "./...") != nil {
			return fmt.Errorf("module %s does not compile", m)
		}
	}
	return nil
}

// commandLine tests the command line, whose processes measure time. Beside its other tests run the guides, which
// wait for minutes and hardly use the processor: Go begins those when the tests that are not parallel have ended.
func commandLine(j *job) error {
	const guides = "^TestGuide$"
	other := make(chan error)
	go func() { other <- j.test(false, commands, "-run", guides) }()
	return errors.Join(j.test(false, commands, "-skip", guides), <-other)
}

// simulated tests what measures no real time.
func simulated(j *job) error {
	k, err := j.kinds()
	if err != nil {
		return err
	}
	return errors.Join(
		j.test(false, append(k.single, "-p", "2")...),
		j.test(detector(j), bubbles, "-cpu", "1"),
		j.test(false, bubbles))
}

// raced tests all other packages with the race detector, and those with etcd without it.
func raced(j *job) error {
	k, err := j.kinds()
	if err != nil {
		return err
	}
	return errors.Join(
		j.test(detector(j), append(k.raced, "-p", "2")...),
		j.test(false, append(slices.Concat(k.etcd, k.twice), "-p", "2")...))
}

// moduleTests tests a module besides the root. Its tests read files outside of it, which Go's test cache ignores.
// Those of the site are a step of their own.
func moduleTests(dir string) func(*job) error {
	return func(j *job) error {
		j.dir = dir
		out, err := j.goCommand(false, "list", "./...").Output()
		if err != nil {
			return fmt.Errorf("list packages: %w", err)
		}
		packages := slices.DeleteFunc(strings.Fields(string(out)), func(p string) bool {
			return p == module+"deploy/site"
		})
		return j.test(false, append(packages, "-count", "1")...)
	}
}
