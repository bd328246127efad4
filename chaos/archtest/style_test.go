package archtest

import (
	"flag"
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

	"github.com/flakelease/allocator/chaos/fatal"
)

// widest is the last column of a line that is not a test's. A tab has four columns.
const widest = 120

// fragment matches a comment that leaves open what it is about.
var fragment = regexp.MustCompile(`^//\s*(of|that|which|how|the same)\b`)

// riddle matches phrases that make the reader look for what a pronoun means.
var riddle = regexp.MustCompile(`(?i)\b(whoever|(those|that|the one|one) of (one|those)|of (one|those) (that|who|whose)|as one that|` +
	`counts? no more|what does not|nobody's|the one of|(all )?of it is|that which)\b`)

// maxRiddles is how many sentences of comments and documents are riddles. It may only fall.
const maxRiddles = 156

// pronouns are the words of which a sentence has at most 38 in a hundred.
var pronouns = regexp.MustCompile(`^(it|its|that|those|these|ones?|of|whoever|what|which)$`)

var (
	sentenceEnd = regexp.MustCompile(`[.!?]\s+`)
	paragraph   = regexp.MustCompile(`\n\s*(\n|[-*|#>])`)
	fenced      = regexp.MustCompile("(?s)```.*?```")
	aWord       = regexp.MustCompile(`[A-Za-z']+`)
)

// riddles returns the sentences of a text that have one of the phrases, or mostly pronouns.
func riddles(text string) (out []string) {
	for _, s := range sentenceEnd.Split(strings.Join(strings.Fields(text), " "), -1) {
		words, n := aWord.FindAllString(strings.ToLower(s), -1), 0
		for _, w := range words {
			if pronouns.MatchString(w) {
				n++
			}
		}
		if riddle.MatchString(s) || len(words) >= 8 && n*100 > 38*len(words) {
			out = append(out, s)
		}
	}
	return out
}

// faults are the lines of a file that break a rule of layout, as "name:line".
type faults struct {
	wide      []string // lines that go beyond the widest column
	fragments []string // comments behind code that are fragments
	mixed     []string // imports that are not in two groups: the standard library, then others
	riddles   []string // sentences of comments
}

// faultsOf returns the faults of a file. Only imports matter in tests, and only columns in other languages.
func faultsOf(t *testing.T, name string, src []byte) (out faults) {
	t.Helper()
	at := func(line int) string { return name + ":" + strconv.Itoa(line) }
	lines := strings.Split(string(src), "\n")
	for i, line := range lines {
		if utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > widest && !strings.HasSuffix(name, "_test.go") {
			out.wide = append(out.wide, at(i+1))
		}
	}
	if !strings.HasSuffix(name, ".go") {
		return out
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	fatal.If(t, err)
	for _, group := range f.Comments {
		for _, r := range riddles(group.Text()) {
			out.riddles = append(out.riddles, at(fset.Position(group.Pos()).Line)+": "+r)
		}
	}
	if !strings.HasSuffix(name, "_test.go") {
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

// Lines end by column 120, a comment behind code is no fragment, imports are in two groups, and there are no more
// riddles than there were.
func TestStyle(t *testing.T) {
	var all []string
	out, err := exec.Command("git", "-C", root(t), "ls-files", "*.go", "*.md", ":!*.pb.go", "clients/*/src/*.js", "clients/*/src/*.py").
		Output()
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
		if strings.HasSuffix(name, ".md") {
			for _, text := range paragraph.Split(fenced.ReplaceAllString(string(src), ""), -1) {
				for _, r := range riddles(text) {
					all = append(all, name+": "+r)
				}
			}
			continue
		}
		in := faultsOf(t, name, src)
		all = append(all, in.riddles...)
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
	t.Logf("%d sentences are riddles", len(all))
	switch {
	case len(all) > maxRiddles:
		t.Errorf("%d sentences are riddles, at most %d may be: name the thing again, not \"that of one that\" or \"whoever\"; "+
			"-riddles lists all", len(all), maxRiddles)
	case len(all) < maxRiddles-5:
		t.Errorf("%d sentences are riddles: lower maxRiddles to that", len(all))
	}
	if *allRiddles {
		t.Log(strings.Join(all, "\n"))
	}
}

var allRiddles = flag.Bool("riddles", false, "list every sentence that is a riddle")

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
		{"p.go", head + "// Nobody compares that of one that does not.\nvar a = 1\n",
			faults{riddles: []string{"p.go:3: Nobody compares that of one that does not."}}},
		{"p.go", head + "// It is that of those of which it is one. Peers compare clocks.\nvar a = 1\n",
			faults{riddles: []string{"p.go:3: It is that of those of which it is one"}}},
		{"p.go", head + "\t// " + strings.Repeat("x", 113) + "\n", faults{}},
		{"p.go", head + "\t// " + strings.Repeat("x", 114) + "\n", faults{wide: []string{"p.go:3"}}},
		{"p.js", "\n// " + strings.Repeat("x", 118) + "\n", faults{wide: []string{"p.js:2"}}},
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
