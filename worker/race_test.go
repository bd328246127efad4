package worker

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"strings"
	"testing"
)

// A time that an extension makes permissible just while Permit is asked for it is counted
// as used when Permit returns.
func TestPermitDuringExtension(t *testing.T) {
	const begin, extensions = 1_000_000, 2_000
	w := &Worker{unit: 1, lost: make(chan struct{}), demand: make(chan struct{}, 1)}
	w.notAfter.Store(begin)
	permitted := make(chan int64)
	go func() {
		defer close(permitted)
		for ms := int64(begin); ms < begin+extensions; {
			if w.Permit(ms) == nil {
				if used := w.used.Load(); used <= ms {
					t.Errorf("permitted %d, and used until %d", ms, used)
					return
				}
				ms++
			}
			select {
			case permitted <- ms:
			default:
			}
		}
	}()
	for to := int64(begin + 1); to <= begin+extensions; to++ {
		if _, asks := <-permitted; !asks { // it failed
			return
		}
		w.extend(to)
	}
	for range permitted { // until it has asked for all
	}
}

// TestPermitReadsUsedFirst: Permit reads used before it looks at the interval. Otherwise a time
// could be permitted that another goroutine raised too late for Close to see it: three goroutines
// have to meet within nanoseconds, which no run shows. The model does, as the mutant
// worker-permit-looks-first; this holds the code to the model.
func TestPermitReadsUsedFirst(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "worker.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var reads []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != "Permit" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if s := types.ExprString(call.Fun); strings.HasSuffix(s, ".Load") {
					reads = append(reads, s)
				}
			}
			return true
		})
	}
	if got := strings.Join(reads, " "); got != "w.used.Load w.floor.Load w.notAfter.Load w.notAfter.Load" {
		t.Errorf("Permit reads %s", got)
	}
}
