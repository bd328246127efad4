package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

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

// Lines end by column 120, a comment behind code is no fragment, and imports are in two groups.
func TestStyle(t *testing.T) {
	out, err := exec.Command("git", "-C", root(t), "ls-files", "*.go", ":!*.pb.go").Output()
	if err != nil {
		t.Skipf("not run: git ls-files: %v", err)
	}
	for _, name := range strings.Fields(string(out)) {
		src, err := os.ReadFile(filepath.Join(root(t), name))
		if os.IsNotExist(err) {
			continue // removed, and not yet committed
		} else if err != nil {
			t.Fatal(err)
		}
		in := faultsOf(t, name, src)
		for _, place := range in.wide {
			t.Errorf("%s: end the line by column %d", place, widest)
		}
		for _, place := range in.fragments {
			t.Errorf("%s: the comment begins with of, that, which, how or the same: write a sentence about what the reader "+
				"cannot see, or nothing", place)
		}
		for _, place := range in.mixed {
			t.Errorf("%s: put imports of the standard library first, then a blank line and the others, as goimports does", place)
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
