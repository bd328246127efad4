package interop

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/devtest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
)

// languages are the programs of docs/how-to/call-from-a-program.md.
var languages = []struct {
	name  string
	title string // of its section
	needs []string
	print []string // prints as many IDs as the argument after it says, 1,000 at a time
	ca    string   // the variable that names the authority's file; of packages unused
	grpc  bool     // nodes are named by their gRPC addresses
	fork  []string // draws an ID, forks 8 times, and prints what all draw in as many requests as the argument says
}{
	{"node", "Node.js", []string{"node", "curl"}, []string{"node", "--input-type=module", "--eval", `
		import { Allocator } from './clients/typescript/index.mjs'
		const { NODES, TOKEN_FILE: tokenFile, CA_FILE: caFile } = process.env
		const a = new Allocator({ nodes: NODES.split(','), tokenFile, caFile })
		for (let i = 0; i < Number(process.argv[1]); i += 1000) for (const id of await a.nextMany(1000)) console.log(String(id))`},
		"CA_FILE", false, nil},
	{"python", "Python", []string{"python3", "sqlite3"}, []string{"python3", "-c", `if True:
		import os, sys
		sys.path.insert(0, "clients/python/src")
		from flakelease_allocator import Allocator
		a = Allocator(os.environ["NODES"].split(","), token_file=os.environ.get("TOKEN_FILE"), ca_file=os.environ.get("CA_FILE"))
		for _ in range(0, int(sys.argv[1]), 1000): print(*a.next_many(1000), sep="\n")`},
		"CA_FILE", false, []string{"python3", "-c", `if True:
		import os, sys
		sys.path.insert(0, "clients/python/src")
		from flakelease_allocator import Allocator
		a = Allocator(os.environ["NODES"].split(","))
		a.next()
		children = []
		for _ in range(8):
			child = os.fork()
			children = [*children, child] if child else []
			if not child: break
		for i in range(int(sys.argv[1])):
			ids = a.next_many(5 * (i % 35) + 10)
			os.write(1, ("\n".join(map(str, ids)) + "\n").encode())
		if any(os.waitpid(child, 0)[1] for child in children): sys.exit("a child failed")`}},
	{"ruby", "Ruby", []string{"ruby"}, []string{"ruby", "examples/ruby/ids.rb"}, "CA_FILE", false, []string{"ruby", "-I", "examples/ruby", "-e", `
		require "ids"
		a = Allocator.new(ENV["NODES"].split(","), token_file: ENV["TOKEN_FILE"], ca_file: ENV["CA_FILE"])
		a.draw
		$stdout.sync = true # One write for each answer, which is repeated where the end of a child interrupts it.
		draw = -> { ARGV[0].to_i.times { |i| $stdout.write(a.draw(5 * (i % 35) + 10).join("\n") + "\n") } }
		children = 8.times.map { fork(&draw) }
		draw.call
		exit children.all? { |child| Process.wait2(child)[1].success? }`}},
	{"java", "Java", []string{"java", "javac"}, []string{"java", "-cp", "CLASSES", "Ids"}, "", false, nil},
	{"go", "Go", []string{"go"}, []string{"go", "-C", "examples", "run", "./ids"}, "CA_FILE", true, nil},
}

// tabled are the languages whose clients are packages. The table of clients/conformance shows of these what
// answers, tokens, TLS and refusals do, with nodes that follow scripts.
var tabled = []string{"node", "python", "go"}

// TestCallFrom runs the program of each page where the first nodes do not serve and every answer may come from
// another node, and others than those of packages with TLS and tokens, and where no node serves.
func TestCallFrom(t *testing.T) {
	nodes := devNodes(t, 3)
	res, err := http.PostForm(nodes[0].Console+"break", url.Values{"target": {"node-1"}, "action": {"skew"}})
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", res, err)
	}
	_ = res.Body.Close()
	wait.NoError(t, "the first node refuses", func() error {
		res, err := http.Post("http://"+nodes[0].HTTP+"/v1/ids", "", nil)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if text, _ := io.ReadAll(res.Body); !strings.Contains(string(text), "CLOCK_SKEW") {
			return fmt.Errorf("%s: %s", res.Status, text)
		}
		return nil
	})
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			for _, name := range l.needs {
				tool(t, name)
			}
			command := slices.Clone(l.print)
			if l.name == "java" { // compiled once: each run of the source would do so
				command[2] = t.TempDir()
				if out, err := run(t, "", "javac", "-d", command[2], "../../../examples/java/Ids.java"); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			runs := func(t *testing.T, command []string, count int, env ...string) (ids []flake.ID, out string, took time.Duration, err error) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, command[0], append(slices.Clone(command[1:]), strconv.Itoa(count))...)
				cmd.Dir, cmd.Env = "../../..", append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1"), env...)
				var problems strings.Builder
				cmd.Stderr = &problems
				began := time.Now()
				text, err := cmd.Output()
				for _, line := range strings.Fields(string(text)) {
					id, err := flake.ParseInt(line)
					if err != nil {
						t.Fatalf("%q: %v", line, err)
					}
					ids = append(ids, id)
				}
				return ids, problems.String(), time.Since(began), err
			}
			draw := func(t *testing.T, count int, env ...string) ([]flake.ID, string, time.Duration, error) {
				t.Helper()
				return runs(t, command, count, env...)
			}
			address := func(n devtest.Node) string {
				if l.grpc {
					return n.GRPC
				}
				return "http://" + n.HTTP
			}

			t.Run("other nodes", func(t *testing.T) {
				t.Parallel()
				list := []string{closed(t), silent(t)}
				var service *balancer
				if l.grpc {
					list = append(list, address(nodes[0]), address(nodes[1]), address(nodes[2]))
				} else {
					service = balance(t, nodes[1], nodes[2])
					list = append(urls(list), address(nodes[0]), service.url)
				}
				const count = 10_000
				ids, out, took, err := draw(t, count, "NODES="+strings.Join(list, ","))
				if err != nil || len(ids) != count {
					t.Fatalf("%d IDs, %v:\n%s", len(ids), err, out)
				}
				sids := map[flake.SID]int{}
				for i, id := range ids {
					if i > 0 && id <= ids[i-1] {
						t.Fatalf("ID %d of %d: %v after %v", i, count, id, ids[i-1])
					}
					sids[flake.Default.SID(id)]++
				}
				if service != nil && (len(sids) != 2 || service.connections.Load() > 2+unanswered(took)) {
					t.Errorf("%v IDs of the sids over %d connections", sids, service.connections.Load())
				}
			})

			if l.fork != nil {
				t.Run("forked", func(t *testing.T) {
					t.Parallel()
					const requests = 100
					want := 0
					for i := range requests {
						want += 9 * (5*(i%35) + 10)
					}
					ids, out, _, err := runs(t, l.fork, requests, "NODES="+address(nodes[1]))
					slices.Sort(ids)
					if distinct := len(slices.Compact(slices.Clone(ids))); err != nil || len(ids) != want || distinct != want {
						t.Errorf("%d IDs, %d of them distinct, want %d: %v\n%s", len(ids), distinct, want, err, out)
					}
				})
			}

			if slices.Contains(tabled, l.name) {
				return
			}
			t.Run("bad lists", func(t *testing.T) {
				t.Parallel()
				service := balance(t, nodes[1], nodes[2])
				for list, want := range map[string]string{
					"":                         "node",
					"127.0.0.1:8080":           `node "127.0.0.1:8080": write http://`,
					"http://":                  `node "http://": write http://`,
					"http://127.0.0.1:1/v1":    `node "http://127.0.0.1:1/v1": write http://`,
					service.url + ", http://a": `node " http://a": write http://`,
				} {
					ids, out, _, err := draw(t, 1, "NODES="+list)
					if err == nil || len(ids) != 0 || !strings.Contains(out, want) {
						t.Errorf("%q: %d IDs, %v:\n%s", list, len(ids), err, out)
					}
				}
				if n := service.connections.Load(); n != 0 {
					t.Errorf("%d connections", n)
				}
			})

			t.Run("fewer than asked", func(t *testing.T) {
				t.Parallel()
				short := fewer(t, nodes[1])
				if ids, out, _, err := draw(t, 1000, "NODES="+short); err == nil || len(ids) != 0 || !strings.Contains(out, "999 IDs came where 1000 were asked for") {
					t.Errorf("alone: %d IDs, %v:\n%s", len(ids), err, out)
				}
				if ids, out, _, err := draw(t, 1000, "NODES="+short+","+address(nodes[1])); err != nil || len(ids) != 1000 {
					t.Errorf("beside another: %d IDs, %v:\n%s", len(ids), err, out)
				}
			})

			t.Run("TLS and tokens", func(t *testing.T) {
				t.Parallel()
				guard, token := guarded(t)
				node := newNode(t, guard)
				var requests atomic.Int64
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					requests.Add(1)
					node.HTTP.ServeHTTP(w, r)
				}))
				server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are meant to fail
				server.StartTLS()
				t.Cleanup(server.Close)
				dir := t.TempDir()
				write := func(name, text string) string {
					path := filepath.Join(dir, name)
					fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
					return path
				}
				ca := write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
				env := []string{"NODES=" + server.URL, l.ca + "=" + ca}
				if l.name == "java" {
					store := filepath.Join(dir, "ca.p12")
					if out, err := run(t, "", tool(t, "keytool"), "-importcert", "-noprompt", "-file", ca, "-keystore", store, "-storepass", "changeit"); err != nil {
						t.Fatalf("%v\n%s", err, out)
					}
					env[1] = "JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=" + store + " -Djavax.net.ssl.trustStorePassword=changeit"
				}
				if ids, out, _, err := draw(t, 1000, append(env, "TOKEN_FILE="+write("token", token+"\n"))...); err != nil || len(ids) != 1000 {
					t.Errorf("%d IDs, %v:\n%s", len(ids), err, out)
				}
				requests.Store(0)
				ids, out, took, err := draw(t, 1000, append(env, "TOKEN_FILE="+write("wrong", "x\n"))...)
				if err == nil || len(ids) != 0 || !strings.Contains(out, "UNAUTHENTICATED") {
					t.Errorf("with a wrong token: %d IDs, %v:\n%s", len(ids), err, out)
				}
				if n := requests.Load(); n < 1 || n > 1+unanswered(took) {
					t.Errorf("%d requests in %v with a wrong token: every node would refuse it", n, took)
				}
				if ids, _, _, err := draw(t, 1000, env[0], "TOKEN_FILE="+filepath.Join(dir, "token")); err == nil || len(ids) != 0 {
					t.Errorf("from a server that nobody vouches for: %d IDs, %v", len(ids), err)
				}
			})

			t.Run("no node", func(t *testing.T) {
				t.Parallel()
				ids, out, took, err := draw(t, 1000, "NODES="+address(nodes[0]))
				if err == nil || len(ids) != 0 || !strings.Contains(out, "CLOCK_SKEW") {
					t.Errorf("%d IDs, %v:\n%s", len(ids), err, out)
				}
				if took < 3*time.Second { // it repeats the request until its time is over
					t.Errorf("it ended after %v", took)
				}
			})
		})
	}
}

// TestJava compiles what connects Hibernate and CosId with the cluster, against their signatures in testdata/java since
// Debian has neither, and uses it.
func TestJava(t *testing.T) {
	java, dir := tool(t, "java"), t.TempDir()
	if out, err := run(t, "", tool(t, "javac"), "-Xlint:all,-serial", "-Werror", "-d", dir,
		"-sourcepath", "testdata/java:../../../examples/java", "testdata/java/Main.java"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	node := dev(t, "twitter")
	program, err := buildAllocator()
	fatal.If(t, err)
	out := output(t, "", "env", "NODES=http://"+node.HTTP, program, "worker", "run", "--addr", node.GRPC, "--",
		java, "-cp", dir, "Main", filepath.Join(dir, "over"))
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 205 {
		t.Fatalf("%d lines:\n%s", len(lines), out)
	}
	last := flake.ID(0)
	for _, line := range lines[:200] {
		id, err := flake.ParseInt(line)
		if err != nil || id <= last {
			t.Fatalf("%q after %v: %v", line, last, err)
		}
		last = id
	}
	want := `drawn again: true true
machine (5[1-9]\d|[6-9]\d\d|10[01]\d|102[0-3])
permits true false false
too large for 9 bits
lost`
	if got := strings.Join(lines[200:], "\n"); !regexp.MustCompile("^" + want + "$").MatchString(got) {
		t.Errorf("%s", got)
	}
}

// unanswered returns how many requests a program may have given up in a time: on a busy
// machine it waits 2 s for an answer that has come but that it had no time to read. A program
// that repeats a refusal sends one request a second.
func unanswered(took time.Duration) int64 { return int64(took / (2 * time.Second)) }

// closed returns an address at which nothing listens.
func closed(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	_ = l.Close()
	return l.Addr().String()
}

// silent returns an address at which connections open and no request is answered.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func urls(addresses []string) (out []string) {
	for _, a := range addresses {
		out = append(out, "http://"+a)
	}
	return out
}

// balancer gives each request to another node, as a Kubernetes service may. IDs of the last node are ahead of the
// others', so only who sends after gets IDs in order.
type balancer struct {
	url         string
	connections atomic.Int64 // to it
}

func balance(t *testing.T, nodes ...devtest.Node) *balancer {
	b := &balancer{}
	var requests atomic.Int64
	s := httptest.NewUnstartedServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		at := requests.Add(1) % int64(len(nodes))
		r.SetURL(&url.URL{Scheme: "http", Host: nodes[at].HTTP})
		if at == int64(len(nodes)-1) {
			ahead, err := flake.Default.Min(time.Now().Add(100 * time.Millisecond).UnixMilli())
			if err != nil {
				panic(err)
			}
			if res, err := http.Post(fmt.Sprintf("http://%s/v1/ids?after=%v", nodes[at].HTTP, ahead), "", nil); err == nil {
				_ = res.Body.Close()
			}
		}
	}})
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			b.connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	b.url = s.URL
	return b
}

// fewer returns the URL of a proxy that answers with one ID fewer than a request asks for.
func fewer(t *testing.T, node devtest.Node) string {
	s := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: node.HTTP})
		q := r.In.URL.Query()
		if n, err := strconv.Atoi(q.Get("count")); err == nil {
			q.Set("count", strconv.Itoa(n-1))
		}
		r.Out.URL.RawQuery = q.Encode()
	}})
	t.Cleanup(s.Close)
	return s.URL
}

// TestCallFromPages runs the commands of docs/how-to/call-from-a-program.md, and compares the
// programs that they show with those in examples.
func TestCallFromPages(t *testing.T) {
	const path = "../../../docs/how-to/call-from-a-program.md"
	text, err := os.ReadFile(path)
	fatal.If(t, err)
	nodes := devNodes(t, 3)
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			page := pages.Page{Path: path, Blocks: pages.Parse(section(t, string(text), l.title))}
			shown := 0
			for _, b := range page.Blocks {
				name, is := strings.CutPrefix(b.Mark, "file: ")
				if !is {
					continue
				}
				shown++
				text, err := os.ReadFile(filepath.Join("../../..", name))
				fatal.If(t, err)
				if !strings.Contains(string(text), b.Text) {
					t.Errorf("%s:%d: %s has other lines", page.Path, b.Line, name)
				}
			}
			if shown == 0 {
				t.Errorf("%s shows no program", page.Path)
			}
			for _, name := range l.needs {
				tool(t, name)
			}
			dir := t.TempDir() // what the commands write stays out of the repository
			for _, name := range []string{"examples", "clients"} {
				path, err := filepath.Abs("../../../" + name)
				fatal.If(t, err)
				fatal.If(t, os.Symlink(path, filepath.Join(dir, name)))
			}
			_, port, err := net.SplitHostPort(closed(t))
			fatal.If(t, err)
			shell := pages.NewShell(t, pages.Config{Dir: dir, Env: []string{"PYTHONDONTWRITEBYTECODE=1"}, Within: 2 * time.Minute, Here: strings.NewReplacer(
				"PORT=3000", "PORT="+port, "127.0.0.1:3000", "127.0.0.1:"+port,
				"127.0.0.1:8080", nodes[0].HTTP, "127.0.0.1:8090", nodes[1].HTTP, "127.0.0.1:8100", nodes[2].HTTP,
				"127.0.0.1:9000", nodes[0].GRPC, "127.0.0.1:9010", nodes[1].GRPC, "127.0.0.1:9020", nodes[2].GRPC)})
			for _, b := range page.Blocks {
				if strings.HasPrefix(b.Mark, "file: ") {
					continue
				}
				if err := shell.Carry(b); err != nil {
					t.Fatalf("%s:%d: %v", page.Path, b.Line, err)
				}
			}
		})
	}
}

// section returns what a page says under a heading of level 2.
func section(t *testing.T, page, title string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n## "+title+"\n")
	if !ok {
		t.Fatalf("there is no section %s", title)
	}
	out, _, _ := strings.Cut(rest, "\n## ")
	return out
}
