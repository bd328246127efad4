package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/node"
)

// testCluster is an etcd, and what its nodes have issued.
type testCluster struct {
	*testing.T
	etcd  *etcdserver.Server
	began time.Time
	user  config.Etcd // of nodes and commands: name and password; zero where etcd asks nobody

	mu     sync.Mutex // guards issued
	issued []history.Issue
}

// buildDev builds the program that tests share once, and returns its path.
var buildDev = sync.OnceValues(func() (string, error) { return build.Allocator(context.Background(), builtDir) })

// startEtcd starts an etcd that is closed when the test ends.
func startEtcd(t *testing.T) *etcdserver.Server {
	t.Helper()
	etcd, err := etcdserver.Start(t.Context(), etcdserver.Alone{Dir: filepath.Join(t.TempDir(), "etcd"), NoSync: true})
	fatal.If(t, err)
	t.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

func deploy(t *testing.T) *testCluster {
	t.Helper()
	d := &testCluster{T: t, began: time.Now(), etcd: startEtcd(t)}
	if out, code := d.cli("init", "--fresh"); code != 0 {
		t.Fatalf("init: %d: %s", code, out)
	}
	return d
}

// The windows of nodes are short, so that a test sees them pass, and long enough for a machine under load.
const (
	testWindow  = 20 * time.Second
	extendEvery = time.Second
	callTimeout = 5 * time.Second
)

// cli carries out a command against d's etcd, and returns all that it printed.
func (d *testCluster) cli(args ...string) (string, int) {
	d.Helper()
	var out bytes.Buffer
	args = append(args, "--etcd.endpoints", d.etcd.Endpoint(), "--lease.window", testWindow.String())
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
		Window: testWindow, ExtendEvery: extendEvery, TTL: 20 * time.Second,
		KeepAlive: 5 * time.Second, ReloadEvery: 2 * time.Second, CallTimeout: callTimeout,
	}
	c.Worker.Window = testWindow // no worker runs, and an era would begin that much later
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

func (m *member) reason() node.Reason {
	if r := m.Node().Ready(); r != nil {
		return r.Reason
	}
	return 0
}

func (m *member) awaitReason(want node.Reason) {
	m.d.Helper()
	wait.Until(m.d, fmt.Sprintf("%s answers %q", m.name, want), func() bool { return m.reason() == want })
}

func (m *member) sid() int {
	st := m.Node().Stats()
	if !st.Holding {
		return -1
	}
	return int(st.SID)
}

// serves waits until m issues, from a sid or from any (-1).
func (m *member) serves(sid int) {
	m.d.Helper()
	m.awaitReason(0)
	if got := m.sid(); sid >= 0 && got != sid {
		m.d.Fatalf("%s has sid %d, want %d", m.name, got, sid)
	}
	n := m.Node().Stats().Issued
	wait.Until(m.d, m.name+" issues", func() bool { return m.Node().Stats().Issued > n+500 })
}

// says runs a command that must end with code and print want.
func (d *testCluster) says(code int, want string, args ...string) string {
	d.Helper()
	out, got := d.cli(args...)
	if got != code || !strings.Contains(out, want) {
		d.Fatalf("exit code %d, want %d, with %q", got, code, want)
	}
	return out
}

// unique holds all that was issued against I1 and I2.
func (d *testCluster) unique() {
	d.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	h := history.History{Format: flake.Format{Layout: flake.Scalable, Epoch: flake.DefaultEpoch}, Issues: d.issued}
	for _, v := range h.Check() { // I3 and I4 look at grants and writes, which are not recorded here.
		if v.Claim == "I1" || v.Claim == "I2" {
			d.Error(v)
		}
	}
	d.Logf("%d IDs", h.IDs())
}
