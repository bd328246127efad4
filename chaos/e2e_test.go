package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/devetcd"
	"github.com/flakelease/allocator/internal/history"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

var (
	wantIDs = flag.Int64("ids", 300_000, "how many IDs TestEndToEnd takes at least")
	outage  = flag.Duration("outage", 10*time.Second, "how long etcd is away under load, with no refusal allowed")
	long    = flag.Bool("long", false, "also take etcd away until the windows are used up, and time the return")
)

// etcdDir, in the environment, makes this test binary an etcd server: the real
// one, in a process of its own that can be killed.
const etcdDir = "ALLOCATOR_CHAOS_ETCD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(etcdDir); dir != "" {
		os.Exit(runEtcd(dir))
	}
	os.Exit(m.Run())
}

func runEtcd(dir string) int {
	var ports [2]int
	for i, s := range strings.Split(os.Getenv(etcdDir+"_PORTS"), ",") {
		ports[i], _ = strconv.Atoi(s)
	}
	s, err := devetcd.Start(context.Background(), devetcd.Config{
		Dir: dir, ClientPort: ports[0], PeerPort: ports[1], Log: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	<-s.Failed()
	return 1
}

// cluster is one etcd process and three allocator processes.
type cluster struct {
	t        *testing.T
	dir      string
	endpoint string
	etcd     *Process
	nodes    []*Process
	targets  []*Target
	admin    []string
	rec      *Recorder
}

func newCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "allocator")
	build := exec.Command("go", "build", "-o", binary, "../cmd/allocator")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ports, err := FreePorts(2 + 3*nodes)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, dir: dir, endpoint: fmt.Sprintf("http://127.0.0.1:%d", ports[0]), rec: NewRecorder()}
	c.etcd = NewProcess(dir, "etcd", self, []string{
		etcdDir + "=" + filepath.Join(dir, "data"), fmt.Sprintf("%s_PORTS=%d,%d", etcdDir, ports[0], ports[1])})
	if err := c.etcd.Run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	for i := range nodes {
		p := ports[2+3*i:]
		addr := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
		name := fmt.Sprintf("n%d", i+1)
		c.targets = append(c.targets, &Target{Name: name, HTTP: addr(p[0]), GRPC: addr(p[1])})
		c.admin = append(c.admin, addr(p[2]))
		c.nodes = append(c.nodes, NewProcess(dir, name, binary, nil, "serve", "--node.name", name,
			"--etcd.endpoints", c.endpoint, "--listen.http", addr(p[0]), "--listen.grpc", addr(p[1]), "--listen.admin", addr(p[2]), "--listen.gossip", addr(0)))
	}
	c.eventually("etcd answers", 30*time.Second, func() error {
		out, err := exec.Command(binary, "init", "--fresh", "--etcd.endpoints", c.endpoint).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return c
}

func (c *cluster) close() {
	for _, p := range append(c.nodes, c.etcd) {
		if p != nil {
			_ = p.Kill()
		}
	}
	if c.t.Failed() {
		for _, p := range append(c.nodes, c.etcd) {
			c.t.Logf("--- end of %s's output\n%s", p.Name, p.Tail())
		}
	}
}

func (c *cluster) eventually(what string, within time.Duration, try func() error) time.Duration {
	c.t.Helper()
	from := time.Now()
	for {
		err := try()
		if err == nil {
			return time.Since(from)
		}
		if time.Since(from) > within {
			c.t.Fatalf("%s: not within %v: %v", what, within, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// mint takes one ID from a node, which is not counted in the record.
func (c *cluster) mint(i int) error {
	resp, err := http.Post("http://"+c.targets[i].HTTP+"/v1/ids", "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(body))
	}
	return err
}

// start runs a node and returns how long its first ID took from process start.
func (c *cluster) start(i int) time.Duration {
	c.t.Helper()
	if err := c.nodes[i].Run(); err != nil {
		c.t.Fatal(err)
	}
	return c.eventually(c.nodes[i].Name+" issues", 60*time.Second, func() error { return c.mint(i) })
}

// load starts clients of every kind on every node, and returns a function that
// ends them.
func (c *cluster) load(pace Pace) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	failed := make(chan error, 64)
	run := func(f func(context.Context, *Target, int, Pace, *Recorder) error, t *Target, count int) {
		all.Go(func() {
			if err := f(ctx, t, count, pace, c.rec); err != nil {
				failed <- err
			}
		})
	}
	for _, t := range c.targets {
		run(LoadHTTP, t, 1)
		run(LoadHTTP, t, 100)
		run(LoadUnary, t, 1)
		run(LoadUnary, t, 7)
		run(LoadStream, t, 1000)
	}
	return func() {
		cancel()
		all.Wait()
		close(failed)
		for err := range failed {
			c.t.Errorf("a client found a broken contract: %v", err)
		}
	}
}

// TestEndToEnd draws IDs over HTTP, gRPC and in blocks from three serve processes
// at once, while one of them is killed and started again and etcd goes away, and
// then holds all of them against the claims.
func TestEndToEnd(t *testing.T) {
	c := newCluster(t, 3)
	for i := range c.nodes {
		took := c.start(i)
		mem, err := c.nodes[i].Memory()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: first ID %v after process start, %d MiB resident when idle", c.nodes[i].Name, took.Round(time.Millisecond), mem>>20)
		if mem > 64<<20 {
			t.Errorf("%s uses %d MiB idle, the limit is 64", c.nodes[i].Name, mem>>20)
		}
	}
	time.Sleep(time.Second) // windows have been raised once or not; both are fine

	pace := Pace{Call: 5 * time.Millisecond, Failure: 50 * time.Millisecond}
	if *wantIDs > 1_000_000 {
		pace.Call = 0
	}
	stop := c.load(pace)
	began := time.Now()
	time.Sleep(2 * time.Second)

	t.Log("n2 is killed")
	if err := c.nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	c.targets[1].Restarted()
	time.Sleep(500 * time.Millisecond)
	t.Logf("n2 is back: first ID %v after process start", c.start(1).Round(time.Millisecond))
	time.Sleep(time.Second)

	before := c.rec.Failures()
	t.Logf("etcd is killed, for %v", *outage)
	if err := c.etcd.Kill(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(*outage)
	for what, n := range c.rec.Failures() {
		if n > before[what] {
			t.Errorf("during an etcd outage of %v: %s, %d times", *outage, what, n-before[what])
		}
	}
	if err := c.etcd.Run(); err != nil {
		t.Fatal(err)
	}
	t.Log("etcd is back")
	if *long {
		time.Sleep(20 * time.Second) // until windows are full again
		c.longOutage()
	}
	for c.rec.IDs() < *wantIDs {
		if time.Since(began) > 10*time.Minute {
			t.Fatalf("only %d of %d IDs in %v", c.rec.IDs(), *wantIDs, time.Since(began))
		}
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(3 * time.Second)
	stop()
	took := time.Since(began)

	for _, p := range c.nodes {
		if err := p.Stop(10 * time.Second); err != nil {
			t.Error(err)
		}
		if p.ExitCode() != 0 {
			t.Errorf("%s ended with code %d", p.Name, p.ExitCode())
		}
	}
	h, released := c.history()
	t.Logf("%d IDs in %d answers over %v, %d window records; failed calls: %v",
		h.IDs(), len(h.Issues), took.Round(time.Second), len(h.Writes), c.rec.Failures())
	for _, v := range h.Check() {
		t.Error(v)
	}
	if released < 3 {
		t.Errorf("%d sids were given back, want those of all three nodes", released)
	}
	for what := range c.rec.Failures() {
		if strings.HasPrefix(what, "n2") || *long && strings.HasSuffix(what, ": WINDOW_EXHAUSTED") || strings.HasSuffix(what, ": ENTROPY_OVERFLOW") {
			continue
		}
		t.Errorf("a node that was left alone failed a call: %s", what)
	}
}

// longOutage takes etcd away until the windows are used up.
func (c *cluster) longOutage() {
	c.t.Log("etcd is killed, until windows are used up")
	if err := c.etcd.Kill(); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("WINDOW_EXHAUSTED", time.Minute, func() error {
		if err := c.mint(0); err == nil || !strings.Contains(err.Error(), "WINDOW_EXHAUSTED") {
			return fmt.Errorf("n1: %v", err)
		}
		return nil
	})
	time.Sleep(5 * time.Second)
	if err := c.etcd.Run(); err != nil {
		c.t.Fatal(err)
	}
	store := c.store()
	c.eventually("etcd answers", 20*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _, err := store.Ping(ctx)
		return err
	})
	back := c.eventually("n1 issues again", 20*time.Second, func() error { return c.mint(0) })
	c.t.Logf("n1 issues %v after etcd answers again", back.Round(time.Millisecond))
	if back > 5*time.Second {
		c.t.Errorf("n1 took %v to issue again; 2 s is what a quiet machine needs", back)
	}
}

func (c *cluster) store() *etcdstore.Store {
	c.t.Helper()
	client, err := etcdstore.Dial(etcdstore.Config{Endpoints: []string{c.endpoint}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = client.Close() })
	s, err := etcdstore.New(client, "allocator", "default")
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// history joins what clients got with what etcd granted, and counts the sids
// that were given back in the end.
func (c *cluster) history() (h *history.History, released int) {
	c.t.Helper()
	h = &history.History{Format: flake.Default, Issues: c.rec.Issues()}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	versions, err := c.store().History(ctx, 1)
	if err != nil {
		c.t.Fatal(err)
	}
	last := map[flake.SID]lease.WindowState{}
	for _, v := range versions {
		w := v.Window.Value
		if v.Window.Err != nil || !v.Window.Exists() {
			c.t.Errorf("sid %d: unreadable or deleted window record: %v", v.SID, v.Window.Err)
			continue
		}
		last[v.SID] = w.State
		h.Writes = append(h.Writes, history.Write{
			SID: v.SID, Rev: v.Window.Rev, Term: w.Term, Base: w.Base, Ceil: w.Ceil, Released: w.State == lease.Released})
		if w.State == lease.Released {
			continue
		}
		for _, t := range c.targets {
			if t.Name != w.Node {
				continue
			}
			// Which run of the node it was etcd knows by instance and clients do
			// not: a window of the node is taken for one of each of its runs.
			for _, run := range t.Runs() {
				h.Grants = append(h.Grants, history.Grant{Process: run, SID: v.SID, Base: w.Base, Ceil: w.Ceil, At: clock.Mono(0)})
			}
		}
	}
	for _, state := range last {
		if state == lease.Released {
			released++
		}
	}
	return h, released
}
