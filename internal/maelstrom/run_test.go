package maelstrom_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/internal/maelstrom/maelstromtest"
)

// rate is that of Maelstrom's own demonstration of this workload.
const rate = 1000

// simulate runs f on a cluster of nodes in this process, in the time of a bubble.
func simulate(t *testing.T, seed uint64, window time.Duration, f func(t *testing.T, c *maelstromtest.Cluster)) {
	synctest.Test(t, func(t *testing.T) {
		f(t, maelstromtest.New(t, maelstromtest.Config{
			Seed: seed, Latency: 10 * time.Millisecond, Start: maelstromtest.InProcess(window),
		}))
	})
}

var three = []string{"n1", "n2", "n3"}

// total fails the test unless every request of a phase got its ID.
func total(t *testing.T, phase string, counts map[string]maelstromtest.Counts, nodes ...string) {
	t.Helper()
	for _, id := range nodes {
		if n := counts[id]; n.OK != n.Asked || n.Asked == 0 {
			t.Errorf("%s: %s gave %d IDs for %d requests: %+v", phase, id, n.OK, n.Asked, n)
		}
	}
}

// recovers asks a node until it issues again.
func recovers(t *testing.T, c *maelstromtest.Cluster, phase, id string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if c.Load(phase, 100, 50*time.Millisecond, id)[id].OK > 0 {
			return
		}
	}
	t.Errorf("%s: %s did not recover", phase, id)
}

// What Maelstrom's own command does, for half as long: 1,000 requests a second,
// partitions between nodes that come and go, and availability total.
func TestTotalAvailability(t *testing.T) {
	simulate(t, 1, 30*time.Second, func(t *testing.T, c *maelstromtest.Cluster) {
		c.Start(three...)
		for i := range 3 {
			total(t, "calm", c.Load("calm", rate, 3*time.Second, three...), three...)
			c.Cut(three[i], three[(i+1)%3])
			c.Cut(three[i], three[(i+2)%3])
			total(t, "partition", c.Load("partition", rate, 2*time.Second, three...), three...)
			c.Heal()
		}
		c.Check(14_900)
	})
}

// A node cut off from lin-kv serves on for as long as its window lasts, then
// refuses, and comes back by itself. Nobody else notices.
func TestCutOffFromTheStore(t *testing.T) {
	simulate(t, 2, 4*time.Second, func(t *testing.T, c *maelstromtest.Cluster) {
		c.Start(three...)
		c.Cut("n1", maelstromtest.LinKV)
		total(t, "within the window", c.Load("within", rate, 700*time.Millisecond, three...), three...)
		var beyond map[string]maelstromtest.Counts
		for end := time.Now().Add(30 * time.Second); beyond["n1"].Refused < 50 && time.Now().Before(end); {
			beyond = c.Load("beyond", rate, 300*time.Millisecond, three...)
		}
		total(t, "beyond the window", beyond, "n2", "n3")
		if n := beyond["n1"]; n.Reasons["WINDOW_EXHAUSTED"] != n.Refused || n.Refused < 50 || n.Refused+n.OK != n.Asked {
			t.Errorf("n1, cut off for longer than its window: %+v, want WINDOW_EXHAUSTED, and every request answered definitely", n)
		}
		c.Heal()
		recovers(t, c, "healed", "n1")
		c.Check(2500)
	})
}

// Writes are carried out, and no answer comes back: what became of each is not
// known, and is learned by reading. Nobody is refused.
func TestAnswersToWritesAreLost(t *testing.T) {
	simulate(t, 3, 6*time.Second, func(t *testing.T, c *maelstromtest.Cluster) {
		c.Start(three...)
		c.Break(maelstromtest.Faults{Deaf: true})
		before, ceiling := c.Writes()
		total(t, "deaf", c.Load("deaf", rate, 2500*time.Millisecond, three...), three...)
		if after, higher := c.Writes(); after <= before || higher <= ceiling {
			t.Error("no ceiling was raised while answers were lost: the run shows nothing")
		}
		c.Check(2000)
	})
}

// Of the messages to and from lin-kv some are lost and some arrive when nobody
// waits any more; of its answers some are errors, most of which say nothing about
// what was done; and nodes are killed and started again in the midst of it.
func TestEverythingAtOnce(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			simulate(t, seed, 2*time.Second, func(t *testing.T, c *maelstromtest.Cluster) {
				c.Start(three...)
				before, _ := c.Writes()
				for round := range 8 {
					c.Break(maelstromtest.Faults{Loss: .15, Late: .2, LateBy: 500 * time.Millisecond, Confusion: .25, Deaf: round%4 == 3})
					counts := c.Load("broken", rate, 1500*time.Millisecond, three...)
					for id, n := range counts {
						if n.Indefinite > 0 {
							t.Errorf("%s: %+v, want every answer definite", id, n)
						}
					}
					id := three[round%3]
					c.Kill(id)
					c.Load("one killed", rate, 500*time.Millisecond, three...)
					c.Start(id)
				}
				if after, _ := c.Writes(); after < before+20 {
					t.Errorf("windows were written %d times: the run shows nothing", after-before)
				}
				c.Heal()
				for _, id := range three {
					recovers(t, c, "healed", id)
				}
				c.Check(3000)
			})
		})
	}
}

// A node that is asked to end gives its sid back, and the next of its name starts
// above it at once.
func TestStopGivesTheSidBack(t *testing.T) {
	simulate(t, 5, 30*time.Second, func(t *testing.T, c *maelstromtest.Cluster) {
		c.Start(three...)
		c.Load("first", rate, 300*time.Millisecond, three...)
		c.Stop("n2")
		v := c.View()
		held := 0
		for _, s := range v.Sids {
			if s.Holder.Exists() {
				held++
			}
		}
		if held != 2 || len(v.Nodes) != 2 {
			t.Errorf("after n2 has stopped %d sids are held by %d nodes, want 2 by 2", held, len(v.Nodes))
		}
		c.Start("n2")
		total(t, "again", c.Load("again", rate, 300*time.Millisecond, three...), three...)
		if sids := len(c.View().Sids); sids != 3 {
			t.Errorf("%d sids were used, want 3: the one given back is used again", sids)
		}
		c.Check(500)
	})
}
