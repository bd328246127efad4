package client_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/internal/lease"
)

// clients is one client of each mode, used by several goroutines while faults are
// injected into a cluster. No call may fail, the IDs of each client have to be
// unique and rise, and those of all together have to be unique.
type clients struct {
	stop   chan struct{}
	loads  []*sync.WaitGroup
	crowds []*callLog
	all    []*client.Client
}

func load(t *testing.T, targets []string) *clients {
	l := &clients{stop: make(chan struct{})}
	for _, mode := range modes {
		c := dial(t, client.Options{Targets: targets, Mode: mode, AttemptTimeout: time.Second})
		w := &callLog{}
		l.crowds, l.all = append(l.crowds, w), append(l.all, c)
		l.loads = append(l.loads, w.load(t, c, 4, l.stop))
	}
	return l
}

// served waits until n more calls of every mode were served.
func (l *clients) served(t *testing.T, n int) {
	t.Helper()
	for i, w := range l.crowds {
		count := func() int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.given)
		}
		from := count()
		wait.Until(t, fmt.Sprintf("%v served", modes[i]), func() bool { return count() >= from+n || t.Failed() })
	}
}

func (l *clients) finish(t *testing.T) {
	t.Helper()
	close(l.stop)
	together := &callLog{}
	for i, w := range l.crowds {
		l.loads[i].Wait()
		w.finish(t, true, 100)
		together.given = append(together.given, w.given...)
		t.Logf("%v: %d calls, %+v", modes[i], len(w.given), l.all[i].Stats())
	}
	if err := together.check(false); err != nil {
		t.Errorf("between clients: %v", err)
	}
}

// TestNodesThatDoNotServe: callers see no error of a node whose clock is wrong, one
// that was drained, one without a sid, one without a space, one that accepts
// connections and never answers, and one that does not exist.
func TestNodesThatDoNotServe(t *testing.T) {
	nodes, targets := cluster(t, 3)
	skewed := settings(t, "skewed")
	targets = append(targets, start(t, skewed, 5*time.Second).addr())

	standby := settings(t, "standby") // in a range of one sid, which the first node holds
	held := nodes[0].Node().Stats().SID
	standby.SIDRange = lease.SIDRange{From: held, To: held + 1}
	targets = append(targets, start(t, standby, 0).addr())

	starting := settings(t, "starting")
	starting.Space += "-uninitialized"
	targets = append(targets, start(t, starting, 0).addr(), "127.0.0.1:1")
	silent, err := newSilent(t)
	if err != nil {
		t.Fatal(err)
	}
	targets = append(targets, silent)

	l := load(t, targets)
	l.served(t, 100)
	nodes[1].Node().Drain()
	l.served(t, 200)
	l.finish(t)
	refusals := int64(0)
	for _, c := range l.all {
		for _, n := range c.Stats().Nodes {
			refusals += n.Refusals
		}
	}
	if refusals == 0 {
		t.Error("no request was refused")
	}
}

// TestBlackHole: the network to a node that had worked drops everything.
func TestBlackHole(t *testing.T) {
	_, targets := cluster(t, 2)
	a, b := newProxy(t, targets[0]), newProxy(t, targets[1])
	l := load(t, []string{a.addr, b.addr})
	l.served(t, 100)
	a.freeze()
	direct := l.all[0] // which asks nodes in turn, so it has met the hole
	node := func() client.NodeStats { return direct.Stats().Nodes[0] }
	wait.Until(t, "noticed", func() bool { return node().Failures > 0 })
	wait.Until(t, "disconnected", func() bool { return node().State != "ready" })
	asked := node().Requests
	l.served(t, 100)
	if n := node().Requests; n != asked {
		t.Errorf("the node behind the hole was asked %d more times", n-asked)
	}
	a.thaw()
	for _, c := range l.all {
		connected(t, c, 2)
	}
	b.freeze()
	l.served(t, 100)
	b.thaw()
	l.finish(t)
}

// TestRollingRestart: three nodes are replaced one after the other.
func TestRollingRestart(t *testing.T) {
	nodes, targets := cluster(t, 3)
	l := load(t, targets)
	l.served(t, 100)
	for _, n := range nodes {
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		l.served(t, 50)
		c := n.config
		c.Listen.GRPC = n.addr()
		again := start(t, c, 0)
		wait.Until(t, "ready", func() bool { return again.Node().Ready() == nil })
		l.served(t, 50)
	}
	l.finish(t)
}
