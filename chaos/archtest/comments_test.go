package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// uncommented returns the exported names of a file that have no comment: declarations,
// methods, and the members of structs and interfaces. The comment of a group of constants
// or variables is one for all in it.
func uncommented(t *testing.T, name string, src any) (out []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments|parser.SkipObjectResolution)
	fatal.If(t, err)
	check := func(in string, names []*ast.Ident, comments ...*ast.CommentGroup) {
		for _, n := range names {
			if n.IsExported() && !slices.ContainsFunc(comments, func(c *ast.CommentGroup) bool { return c.Text() != "" }) {
				out = append(out, in+n.Name)
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			of := ""
			if d.Recv != nil {
				ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok && of == "" {
						of = id.Name
					}
					return true
				})
			}
			if of == "" {
				check("", []*ast.Ident{d.Name}, d.Doc)
			} else if ast.IsExported(of) {
				check(of+".", []*ast.Ident{d.Name}, d.Doc)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					check("", s.Names, d.Doc, s.Doc, s.Comment)
				case *ast.TypeSpec:
					check("", []*ast.Ident{s.Name}, d.Doc, s.Doc)
					if !s.Name.IsExported() {
						continue
					}
					members := &ast.FieldList{}
					switch u := s.Type.(type) {
					case *ast.StructType:
						members = u.Fields
					case *ast.InterfaceType:
						members = u.Methods
					}
					for _, m := range members.List {
						check(s.Name.Name+".", m.Names, m.Doc, m.Comment)
					}
				}
			}
		}
	}
	return out
}

// The documentation of a package has a sentence for every exported name.
// (staticcheck's ST1020 to ST1022 look at the words of comments that are there, and at no
// members.)
func TestPublicNamesHaveComments(t *testing.T) {
	g := listModules(t)
	for _, p := range public {
		for _, file := range g[p].GoFiles {
			for _, name := range uncommented(t, filepath.Join(g[p].Dir, file), nil) {
				t.Errorf("%s/%s: %s has no comment", p, file, name)
			}
		}
	}
}

func TestUncommentedFindsPlanted(t *testing.T) {
	for src, want := range map[string]string{
		"func F() {}": "F",
		"type T struct {\n\tA int // a\n\tB, C int\n}":     "T T.B T.C",
		"// T is.\ntype T interface { M() }":               "T.M",
		"// T is.\ntype T[P any] int\nfunc (*T[P]) M() {}": "T.M",
		"const A = 1":                                "A",
		"var (\n\t// A is.\n\tA = 1\n\tB = 2\n)":     "B",
		"//go:noinline\nfunc F() {}":                 "F",
		"// The errors.\nvar (\n\tA = 1\n\tB = 2\n)": "",
		"type t struct { A int }\nfunc (t) M() {}":   "",
		"// T is.\ntype T struct { a int }":          "",
		"// F does.\nfunc F() {}":                    "",
	} {
		if got := strings.Join(uncommented(t, "p.go", "package p\n\n"+src), " "); got != want {
			t.Errorf("%s: got %q, want %q", src, got, want)
		}
	}
}
