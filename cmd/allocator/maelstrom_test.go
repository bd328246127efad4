package main

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/maelstrom/maelstromtest"
)

// The program itself, as Maelstrom would start it: a rate of 1,000 a second, nodes
// that are killed and come back, and one whose time stops for longer than its
// lease and its window last.
func TestMaelstromProcesses(t *testing.T) {
	t.Parallel()
	c := maelstromtest.New(t, maelstromtest.Config{
		Seed: 6, Latency: 10 * time.Millisecond,
		Start: maelstromtest.Command("allocator", "maelstrom", "--window", "6s"),
	})
	const rate = 1000
	three := []string{"n1", "n2", "n3"}
	c.Start(three...)
	for id, n := range c.Load("calm", rate, time.Second, three...) {
		if n.OK != n.Asked || n.Asked == 0 {
			t.Errorf("calm: %s: %+v, want an ID for every request", id, n)
		}
	}

	c.Kill("n1")
	for id, n := range c.Load("n1 killed", rate, 500*time.Millisecond, "n2", "n3") {
		if n.OK != n.Asked {
			t.Errorf("n1 killed: %s: %+v, want an ID for every request", id, n)
		}
	}
	c.Start("n1")

	before := c.View()
	c.Pause("n2")
	c.Load("n2 paused", 300, 7*time.Second, three...)
	ended := false
	for end := time.Now().Add(30 * time.Second); !ended && time.Now().Before(end); {
		c.Load("n2 paused", rate, 200*time.Millisecond, "n1", "n3")
		ended = true
		for _, n := range c.View().Nodes {
			ended = ended && n.Node != "n2"
		}
	}
	if len(before.Nodes) < 3 || !ended {
		t.Errorf("before: %v; n2 was paused for longer than its lease, and the others have not ended it: %v", before.Nodes, c.View().Nodes)
	}
	c.Resume("n2") // with hundreds of requests in its stdin
	again := 0
	for end := time.Now().Add(30 * time.Second); again < 50 && time.Now().Before(end); {
		again = c.Load("n2 resumed", rate, 300*time.Millisecond, three...)["n2"].OK
	}
	if again < 50 {
		t.Error("n2 did not recover from a pause")
	}
	c.Check(2500)
}
