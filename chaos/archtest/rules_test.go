package archtest

import (
	"slices"
	"strings"
	"testing"
)

// core are the packages that decide things: values and functions of explicit
// arguments. node joins them for requests and is held to the same.
var core = []string{
	"flake", "ulid", "internal/clock", "internal/gen", "internal/lease", "chaos/history", "internal/describe", "internal/audit", "cmd/allocator/internal/ids/adopt",
	"internal/lease/protocol", "internal/lease/records", "internal/lease/history", "internal/lease/catalog", "internal/lease/session", "internal/lease/guard", "internal/lease/marker", "internal/lease/repair", "internal/operate",
	"internal/node", "internal/agreement", "internal/worker", "internal/text", "internal/inside/member",
}

// shellOnly is what the core must not import: a reader should find a
// decision, never I/O.
var shellOnly = []string{
	"log", "net", "os", "syscall",
	"github.com/prometheus", "google.golang.org/grpc", "go.etcd.io", "github.com/hashicorp/memberlist",
}

// owned are libraries with one home each.
var owned = []struct {
	library []string
	home    string
	doubles string // other packages that may import it: doubles in tests, or the library's own program
	why     string
}{
	{[]string{"go.etcd.io/etcd/client", "go.etcd.io/etcd/api"}, "internal/lease/etcdstore", "chaos/etcdsim",
		"only etcdstore knows etcd's API: it sends the transactions of records, and I4 rests on their compares"},
	{[]string{"go.etcd.io/etcd/server"}, "internal/inside/etcdserver", "chaos/real/etcd",
		"only etcdserver starts an etcd in a process of ours: its server is large and has settings of its own"},
	{[]string{"github.com/hashicorp/memberlist"}, "internal/cluster", "",
		"only the gossip shell uses memberlist: all other packages take clock samples"},
	{[]string{"github.com/jackc/pgx"}, "internal/userdb", "internal/fence internal/sqlid chaos/fence chaos/sqlid",
		"only fences and column defaults need a database of the user's: nodes keep all they know in etcd"},
}

// byHand edit keys in etcd as a person or an attacker does and no node ever does, so
// etcdstore's compares do not apply to them.
var byHand = []string{"chaos/real/operator", "chaos/real/abuse"}

// rules check a graph; each returns the edges that break it.
var rules = []func(graph) []breach{coreIsPure, oneHome, testsOnly, productApart, productUsed, codecsAreSmall, sdkIsSmall, nodesLinkNoServer}

func coreIsPure(g graph) (out []breach) {
	for _, path := range g.paths() {
		if !slices.Contains(core, path) {
			continue
		}
		g.reach(path, func(chain []string, imported string) {
			if _, ours := g[imported]; !ours && under(imported, shellOnly...) {
				out = append(out, breach{"core", strings.Join(append(chain, imported), " > "),
					"the core takes time, randomness and answers as arguments, so that tests and simulations can run any scenario with it; I/O belongs in the shells (keeper, server, daemon, cmd)"})
			}
		})
	}
	return out
}

func oneHome(g graph) (out []breach) {
	for _, path := range g.paths() {
		for _, imported := range g[path].Imports {
			for _, o := range owned {
				if under(imported, o.library...) && path != o.home && !slices.Contains(strings.Fields(o.doubles), path) && !(slices.Contains(byHand, path) && o.home == "internal/lease/etcdstore") {
					out = append(out, breach{"one home", path + " > " + imported, o.why})
				}
			}
		}
	}
	return out
}

// forTests are packages that only tests, each other, and the page of the simulation may import.
var forTests = []string{"chaos/sim", "chaos/storetest", "chaos/servertest", "chaos/daemontest", "chaos/archtest", "chaos/gossiptest",
	"chaos/netsim", "chaos/etcdsim", "chaos/scale", "chaos/certstest", "chaos/nodestub", "chaos/pages", "chaos/output", "chaos/clocktest", "chaos/wait", "chaos/proc", "chaos/devtest", "chaos/fatal", "chaos/codectest", "chaos/fence", "chaos/sqlid", "chaos/real/rigtest"}

func testsOnly(g graph) (out []breach) {
	for _, path := range g.paths() {
		for _, imported := range g[path].Imports {
			if slices.Contains(forTests, imported) && !slices.Contains(forTests, path) && !under(path, "chaos/play") {
				out = append(out, breach{"tests only", path + " > " + imported,
					"a store in memory or a simulated cluster in the binary could be started by mistake, and would promise nothing"})
			}
		}
	}
	return out
}

// proof are the directories of what shows that the product works.
var proof = []string{"chaos", "clients/conformance"}

func productApart(g graph) (out []breach) {
	for _, path := range g.paths() {
		if under(path, proof...) {
			continue
		}
		for _, imported := range g[path].Imports {
			if under(imported, proof...) {
				out = append(out, breach{"product apart", path + " > " + imported,
					"what runs in production must be readable, and buildable, without the proof: chaos imports the product, and only tests import chaos"})
			}
		}
	}
	return out
}

func productUsed(g graph) (out []breach) {
	used := map[string]bool{}
	for path, p := range g {
		for _, imported := range p.Imports {
			if !under(path, proof...) && path != imported {
				used[imported] = true
			}
		}
	}
	for _, path := range g.paths() {
		if under(path, "internal") && !used[path] {
			out = append(out, breach{"product used", path,
				"only tests or the proof import it: internal holds the product, so move it under chaos, or beside the tests that use it"})
		}
	}
	return out
}

func codecsAreSmall(g graph) (out []breach) {
	for _, path := range []string{"flake", "ulid"} {
		g.reach(path, func(chain []string, imported string) {
			_, ours := g[imported]
			allowed := imported == "internal/crockford" || imported == "flake"
			if ours && !allowed || !ours && strings.Contains(imported, ".") {
				out = append(out, breach{"codecs", strings.Join(append(chain, imported), " > "),
					"a program that reads IDs compiles the codecs and nothing else: the standard library and the alphabet"})
			}
		})
	}
	return out
}

func sdkIsSmall(g graph) (out []breach) {
	for _, from := range []string{"client", "worker"} {
		g.reach(from, func(chain []string, imported string) {
			_, ours := g[imported]
			if ours && !slices.Contains([]string{"flake", "ulid", "client", "client/internal/balance", "internal/crockford", "internal/wire", "api/allocator/v1"}, imported) ||
				!ours && under(imported, "log", "github.com/prometheus", "go.opentelemetry.io", "go.etcd.io", "github.com/hashicorp") {
				out = append(out, breach{"sdk", strings.Join(append(chain, imported), " > "),
					"a program that asks for IDs or for a worker compiles the wire contract, the codecs and gRPC: no part of a node, and no library for logs, metrics or traces (client/prom is a package of its own)"})
			}
		})
	}
	return out
}

func nodesLinkNoServer(g graph) (out []breach) {
	g.reach("embed", func(chain []string, imported string) {
		if under(imported, "go.etcd.io/etcd/server", "go.etcd.io/etcd/etcdutl") {
			out = append(out, breach{"embed", strings.Join(append(chain, imported), " > "),
				"a program with a node in it runs no member of etcd, and its server would be half of the program"})
		}
	})
	return out
}

func check(g graph) (out []breach) {
	for _, rule := range rules {
		out = append(out, rule(g)...)
	}
	return out
}

func TestImports(t *testing.T) {
	g := listModules(t)
	for _, b := range check(g) {
		t.Error(b)
	}
	// A rule about a package that does not exist would always hold.
	for _, path := range append([]string{"client", "worker", "internal/lease/etcdstore", "internal/inside/etcdserver", "chaos/storetest"}, core...) {
		if _, ok := g[path]; !ok {
			t.Errorf("there is no package %s any more: its rule checks nothing", path)
		}
	}
}

// Each rule finds the edge that is planted, and says no more than that.
func TestRulesFindPlantedEdges(t *testing.T) {
	sound := func() graph {
		g := graph{}
		for path, imports := range map[string][]string{
			"flake":                      {"fmt", "internal/crockford"},
			"ulid":                       {"fmt", "flake", "internal/crockford"},
			"internal/crockford":         {"strconv"},
			"internal/clock":             {"time", "sync"},
			"internal/gen":               {"flake", "internal/clock"},
			"internal/lease":             {"flake", "internal/clock", "encoding/json"},
			"chaos/history":              {"flake", "internal/clock", "internal/audit"},
			"internal/describe":          {"flake", "ulid"},
			"internal/node":              {"internal/gen", "internal/lease", "internal/clock", "context"},
			"internal/config":            {"os", "flake"},
			"internal/lease/keeper":      {"internal/lease", "log/slog"},
			"internal/lease/etcdstore":   {"internal/lease", "go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/api/v3/mvccpb"},
			"internal/inside/etcdserver": {"go.etcd.io/etcd/server/v3/embed", "os"},
			"chaos/storetest":            {"internal/lease", "testing"},
			"chaos/sim":                  {"chaos/storetest", "internal/node"},
			"internal/cluster":           {"github.com/hashicorp/memberlist", "internal/clock"},
			"internal/server":            {"internal/node", "google.golang.org/grpc", "net/http"},
			"internal/daemon":            {"internal/server", "internal/lease/etcdstore"},
			"embed":                      {"internal/daemon"},
			"internal/audit":             {"internal/describe", "compress/gzip"},
			"client":                     {"flake", "ulid", "google.golang.org/grpc", "net"},
			"worker":                     {"google.golang.org/grpc", "os"},
			"cmd/allocator": {"internal/audit", "internal/config", "internal/daemon", "internal/cluster", "internal/lease/keeper",
				"internal/lease/nothingour", "internal/inside/etcdserver"},
			"internal/lease/nothingour": {"netfoo.example/os"}, // like a forbidden name, and none
		} {
			g[path] = pkg{ImportPath: path, Imports: imports}
		}
		return g
	}
	if got := check(sound()); len(got) != 0 {
		t.Fatalf("a sound graph: %v", got)
	}
	for _, tc := range []struct {
		from, to string
		want     []string
	}{
		{"internal/gen", "log/slog", []string{
			"core: internal/gen > log/slog", "core: internal/node > internal/gen > log/slog"}},
		{"internal/node", "net/http", []string{"core: internal/node > net/http"}},
		{"internal/lease", "os", []string{
			"core: internal/lease > os", "core: internal/node > internal/lease > os"}},
		{"chaos/history", "google.golang.org/grpc/codes", []string{"core: chaos/history > google.golang.org/grpc/codes"}},
		{"internal/describe", "github.com/prometheus/client_golang/prometheus", []string{
			"core: chaos/history > internal/audit > internal/describe > github.com/prometheus/client_golang/prometheus",
			"core: internal/audit > internal/describe > github.com/prometheus/client_golang/prometheus",
			"core: internal/describe > github.com/prometheus/client_golang/prometheus"}},
		// Not itself, but through a package that may.
		{"internal/node", "internal/config", []string{"core: internal/node > internal/config > os"}},
		{"internal/clock", "internal/cluster", []string{
			"core: chaos/history > internal/clock > internal/cluster > github.com/hashicorp/memberlist",
			"core: internal/clock > internal/cluster > github.com/hashicorp/memberlist",
			"core: internal/gen > internal/clock > internal/cluster > github.com/hashicorp/memberlist",
			"core: internal/lease > internal/clock > internal/cluster > github.com/hashicorp/memberlist",
			"core: internal/node > internal/gen > internal/clock > internal/cluster > github.com/hashicorp/memberlist"}},

		{"internal/server", "go.etcd.io/etcd/client/v3", []string{"one home: internal/server > go.etcd.io/etcd/client/v3"}},
		{"internal/daemon", "go.etcd.io/etcd/api/v3/mvccpb", []string{"one home: internal/daemon > go.etcd.io/etcd/api/v3/mvccpb"}},
		{"internal/lease/etcdstore", "go.etcd.io/etcd/server/v3/embed", []string{
			"embed: embed > internal/daemon > internal/lease/etcdstore > go.etcd.io/etcd/server/v3/embed",
			"one home: internal/lease/etcdstore > go.etcd.io/etcd/server/v3/embed"}},
		{"internal/daemon", "github.com/hashicorp/memberlist", []string{"one home: internal/daemon > github.com/hashicorp/memberlist"}},

		{"internal/daemon", "chaos/sim", []string{"product apart: internal/daemon > chaos/sim", "tests only: internal/daemon > chaos/sim"}},
		{"internal/lease/keeper", "chaos/storetest", []string{
			"product apart: internal/lease/keeper > chaos/storetest", "tests only: internal/lease/keeper > chaos/storetest"}},
		{"chaos/history", "chaos/sim", []string{"tests only: chaos/history > chaos/sim"}},
		{"cmd/allocator", "chaos/history", []string{"product apart: cmd/allocator > chaos/history"}},
		{"internal/spare", "fmt", []string{"product used: internal/spare"}},
		{"internal/daemon", "internal/inside/etcdserver", []string{
			"embed: embed > internal/daemon > internal/inside/etcdserver > go.etcd.io/etcd/server/v3/embed"}},

		{"flake", "golang.org/x/exp/slices", []string{
			"codecs: flake > golang.org/x/exp/slices", "codecs: ulid > flake > golang.org/x/exp/slices"}},
		{"ulid", "internal/clock", []string{"codecs: ulid > internal/clock", "sdk: client > ulid > internal/clock"}},
		{"client", "internal/node", []string{"sdk: client > internal/node", "sdk: client > internal/node > internal/clock",
			"sdk: client > internal/node > internal/gen", "sdk: client > internal/node > internal/gen > internal/clock",
			"sdk: client > internal/node > internal/lease", "sdk: client > internal/node > internal/lease > internal/clock"}},
		{"worker", "internal/lease", []string{"sdk: worker > internal/lease", "sdk: worker > internal/lease > internal/clock"}},
		{"client", "github.com/prometheus/client_golang/prometheus", []string{"sdk: client > github.com/prometheus/client_golang/prometheus"}},
		{"internal/crockford", "github.com/google/uuid", []string{
			"codecs: flake > internal/crockford > github.com/google/uuid",
			"codecs: ulid > flake > internal/crockford > github.com/google/uuid"}},
	} {
		t.Run(tc.from+" to "+tc.to, func(t *testing.T) {
			g := sound()
			p := g[tc.from]
			p.ImportPath = tc.from
			p.Imports = append(slices.Clone(p.Imports), tc.to)
			g[tc.from] = p
			var got []string
			for _, b := range check(g) {
				got = append(got, b.key())
				if b.why == "" {
					t.Errorf("%s: no reason is given", b.key())
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// A package of the product that only the proof imports belongs to the proof.
func TestProductUsedByProofAlone(t *testing.T) {
	g := graph{}
	g.add(pkg{ImportPath: module + "/chaos/history", Imports: []string{module + "/internal/spare"}})
	g.add(pkg{ImportPath: module + "/internal/spare"})
	if got := productUsed(g); len(got) != 1 || got[0].key() != "product used: internal/spare" {
		t.Errorf("got %v", got)
	}
}

// Imports of tests are no breach: they may use what production must not.
func TestTestImportsAreFree(t *testing.T) {
	g := graph{}
	g.add(pkg{ImportPath: module + "/cmd/allocator", Imports: []string{module + "/internal/gen"}})
	g.add(pkg{ImportPath: module + "/internal/gen", TestImports: []string{"os"},
		XTestImports: []string{module + "/chaos/storetest", "go.etcd.io/etcd/client/v3"}})
	if got := check(g); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	if got := g["internal/gen"].TestImports; !slices.Equal(got, []string{"os", "chaos/storetest", "go.etcd.io/etcd/client/v3"}) {
		t.Errorf("imports of tests: %q", got)
	}
}
