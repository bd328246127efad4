package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

var (
	incidentRow = regexp.MustCompile(`(?m)^\| (T[0-9]{2}) \|.*\| ([^|]*) \| ([^|]*)\|$`)
	anyIncident = regexp.MustCompile(`(?m)^\| (T[0-9]+) `)
	faultName   = regexp.MustCompile("`([a-z-]+)`")
)

// citations returns the text of each test: its name, the comment above it and its
// body, where names of subtests are. Tests of one name are one.
func citations(t *testing.T) map[string]string {
	t.Helper()
	out, g := map[string]string{}, listModules(t)
	for _, p := range g.paths() {
		names, err := filepath.Glob(filepath.Join(g[p].Dir, "*_test.go"))
		fatal.If(t, err)
		for _, name := range names {
			src, err := os.ReadFile(name)
			fatal.If(t, err)
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, name, src, parser.ParseComments)
			fatal.If(t, err)
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
					out[fn.Name.Name] += fn.Name.Name + "\n" + fn.Doc.Text() + string(src[set.Position(fn.Pos()).Offset:set.Position(fn.End()).Offset])
				}
			}
		}
	}
	return out
}

// cites reports whether a text names an incident: as T07, or TestT07 and so on.
func cites(text, incident string) bool {
	return regexp.MustCompile(`(\b|Test)` + incident + `([^0-9]|$)`).MatchString(text)
}

// Every incident has a row, every row a test, and each test names its incident;
// without that, a change of the test could drop the replay unnoticed.
func TestIncidentsAreCited(t *testing.T) {
	doc := read(t, "docs/INCIDENTS.md")
	cited := citations(t)
	var faults strings.Builder
	files, err := filepath.Glob(filepath.Join(root(t), "chaos/real/nemesis/*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no faults: %v", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		fatal.If(t, err)
		faults.Write(b)
	}

	rows := map[string]bool{}
	for _, m := range incidentRow.FindAllStringSubmatch(doc, -1) {
		incident, tests, injected := m[1], m[2], m[3]
		if rows[incident] {
			t.Errorf("%s has two rows", incident)
		}
		rows[incident] = true
		shown := 0
		for _, n := range testName.FindAllStringSubmatch(tests, -1) {
			if shown++; !cites(cited[n[1]], incident) {
				t.Errorf("%s is listed as shown by %s, which does not cite it", incident, n[1])
			}
		}
		for _, file := range transcript.FindAllString(tests, -1) {
			if shown++; !cites(read(t, "internal/lease/protocol/testdata/"+file), incident) {
				t.Errorf("%s is listed as shown by %s, which does not cite it", incident, file)
			}
		}
		if shown == 0 {
			t.Errorf("%s has no test", incident)
		}
		for _, n := range faultName.FindAllStringSubmatch(injected, -1) {
			if !strings.Contains(faults.String(), `"`+n[1]+`"`) {
				t.Errorf("%s names the fault %s, and chaos has none", incident, n[1])
			}
		}
	}
	for n := 1; n <= 44; n++ {
		if incident := fmt.Sprintf("T%02d", n); !rows[incident] {
			t.Errorf("docs/INCIDENTS.md has no row for %s that can be read", incident)
		}
	}
	if got := len(anyIncident.FindAllString(doc, -1)); got != len(rows) {
		t.Errorf("%d rows begin like an incident's, and %d are", got, len(rows))
	}
	// A test that bears an incident's number is listed, and under that number.
	named := regexp.MustCompile(`^TestT([0-9]{2})[A-Z]`)
	for name := range cited {
		if m := named.FindStringSubmatch(name); m != nil && !strings.Contains(doc, "`"+name+"`") {
			t.Errorf("%s is of an incident, and docs/INCIDENTS.md does not name it", name)
		}
	}
}

func TestCites(t *testing.T) {
	for text, want := range map[string]bool{
		"func TestT07Asleep(": true, "// T07, T08: asleep": true, "Incidents T06 and T07.": true, "T07": true, `"T07 asleep"`: true,
		"T070": false, "T17": false, "XT07": false, "": false, "# T7": false,
	} {
		if got := cites(text, "T07"); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
