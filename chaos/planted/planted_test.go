package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
)

// goPackage is a package as the go command lists it.
type goPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	ImportMap               map[string]string
}

// list returns the packages in the dirs, and all that they import, with the
// compiler's export data.
func list(t *testing.T, root string, dirs []string) map[string]goPackage {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,ImportMap"}, dirs...)...)
	cmd.Dir = filepath.Join(root, harnessDir) // its module knows its own packages and the product's
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &errs)
	}
	packages := map[string]goPackage{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p goPackage
		fatal.If(t, d.Decode(&p))
		packages[p.ImportPath] = p
	}
	return packages
}

// compiles type-checks a package with some files' text changed, as the compiler
// would: a variable that nobody uses any more is an error too.
func compiles(p goPackage, packages map[string]goPackage, changed map[string]string) error {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		at := filepath.Join(p.Dir, name)
		var src any
		if text, ok := changed[at]; ok {
			src = text
		}
		f, err := parser.ParseFile(fset, at, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	look := func(path string) (io.ReadCloser, error) {
		if to, ok := p.ImportMap[path]; ok {
			path = to
		}
		return os.Open(packages[path].Export)
	}
	cfg := types.Config{Importer: importer.ForCompiler(fset, "gc", look), GoVersion: "go1.26"}
	_, err := cfg.Check(p.ImportPath, fset, files, nil)
	return err
}

const module = "github.com/flakelease/allocator/"

// TestBugsApply: the code goes on, and the bugs have to follow it. Every bug finds
// its place, once, and names tests that exist.
func TestBugsApply(t *testing.T) {
	root, err := rootOf(".")
	fatal.If(t, err)
	bugs, err := all()
	fatal.If(t, err)
	if len(bugs) < 60 {
		t.Errorf("%d bugs: where are the others?", len(bugs))
	}
	for _, b := range bugs {
		t.Run(b.Name, func(t *testing.T) {
			if _, err := b.apply(root); err != nil {
				t.Fatal(err)
			}
			for _, c := range b.Catches {
				if dir, ok := strings.CutPrefix(c.Args[0], "./"); !ok {
					t.Errorf("%v does not begin with a package", c)
				} else if _, err := os.Stat(filepath.Join(root, dir)); err != nil {
					t.Errorf("%v: %v", c, err)
				}
				testsExist(t, root, c)
			}
			for n := range strings.SplitSeq(b.Incidents, ", ") {
				if b.Incidents != "" && !regexp.MustCompile(`^T(0[1-9]|[1-3][0-9]|4[0-4])$`).MatchString(n) {
					t.Errorf("%q is no incident", n)
				}
			}
		})
	}
}

// TestMutantsApply: a survivor whose code is gone explains nothing, and hides its return.
func TestMutantsApply(t *testing.T) {
	root, err := rootOf(".")
	fatal.If(t, err)
	raw, err := os.ReadFile(filepath.Join(root, listOfMutants))
	fatal.If(t, err)
	_, list, _ := strings.Cut(string(raw), "\n\n") // above are the comments
	for entry := range strings.SplitSeq(strings.TrimSpace(list), "\n\n") {
		file, _, _ := strings.Cut(entry, " ")
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Errorf("%s: %v", listOfMutants, err)
			continue
		}
		mutants, err := mutantsOf(file, source)
		fatal.If(t, err)
		if !slices.ContainsFunc(mutants, func(m mutant) bool {
			keys := m.keys()
			return slices.ContainsFunc(keys[:], func(key string) bool {
				return strings.HasPrefix(entry, key) && len(entry) > len(key)
			})
		}) {
			t.Errorf("%s: no mutant has this form, or no reason is given:\n%s", listOfMutants, entry)
		}
	}
}

// TestBugsCompile: what a bug makes of the code compiles.
func TestBugsCompile(t *testing.T) {
	tier.Check(t, "compiles what each bug changes")
	root, err := rootOf(".")
	fatal.If(t, err)
	bugs, err := all()
	fatal.If(t, err)
	var dirs []string
	for _, b := range bugs {
		for _, e := range b.Edits {
			dirs = append(dirs, module+path.Dir(e.File))
		}
	}
	slices.Sort(dirs)
	packages := list(t, root, slices.Compact(dirs))
	for _, b := range bugs {
		changed, err := b.apply(root)
		if err != nil {
			t.Error(err)
			continue
		}
		absolute := map[string]string{}
		var touched []string
		for file, text := range changed {
			absolute[filepath.Join(root, filepath.FromSlash(file))] = text
			touched = append(touched, module+path.Dir(file))
		}
		slices.Sort(touched)
		for _, name := range slices.Compact(touched) {
			if err := compiles(packages[name], packages, absolute); err != nil {
				t.Errorf("%s: with the bug in, %s does not compile: %v", b.Name, name, err)
			}
		}
	}
}

// testsExist checks that each test named in a -run is one of the package's: one
// that was renamed would otherwise be missed in silence, with the others.
func testsExist(t *testing.T, root string, c Catch) {
	t.Helper()
	if c.Kind == Real { // the harness refuses a fault that it does not know
		return
	}
	i := slices.Index(c.Args, "-run")
	if i < 0 || i+1 == len(c.Args) {
		t.Errorf("%v: which test?", c)
		return
	}
	var source strings.Builder
	files, _ := filepath.Glob(filepath.Join(root, c.Args[0], "*_test.go"))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		fatal.If(t, err)
		source.Write(raw)
	}
	for name := range strings.SplitSeq(c.Args[i+1], "|") {
		name, _, _ = strings.Cut(strings.TrimSuffix(name, "$"), "/")
		if !strings.Contains(source.String(), "\nfunc "+name) {
			t.Errorf("%v: %s has no test %s", c, c.Args[0], name)
		}
	}
}

// TestCompilesNotices: the check above would be worth nothing if it passed all.
func TestCompilesNotices(t *testing.T) {
	tier.Check(t, "compiles a package")
	root, err := rootOf(".")
	fatal.If(t, err)
	packages := list(t, root, []string{module + "flake"})
	p := packages[module+"flake"]
	fatal.If(t, compiles(p, packages, nil))
	for text, want := range map[string]string{
		"package flake\nfunc init() { unused := 1 }\n": "declared and not used",
		"package flake\nvar x string = 1\n":            "cannot use 1",
		"package flake\nfunc {":                        "expected",
	} {
		changed := map[string]string{filepath.Join(p.Dir, p.GoFiles[0]): text}
		if err := compiles(p, packages, changed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// TestApplyRefuses: a bug that finds no place, or two, or part of a line, changes
// nothing.
func TestApplyRefuses(t *testing.T) {
	root := t.TempDir()
	fatal.If(t, os.WriteFile(filepath.Join(root, "f.go"),
		[]byte("package f\n\tone()\n\ttwo()\n\tif two() {\n\ttwo()\n"), 0o600))
	for _, tc := range []struct{ old, new, want string }{
		{"\tone()\n", "\tother()\n", ""},
		{"\ttwo()\n", "", "occurs 2 times"},
		{"one()\n", "", "occurs 0 times"}, // not from a line's beginning
		{"\tone()\n", "\tone()\n", "changes nothing"},
		{"", "x\n", "changes nothing"},
	} {
		b := Bug{Name: "b", Edits: []Edit{{"f.go", tc.old, tc.new}}}
		changed, err := b.apply(root)
		switch {
		case tc.want == "" && (err != nil || !strings.Contains(changed["f.go"], "\n\tother()\n\ttwo()\n")):
			t.Errorf("%q: %v, %q", tc.old, err, changed)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%q: got %v, want %q", tc.old, err, tc.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	const head = "says: x.\nbreaks: I1\nunit: ./flake -run TestX\n"
	const edit = "-- old f.go --\na\n-- new --\nb\n"
	if b, err := parse("b", []byte(head+edit)); err != nil || len(b.Edits) != 1 || b.Edits[0] != (Edit{"f.go", "a\n", "b\n"}) {
		t.Errorf("a sound bug: %v, %+v", err, b)
	}
	for text, want := range map[string]string{
		head:                             "changes nothing",
		head + "-- old f.go --\na\n":     "changes nothing",
		head + "-- new --\na\n":          "pairs",
		head + "-- old f.go --\n" + edit: "pairs",
		"breaks: I1\n" + edit:            "does not say",
		"says: x.\nbreaks: I1\n" + edit:  "no test",
		"nowhere: x\n" + head + edit:     "no kind",
		"says\n" + head + edit:           "not of the form key: value",
	} {
		if _, err := parse("b", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// TestRead: what counts as caught, and what is a failure of the harness.
func TestRead(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	stream := func(events ...event) *bytes.Buffer {
		var b bytes.Buffer
		for _, e := range append([]event{{Time: began, Action: "start"}}, events...) {
			if e.Time.IsZero() {
				e.Time = began.Add(1500 * time.Millisecond)
			}
			fatal.If(t, json.NewEncoder(&b).Encode(e))
		}
		return &b
	}
	line := func(test, text string) event { return event{Action: "output", Test: test, Output: text + "\n"} }
	fail := func(test string) event { return event{Action: "fail", Test: test} }
	for name, tc := range map[string]struct {
		in   *bytes.Buffer
		want Finding
	}{
		"a violation": {
			stream(line("TestA/b", "    a_test.go:7: seed 12: I1: twice"), line("TestA/b", "--- FAIL: TestA/b (0.1s)"), fail("TestA/b"), fail("TestA"), fail("")),
			Finding{Outcome: Caught, Test: "TestA/b", Seed: "12", After: 1500 * time.Millisecond, Says: "seed 12: I1: twice"},
		},
		"told by a helper": {stream(line("TestA", "    contract.go:7: got 1, want 2"), fail("TestA"), fail("")), Finding{Outcome: Caught, Test: "TestA", After: 1500 * time.Millisecond, Says: "got 1, want 2"}},
		"of fewer than in other tiers": {
			stream(line("TestA", "    a_test.go:7: tier test: 60 schedules; in check 300, in nightly 3000"), line("TestA", "    a_test.go:9: I1: twice"), fail("TestA"), fail("")),
			Finding{Outcome: Caught, Test: "TestA", After: 1500 * time.Millisecond, Says: "I1: twice"},
		},
		"nothing":            {stream(event{Action: "pass", Test: "TestA"}, event{Action: "pass"}), Finding{Outcome: Missed}},
		"a thin run":         {stream(line("TestA", "    a_test.go:7: seeds 1 to 9"), line("TestA", "    a_test.go:8: unknown: 9 seeds never reached x"), fail("TestA"), fail("")), Finding{Outcome: Missed}},
		"without a word":     {stream(line("TestA", "--- FAIL: TestA"), fail("TestA"), fail("")), Finding{Outcome: Unknown, Says: "it failed without a message"}},
		"a claim by panic":   {stream(line("TestA", "panic: node: grant is none [recovered]"), fail("TestA"), fail("")), Finding{Outcome: Caught, Test: "TestA", After: 1500 * time.Millisecond, Says: "node: grant is none [recovered]"}},
		"any other panic":    {stream(line("TestA", "panic: runtime error: index out of range"), fail("TestA"), fail("")), Finding{Outcome: Unknown, Says: "it failed without a message"}},
		"it hangs":           {stream(line("TestA", "panic: test timed out after 1m40s"), fail("TestA"), fail("")), Finding{Outcome: Unknown, Says: "panic: test timed out after 1m40s"}},
		"it does not build":  {stream(event{Action: "build-output", Output: "# pkg\n"}, event{Action: "build-output", Output: "f.go:1: x declared and not used\n"}, event{Action: "fail", FailedBuild: "pkg"}), Finding{Outcome: Unknown, Says: "does not compile: f.go:1: x declared and not used"}},
		"there is no such t": {&bytes.Buffer{}, Finding{Outcome: Unknown, Says: "no test was run"}},
		"no test is so named": {
			stream(line("", "testing: warning: no tests to run"), event{Action: "pass"}),
			Finding{Outcome: Unknown, Says: "no test was run"},
		},
	} {
		if got := read(tc.in); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

// TestReadReal: a claim that broke counts, and nothing else that a run can end with.
func TestReadReal(t *testing.T) {
	for results, want := range map[string]Finding{
		`{"verdict":"fail","seed":7,"checks":[{"check":"order","verdict":"pass"},{"check":"unique","verdict":"fail","violations":[{"claim":"I1","detail":"twice","at_ns":2000000000}]}]}`: {Outcome: Caught, Test: "unique", Seed: "7", After: 2 * time.Second, Says: "I1: twice"},
		// Violations found at the end have no time; of the others the earliest counts.
		`{"verdict":"fail","seed":7,"checks":[{"check":"reserved","verdict":"fail","violations":[{"claim":"I3","detail":"at the end"}]},` +
			`{"check":"intervals","verdict":"fail","violations":[{"claim":"I4","detail":"late","at_ns":9000000000}]},` +
			`{"check":"confirmed","verdict":"fail","violations":[{"claim":"I3","detail":"soon","at_ns":3000000000}]}]}`: {Outcome: Caught, Test: "reserved, intervals, confirmed", Seed: "7", After: 3 * time.Second, Says: "I3: soon"},
		// What the machine's being late explains has found nothing.
		`{"verdict":"unknown","why":["this machine was late"],"checks":[{"check":"refusals","verdict":"fail","violations":[{"claim":"no false refusal","detail":"late","at_ns":1}]}]}`: {Outcome: Unknown, Says: "unknown; this machine was late"},
		`{"verdict":"pass","seed":7}`: {Outcome: Missed},
		`{"verdict":"fail","why":["a client broke"],"checks":[{"check":"unique","verdict":"pass"}]}`: {Outcome: Unknown, Says: "fail; a client broke"},
		`{"verdict":"unknown","why":["no fault injected"]}`:                                          {Outcome: Unknown, Says: "unknown; no fault injected"},
	} {
		if got, err := readReal([]byte(results)); err != nil || got != want {
			t.Errorf("%s\ngot %+v, %v\nwant %+v", results, got, err, want)
		}
	}
	if got, _ := readReal([]byte("{")); got.Outcome != Unknown {
		t.Errorf("half a file: %+v", got)
	}
}

// TestPlantedNotIn: a bug that never gets into the program is not taken for one that
// nothing catches.
func TestPlantedNotIn(t *testing.T) {
	tier.Check(t, "builds the release twice")
	root, err := rootOf(".")
	fatal.If(t, err)
	dir := t.TempDir()
	list, err := overlay(root, dir, nil)
	fatal.If(t, err)
	if err := planted(t.Context(), root, dir, list); !errors.Is(err, errNotIn) {
		t.Errorf("the same program twice: got %v, want %v", err, errNotIn)
	}
}

// TestTable: one line for each test of each bug.
func TestTable(t *testing.T) {
	b := Bug{Name: "off", Says: "It is off.", Breaks: "I1", Incidents: "T01"}
	c := Catch{Kind: Unit, Args: []string{module + "flake"}}
	results := []Result{
		{b, c, Finding{Caught, "TestA/x|y", "7", "check", 1234 * time.Millisecond, "I1: twice"}},
		{b, Catch{Kind: Sim}, Finding{Outcome: Missed}},
		{b, Catch{Kind: Real, Args: []string{"./chaos/real", "--fault", "kill"}}, Finding{Outcome: Missed}},
	}
	page := filepath.Join(t.TempDir(), "new", "page.md")
	fatal.If(t, writeTable(page, []Bug{b}, results, time.Minute))
	raw, err := os.ReadFile(page)
	fatal.If(t, err)
	for _, want := range []string{
		"1 caught, 2 missed, 0 unknown",
		"| **off**: It is off. | I1 | T01 | unit | check | 1.2 | `TestA/x\\|y`, seed 7 | I1: twice |\n",
		"|  |  |  | sim |  |  | MISSED |  |\n",
		"|  |  |  | real, `--fault kill` |  |  | MISSED |  |\n",
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("no %q in\n%s", want, raw)
		}
	}
}
