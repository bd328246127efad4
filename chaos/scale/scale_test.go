package scale

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

func measured(t *testing.T) (out []Measured) {
	t.Helper()
	b, err := os.ReadFile("testdata/measured.json")
	fatal.If(t, err)
	fatal.If(t, json.Unmarshal(b, &out))
	if len(out) < 2 || out[len(out)-1].Nodes < 128 {
		t.Fatalf("%d sizes were measured: too few to hold a calculation to", len(out))
	}
	return out
}

// TestCalculation holds the calculation to all that was measured.
func TestCalculation(t *testing.T) {
	for _, m := range measured(t) {
		for _, d := range Differences(m) {
			t.Error(d)
		}
		p := Default(m.Nodes)
		t.Logf("%d nodes, measured   %+v %+v\n calculated %+v %+v", m.Nodes, m.Calm, m.Rolling, p.Calm(), p.Rolling(1/m.Pause))
	}
}

// TestBends pins where the rules change: 64 names, and what the square and the root
// make of sizes.
func TestBends(t *testing.T) {
	if a, b := Default(64).Calm().GossipPackets, Default(65).Calm().GossipPackets; a != 65 || b != 33 {
		t.Errorf("gossip of 64 and 65 nodes: %v and %v packets/s", a, b)
	}
	if a, b := Default(512).Calm().ReadBytes*512, Default(1024).Calm().ReadBytes*1024; b < 3*a || b > 4*a {
		t.Errorf("reads of 512 and 1024 nodes at rest: %.0f and %.0f bytes/s: not with the square", a, b)
	}
	if a, b := Default(1024).Rolling(1e-6).Loads, Default(1024).Calm().Loads; b < 0.99*a || b > 1.01*a {
		t.Errorf("lists with hardly a restart: %v, at rest %v", a, b)
	}
	// The goals: at most so much of all nodes together.
	if got := Default(1024).Calm().ReadBytes * 1024 / 1e6; got > 2 {
		t.Errorf("1,024 nodes at rest read %.1f MB/s", got)
	}
	if got := Default(1024).Rolling(0.5).ReadBytes * 1024 / 1e6; got > 15 {
		t.Errorf("1,024 nodes in a rolling restart read %.1f MB/s", got)
	}
}

// A cluster that costs something else than calculated is told of.
func TestDifferencesAreFound(t *testing.T) {
	all := measured(t)
	for name, change := range map[string]func(*Measured){
		"writes":             func(m *Measured) { m.Calm.Writes *= 1.2 },
		"lists":              func(m *Measured) { m.Calm.Loads = 0.03 },
		"reads":              func(m *Measured) { m.Calm.ReadBytes *= 1.3 },
		"gossip":             func(m *Measured) { m.Calm.GossipPackets *= 2 },
		"crowd":              func(m *Measured) { m.Start.Loads = 8 },
		"unconfirmed":        func(m *Measured) { m.Confirmed-- },
		"lists for restarts": func(m *Measured) { m.Rolling.Loads *= 2 },
		"reads for restarts": func(m *Measured) { m.Rolling.ReadBytes *= 1.4 },
	} {
		m := all[3] // 32 nodes
		change(&m)
		if len(Differences(m)) == 0 {
			t.Errorf("%s: nothing was found", name)
		}
	}
}
