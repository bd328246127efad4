package main

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/maelstrom/maelstromtest"
)

// maelstromCluster starts the program itself, as Maelstrom would.
func maelstromCluster(t *testing.T, window string) *maelstromtest.Cluster {
	t.Parallel()
	return maelstromtest.New(t, maelstromtest.Config{
		Seed: 6, Latency: 10 * time.Millisecond,
		Start: maelstromtest.Command("allocator", "maelstrom", "--window", window),
	})
}

var maelstromNodes = []string{"n1", "n2", "n3"}

// 1,000 requests a second, while a node is killed and comes back: the others
// refuse nothing.
func TestMaelstromKill(t *testing.T) {
	c := maelstromCluster(t, "30s") // a busy machine cannot use that up
	c.Start(maelstromNodes...)
	total := func(phase string, nodes ...string) {
		for id, n := range c.Load(phase, 1000, 700*time.Millisecond, nodes...) {
			if n.OK != n.Asked || n.Asked == 0 {
				t.Errorf("%s: %s: %+v, want an ID for every request", phase, id, n)
			}
		}
	}
	total("calm", maelstromNodes...)
	c.Kill("n1")
	total("n1 killed", "n2", "n3")
	c.Start("n1") // it may have to wait until the old window is over
	total("n1 again", "n2", "n3")
	c.Load("n1 itself", 100, 300*time.Millisecond, "n1")
	c.Check(2000)
}

// A node whose time stops for longer than its lease and its window last: the
// others end its lease, and it comes back by itself.
func TestMaelstromPause(t *testing.T) {
	c := maelstromCluster(t, "3s")
	c.Start(maelstromNodes...)
	c.Load("calm", 1000, 500*time.Millisecond, maelstromNodes...)
	c.Pause("n2")
	c.Load("n2 paused", 300, 4*time.Second, maelstromNodes...)
	ended := false
	for end := time.Now().Add(time.Minute); !ended && time.Now().Before(end); {
		c.Load("n2 paused", 300, 200*time.Millisecond, "n1", "n3")
		ended = true
		for _, n := range c.View().Nodes {
			ended = ended && n.Node != "n2"
		}
	}
	if !ended {
		t.Errorf("n2 was paused for longer than its lease, and the others have not ended it: %v", c.View().Nodes)
	}
	c.Resume("n2") // with hundreds of requests in its stdin
	again := 0
	for end := time.Now().Add(time.Minute); again < 50 && time.Now().Before(end); {
		again = c.Load("n2 resumed", 1000, 300*time.Millisecond, maelstromNodes...)["n2"].OK
	}
	if again < 50 {
		t.Error("n2 did not recover from a pause")
	}
	c.Check(500)
}
