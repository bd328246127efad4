package archtest

import (
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

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "AlarmKind" {
			for _, v := range spec.Values {
				text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
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
	for number, name := range pb.Reason_name {
		if number != 0 {
			names = append(names, strings.TrimPrefix(name, "REASON_"))
		}
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
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
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

// Each module that ours imports was decided on: a page in docs/decisions names
// its path. What go.mod calls indirect does not matter here, imports do.
func TestDependenciesAreDecidedOn(t *testing.T) {
	cmd := exec.Command("go", "list", "-m", "all")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -m: %v", err)
	}
	var modules []string
	for line := range strings.Lines(string(out)) {
		modules = append(modules, strings.Fields(line)[0])
	}
	importers := map[string]string{} // module to one package that imports it
	g := listModules(t)
	for _, p := range g.paths() {
		for _, imported := range slices.Concat(g[p].Imports, g[p].TestImports) {
			if m := moduleOf(imported, modules); m != "" && m != module {
				importers[m] = p
			}
		}
	}
	if len(importers) < 10 {
		t.Fatalf("found %d modules: %v", len(importers), importers)
	}
	pages, err := filepath.Glob(filepath.Join(root(t), "docs/decisions/[0-9][0-9][0-9][0-9]-*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var decisions strings.Builder
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		decisions.Write(b)
	}
	for m, p := range importers {
		if !strings.Contains(decisions.String(), "`"+m+"`") {
			t.Errorf("%s imports %s, and no page in docs/decisions names it", p, m)
		}
	}
}

// moduleOf returns the module with the longest path that a package can be in.
func moduleOf(imported string, modules []string) (found string) {
	for _, m := range modules {
		if under(imported, m) && len(m) > len(found) {
			found = m
		}
	}
	return found
}
