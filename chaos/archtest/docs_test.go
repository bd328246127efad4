package archtest

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/node"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), name))
	fatal.If(t, err)
	return string(b)
}

var (
	// row is the first cell of a table row that explains a name.
	row = regexp.MustCompile("(?m)^\\| `([A-Za-z_]+)` \\|")
	// refusal is a section that explains a reason: its codes, and what to look at
	// and to do. Types of HTTP problems lead to its anchor.
	refusal = regexp.MustCompile(`(?m)^## ([A-Z_]+)\n<a id="([A-Z_]+)"></a>\*(\d+), (\w+)\.\* .+\n- \*\*Check:\*\* .+\n- \*\*Do:\*\* .+$`)
)

// reasonsExplained returns the reasons that have a section of the page.
func reasonsExplained(doc string) map[string]bool {
	out := map[string]bool{}
	for _, m := range refusal.FindAllStringSubmatch(doc, -1) {
		if m[1] == m[2] && strings.Count(doc, `<a id="`+m[1]+`">`) == 1 {
			out[m[1]] = true
		}
	}
	return out
}

// alarmKinds returns the values of all constants of type AlarmKind.
func alarmKinds(t *testing.T) (out []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), "internal/lease/event.go"), nil, 0)
	fatal.If(t, err)
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "AlarmKind" {
			for _, v := range spec.Values {
				text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				fatal.If(t, err)
				out = append(out, text)
			}
		}
		return true
	})
	return out
}

// alarmsExplained returns the alarms that have a row of the page's last table.
func alarmsExplained(doc string) map[string]bool {
	out := map[string]bool{}
	_, alarms, _ := strings.Cut(doc, "\n## Alarms\n")
	for _, m := range row.FindAllStringSubmatch(alarms, -1) {
		out[m[1]] = true
	}
	return out
}

// The reference explains every name that an operator may be paged with, and no others.
// (That of metrics is generated; alerts are compared in deploy/monitoring/check.)
func TestReferenceExplainsEveryName(t *testing.T) {
	var names []string
	for _, r := range node.Reasons {
		names = append(names, r.String())
	}
	kinds := alarmKinds(t)
	if len(kinds) < 6 {
		t.Fatalf("found %d kinds of alarm: %q", len(kinds), kinds)
	}
	for _, page := range []struct {
		name       string
		want       []string
		explained  func(doc string) map[string]bool
		what, give string
	}{
		{"docs/reference/refusals.md", names, reasonsExplained, "reason", "a section"},
		{"docs/reference/events.md", kinds, alarmsExplained, "alarm", "a row"},
	} {
		got := page.explained(read(t, page.name))
		for _, name := range page.want {
			if !got[name] {
				t.Errorf("%s does not explain the %s `%s`: give it %s", page.name, page.what, name, page.give)
			}
			delete(got, name)
		}
		for name := range got {
			t.Errorf("%s explains `%s`, and there is no such %s", page.name, name, page.what)
		}
	}
}

// documents returns every Markdown file of the repository.
func documents(t *testing.T) (out []string) {
	t.Helper()
	top := root(t)
	err := filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin"):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".md"):
			name, err := filepath.Rel(top, path)
			out = append(out, name)
			return err
		}
		return nil
	})
	fatal.If(t, err)
	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
)

// anchors returns the fragments that GitHub makes of a document's headings.
func anchors(doc string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(doc, ""), -1) {
		out[strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return out
}

func TestLinksLead(t *testing.T) {
	for _, name := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(read(t, name), ""), -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file, fragment, _ := strings.Cut(target, "#")
			to := name
			if file != "" {
				to = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(root(t), to)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, target)
				continue
			}
			if fragment != "" && !anchors(read(t, to))[fragment] {
				t.Errorf("%s links to %s, and %s has no such heading", name, target, to)
			}
		}
	}
}

var (
	testName   = regexp.MustCompile("`((?:Test|Fuzz|Benchmark|Example)[A-Z][A-Za-z0-9_]+)`")
	transcript = regexp.MustCompile(`\b[0-9]{2}-[a-z-]+\.txt\b`)
	declared   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)[A-Z]\w*)\(`)
)

// A document that says which test shows a claim is wrong the day the test goes.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	have, files := map[string]bool{}, 0
	g := listModules(t)
	for _, p := range g.paths() {
		names, err := filepath.Glob(filepath.Join(g[p].Dir, "*_test.go"))
		fatal.If(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			fatal.If(t, err)
			files++
			for _, m := range declared.FindAllStringSubmatch(string(b), -1) {
				have[m[1]] = true
			}
		}
	}
	if files == 0 || !have["TestDocumentsNameTestsThatExist"] {
		t.Fatalf("found %d test files, and not even this one", files)
	}
	named := 0
	for _, name := range documents(t) {
		doc := read(t, name)
		for _, m := range testName.FindAllStringSubmatch(doc, -1) {
			named++
			if !have[m[1]] {
				t.Errorf("%s names %s, and there is no such test", name, m[1])
			}
		}
		for _, file := range transcript.FindAllString(doc, -1) {
			if _, err := os.Stat(filepath.Join(root(t), "internal/lease/protocol/testdata", file)); err != nil {
				t.Errorf("%s names the transcript %s, which is not there", name, file)
			}
		}
	}
	if named == 0 {
		t.Error("no document names a test")
	}
}

// required returns the modules that a go.mod requires directly, but for our own.
func required(t *testing.T, name string) (out []string) {
	t.Helper()
	text, err := exec.Command("go", "mod", "edit", "-json", filepath.Join(root(t), name)).Output()
	if err != nil {
		t.Fatalf("go mod edit %s: %v", name, err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(text, &mod); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, r := range mod.Require {
		if !r.Indirect && !under(r.Path, module) {
			out = append(out, r.Path)
		}
	}
	return out
}

// undecided returns the modules that no row of a page's tables names, and those of its rows
// that are no longer required.
func undecided(page string, modules []string) (missing, gone []string) {
	named := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\|((?: `[^`]+`,?)+) \\|").FindAllStringSubmatch(page, -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			named[m[1]] = true
		}
	}
	for _, m := range modules {
		if !named[m] {
			missing = append(missing, m)
		}
	}
	for m := range named {
		if !slices.Contains(modules, m) {
			gone = append(gone, m)
		}
	}
	slices.Sort(gone)
	return slices.Compact(missing), gone
}

// Each library was decided on: docs/decisions/libraries.md has a row for each module that
// a go.mod of the repository requires directly, and for no other.
func TestDependenciesAreDecidedOn(t *testing.T) {
	var modules []string
	err := filepath.WalkDir(root(t), func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == "node_modules" || d.Name() == ".git"):
			return filepath.SkipDir
		case d.Name() == "go.mod":
			name, err := filepath.Rel(root(t), path)
			modules = append(modules, required(t, name)...)
			return err
		}
		return nil
	})
	fatal.If(t, err)
	slices.Sort(modules)
	if len(modules) < 10 {
		t.Fatalf("found %d modules: %v", len(modules), modules)
	}
	missing, gone := undecided(read(t, "docs/decisions/libraries.md"), modules)
	for _, m := range missing {
		t.Errorf("docs/decisions/libraries.md has no row for %s", m)
	}
	for _, m := range gone {
		t.Errorf("docs/decisions/libraries.md has a row for %s, which no go.mod requires directly", m)
	}
}

func TestUndecided(t *testing.T) {
	const page = "| module | for |\n| `a/b`, `a/c` | both `d` |\n| `e` | gone |\n"
	missing, gone := undecided(page, []string{"a/b", "a/c", "d", "d"})
	if !slices.Equal(missing, []string{"d"}) || !slices.Equal(gone, []string{"e"}) {
		t.Errorf("missing %q, gone %q", missing, gone)
	}
}

// A decision that the index does not lead to is not found by who asks.
func TestDecisionsAreIndexed(t *testing.T) {
	index := read(t, "docs/decisions/README.md")
	pages, err := filepath.Glob(filepath.Join(root(t), "docs/decisions/*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatalf("found %d decisions: %v", len(pages), err)
	}
	for _, page := range pages {
		if name := filepath.Base(page); name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/decisions/README.md does not lead to %s", name)
		}
	}
}
