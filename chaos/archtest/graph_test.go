package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// module is this module's path, without the slash.
const module = "github.com/flakelease/allocator"

// pkg is a package of this module as the go command lists it. Paths of this
// module are relative to it ("internal/gen"); the root package would be ".".
type pkg struct {
	ImportPath   string
	Dir          string
	GoFiles      []string
	Imports      []string
	TestImports  []string // of its tests, inside and outside the package
	XTestImports []string `json:",omitempty"`
}

// graph is every package of this module by its relative path.
type graph map[string]pkg

// root returns the module's directory.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	fatal.If(t, err)
	return dir
}

// ruled are the directories of the modules that have rules: the product's and the
// harness's.
var ruled = []string{".", "chaos/real"}

// listModules returns the packages of the modules that have rules.
func listModules(t *testing.T) graph {
	t.Helper()
	g, err := listOnce()
	fatal.If(t, err)
	return g
}

// listOnce asks the go command, which takes a second for each module.
var listOnce = sync.OnceValues(func() (graph, error) {
	g := graph{}
	for _, dir := range ruled {
		if err := g.list(dir); err != nil {
			return nil, fmt.Errorf("go list in %s: %w", dir, err)
		}
	}
	return g, nil
})

// list adds the packages of the module in dir.
func (g graph) list(dir string) error {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = filepath.Join("../..", dir)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		g.add(p)
	}
}

// add puts p into g with relative paths.
func (g graph) add(p pkg) {
	p.TestImports = append(p.TestImports, p.XTestImports...)
	p.XTestImports = nil
	p.ImportPath = relative(p.ImportPath)
	for _, list := range [][]string{p.Imports, p.TestImports} {
		for i, path := range list {
			list[i] = relative(path)
		}
	}
	g[p.ImportPath] = p
}

func relative(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

// paths returns the packages of g in order, for failures that read the same
// every time.
func (g graph) paths() []string {
	var out []string
	for path := range g {
		out = append(out, path)
	}
	slices.Sort(out)
	return out
}

// reach calls visit for every import that a package has itself or through other
// packages of this module, with the chain that leads there.
func (g graph) reach(from string, visit func(chain []string, imported string)) {
	seen := map[string]bool{from: true}
	var walk func(chain []string)
	walk = func(chain []string) {
		for _, imported := range g[chain[len(chain)-1]].Imports {
			visit(chain, imported)
			if _, ours := g[imported]; ours && !seen[imported] {
				seen[imported] = true
				walk(append(slices.Clone(chain), imported))
			}
		}
	}
	walk([]string{from})
}

// breach is an edge that a rule forbids.
type breach struct {
	rule  string
	chain string // from the package that the rule is about to what it must not reach
	why   string
}

func (b breach) String() string { return fmt.Sprintf("%s: %s\n\t%s", b.rule, b.chain, b.why) }

func (b breach) key() string { return b.rule + ": " + b.chain }

// under reports whether path is one of the directories or inside one of them.
func under(path string, dirs ...string) bool {
	for _, f := range dirs {
		if path == f || strings.HasPrefix(path, f+"/") {
			return true
		}
	}
	return false
}
