package archtest

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

var lower = flag.Bool("lower", false, "write the present numbers into style.txt where they are lower than its limits")

// widest is the last column of a line that is not a test's. A tab has four columns.
const widest = 120

// fragment matches a comment that leaves open what it is about.
var fragment = regexp.MustCompile(`^//\s*(of|that|which|how|the same)\b`)

// faults are the lines of a file that break a rule of layout, as "name:line".
type faults struct {
	wide      []string // lines that go beyond the widest column
	fragments []string // comments behind code that are fragments
	mixed     []string // imports that are not in two groups: the standard library, then others
}

// faultsOf returns the faults of a file. Only imports matter in tests.
func faultsOf(t *testing.T, name string, src []byte) (out faults) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	at := func(line int) string { return name + ":" + strconv.Itoa(line) }
	if !strings.HasSuffix(name, "_test.go") {
		lines := strings.Split(string(src), "\n")
		for i, line := range lines {
			if utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > widest {
				out.wide = append(out.wide, at(i+1))
			}
		}
		for _, group := range f.Comments {
			for _, c := range group.List {
				p := fset.Position(c.Pos())
				behind := strings.TrimSpace(lines[p.Line-1][:p.Column-1]) != ""
				if behind && fragment.MatchString(c.Text) {
					out.fragments = append(out.fragments, at(p.Line))
				}
			}
		}
	}
	var before *ast.ImportSpec
	for _, spec := range f.Imports {
		if before != nil && isStandard(before) != isStandard(spec) {
			first := spec.Pos()
			if spec.Doc != nil {
				first = spec.Doc.Pos()
			}
			line := fset.Position(first).Line
			if isStandard(spec) || line == fset.Position(before.End()).Line+1 {
				out.mixed = append(out.mixed, at(line))
			}
		}
		before = spec
	}
	return out
}

// isStandard reports whether an import is of the standard library.
func isStandard(spec *ast.ImportSpec) bool {
	p, _ := strconv.Unquote(spec.Path.Value)
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

// limit is how many lines and comments of a directory still break the rules.
type limit struct{ wide, fragments int }

const limitsFile = "chaos/archtest/style.txt"

func limits(t *testing.T) map[string]limit {
	t.Helper()
	out := map[string]limit{}
	for line := range strings.Lines(read(t, limitsFile)) {
		var dir string
		var l limit
		if strings.HasPrefix(line, "#") {
			continue
		}
		if _, err := fmt.Sscan(line, &dir, &l.wide, &l.fragments); err != nil {
			t.Fatalf("%s: %q: %v", limitsFile, line, err)
		}
		out[dir] = l
	}
	return out
}

const limitsHead = `# Directory, lines beyond column 120 outside of tests, comments behind code that are fragments.
# TestStyle fails for more, and for fewer until the number here is lowered (-lower does it).
# No directory is added but for code that moves there; with the last one this file goes.
`

// Lines end by column 120, a comment behind code is no fragment, and imports are in two groups.
// Directories with old faults have limits, which only go down.
func TestStyle(t *testing.T) {
	out, err := exec.Command("git", "-C", root(t), "ls-files", "*.go", ":!*.pb.go").Output()
	if err != nil {
		t.Skipf("not run: git ls-files: %v", err)
	}
	found := map[string]*faults{}
	for _, name := range strings.Fields(string(out)) {
		src, err := os.ReadFile(filepath.Join(root(t), name))
		if os.IsNotExist(err) {
			continue // removed, and not yet committed
		} else if err != nil {
			t.Fatal(err)
		}
		in := faultsOf(t, name, src)
		for _, place := range in.mixed {
			t.Errorf("%s: put imports of the standard library first, then a blank line and the others, as goimports does", place)
		}
		all := found[path.Dir(name)]
		if all == nil {
			all = &faults{}
			found[path.Dir(name)] = all
		}
		all.wide, all.fragments = append(all.wide, in.wide...), append(all.fragments, in.fragments...)
	}
	allowed := limits(t)
	for _, dir := range slices.Sorted(maps.Keys(allowed)) {
		if found[dir] == nil {
			found[dir] = &faults{}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		was, is := allowed[dir], limit{len(found[dir].wide), len(found[dir].fragments)}
		if is.wide > was.wide {
			t.Errorf("%s has %d lines beyond column %d, and may have %d: %s", dir, is.wide, widest, was.wide,
				strings.Join(found[dir].wide, " "))
		}
		if is.fragments > was.fragments {
			t.Errorf("%s has %d comments behind code that begin with of, that, which, how or the same, and may have %d: "+
				"write a sentence about what the reader cannot see, or nothing: %s", dir, is.fragments, was.fragments,
				strings.Join(found[dir].fragments, " "))
		}
		if (is.wide < was.wide || is.fragments < was.fragments) && !*lower {
			t.Errorf("%s has %d lines that are too long and %d fragments: lower its limits in %s, or run "+
				"\"go test ./chaos/archtest -run TestStyle -lower\"", dir, is.wide, is.fragments, limitsFile)
		}
		allowed[dir] = limit{min(is.wide, was.wide), min(is.fragments, was.fragments)}
	}
	if *lower {
		text := limitsHead
		for _, dir := range slices.Sorted(maps.Keys(allowed)) {
			if l := allowed[dir]; l != (limit{}) {
				text += fmt.Sprintln(dir, l.wide, l.fragments)
			}
		}
		if err := os.WriteFile(filepath.Join(root(t), limitsFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFaultsFindsPlanted(t *testing.T) {
	const head = "package p\n\n"
	for _, tc := range []struct {
		name, src string
		want      faults
	}{
		{"p.go", head + "var a = 1 // of b\n", faults{fragments: []string{"p.go:3"}}},
		{"p.go", head + "var a = 1 // the same as b\n", faults{fragments: []string{"p.go:3"}}},
		{"p.go", head + "var a = 1 // often\n\n// of b\nvar c = 1\n", faults{}},
		{"p_test.go", head + "var a = 1 // of b\n", faults{}},
		{"p.go", head + "\t// " + strings.Repeat("x", 113) + "\n", faults{}},
		{"p.go", head + "\t// " + strings.Repeat("x", 114) + "\n", faults{wide: []string{"p.go:3"}}},
		{"p.go", head + "// " + strings.Repeat("µ", 117) + "\n", faults{}},
		{"p_test.go", head + "// " + strings.Repeat("x", 200) + "\n", faults{}},
		{"p_test.go", head + "import (\n\t\"a/b\"\n\t\"c.d/e\"\n\t\"f\"\n)\n",
			faults{mixed: []string{"p_test.go:5", "p_test.go:6"}}},
		{"p_test.go", head + "import (\n\t\"a/b\"\n\n\t// Why.\n\t\"c.d/e\"\n)\n", faults{}},
		{"p_test.go", head + "import (\n\t\"a/b\"\n\t// Why.\n\t\"c.d/e\"\n)\n", faults{mixed: []string{"p_test.go:5"}}},
	} {
		if got := faultsOf(t, tc.name, []byte(tc.src)); fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%s %q: got %v, want %v", tc.name, tc.src, got, tc.want)
		}
	}
}
