package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// public are the packages that programs compile against.
var public = []string{"flake", "ulid", "client", "client/clienttest", "client/prom", "embed", "worker"}

// exposed returns the exported declarations of a file that name a type of an
// internal package: nobody outside could write that type down.
func exposed(t *testing.T, name string, src any) (out []string) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	fatal.If(t, err)
	internal := map[string]bool{}
	for _, spec := range f.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		if strings.HasPrefix(p, module+"/internal/") {
			local := p[strings.LastIndexByte(p, '/')+1:]
			if spec.Name != nil {
				local = spec.Name.Name
			}
			internal[local] = true
		}
	}
	look := func(of string, n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field: // of a struct: only exported ones are seen
				for _, name := range n.Names {
					if !name.IsExported() && !strings.HasPrefix(of, "func ") {
						return false
					}
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && internal[x.Name] {
					out = append(out, of+": "+x.Name+"."+n.Sel.Name)
				}
			}
			return true
		})
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && !ofUnexported(d) {
				look("func "+d.Name.Name, d.Type)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						look("type "+s.Name.Name, s.Type)
					}
				case *ast.ValueSpec:
					if s.Names[0].IsExported() && s.Type != nil {
						look("var "+s.Names[0].Name, s.Type)
					}
				}
			}
		}
	}
	return out
}

// ofUnexported reports whether a function is a method of an unexported type.
func ofUnexported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return false
	}
	t := d.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	name, ok := t.(*ast.Ident)
	return ok && !name.IsExported()
}

func TestPublicPackagesExposeNothingInternal(t *testing.T) {
	g := listModules(t)
	for _, p := range public {
		if len(g[p].GoFiles) == 0 {
			t.Errorf("there is no package %s", p)
		}
		for _, file := range g[p].GoFiles {
			for _, what := range exposed(t, filepath.Join(g[p].Dir, file), nil) {
				t.Errorf("%s/%s: %s", p, file, what)
			}
		}
	}
}

func TestExposedFindsPlanted(t *testing.T) {
	const head = "package p\n\nimport \"" + module + "/internal/node\"\n\n"
	for src, want := range map[string]string{
		"func F(*node.Node) {}":                               "func F: node.Node",
		"func F() (a int, err *node.Refusal) { return }":      "func F: node.Refusal",
		"type T struct { N node.Node }":                       "type T: node.Node",
		"type T struct { node.Node }":                         "type T: node.Node",
		"type T = node.Node":                                  "type T: node.Node",
		"var E node.Refusal":                                  "var E: node.Refusal",
		"type T struct { n node.Node }":                       "",
		"type t struct { N node.Node }":                       "",
		"func f(*node.Node) {}":                               "",
		"func F() { var n node.Node; _ = n }":                 "",
		"type T struct { n int }; func (T) M(n node.Node) {}": "func M: node.Node",
		"type T int; func (*T) M(n node.Node) {}":             "func M: node.Node",
		"type t int; func (*t) M(n node.Node) {}":             "",
	} {
		if got := strings.Join(exposed(t, "p.go", head+src), " "); got != want {
			t.Errorf("%s: got %q, want %q", src, got, want)
		}
	}
}
