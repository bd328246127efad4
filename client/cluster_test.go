package client_test

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// etcd is one etcd for all tests; each has its own space. endpoint is where it listens.
var (
	etcd     *etcdsim.Server
	endpoint string
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // most of those that run in parallel wait
	var err error
	if etcd, endpoint, err = etcdsim.OnLoopback(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	etcd.Close()
	if err := goleak.Find(goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		// Nodes that have left gossip may still wait for the answer to a last probe.
		goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probe")); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// settings is a configuration on free ports, for a space named after the test.
func settings(t testing.TB, name string) config.Config {
	t.Helper()
	return daemontest.Settings(t, name, endpoint)
}

// realNode is a node in this process.
type realNode struct {
	*daemontest.Running
	config config.Config
}

func (n *realNode) addr() string { return n.Addresses().GRPC }

// start runs a node and returns when it listens. ahead is how far its wall clock is.
func start(t testing.TB, c config.Config, ahead time.Duration) *realNode {
	t.Helper()
	if c.Listen.GRPC == loopback.Any {
		c.Listen.GRPC = loopback.Address() // It may be started again there.
	}
	return &realNode{daemontest.Start(t, c, daemontest.Ahead(ahead)), c}
}

// dial returns a client whose calls are bounded by the tests alone, unless o says otherwise.
func dial(t testing.TB, o client.Options) *client.Client {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = wait.Most // Tests without another bound are not about it.
	}
	if o.AttemptTimeout == 0 {
		o.AttemptTimeout = 10 * time.Second
	}
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// cluster starts n nodes of a space of their own, and waits until all are ready.
func cluster(t testing.TB, n int) (nodes []*realNode, targets []string) {
	t.Helper()
	return clusterOf(t, n, flake.Default)
}

func clusterOf(t testing.TB, n int, f flake.Format) (nodes []*realNode, targets []string) {
	t.Helper()
	for i := range n {
		c := settings(t, string(rune('a'+i)))
		c.Layout, c.Epoch = f.Layout, clock.Millis(f.Epoch)
		if i == 0 {
			daemontest.Init(t, c)
		}
		nodes = append(nodes, start(t, c, 0))
	}
	for _, n := range nodes {
		wait.Until(t, "ready", func() bool { return n.Node().Ready() == nil })
		targets = append(targets, n.addr())
	}
	return nodes, targets
}
