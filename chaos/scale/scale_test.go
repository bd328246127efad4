package scale

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/flakelease/allocator/flake"
)

var update = flag.Bool("update", false, "write docs/SCALE.md")

func measured(t *testing.T) (out []Measured) {
	t.Helper()
	b, err := os.ReadFile("testdata/measured.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if len(out) < 5 || out[len(out)-1].Nodes < 128 {
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

// TestDocument holds docs/SCALE.md to what was measured and calculated.
func TestDocument(t *testing.T) {
	const name = "../../docs/SCALE.md"
	want := Document(measured(t))
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(name)
	if err != nil || string(got) != want {
		t.Errorf("docs/SCALE.md is out of date (%v): run go test ./chaos/scale -update", err)
	}
}

// TestBends pins where the rules change: 64 names, and what the square and the root
// make of sizes.
func TestBends(t *testing.T) {
	if a, b := Default(64).Calm().GossipPackets, Default(65).Calm().GossipPackets; a != 65 || b != 33 {
		t.Errorf("gossip of 64 and 65 nodes: %v and %v packets/s", a, b)
	}
	if a, b := Default(512).Calm().ReadBytes*512, Default(1024).Calm().ReadBytes*1024; b < 3.5*a || b > 4*a {
		t.Errorf("reads of 512 and 1024 nodes at rest: %.0f and %.0f bytes/s: not with the square", a, b)
	}
	if a, b := Default(1024).Rolling(1).Loads, Default(1024).Rolling(4).Loads; b < 1.99*a || b > 2.01*a {
		t.Errorf("lists at one and four restarts a second: %v and %v: not with the root", a, b)
	}
	if a, b := Default(1024).Rolling(1e-6).Loads, Default(1024).Calm().Loads; a != b {
		t.Errorf("lists with hardly a restart: %v, at rest %v", a, b)
	}
	scalable := Default(32)
	scalable.Layout = flake.Scalable
	if a, b := scalable.Rolling(0.5).Loads, Default(32).Rolling(0.5).Loads; a < 3*b {
		t.Errorf("lists of 32 nodes: %v a second in layout scalable, %v in fleet: the spread is not the layout's", a, b)
	}
}

// A cluster that costs something else than calculated is told of.
func TestDifferencesAreFound(t *testing.T) {
	all := measured(t)
	for name, change := range map[string]func(*Measured){
		"writes":      func(m *Measured) { m.Calm.Writes *= 1.2 },
		"lists":       func(m *Measured) { m.Calm.Loads *= 1.5 },
		"reads":       func(m *Measured) { m.Calm.ReadBytes *= 1.3 },
		"gossip":      func(m *Measured) { m.Calm.GossipPackets *= 2 },
		"rolling":     func(m *Measured) { m.Rolling.Loads *= 2 },
		"crowd":       func(m *Measured) { m.Start.Loads = 8 },
		"unconfirmed": func(m *Measured) { m.Confirmed-- },
	} {
		m := all[len(all)-1]
		change(&m)
		if len(Differences(m)) == 0 {
			t.Errorf("%s: nothing was found", name)
		}
	}
}
