package archtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unmapped returns the packages that a map of the code does not name, and the names of
// packages that do not exist. A name that ends in /… stands for all below it.
func unmapped(text string, packages []string) (missing, gone []string) {
	var exact, below []string
	for _, m := range regexp.MustCompile("(?m)^\\|((?: `[^`]+`,?)+) \\|").FindAllStringSubmatch(text, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(m[1], -1) {
			if parent, ok := strings.CutSuffix(name[1], "/…"); ok {
				below = append(below, parent)
			} else {
				exact = append(exact, name[1])
			}
		}
	}
	for _, p := range packages {
		if !slices.Contains(exact, p) && !slices.ContainsFunc(below, func(parent string) bool { return strings.HasPrefix(p, parent+"/") }) {
			missing = append(missing, p)
		}
	}
	for _, name := range exact {
		if !slices.ContainsFunc(packages, func(p string) bool { return p == name || strings.HasPrefix(p, name+"/") }) {
			gone = append(gone, name)
		}
	}
	return missing, gone
}

// The map of the code in CONTRIBUTING.md names every package.
func TestMapNamesEveryPackage(t *testing.T) {
	doc := read(t, "CONTRIBUTING.md")
	_, text, ok := strings.Cut(doc, "\n## The code\n")
	if !ok {
		t.Fatal("CONTRIBUTING.md has no section The code")
	}
	text, _, _ = strings.Cut(text, "\n## ")
	g := listModules(t)
	missing, gone := unmapped(text, g.paths())
	for _, p := range missing {
		t.Errorf("CONTRIBUTING.md, The code: no row names %s", p)
	}
	for _, name := range gone {
		// Modules of their own and what is not Go are not in the graph.
		if !slices.Contains([]string{"chaos/model", "chaos/kube", "bench"}, name) && !under(name, "deploy") {
			t.Errorf("CONTRIBUTING.md, The code: there is no package %s", name)
		}
	}
}

func TestUnmapped(t *testing.T) {
	const text = "| `flake`, `ulid` | codecs |\n| `cmd/x/…` | commands: `admin` |\n| `internal/old` | gone |\n"
	missing, gone := unmapped(text, []string{"cmd/x/admin", "flake", "internal/new", "ulid"})
	if !slices.Equal(missing, []string{"internal/new"}) || !slices.Equal(gone, []string{"internal/old"}) {
		t.Errorf("missing %q, gone %q", missing, gone)
	}
}
