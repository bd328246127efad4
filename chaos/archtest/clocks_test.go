package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// reads are the functions of package time that read a clock.
var reads = []string{"Now", "Since", "Until"}

// waits are those that sleep or start a timer.
var waits = []string{"Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}

// mayRead lists who reads a clock outside package clock, and why it cannot
// reach an ID. A directory counts for the files in it.
var mayRead = map[string]string{
	"internal/clock/readings_linux.go": "the one place that reads the machine's clocks",
	"internal/clock/system.go":         "the issuing clock: one monotonic read, counted from its origin",
	"flake/offline.go":                 "offline generators coordinate nothing: their clock is a default that callers may replace",
	"ulid/offline.go":                  "the same",
	"internal/node/node.go":            "a context's deadline is a time.Time, so the time left until it can only be asked of package time",
	"client":                           "deadlines of calls, and the age of what was fetched ahead: an SDK issues nothing",
	"worker":                           "when to extend, what a worker says its clock shows, and whether it was set forward: it makes no ID",
	"internal/inside":                  "when a member of etcd ended, was asked or wrote its last snapshot: it issues nothing",
	"internal/certs":                   "whether a certificate is valid now, as package tls decides it",
	"internal/certs/reload":            "how long files were unusable",
	"internal/daemon/etcd.go":          "when a failed login was logged",
	"internal/fence":                   "how long moves take, for logs and metrics: what a fence does depends on no clock of ours",
	"internal/sqlid":                   "when a slice begins: it is written only if it lies in the worker's interval",
	"chaos/real/netswitch":             "when a delayed packet is due; it carries packets, and issues nothing",
	"chaos/real":                       "the harness observes from outside: it times what clients see, and issues nothing",
	"chaos/real/rig":                   "the same: when what was seen of a cluster",
	"chaos/real/nemesis":               "the same: when a fault is due",
	"chaos/planted":                    "the same: how long tests take",
	"chaos/tier/ci":                    "the same: how long steps take",
	"chaos/load":                       "the same: when a request is due, and how long its answer took",
	"clients/conformance":              "how long calls of clients take",
	"cmd/allocator":                    "the command line is a shell: its times are of offline IDs and of what it prints",
}

// mayWait lists the one file of the core that waits.
var mayWait = map[string]string{
	"internal/clock/system.go": "Run is the clock's own shell: it ticks, and Anchor decides",
	"internal/node/node.go":    "Next adds the wait for lead to shrink to Try, which never waits",
	"internal/node/watch.go":   "Watch closes a channel when time alone changes the answer of Ready",
}

// use is a function of package time that a file names.
type use struct {
	name string
	line int
}

// uses returns which of the named functions of package time a file mentions,
// called or not: a time.Now that is passed on is read by somebody else.
func uses(t *testing.T, name string, src any, functions []string) (out []use) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	fatal.If(t, err)
	local := ""
	for _, spec := range f.Imports {
		if p, _ := strconv.Unquote(spec.Path.Value); p == "time" {
			local = "time"
			if spec.Name != nil {
				local = spec.Name.Name
			}
		}
	}
	if local == "." {
		return []use{{`import . "time"`, 1}} // nobody can see what it reads
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(functions, sel.Sel.Name) {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == local {
				out = append(out, use{"time." + sel.Sel.Name, fset.Position(sel.Pos()).Line})
			}
		}
		return true
	})
	return out
}

// scan checks the files of the wanted packages against a list of
// exceptions, and the list against the files.
func scan(t *testing.T, functions []string, allowed map[string]string, wanted func(pkg string) bool, why string) {
	t.Helper()
	g, used := listModules(t), map[string]bool{}
	for _, p := range g.paths() {
		if !wanted(p) {
			continue
		}
		for _, file := range g[p].GoFiles {
			for _, u := range uses(t, filepath.Join(g[p].Dir, file), nil, functions) {
				at := path.Join(p, file)
				switch {
				case allowed[at] != "":
					used[at] = true
				case listed(allowed, p) != "":
					used[listed(allowed, p)] = true
				default:
					t.Errorf("%s:%d uses %s: %s", at, u.line, u.name, why)
				}
			}
		}
	}
	for at := range allowed {
		if !used[at] && !optional[at] {
			t.Errorf("%s may, and does not: remove it from the list", at)
		}
	}
}

// listed returns the entry that allows a package: its own, or that of a directory
// above it.
func listed(allowed map[string]string, p string) string {
	for ; p != "."; p = path.Dir(p) {
		if allowed[p] != "" {
			return p
		}
	}
	return ""
}

// optional are entries that hold whether or not they are used.
var optional = map[string]bool{"cmd/allocator": true}

func TestClockReads(t *testing.T) {
	scan(t, reads, mayRead, func(p string) bool { return !slices.Contains(forTests, p) },
		"take a clock.Reading or hold a clock.Source: a wall clock read elsewhere can step, and two readings in one decision can contradict each other")
}

func TestCoreDoesNotWait(t *testing.T) {
	scan(t, waits, mayWait, func(p string) bool { return slices.Contains(core, p) },
		"the core says what to do and when it wants to be asked again; timers belong in the shells")
}

func TestUsesFindsPlantedReads(t *testing.T) {
	for _, tc := range []struct {
		src  string
		want []use
	}{
		{"package p\n\nimport \"time\"\n\nvar t = time.Now()", []use{{"time.Now", 5}}},
		{"package p\n\nimport \"time\"\n\nvar now func() time.Time = time.Now", []use{{"time.Now", 5}}},
		{"package p\n\nimport clk \"time\"\n\nvar t = clk.Since(clk.Time{})", []use{{"time.Since", 5}}},
		{"package p\n\nimport \"time\"\n\nfunc f() { go func() { _ = time.Until(time.Time{}) }() }", []use{{"time.Until", 5}}},
		{"package p\n\nimport . \"time\"\n\nvar t = Now()", []use{{`import . "time"`, 1}}},
		{"package p\n\nimport \"time\"\n\nvar t = time.UnixMilli(0)", nil},
		{"package p\n\ntype clock struct{}\n\nfunc (clock) Now() int { return 0 }\n\nvar time clock\n\nvar t = time.Now()", nil},
	} {
		if got := uses(t, "p.go", tc.src, reads); !slices.Equal(got, tc.want) {
			t.Errorf("%s\ngot %v, want %v", strings.ReplaceAll(tc.src, "\n\n", "\n"), got, tc.want)
		}
	}
}
