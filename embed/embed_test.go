package embed_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/ulid"
)

// ider is what programs need of either: they can change from one to the other.
type ider interface {
	Next(context.Context) (flake.ID, error)
	NextN(context.Context, []flake.ID) error
	Block(context.Context, int) (client.Block, error)
	NextULID(context.Context) (ulid.ID, error)
	NextULIDs(context.Context, []ulid.ID) error
	Close() error
}

var (
	_ ider = (*client.Client)(nil)
	_ ider = (*embed.Allocator)(nil)
)

// shared is where one etcd for all tests listens; each has its own space.
var shared string

// childEnv has the endpoint and the space of a child process: see TestKilled.
const childEnv = "EMBED_TEST_CHILD"

func TestMain(m *testing.M) {
	if of := os.Getenv(childEnv); of != "" {
		child(of)
		return
	}
	etcd, endpoint, err := etcdsim.OnLoopback()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared = endpoint
	code := m.Run()
	etcd.Close()
	if err := leaks(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// leaks returns what still runs. A probe of the gossip library that was under way
// when it was shut down ends with its timers, seconds later.
func leaks() (err error) {
	for range 20 {
		if err = goleak.Find(goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon")); err == nil {
			return nil
		}
		time.Sleep(500 * time.Millisecond)
	}
	return err
}

// quick makes leases and windows that run out within a test.
var quick = map[string]string{
	"lease.window": "6s", "lease.ttl": "5s",
}

// child is a program that embeds a node, says so, and lives until it is killed.
func child(of string) {
	endpoint, space, _ := strings.Cut(of, " ")
	a, err := embed.Open(context.Background(), embed.Config{
		Endpoints: []string{endpoint}, Space: space, Name: "child", SIDs: "30", Settings: quick,
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	id, err := a.Next(context.Background())
	fmt.Println(int64(id), err)
	_, _ = io.Copy(io.Discard, os.Stdin) // to its parent's end
	os.Exit(1)
}

// newSpace initializes a space for the test and returns the settings of a server
// in it.
func newSpace(t *testing.T) config.Config {
	t.Helper()
	c := daemontest.Settings(t, "server", shared)
	daemontest.Init(t, c)
	return c
}

// A space of a part of the sids gives programs those, and ends one that asks for others.
func TestSpaceOfSomeSIDs(t *testing.T) {
	c := config.Default()
	c.Space, c.Etcd.Endpoints = "some-sids", []string{shared}
	begin := daemon.Beginning{Fresh: true, SIDs: lease.SIDRange{From: 8, To: 12}}
	if _, _, err := daemon.Init(t.Context(), c, begin, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, reserve := range []int{0, 1} {
		cfg := program(c, "outside")
		cfg.Reserve = reserve
		_, err := embed.Open(t.Context(), cfg)
		if outside := new(lease.RangeError); !errors.As(err, &outside) || !strings.Contains(err.Error(), "sid-range 24-31 is not within the sids of the space, 8-11 of 32") {
			t.Errorf("with a reserve of %d: %v", reserve, err)
		}
	}
	cfg := program(c, "one")
	cfg.SIDs, cfg.Reserve = embed.All, 4
	if _, err := embed.Open(t.Context(), cfg); !errors.Is(err, embed.ErrConfig) || !strings.Contains(err.Error(), "Reserve 4 leaves none of the 4 sids 8-11") {
		t.Errorf("a reserve of all: %v", err)
	}
	cfg.Reserve = 3
	if st := open(t, cfg).Status(); st.SIDs != "8-11" || st.PoolSize != 4 || st.SID != 8 {
		t.Errorf("%+v", st)
	}
}

func look(t *testing.T, c config.Config) lease.View {
	t.Helper()
	v, err := daemon.FindSpace(t.Context(), c, daemon.Beginning{}, slog.New(slog.DiscardHandler))
	fatal.If(t, err)
	return v
}

// program is the configuration of a program of the name in the space of c.
func program(c config.Config, name string) embed.Config {
	return embed.Config{Endpoints: c.Etcd.Endpoints, Space: c.Space, Name: name, OpenTimeout: wait.Most}
}

func open(t *testing.T, cfg embed.Config) *embed.Allocator {
	t.Helper()
	a, err := embed.Open(t.Context(), cfg)
	fatal.If(t, err)
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("%s: close: %v", cfg.Name, err)
		}
	})
	return a
}

// waiting opens an allocator, and returns when its node has logged what it waits for. ended returns what Open did.
func waiting(t *testing.T, cfg embed.Config, waitsFor string) (giveUp func(), ended func() (*embed.Allocator, error)) {
	t.Helper()
	var log output.Text
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var a *embed.Allocator
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		a, err = embed.Open(ctx, cfg)
	}()
	t.Cleanup(func() {
		cancel()
		if <-done; a != nil {
			_ = a.Close()
		}
	})
	wait.Until(t, "the program waits: "+waitsFor, func() bool { return strings.Contains(log.String(), waitsFor) })
	return cancel, func() (*embed.Allocator, error) { <-done; return a, err }
}

// givenUp returns the error of Open when its context ends after the node has logged what it waits for.
func givenUp(t *testing.T, cfg embed.Config, waitsFor string) error {
	t.Helper()
	giveUp, ended := waiting(t, cfg, waitsFor)
	giveUp()
	_, err := ended()
	return err
}

const standby = "standby: all sids are held" // what a node logs that finds no sid

// noSID returns the error of Open of a program that finds no sid.
func noSID(t *testing.T, cfg embed.Config) *embed.PoolError {
	t.Helper()
	err := givenUp(t, cfg, standby)
	var pool *embed.PoolError
	if !errors.As(err, &pool) || !errors.Is(err, &client.Refusal{Reason: client.NoSID}) || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	return pool
}

func serve(t *testing.T, c config.Config) *daemon.Daemon {
	t.Helper()
	n := daemontest.Start(t, c, daemon.Host{})
	wait.Until(t, "a server is ready", func() bool { return n.Node().Ready() == nil })
	return n.Daemon
}

// Two programs beside a server in one space: each has a sid of their range, and its clock is compared.
func TestProgramsBesideAServer(t *testing.T) {
	c := newSpace(t)
	c.Node.Name, c.SIDRange = "server", lease.SIDRange{From: 0, To: 24}
	serve(t, c)
	one, two := open(t, program(c, "one")), open(t, program(c, "two"))
	if err := one.NextN(t.Context(), make([]flake.ID, 1000)); err != nil {
		t.Error(err)
	}
	st := one.Status()
	if st.SIDs != "24-31" || st.PoolSize != 8 || st.SID < 24 || st.Refusing != "" || st.Issued != 1000 || st.Term != 1 ||
		st.WindowLeft < 10*time.Second || st.Instance == "" || two.Status().SID < 24 || two.Status().SID == st.SID {
		t.Errorf("status %+v beside %+v", st, two.Status())
	}
	wait.Until(t, "clocks are compared: all of the space confirm the program's", func() bool { return one.Status().Confirmed })
	v := look(t, c)
	if n := len(v.Nodes); n != 3 {
		t.Errorf("%d nodes are registered", n)
	}
	for _, r := range v.Nodes {
		if r.Node == "one" && (r.GRPC != "" || r.HTTP != "" || r.SIDRange != "24-31" || !strings.HasPrefix(r.Version, "embed")) {
			t.Errorf("registered as %+v", r)
		}
	}
}

// Every way to draw goes on from the one before, and after X comes more than X.
func TestForms(t *testing.T) {
	c := newSpace(t)
	a := open(t, program(c, "one"))
	ctx := t.Context()
	last, err := a.Next(ctx)
	fatal.If(t, err)
	rises := func(what string, id flake.ID, err error) {
		t.Helper()
		if err != nil || id <= last {
			t.Errorf("%s: %v after %v: %v", what, id, last, err)
		}
		last = id
	}
	dst := make([]flake.ID, 40_000)
	err = a.NextN(ctx, dst)
	rises("NextN", dst[0], err)
	if !slices.IsSorted(dst) || len(slices.Compact(slices.Clone(dst))) != len(dst) {
		t.Error("NextN: not strictly rising")
	}
	last = dst[len(dst)-1]
	b, err := a.Block(ctx, 10)
	rises("Block", b.First, err)
	if b.Count != 10 || b.Format != c.Format() || b.Node != "one" || b.SID != c.Format().SID(b.First) || a.Format() != c.Format() ||
		b.SID != c.Format().SID(b.Last()) || b.SpaceID == 0 || b.Stride != int64(c.Layout.Holders()) {
		t.Errorf("block %+v", b)
	}
	last = b.Last()
	wide, err := a.NextULID(ctx)
	if err != nil || !wide.IsV7() {
		t.Errorf("NextULID: %v, %v", wide, err)
	}
	narrow, err := wide.Flake(c.Format())
	rises("NextULID", narrow, err)
	wides := make([]ulid.ID, 100)
	if err := a.NextULIDs(ctx, wides); err != nil || !slices.IsSortedFunc(wides, ulid.ID.Compare) || wides[0].Compare(wide) <= 0 {
		t.Errorf("NextULIDs: %v", err)
	}
	narrow, err = wides[99].Flake(c.Format())
	rises("NextULIDs", narrow, err)

	ahead, err := c.Format().Max(c.Format().UnixMilli(last) + 100)
	fatal.If(t, err)
	last = ahead
	id, err := a.NextAfter(ctx, ahead)
	rises("NextAfter", id, err)
	far, err := c.Format().Max(c.Format().UnixMilli(last) + 3_600_000)
	fatal.If(t, err)
	_, err = a.BlockAfter(ctx, 2, far)
	var refusal *client.Refusal
	if !errors.As(err, &refusal) || refusal.Reason != client.AfterTooFar || refusal.Metadata["excess_ms"] == "" || refusal.RetryAfter != 0 ||
		!strings.HasPrefix(err.Error(), "AFTER_TOO_FAR: ") {
		t.Errorf("after an hour ahead: %#v", err)
	}
	for _, n := range []int{0, -1, 1_000_001} {
		if _, err := a.Block(ctx, n); !errors.Is(err, &client.Refusal{Reason: client.InvalidCount}) {
			t.Errorf("block of %d: %v", n, err)
		}
	}
	if err := a.Ready(); err != nil {
		t.Error(err)
	}
	for target, want := range map[string]string{"/readyz": "ok", "/livez": "ok", "/metrics": "allocator_sid 24"} {
		rec := httptest.NewRecorder()
		a.Handler().ServeHTTP(rec, httptest.NewRequest("GET", target, nil))
		if rec.Code != 200 || !strings.Contains(rec.Body.String(), want) {
			t.Errorf("%s: %d %.200s", target, rec.Code, rec.Body)
		}
	}
	rec, req := httptest.NewRecorder(), httptest.NewRequest("GET", "/debug/pprof/cmdline", nil)
	req.RemoteAddr = "127.0.0.1:5555" // A proxy on the machine has such an address, and anybody may call through it.
	if a.Handler().ServeHTTP(rec, req); rec.Code != 404 {
		t.Errorf("profiles of the program: %d %.200s", rec.Code, rec.Body)
	}
}

// The range is taken: the error names who has what, nothing stays behind, and what
// Close gives back the next one has at once, above all that was issued.
func TestPoolTaken(t *testing.T) {
	c := newSpace(t)
	cfg := program(c, "one")
	cfg.SIDs = "30-31"
	one := open(t, cfg)
	cfg.Name = "two"
	two := open(t, cfg)

	cfg.Name = "three"
	pool := noSID(t, cfg)
	for _, want := range []string{"no sid of 30-31 is free: held: 30 by one, 31 by two. Stop one of them", "wider range (SIDs)", "package client"} {
		if !strings.Contains(pool.Error(), want) {
			t.Errorf("%q does not say %q", pool, want)
		}
	}
	if len(pool.Holders) != 2 || pool.Holders[1].SID != 31 || pool.Holders[1].Instance != two.Status().Instance || pool.Size != 2 {
		t.Errorf("%+v", pool)
	}
	if v := look(t, c); len(v.Nodes) != 2 {
		t.Errorf("left behind: %+v", v.Nodes)
	}

	last, err := one.Next(t.Context())
	fatal.If(t, err)
	fatal.If(t, one.Close())
	if _, err := one.Next(t.Context()); !errors.Is(err, embed.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := one.Ready(); !errors.Is(err, embed.ErrClosed) || one.Close() != nil {
		t.Errorf("closed: ready says %v", err)
	}
	if v := look(t, c); v.SIDs[30].Holder.Exists() || v.SIDs[30].Window.Value.State != lease.Released ||
		int64(v.SIDs[30].Window.Value.Ceil) != c.Format().UnixMilli(last)+1 {
		t.Errorf("after Close: %+v", v.SIDs[30])
	}
	three := open(t, cfg)
	next, err := three.Next(t.Context())
	if err != nil || next <= last || c.Format().SID(next) != 30 {
		t.Errorf("%v after %v: %v", next, last, err)
	}
}

// Two allocators of one program, without names: the second does not take the first's sid over as that of a predecessor.
// It waits, and has the sid as soon as the first gives it back.
func TestTwoInAProgram(t *testing.T) {
	c := newSpace(t)
	cfg := program(c, "")
	cfg.SIDs = "31"
	one := open(t, cfg)
	_, opened := waiting(t, cfg, standby)
	last, err := one.Next(t.Context())
	if err != nil || one.Status().Term != 1 {
		t.Errorf("the first: %v, %v, %+v", last, err, one.Status())
	}
	fatal.If(t, one.Close())
	two, err := opened()
	fatal.If(t, err)
	if id, err := two.Next(t.Context()); err != nil || id <= last {
		t.Errorf("%v after %v: %v", id, last, err)
	}
}

// The reserve is left, to whoever has none.
func TestReserve(t *testing.T) {
	c := newSpace(t)
	cfg := program(c, "one")
	cfg.SIDs, cfg.Reserve = "29-31", 2
	open(t, cfg)
	cfg.Name = "two"
	err := givenUp(t, cfg, "no sid is free but the reserve: waiting")
	var pool *embed.PoolError
	if !errors.As(err, &pool) || !strings.Contains(err.Error(), "2 of the sids 29-31 have to stay free (Reserve), and 2 are free: held: 29 by one") ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	cfg.Reserve = 1
	open(t, cfg)
}

// Open ends with its context, wherever it stands, and leaves nothing.
func TestOpenIsGivenUp(t *testing.T) {
	c := newSpace(t)
	cfg := program(c, "one")
	cfg.SIDs = "31"
	open(t, cfg)
	cfg.Name = "two"
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	a, err := embed.Open(ctx, cfg)
	if a != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v", a, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := embed.Open(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that had ended: %v", err)
	}

	// Etcd is away: STARTING, and the words say what is waited for.
	cfg.Endpoints, cfg.OpenTimeout = []string{"127.0.0.1:1"}, 500*time.Millisecond
	_, err = embed.Open(t.Context(), cfg)
	if !errors.Is(err, &client.Refusal{Reason: client.Starting}) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without etcd: %v", err)
	}
	cfg.Reserve, cfg.SIDs = 1, "30-31"
	if _, err = embed.Open(t.Context(), cfg); !errors.Is(err, &client.Refusal{Reason: client.Starting}) {
		t.Errorf("without etcd, and with a reserve: %v", err)
	}
	// The space was never made.
	cfg = program(c, "two")
	cfg.Space = "no-such-space"
	if err = givenUp(t, cfg, "waiting for the space to be initialized"); !errors.Is(err, &client.Refusal{Reason: client.Starting}) || !strings.Contains(err.Error(), "allocator init") {
		t.Errorf("without a space: %v", err)
	}
	// Another layout: no waiting helps.
	cfg = program(c, "two")
	cfg.Settings, cfg.SIDs = map[string]string{"layout": "fleet"}, embed.All
	if _, err = embed.Open(t.Context(), cfg); err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "layout") {
		t.Errorf("another layout: %v", err)
	}
	if v := look(t, c); len(v.Nodes) != 1 {
		t.Errorf("left behind: %+v", v.Nodes)
	}
}

// Open may be given up at any moment: whatever was taken by then is given back.
func TestOpenLeavesNothing(t *testing.T) {
	c := newSpace(t)
	var given int
	for i := range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*time.Millisecond)
		a, err := embed.Open(ctx, program(c, fmt.Sprint("p-", i)))
		cancel()
		if err == nil { // it was quick enough, and does not end with the context of Open
			given++
			if _, err := a.Next(t.Context()); err != nil {
				t.Errorf("the context of Open has ended: %v", err)
			}
			err = a.Close()
		} else if errors.Is(err, context.DeadlineExceeded) {
			err = nil
		}
		fatal.If(t, err)
		v := look(t, c)
		if len(v.Nodes) != 0 {
			t.Fatalf("left behind after %d ms: %+v", i*i, v.Nodes)
		}
		for sid, s := range v.SIDs {
			if s.Holder.Exists() {
				t.Fatalf("sid %d is held after %d ms", sid, i*i)
			}
		}
	}
	t.Logf("%d of 12 were opened", given)
}

// With etcd away IDs are issued while the window lasts, and Close gives up in its
// time, to every caller; calls that it meets end with ErrClosed.
func TestCloseWithoutEtcd(t *testing.T) {
	etcd, endpoint, err := etcdsim.OnLoopback()
	fatal.If(t, err)
	t.Cleanup(etcd.Close)
	c := config.Default()
	c.Space, c.Etcd.Endpoints = "alone", []string{endpoint}
	if _, _, err := daemon.Init(t.Context(), c, daemon.Beginning{Fresh: true}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	cfg := program(c, "one")
	a := open(t, cfg)
	etcd.Stop()
	if _, err := a.Next(t.Context()); err != nil {
		t.Errorf("etcd is away: %v", err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			var last flake.ID
			for {
				id, err := a.Next(t.Context())
				if err != nil {
					if !errors.Is(err, embed.ErrClosed) {
						t.Errorf("during Close: %v", err)
					}
					return
				}
				if id <= last {
					t.Errorf("%v after %v", id, last)
				}
				last = id
				time.Sleep(time.Millisecond)
			}
		})
	}
	for range 3 {
		all.Go(func() {
			if err := a.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	all.Wait()
	select {
	case <-a.Done():
	default:
		t.Error("Done is open after Close")
	}
	if _, err := a.NextAfter(t.Context(), 1); !errors.Is(err, embed.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if st := a.Status(); st.Refusing == "" {
		t.Errorf("after Close: %+v", st)
	}
}

// A program that is killed keeps its sid until its lease runs out, and the next
// one begins above all that it issued.
func TestKilled(t *testing.T) {
	c := newSpace(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+shared+" "+c.Space)
	in, err := cmd.StdinPipe()
	fatal.If(t, err)
	defer in.Close()
	child := proc.Run(t, cmd)
	t.Cleanup(child.Kill)
	last, err := strconv.ParseInt(child.Prints(t, `^(\d+) <nil>\n`)[1], 10, 64)
	fatal.If(t, err)
	cfg := program(c, "successor")
	cfg.SIDs, cfg.Settings = "30", quick
	if pool := noSID(t, cfg); len(pool.Holders) != 1 || pool.Holders[0].Node != "child" {
		t.Fatalf("while the child lives: %v", pool)
	}
	child.Kill()
	wait.Until(t, "the child's sid is free", func() bool { return !look(t, c).SIDs[30].Holder.Exists() })
	successor := open(t, cfg)
	id, err := successor.Next(t.Context())
	if err != nil || int64(id) <= last || c.Format().SID(id) != 30 {
		t.Errorf("%d after %d: %v", id, last, err)
	}
}

func TestConfig(t *testing.T) {
	file := t.TempDir() + "/server.yaml"
	fatal.If(t, os.WriteFile(file,
		[]byte("listen:\n  grpc: :9000\n  http: :8080\n  gossip: 10.0.0.1:7946\nsid-range: 3-5\n"), 0o600))
	local := []string{"http://127.0.0.1:2379"}
	for _, tt := range []struct {
		name string
		cfg  embed.Config
		want string
	}{
		{"nothing", embed.Config{}, "Endpoints: is empty"},
		{"gossip for other machines", embed.Config{Endpoints: []string{"http://127.0.0.1:2379", "etcd-0:2379"}}, "Gossip: is empty"},
		{"no default in layout fleet", embed.Config{Endpoints: local, Settings: map[string]string{"layout": "fleet"}}, "SIDs: layout fleet has no default"},
		{"a range beyond the layout", embed.Config{Endpoints: local, SIDs: "24-40"}, "sid-range: 24-40 goes beyond sid 31"},
		{"no range", embed.Config{Endpoints: local, SIDs: "many"}, "write first-last"},
		{"a misspelt key", embed.Config{Endpoints: local, Settings: map[string]string{"lease.windw": "1m"}}, `did you mean "lease.window"?`},
		{"a bad variable", embed.Config{Endpoints: local, Env: []string{"ALLOCATOR_LEASE_WINDOW=30"}}, "with a unit"},
		{"a negative reserve", embed.Config{Endpoints: local, Reserve: -1}, "Reserve"},
		{"a reserve that leaves none", embed.Config{Endpoints: local, Reserve: 8}, "Reserve 8 leaves none of the 8 sids 24-31"},
		{"a bad name", embed.Config{Endpoints: local, Name: "Näme"}, "node.name"},
		{"a file that is not there", embed.Config{Endpoints: local, File: file + "x"}, "no such file"},
	} {
		_, err := embed.Open(t.Context(), tt.cfg)
		if !errors.Is(err, embed.ErrConfig) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "config: config: ") {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	// A server's file says what range, and opens no listener of a server.
	c := newSpace(t)
	cfg := program(c, "one")
	cfg.File, cfg.Gossip = file, "127.0.0.1:0"
	a := open(t, cfg)
	if st := a.Status(); st.SIDs != "3-5" || st.SID != 3 {
		t.Errorf("with a server's file: %+v", st)
	}
	if r := look(t, c).Nodes[0]; r.GRPC != "" || r.HTTP != "" {
		t.Errorf("with a server's file: %+v", r)
	}
	// All, without gossip, under a name of its own.
	cfg = program(c, "")
	cfg.SIDs, cfg.Gossip = embed.All, embed.NoGossip
	b := open(t, cfg)
	if st := b.Status(); st.SIDs != "0-31" || !strings.HasSuffix(st.Node, fmt.Sprintf("-%d", os.Getpid())) {
		t.Errorf("all: %+v", st)
	}
}

// What is logged goes to the program's logger, with a word where a server may take
// the program's sids.
func TestLogger(t *testing.T) {
	c := newSpace(t)
	c.Node.Name = "greedy"
	serve(t, c)
	var text output.Text
	cfg := program(c, "one")
	cfg.Logger = slog.New(slog.NewTextHandler(&text, nil))
	open(t, cfg)
	for _, want := range []string{"event=sid_acquired", "server=greedy its_range=0-31 range=24-31"} {
		wait.Until(t, "the log has "+want, func() bool { return strings.Contains(text.String(), want) })
	}
}
