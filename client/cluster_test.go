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
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
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
	fatal.If(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// cluster starts n nodes of a space of their own, and returns their addresses when all are ready.
func cluster(t testing.TB, n int) (targets []string) {
	t.Helper()
	var nodes []*daemontest.Running
	for i := range n {
		c := daemontest.Settings(t, string(rune('a'+i)), endpoint)
		if i == 0 {
			daemontest.Init(t, c)
		}
		nodes = append(nodes, daemontest.Start(t, c, daemontest.Ahead(0)))
	}
	for _, n := range nodes {
		wait.Until(t, "ready", func() bool { return n.Node().Ready() == nil })
		targets = append(targets, n.Addresses().GRPC)
	}
	return targets
}
