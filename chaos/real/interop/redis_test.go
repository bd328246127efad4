package interop

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/dev/loopback"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/respserver"
)

// redisNode is a node with a RESP listener on a port of loopback.
type redisNode struct {
	t    *testing.T
	node *node.Node
	env  *servertest.Env
	addr string
	stop func() // closes the listener
}

func start(t *testing.T, guard *access.Guard) *redisNode {
	t.Helper()
	w := &redisNode{t: t, env: newNode(t, guard)}
	w.node = w.env.Node
	w.open(loopback.Address())
	t.Cleanup(func() { w.stop() })
	return w
}

// open starts the listener, for the first time or again.
func (w *redisNode) open(addr string) {
	w.t.Helper()
	s := respserver.New(respserver.Config{Service: w.env.Service, Reader: w.env.Reader, Logger: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", addr)
	fatal.If(w.t, err)
	w.addr = l.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	w.stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Most)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			w.t.Errorf("shutdown: %v", err)
		}
		<-ended
	})
}

func (w *redisNode) port() string {
	_, port, err := net.SplitHostPort(w.addr)
	fatal.If(w.t, err)
	return port
}

// guarded is a guard that knows one token.
func guarded(t *testing.T) (*access.Guard, string) {
	t.Helper()
	token, line, err := access.NewToken("tester", "issue,read")
	fatal.If(t, err)
	list, err := access.ParseTokens([]byte(line + "\n"))
	fatal.If(t, err)
	return access.New(access.Config{Tokens: list}), token
}

// rising fails the test unless the texts are flakes that rise, above *last.
func rising(t *testing.T, last *flake.ID, texts ...any) {
	t.Helper()
	for _, v := range texts {
		text, ok := v.(string)
		if !ok {
			t.Fatalf("%T instead of a string: %v", v, v)
		}
		id, err := flake.Parse(text)
		if err != nil || id <= *last {
			t.Fatalf("%q after %v: %v", text, *last, err)
		}
		*last = id
	}
}

func TestGoRedis(t *testing.T) {
	guard, token := guarded(t)
	for _, proto := range []int{2, 3} {
		t.Run("RESP"+strconv.Itoa(proto), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
			defer cancel()
			w := start(t, guard)
			options := &redis.Options{Addr: w.addr, Protocol: proto, Password: token, ClientName: "tester", PoolSize: 1}
			c := redis.NewClient(options)
			defer func() { _ = c.Close() }()

			var last flake.ID
			one, err := c.Do(ctx, "ID.NEXT").Result()
			fatal.If(t, err)
			rising(t, &last, one)
			text, err := c.HGet(ctx, "id", "next").Result()
			fatal.If(t, err)
			rising(t, &last, text)
			list, err := c.Do(ctx, "ID.NEXT", "COUNT", 10_000).Slice()
			if err != nil || len(list) != 10_000 {
				t.Fatalf("%d IDs, %v", len(list), err)
			}
			rising(t, &last, list...)
			if name, err := c.ClientGetName(ctx).Result(); err != nil || name != "tester" {
				t.Errorf("name %q, %v", name, err)
			}
			if info, err := c.Info(ctx).Result(); err != nil || !strings.Contains(info, "loading:0") {
				t.Errorf("INFO %q, %v", info, err)
			}
			cmds, err := c.Command(ctx).Result()
			if err != nil || cmds["id.next"] == nil || cmds["id.next"].ReadOnly {
				t.Errorf("COMMAND: %v, %v", cmds, err)
			}

			pipe := c.Pipeline()
			answers := make([]*redis.Cmd, 2000)
			for i := range answers {
				answers[i] = pipe.Do(ctx, "ID.NEXT")
			}
			if _, err := pipe.Exec(ctx); err != nil {
				t.Fatal(err)
			}
			for _, a := range answers {
				rising(t, &last, a.Val())
			}
			// A transaction is refused, and the connection is good for the next call.
			tx := c.TxPipeline()
			tx.Do(ctx, "ID.NEXT")
			if _, err := tx.Exec(ctx); err == nil || !strings.Contains(err.Error(), "MULTI") {
				t.Errorf("a transaction ended with %v", err)
			}
			if err := c.Do(ctx, "INCR", "k").Err(); err == nil || !strings.HasPrefix(err.Error(), "ERR INCR is not supported") {
				t.Errorf("INCR: %v", err)
			}
			one, err = c.Do(ctx, "ID.NEXT").Result()
			fatal.If(t, err)
			rising(t, &last, one)

			// Any bytes come back unchanged: its writer, our reader.
			rnd := rand.New(rand.NewPCG(1, uint64(proto)))
			for range 200 {
				b := make([]byte, rnd.IntN(1<<rnd.IntN(13))) // a request has 8 KiB at most
				for i := range b {
					b[i] = "\r\n$*x\x00\xff"[rnd.IntN(7)]
				}
				if got, err := c.Echo(ctx, string(b)).Result(); err != nil || got != string(b) {
					t.Fatalf("%d bytes came back as %d: %v", len(b), len(got), err)
				}
			}

			wrong := redis.NewClient(&redis.Options{Addr: w.addr, Protocol: proto, Password: "wrong", MaxRetries: -1})
			defer func() { _ = wrong.Close() }()
			if err := wrong.Do(ctx, "ID.NEXT").Err(); err == nil || !strings.HasPrefix(err.Error(), "WRONGPASS ") {
				t.Errorf("with a wrong token: %v", err)
			}

			// The listener stops and starts again: the client reconnects.
			w.stop()
			if err := c.Do(ctx, "ID.NEXT").Err(); err == nil {
				t.Error("an ID from a closed listener")
			}
			w.open(w.addr)
			for one, err = c.Do(ctx, "ID.NEXT").Result(); err != nil; one, err = c.Do(ctx, "ID.NEXT").Result() {
				if ctx.Err() != nil {
					t.Fatal(err)
				}
			}
			rising(t, &last, one)

			before := refused(w)
			w.env.Drainer.Stop()
			if err := c.Do(ctx, "ID.NEXT").Err(); err == nil || !strings.HasPrefix(err.Error(), "TRYAGAIN DRAINING ") {
				t.Errorf("from a node that drains: %v", err)
			}
			if n := refused(w) - before; n < 2 {
				t.Errorf("it asked %d times: TRYAGAIN is for it to try again", n)
			}
		})
	}
}

func refused(w *redisNode) int64 { return w.node.Stats().Refused[node.Draining] }

// tool returns the path of a program, or skips the test and names it.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("not run: %s is not installed", name)
	}
	return path
}

func run(t *testing.T, input, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestRedisCLI(t *testing.T) {
	cli := tool(t, "redis-cli")
	guard, token := guarded(t)
	w := start(t, guard)
	ask := func(input string, args ...string) string {
		t.Helper()
		out, err := run(t, input, cli, append([]string{"-p", w.port(), "--no-auth-warning"}, args...)...)
		if err != nil {
			t.Fatalf("redis-cli %q: %v\n%s", args, err, out)
		}
		return out
	}
	var last flake.ID
	rising(t, &last, strings.TrimSpace(ask("", "-a", token, "ID.NEXT")))
	rising(t, &last, strings.TrimSpace(ask("", "-a", token, "-3", "HGET", "id", "next")))
	for _, text := range strings.Fields(ask("", "-a", token, "--user", "default", "ID.NEXT", "COUNT", "5")) {
		rising(t, &last, text)
	}
	for _, text := range strings.Fields(ask("id.next\nid.next\n", "-a", token)) { // as typed
		rising(t, &last, text)
	}
	if got := ask("", "ID.NEXT"); !strings.HasPrefix(got, "NOAUTH UNAUTHENTICATED ") {
		t.Error(got)
	}
	if got := ask("", "-a", token, "MULTI"); !strings.HasPrefix(got, "ERR MULTI is not supported") {
		t.Error(got)
	}
	if got := ask("", "-a", token, "INFO"); !strings.Contains(got, "redis_version:") {
		t.Error(got)
	}
	if got := ask("", "-a", token, "ID.DECODE", last.String()); !strings.Contains(got, `"sid":7`) {
		t.Error(got)
	}
	// Mass insertion reads the errors and replies of what it sent by count.
	if got := ask(strings.Repeat("*1\r\n$7\r\nID.NEXT\r\n", 5000), "-a", token, "--pipe"); !strings.Contains(got, "errors: 0, replies: 5000") {
		t.Error(got)
	}
}

func TestRedisBenchmark(t *testing.T) {
	bench := tool(t, "redis-benchmark")
	w := start(t, nil)
	out, err := run(t, "", bench, "-p", w.port(), "-c", "20", "-P", "16", "-n", "20000", "--csv", "ID.NEXT")
	if err != nil || !strings.Contains(out, `"ID.NEXT"`) || strings.Contains(out, "rror") {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := w.node.Stats().Issued; n < 20_000 {
		t.Errorf("%d IDs were issued", n)
	}
}

// TestNodeClients runs testdata/npm/client.mjs with each client for Node.js.
func TestNodeClients(t *testing.T) {
	npm, program := tool(t, "npm"), tool(t, "node")
	if out, err := run(t, "", program, "--version"); err != nil || !regexp.MustCompile(`^v(2\d|[3-9]\d)\.`).MatchString(out) {
		t.Skipf("not run: node is %s; the clients need 20", strings.TrimSpace(out))
	}
	dir := t.TempDir()
	fatal.If(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "npm"))))
	if out, err := run(t, "", npm, "ci", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund"); err != nil {
		t.Skipf("not run: npm ci: %v\n%s", err, out)
	}
	guard, token := guarded(t)
	for _, library := range []string{"ioredis", "redis"} {
		for _, tc := range []struct {
			name, token string
			guard       *access.Guard
		}{{"open", "-", nil}, {"token", token, guard}} {
			t.Run(library+" "+tc.name, func(t *testing.T) {
				w := start(t, tc.guard)
				out, err := run(t, "", program, filepath.Join(dir, "client.mjs"), library, w.port(), tc.token)
				if err != nil || !strings.HasSuffix(out, "OK\n") {
					t.Fatalf("%v\n%s", err, out)
				}
			})
		}
	}
}
