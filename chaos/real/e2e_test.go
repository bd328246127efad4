package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/operator"
	"github.com/flakelease/allocator/chaos/real/record"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/devetcd"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/load"
	"github.com/flakelease/allocator/internal/loopback"
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

// recorder is a history, and what is asked of it while it grows.
type recorder struct {
	*history.Writer
	file *os.File
	ids  atomic.Int64

	mu    sync.Mutex     // guards fails
	fails map[string]int // by "node: reason"
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "history.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	r, began := &recorder{file: f, fails: map[string]int{}}, time.Now()
	r.Writer = history.NewWriter(f, history.WriterConfig{Now: func() clock.Mono { return clock.Mono(time.Since(began)) }, Each: func(op *history.Op) {
		switch {
		case op.F != history.FAllocate:
		case op.Type == history.OK:
			r.ids.Add(op.Block.Count)
		case op.Type != history.Invoke:
			r.mu.Lock()
			r.fails[op.Node+": "+op.Reason]++
			r.mu.Unlock()
		}
	}})
	if _, err := r.Write(history.Op{Process: history.Harness, Type: history.Info, F: history.FSetup, Setup: &history.Setup{
		Layout: flake.Scalable.String(), EpochMs: flake.Default.Epoch, StartMs: began.UnixMilli(), MaxSkewMs: 250, MaxLeadMs: 250, WindowMs: 30_000, Profile: "end to end"}}); err != nil {
		t.Fatal(err)
	}
	return r
}

// failures returns how many calls failed, by "node: reason".
func (r *recorder) failures() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]int, len(r.fails))
	for k, v := range r.fails {
		out[k] = v
	}
	return out
}

// cluster is one etcd process and three allocator processes.
type cluster struct {
	t        *testing.T
	endpoint string
	etcd     *rig.Process
	nodes    []*rig.Process
	targets  []*record.Node
	rec      *recorder
}

func newCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "allocator")
	build := exec.Command("go", "-C", "../..", "build", "-o", binary, "./cmd/allocator") // whose module has its own versions
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	addrs := loopback.Addresses(2 + 3*nodes)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, endpoint: "http://" + addrs[0], rec: newRecorder(t)}
	c.etcd = &rig.Process{Name: "etcd", Place: rig.Loopback{}, Path: self, Dir: dir, Env: []string{
		etcdDir + "=" + filepath.Join(dir, "data"), etcdDir + "_PORTS=" + portOf(addrs[0]) + "," + portOf(addrs[1])}}
	if err := c.etcd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	for i := range nodes {
		p := addrs[2+3*i:]
		name := fmt.Sprintf("n%d", i+1)
		n := &rig.Node{HTTP: p[0], GRPC: p[1], Admin: p[2], Process: &rig.Process{Name: name, Place: rig.Loopback{}, Path: binary, Dir: dir,
			Args: []string{"serve", "--node.name", name, "--etcd.endpoints", c.endpoint,
				"--listen.http", p[0], "--listen.grpc", p[1], "--listen.admin", p[2], "--listen.gossip", loopback.Any}}}
		c.nodes = append(c.nodes, n.Process)
		c.targets = append(c.targets, &record.Node{Name: name, HTTP: n.HTTP, GRPC: n.GRPC, MayAnswer: n.MayAnswer})
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
			c.t.Logf("--- end of %s's output\n%s", p.Name, p.Output(p.Run())[max(0, len(p.Output(p.Run()))-4000):])
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
	if err := c.nodes[i].Start(); err != nil {
		c.t.Fatal(err)
	}
	return c.eventually(c.nodes[i].Name+" issues", 60*time.Second, func() error { return c.mint(i) })
}

// load starts clients of every kind on every node, and returns a function that
// ends them.
func (c *cluster) load(pace time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var mu sync.Mutex // guards the test's log
	l := &record.Recorder{History: c.rec.Writer, Format: flake.Default, Dial: new(net.Dialer).DialContext, Broken: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		c.t.Errorf("a client found a broken contract: %v", err)
	}}
	var clients []record.Client
	for _, n := range c.targets {
		for _, client := range []record.Client{
			{Via: load.HTTP, Counts: []int{1}}, {Via: load.HTTP, Counts: []int{100}}, {Via: load.GRPC, Counts: []int{1}, Session: "one-" + n.Name},
			{Via: load.GRPC, Counts: []int{7}, Session: "seven-" + n.Name}, {Via: load.Stream, Counts: []int{1000}},
		} {
			client.Nodes, client.Every = []*record.Node{n}, pace
			clients = append(clients, client)
		}
	}
	for number, client := range clients {
		all.Go(func() { l.Run(ctx, number, client) })
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// memory returns the resident memory of a process, in bytes.
func memory(p *rig.Process) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID()))
	if err != nil {
		return 0, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(data), &size, &resident); err != nil {
		return 0, err
	}
	return resident * int64(os.Getpagesize()), nil
}

func portOf(addr string) string { return strings.TrimPrefix(addr, "127.0.0.1:") }

// TestEndToEnd draws IDs over HTTP, gRPC and in blocks from three serve processes
// at once, while one of them is killed and started again and etcd goes away, and
// then holds all of them against the claims.
func TestEndToEnd(t *testing.T) {
	c := newCluster(t, 3)
	for i := range c.nodes {
		took := c.start(i)
		mem, err := memory(c.nodes[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: first ID %v after process start, %d MiB resident when idle", c.nodes[i].Name, took.Round(time.Millisecond), mem>>20)
		if mem > 64<<20 {
			t.Errorf("%s uses %d MiB idle, the limit is 64", c.nodes[i].Name, mem>>20)
		}
	}
	time.Sleep(time.Second) // windows have been raised once or not; both are fine

	pace := 5 * time.Millisecond
	if *wantIDs > 1_000_000 {
		pace = 0
	}
	stop := c.load(pace)
	began := time.Now()
	time.Sleep(2 * time.Second)

	t.Log("n2 is killed")
	if err := c.nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	t.Logf("n2 is back: first ID %v after process start", c.start(1).Round(time.Millisecond))
	time.Sleep(time.Second)

	before := c.rec.failures()
	t.Logf("etcd is killed, for %v", *outage)
	if err := c.etcd.Kill(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(*outage)
	for what, n := range c.rec.failures() {
		if n > before[what] {
			t.Errorf("during an etcd outage of %v: %s, %d times", *outage, what, n-before[what])
		}
	}
	if err := c.etcd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Log("etcd is back")
	if *long {
		time.Sleep(20 * time.Second) // until windows are full again
		c.longOutage()
	}
	for c.rec.ids.Load() < *wantIDs {
		if time.Since(began) > 10*time.Minute {
			t.Fatalf("only %d of %d IDs in %v", c.rec.ids.Load(), *wantIDs, time.Since(began))
		}
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(3 * time.Second)
	stop()
	took := time.Since(began)

	for _, p := range c.nodes {
		if err := p.Terminate(10 * time.Second); err != nil {
			t.Error(err)
		}
		if p.Exit() != "exit status 0" {
			t.Errorf("%s ended with %s", p.Name, p.Exit())
		}
	}
	windows, released := c.grants()
	lines, size := c.rec.Size()
	t.Logf("%d IDs over %v, %d window records, a history of %d lines and %d MiB; failed calls: %v",
		c.rec.ids.Load(), took.Round(time.Second), windows, lines, size>>20, c.rec.failures())
	for _, r := range c.check() {
		if r.Verdict != history.Pass {
			t.Errorf("%s (%s): %s: %s", r.Check, r.Claim, r.Verdict, r.Reason)
		}
		for _, v := range r.Violations {
			t.Error(v)
		}
	}
	if released < 3 {
		t.Errorf("%d sids were released, want those of all three nodes", released)
	}
	for what := range c.rec.failures() {
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
	if err := c.etcd.Start(); err != nil {
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

// check holds the history against the claims.
func (c *cluster) check() []history.Result {
	c.t.Helper()
	if err := c.rec.Flush(); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.rec.file.Seek(0, io.SeekStart); err != nil {
		c.t.Fatal(err)
	}
	suite := history.Suite{history.NewUnique(64<<20, nil), history.NewIntervals(), history.NewOrder(), history.NewCausal(), history.NewReserved()}
	results, err := suite.Check(c.rec.file, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return results
}

// windowWrites returns every version of every window record, oldest first.
func (c *cluster) windowWrites(ctx context.Context) (out []operator.Write) {
	c.t.Helper()
	op, err := operator.New([]string{c.endpoint}, "allocator", "default", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer op.Close()
	end, err := op.Revision(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for ctx.Err() == nil { // nothing else reports the revision of a quiet etcd
			_ = op.Progress(ctx)
			time.Sleep(50 * time.Millisecond)
		}
	}()
	seen := int64(0)
	err = op.Watch(ctx, 1, func(w operator.Write) {
		if !w.IsHolder {
			out = append(out, w)
		}
	}, func(revision int64) {
		if seen = revision; seen >= end {
			cancel()
		}
	})
	if seen < end {
		c.t.Fatalf("etcd's history ends at revision %d of %d: %v", seen, end, err)
	}
	return out
}

// grants puts what etcd granted into the history, and counts the records and the
// sids that were released in the end.
func (c *cluster) grants() (records, released int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	versions := c.windowWrites(ctx)
	runs := map[string][]string{} // a node's instances, in the order of its processes
	last := map[flake.SID]lease.WindowState{}
	for _, v := range versions {
		if v.Err != nil || v.Deleted {
			c.t.Errorf("sid %d: unreadable or deleted window record: %v", v.SID, v.Err)
			continue
		}
		w := v.Window
		last[v.SID] = w.State
		if !slices.Contains(runs[w.Node], string(w.Instance)) {
			runs[w.Node] = append(runs[w.Node], string(w.Instance))
		}
		run := fmt.Sprintf("%s#%d", w.Node, 1+slices.Index(runs[w.Node], string(w.Instance)))
		if _, err := c.rec.Write(history.Op{Process: history.Etcd, Type: history.Info, F: history.FWindow, Node: w.Node, Run: run, Window: &history.Window{
			SID: int64(v.SID), Rev: v.Revision, Term: w.Term, Base: int64(w.Base), Ceil: int64(w.Ceil), Released: w.State == lease.Released, Instance: string(w.Instance)}}); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, state := range last {
		if state == lease.Released {
			released++
		}
	}
	return len(versions), released
}
