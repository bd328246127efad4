package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/devetcd"
	"github.com/flakelease/allocator/internal/node"
)

// testCluster is an etcd that can be restored from a snapshot, and what its nodes
// have issued.
type testCluster struct {
	*testing.T
	etcd  *devetcd.Server
	began time.Time
	user  config.Etcd // of nodes and commands: name and password; zero where etcd asks nobody

	mu     sync.Mutex // guards issued
	issued []history.Issue
}

func deploy(t *testing.T) *testCluster {
	t.Helper()
	d := &testCluster{T: t, began: time.Now()}
	var err error
	if d.etcd, err = devetcd.Start(t.Context(), devetcd.Config{Dir: filepath.Join(t.TempDir(), "etcd"), NoSync: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.etcd.Close() })
	if out, code := d.cli("init", "--fresh"); code != 0 {
		t.Fatalf("init: %d: %s", code, out)
	}
	return d
}

// window is short, so that a test sees it pass.
const testWindow = 3 * time.Second

// cli carries out a command against d's etcd, and returns all that it printed.
func (d *testCluster) cli(args ...string) (string, int) {
	d.Helper()
	var out bytes.Buffer
	args = append(args, "--etcd.endpoints", d.etcd.Endpoint(), "--lease.window", testWindow.String(), "--lease.extend-every", "500ms", "--lease.call-timeout", "500ms")
	if d.user.Username != "" {
		args = append(args, "--etcd.username", d.user.Username, "--etcd.password-file", d.user.PasswordFile)
	}
	code := run(d.Context(), args, strings.NewReader(""), &out, &out, nil)
	d.Logf("allocator %s: %d\n%s", strings.Join(args, " "), code, &out)
	return out.String(), code
}

// member is a node that issues as fast as it is let, and whoever asks it.
type member struct {
	*daemontest.Running
	d    *testCluster
	name string
	stop func()
}

func (d *testCluster) node(name string, change ...func(*config.Config)) *member {
	d.Helper()
	c := daemontest.Settings(d.T, name, d.etcd.Endpoint())
	c.Space = config.Default().Space
	c.Etcd.Username, c.Etcd.PasswordFile = d.user.Username, d.user.PasswordFile
	c.Lease = config.Lease{
		Window: testWindow, ExtendEvery: 500 * time.Millisecond, TTL: 5 * time.Second,
		KeepAlive: time.Second, ReloadEvery: 2 * time.Second, CallTimeout: 500 * time.Millisecond,
	}
	c.Worker.Window = testWindow // no worker runs, and an era would begin that much later
	c.Console.Operate = true
	for _, f := range change {
		f(&c)
	}
	m := &member{Running: daemontest.Start(d.T, c, daemon.Host{}), d: d, name: name}
	ctx, cancel := context.WithCancel(context.Background())
	var issuing sync.WaitGroup
	issuing.Go(func() { m.issue(ctx) })
	m.stop = func() {
		cancel()
		issuing.Wait()
		_ = m.Stop() // Its error fails the test at the end.
	}
	d.Cleanup(m.stop)
	return m
}

// granted returns the highest ceiling that was ever confirmed to m.
func (m *member) granted() clock.Millis { return m.Node().Stats().Reserved }

// awaitGrant waits until m was granted more than etcd's backup can know.
func (m *member) awaitGrant(beyond clock.Millis) {
	m.d.Helper()
	m.d.await(m.name+" is granted more", func() bool { return m.granted() > beyond })
}

// issue asks for blocks until ctx ends, and records every one.
func (m *member) issue(ctx context.Context) {
	for ctx.Err() == nil {
		begin := clock.Mono(time.Since(m.d.began))
		b, err := m.Node().Next(ctx, 100, 0)
		if err == nil {
			m.d.mu.Lock()
			m.d.issued = append(m.d.issued, history.Issue{
				Process: string(m.Node().Config().Instance), First: b.First, Count: b.Count, Stride: b.Stride,
				Begin: begin, End: clock.Mono(time.Since(m.d.began)),
			})
			m.d.mu.Unlock()
		}
		select { // a pace that a person could read the result of
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// blocks returns how many were issued.
func (d *testCluster) blocks() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.issued)
}

func (d *testCluster) await(what string, ok func() bool) {
	d.Helper()
	for began := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > patience {
			d.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func (m *member) reason() node.Reason {
	if r := m.Node().Ready(); r != nil {
		return r.Reason
	}
	return 0
}

func (m *member) awaitReason(want node.Reason) {
	m.d.Helper()
	m.d.await(fmt.Sprintf("%s answers %q", m.name, want), func() bool { return m.reason() == want })
}

// backup takes a snapshot of etcd, as an operator does.
func (d *testCluster) backup() string {
	d.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{d.etcd.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		d.Fatal(err)
	}
	defer c.Close()
	r, err := c.Snapshot(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	defer r.Close()
	path := filepath.Join(d.TempDir(), "backup.db")
	f, err := os.Create(path)
	if err != nil {
		d.Fatal(err)
	}
	if _, err := io.Copy(f, r); err != nil {
		d.Fatal(err)
	}
	if err := f.Close(); err != nil {
		d.Fatal(err)
	}
	return path
}

// Programs that tests share, each built once; they return its path.
var (
	buildEtcd = sync.OnceValues(func() (string, error) { return build.Etcd(context.Background(), builtDir) })
	buildDev  = sync.OnceValues(func() (string, error) { return build.Dev(context.Background(), builtDir) })
)

// restore puts the snapshot in the place of etcd's data, under a cluster token,
// while etcd is stopped, and starts it on the same ports.
func (d *testCluster) restore(backup, token string) {
	d.Helper()
	d.etcd.Stop()
	if err := os.RemoveAll(d.etcd.Dir()); err != nil {
		d.Fatal(err)
	}
	etcd, err := buildEtcd()
	if err != nil {
		d.Fatal(err)
	}
	out, err := exec.CommandContext(d.Context(), etcd, "snapshot", "restore", backup, "--name", "dev", "--data-dir", d.etcd.Dir(),
		"--initial-advertise-peer-urls", d.etcd.Peer(), "--initial-cluster", "dev="+d.etcd.Peer(), "--initial-cluster-token", token).CombinedOutput()
	if err != nil {
		d.Fatalf("etcd snapshot restore: %v\n%s", err, out)
	}
	if err := d.etcd.Restart(d.Context()); err != nil {
		d.Fatal(err)
	}
}

// sameToken is the one that etcd takes where none is given, and so the one the
// cluster was made with.
const sameToken = "etcd-cluster"

type recovered struct {
	Era         int64    `json:"era"`
	PreviousEra int64    `json:"previous_era"`
	FloorUnixMs int64    `json:"floor_unix_ms"`
	Highest     int64    `json:"highest_ceil_unix_ms"`
	Unreached   []string `json:"unreached"`
	Warnings    []string `json:"warnings"`
}

// recover runs `admin recover`.
func (d *testCluster) recover(args ...string) recovered {
	d.Helper()
	out, code := d.cli(append([]string{"admin", "recover", "--yes", "--format", "json"}, args...)...)
	if code != 0 {
		d.Fatalf("recover: %d", code)
	}
	var r recovered
	if err := json.Unmarshal([]byte(out[strings.LastIndex(out, "\n{")+1:]), &r); err != nil {
		d.Fatal(err)
	}
	return r
}

// check holds all that was issued against the claims. The floor has to lie above
// granted, which is all that was before the recovery, and below all that was
// issued after it, from that block on.
func (d *testCluster) check(granted clock.Millis, from int, r recovered) {
	d.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	format := flake.Format{Layout: flake.Scalable, Epoch: flake.DefaultEpoch}
	h := history.History{Format: format, Issues: d.issued}
	for _, v := range h.Check() {
		// I3 and I4 look at grants and writes, which are not recorded here.
		if v.Claim == "I1" || v.Claim == "I2" {
			d.Error(v)
		}
	}
	if int64(granted) >= r.FloorUnixMs {
		d.Errorf("the floor %d lies below a ceiling that was granted, %d", r.FloorUnixMs, granted)
	}
	for _, i := range d.issued[from:] {
		if ms := format.UnixMilli(i.First); ms < r.FloorUnixMs {
			d.Errorf("after the recovery %v was issued, %d ms below the floor", i.First, r.FloorUnixMs-ms)
			break
		}
	}
	d.Logf("%d IDs by %s; %d of them after the recovery", h.IDs(), fmt.Sprint(processes(d.issued), " processes"), 100*(len(d.issued)-from))
}

func processes(issues []history.Issue) int {
	seen := map[string]bool{}
	for _, i := range issues {
		seen[i.Process] = true
	}
	return len(seen)
}

// TestRecoverUnderANewToken is the runbook's way: no node, running or started
// meanwhile, can write between the restore and the recovery.
//
// Incident T33 (restored from an old snapshot), docs/INCIDENTS.md.
func TestRecoverUnderANewToken(t *testing.T) {
	tier.Check(t, "restores etcd from a snapshot with etcd's own program")
	t.Parallel()
	d := deploy(t)
	a, b := d.node("a"), d.node("b")
	a.awaitReason(0)
	b.awaitReason(0)
	backup := d.backup()
	a.awaitGrant(a.granted())
	b.awaitGrant(b.granted())
	granted := b.granted()
	b.stop() // gives its sid back, which the backup does not know

	d.restore(backup, "restored")
	a.awaitReason(node.HistoryRewound)
	c := d.node("c") // starts on the restored etcd, and has nothing to compare with but the era
	c.awaitReason(node.HistoryRewound)
	granted = max(granted, a.granted())
	before := d.blocks()

	r := d.recover("--addr", a.Addresses().GRPC)
	if r.Era != 2 || r.PreviousEra != 1 || r.Highest < int64(a.granted()) {
		t.Errorf("got %+v", r)
	}
	for _, m := range []*member{a, c} {
		m.awaitReason(0)
	}
	d.await("both serve again", func() bool { return d.blocks() > before+200 })
	if issued := c.Node().Stats().Issued; issued == 0 {
		t.Error("c issued nothing")
	}
	a.stop()
	c.stop()
	d.check(granted, before, r)
}

// TestRecoverUnderTheSameToken: only nodes that lived through the restore can
// tell; those that start have to be started after the recovery. The backup is
// older than an era, whose number must not come again.
//
// Incident T33 (restored from an old snapshot), docs/INCIDENTS.md.
func TestRecoverUnderTheSameToken(t *testing.T) {
	tier.Check(t, "restores etcd from a snapshot with etcd's own program")
	t.Parallel()
	d := deploy(t)
	a := d.node("a")
	a.awaitReason(0)
	backup := d.backup()
	first := d.recover()
	if first.Era != 2 {
		t.Fatalf("got %+v", first)
	}
	a.awaitReason(node.NoSID) // until the floor
	a.awaitReason(0)          // in era 2
	a.awaitGrant(a.granted())

	d.restore(backup, sameToken)
	a.awaitReason(node.HistoryRewound)
	granted, before := a.granted(), d.blocks()
	r := d.recover("--addr", a.Addresses().GRPC)
	// etcd has era 1 again, and a has seen 2.
	if r.Era != 3 || r.PreviousEra != 1 {
		t.Errorf("got %+v", r)
	}
	b := d.node("b")
	a.awaitReason(0)
	b.awaitReason(0)
	d.await("both serve", func() bool { return d.blocks() > before+200 })
	a.stop()
	b.stop()
	d.check(granted, before, r)
}

// TestRecoverWithoutNodes: all were stopped, as where a node cannot be reached.
func TestRecoverWithoutNodes(t *testing.T) {
	tier.Check(t, "restores etcd from a snapshot with etcd's own program")
	t.Parallel()
	d := deploy(t)
	a := d.node("a")
	a.awaitReason(0)
	backup := d.backup()
	a.awaitGrant(a.granted())
	addr, granted := a.Addresses().GRPC, a.granted()
	a.stop()
	d.restore(backup, "restored")
	before := d.blocks()
	r := d.recover()
	// The backup's registry still names it.
	if len(r.Unreached) != 1 || r.Unreached[0] != addr {
		t.Errorf("not reached: %q, want %s", r.Unreached, addr)
	}
	b := d.node("b")
	b.awaitReason(0)
	d.await("it serves", func() bool { return d.blocks() > before+100 })
	b.stop()
	d.check(granted, before, r)
}

// operate sends a form of the page Operate of m, and returns the page.
func (m *member) operate(field, value string) string {
	m.d.Helper()
	res, err := http.PostForm("http://"+m.Addresses().Admin+"/console/operate", url.Values{field: {value}})
	if err != nil {
		m.d.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		m.d.Fatal(err)
	}
	return string(b)
}

var (
	confirmKey  = regexp.MustCompile(`name="confirm" value="([A-Z0-9]+)"`)
	plannedEra  = regexp.MustCompile(`&#34;number&#34;:(\d+),&#34;floor&#34;:(\d+)`)
	answeredRow = regexp.MustCompile(`<tr data-key="([^"]*)" data-state="([a-z]*)"`)
)

// planned is what the page shows of a new era: its plan, the key that confirms it, and
// the nodes that were asked, with "silent" for those that did not answer.
func (m *member) planned(want ...string) (plan recovered, key string, asked map[string]string) {
	m.d.Helper()
	page := m.operate("action", "recover")
	for _, text := range want {
		if !strings.Contains(page, text) {
			m.d.Errorf("no %q in\n%s", text, page)
		}
	}
	if s := plannedEra.FindStringSubmatch(page); s != nil {
		plan.Era, _ = strconv.ParseInt(s[1], 10, 64)
		plan.FloorUnixMs, _ = strconv.ParseInt(s[2], 10, 64)
	}
	if s := confirmKey.FindStringSubmatch(page); s != nil {
		key = s[1]
	}
	asked = map[string]string{}
	for _, s := range answeredRow.FindAllStringSubmatch(page, -1) {
		asked[s[1]] = s[2]
	}
	return plan, key, asked
}

// TestRecoverOnThePage: the page shows what a recovery would write, and begins the era
// only if it is needed and every node has said what was confirmed to it. What is issued
// after it lies above all that was granted, as after the command.
//
// Incident T33 (restored from an old snapshot), docs/INCIDENTS.md.
func TestRecoverOnThePage(t *testing.T) {
	tier.Check(t, "restores etcd from a snapshot with etcd's own program")
	t.Parallel()
	d := deploy(t)
	a, b := d.node("a"), d.node("b")
	silent := d.node("silent", func(c *config.Config) { c.Listen.Gossip = "" })
	for _, m := range []*member{a, b, silent} {
		m.awaitReason(0)
	}
	confirmed := func() bool { return a.Clocks().Gate.Verdict.Confirmed() }
	d.await("a and b agree on the time", confirmed)
	_, key, asked := a.planned("a new one may not be needed", "silent at "+silent.Addresses().GRPC+" did not answer", "allocator admin recover --etcd.endpoints "+d.etcd.Endpoint())
	if key != "" || !maps.Equal(asked, map[string]string{"a": "", "b": "", "silent": "silent"}) {
		t.Fatalf("key %q, asked %v", key, asked)
	}
	silent.stop()

	backup := d.backup()
	a.awaitGrant(a.granted())
	b.awaitGrant(b.granted())
	d.restore(backup, "restored")
	a.awaitReason(node.HistoryRewound)
	b.awaitReason(node.HistoryRewound)
	granted, before := max(a.granted(), b.granted()), d.blocks()

	var plan recovered
	d.await("nothing keeps the page from it", func() bool {
		plan, key, asked = a.planned()
		return key != ""
	})
	if plan.Era != 2 || plan.FloorUnixMs <= int64(granted) || !maps.Equal(asked, map[string]string{"a": "", "b": ""}) {
		t.Errorf("plan %+v, asked %v", plan, asked)
	}
	if a.reason() != node.HistoryRewound || b.reason() != node.HistoryRewound {
		t.Errorf("the plan alone changed something: %s, %s", a.reason(), b.reason())
	}
	if page := a.operate("confirm", key); !strings.Contains(page, "begin era 2: done.") {
		t.Fatalf("confirmed:\n%s", page)
	}
	if page := a.operate("confirm", key); !strings.Contains(page, "begin again") {
		t.Errorf("confirmed twice:\n%s", page)
	}
	a.awaitReason(0)
	b.awaitReason(0)
	d.await("both serve again", func() bool { return d.blocks() > before+200 })
	a.stop()
	b.stop()
	d.check(granted, before, plan)
}

// A node that registered after the backup, and is not in gossip, is known to those that
// listed it before: the page does not begin an era without its answer.
func TestPageKnowsWhoRegisteredAfterTheBackup(t *testing.T) {
	tier.Check(t, "restores etcd from a snapshot with etcd's own program")
	t.Parallel()
	d := deploy(t)
	a, b := d.node("a"), d.node("b")
	a.awaitReason(0)
	b.awaitReason(0)
	backup := d.backup()
	late := d.node("late", func(c *config.Config) { c.Listen.Gossip, c.Lease.TTL = "", time.Minute }) // registered until etcd stops
	late.awaitReason(0)
	d.await("a has listed it", func() bool { return len(a.Node().Stats().Lease.Nodes) == 3 })
	d.etcd.Stop()
	late.stop() // or it might register in the restored etcd, before it sees what that is
	d.restore(backup, "restored")
	a.awaitReason(node.HistoryRewound)
	plan, key, asked := a.planned("late at "+late.Addresses().GRPC+" did not answer", "--addr &#39;"+late.Addresses().GRPC)
	if plan.Era != 2 || key != "" || asked["late"] != "silent" {
		t.Errorf("%+v, key %q, asked %v", plan, key, asked)
	}
}

// Without config there is no era to follow, and the command says what to do.
func TestRecoverWithoutASpace(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	out, code := d.cli("admin", "recover", "--yes", "--space", "nosuch")
	if code != cli.ExitInvalid || !strings.Contains(out, "without --fresh") {
		t.Errorf("%d: %s", code, out)
	}
	out, code = d.cli("admin", "recover")
	if code != cli.ExitUsage || !strings.Contains(out, "stdin is not a terminal, so nobody can confirm; give --yes") {
		t.Errorf("%d: %s", code, out)
	}
	d.etcd.Stop()
	if out, code = d.cli("admin", "recover", "--yes", "--timeout", "1s"); code != cli.ExitUnavailable {
		t.Errorf("%d: %s", code, out)
	}
}
