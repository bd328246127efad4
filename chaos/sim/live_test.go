package sim_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/sim"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/flake"
)

// TestLive: a run is the same however it is stepped and looked at, and whoever counts what
// happens counts what the run does.
func TestLive(t *testing.T) {
	for seed := range uint64(tier.Of(t, "seeds", 4, 6, 100)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			want := sim.Run(seed, sim.Options{})
			dice := rand.New(rand.NewPCG(seed, 1))
			ids := 0
			l := sim.Begin(seed, sim.Options{}, func(h sim.Happening) { ids += h.Count })
			defer l.Close()
			for !l.View().Over {
				if dice.IntN(2) == 0 {
					l.Advance(time.Duration(dice.Int64N(int64(20*time.Second))), 1+dice.IntN(5000))
				} else {
					l.Step()
				}
			}
			got, view := l.Result(), l.View()
			if got.Hash != want.Hash || got.Events != want.Events || got.IDs != want.IDs || view.Hash != want.Hash {
				t.Errorf("got hash %016x with %d events, and Run %016x with %d", got.Hash, got.Events, want.Hash, want.Events)
			}
			if view.IDs != ids || ids == 0 || view.Duplicates != 0 || view.Disorder != 0 || view.Twin != nil {
				t.Errorf("view has %d IDs, %d duplicates, %d out of order; %d were seen",
					view.IDs, view.Duplicates, view.Disorder, ids)
			}
		})
	}
}

// TestActs: whatever somebody does in a calm run, no claim breaks, all that happens can be
// repeated from the list of acts, and the cluster serves again at the end. What the page counts
// has to be zero where etcd was not restored: a process that starts on the older history may
// issue what others have issued, until an era begins.
func TestActs(t *testing.T) {
	kinds := []sim.ActKind{sim.Kill, sim.Stop, sim.Pause, sim.Step, sim.Drift, sim.Fix, sim.Cut, sim.Replay, sim.Gossip,
		sim.Away, sim.Restore, sim.Recover}
	done := map[sim.ActKind]int{}
	for seed := range uint64(tier.Of(t, "seeds", 12, 16, 1000)) {
		dice := rand.New(rand.NewPCG(seed, 2))
		o := sim.Options{Mode: sim.Calm, Nodes: 3 + dice.IntN(3), Virtual: 8 * time.Minute}
		o.SIDs = o.Nodes - dice.IntN(2)
		l := sim.Begin(seed, o, nil)
		for l.View().Now < 4*time.Minute {
			l.Advance(time.Duration(dice.Int64N(int64(15*time.Second))), 1<<30)
			a := sim.Act{Kind: kinds[dice.IntN(len(kinds))]}
			if !slices.Contains([]sim.ActKind{sim.Away, sim.Restore, sim.Recover}, a.Kind) {
				a.Host = fmt.Sprintf("n%d", 1+dice.IntN(o.Nodes))
			}
			switch a.Kind {
			case sim.Fix, sim.Stop, sim.Restore, sim.Recover:
			case sim.Drift:
				a.For = 500 * time.Microsecond
			case sim.Step:
				a.For = time.Duration(dice.Int64N(int64(2*time.Minute))) - time.Minute
			default:
				a.For = time.Duration(1 + dice.Int64N(int64(50*time.Second)))
			}
			if err := l.Act(a); err == nil {
				done[a.Kind]++
			}
		}
		for l.Step() {
		}
		got := l.Result()
		o.Acts = l.Acts()
		if again := sim.Run(seed, o); again.Hash != got.Hash {
			t.Errorf("seed %d: hash %016x, and %016x when it is repeated\n%s", seed, got.Hash, again.Hash, link(seed, o))
		}
		restored := slices.ContainsFunc(o.Acts, func(a sim.Act) bool { return a.Kind == sim.Restore })
		if v := l.View(); len(got.Violations) > 0 || !restored && v.Duplicates+v.Disorder > 0 {
			t.Errorf("seed %d: %d duplicates, %d out of order, %v\n%s", seed, v.Duplicates, v.Disorder, got.Violations, link(seed, o))
		}
		l.Close()
	}
	t.Logf("acts: %v", done)
	for _, k := range kinds {
		if done[k] == 0 {
			t.Errorf("no %s was done", k)
		}
	}
}

// TestSeen: who watches learns which window is sealed, of every fault of a clock, and who is cut off.
func TestSeen(t *testing.T) {
	acts, err := sim.ParseActs("drift:5s:n3:500us;pause:12s:n1:40s;gossip:20s:n3:30s;gossip:25s:n4:30s;fix:60s:n3:")
	fatal.If(t, err)
	var clocks []string
	seals, held := 0, map[string]flake.SID{}
	watch := func(h sim.Happening) {
		switch h.Kind {
		case "window":
			held[h.Process] = h.SID
		case "seal":
			if seals++; h.SID != held[h.Process] {
				t.Errorf("%s seals sid %d, and holds sid %d", h.Process, h.SID, held[h.Process])
			}
		case "step", "drift":
			clocks = append(clocks, fmt.Sprintf("%s %d %v", h.Kind, h.Node, h.By.Round(time.Millisecond/2)))
		}
	}
	l := sim.Begin(1, sim.Options{Mode: sim.Calm, Nodes: 4, SIDs: 3, Acts: acts}, watch)
	defer l.Close()
	l.Advance(30*time.Second, 1<<30)
	var cut []string
	for _, n := range l.View().Nodes {
		if n.GossipCut {
			cut = append(cut, n.Name)
		}
	}
	if l.Advance(60*time.Second, 1<<30); seals == 0 || !slices.Equal(cut, []string{"n3", "n4"}) {
		t.Errorf("%d windows were sealed; %v are cut off from gossip", seals, cut)
	}
	if len(clocks) != 3 || clocks[0] != "drift 2 500µs" || !strings.HasPrefix(clocks[1], "step 2 -") || clocks[2] != "drift 2 0s" {
		t.Errorf("clocks: %q", clocks)
	}
	for seed := range uint64(tier.Of(t, "seeds", 2, 6, 100)) {
		clear(held)
		l := sim.Begin(seed, sim.Options{Mode: sim.Everything}, watch)
		for l.Step() {
		}
		l.Close()
	}
	if seals < 2 || len(clocks) < 10 {
		t.Errorf("under random faults %d windows were sealed, and clocks were %q", seals, clocks)
	}
}

// TestCounter: the counter finds IDs that were issued twice, and those that do not rise.
func TestCounter(t *testing.T) {
	block := func(process string, first flake.ID, count int) sim.Happening {
		return sim.Happening{Kind: "issue", Process: process, SID: 3, First: first, Count: count, Stride: 32}
	}
	for name, tc := range map[string]struct {
		blocks               []sim.Happening
		duplicates, disorder int
		twin                 flake.ID
	}{
		"apart":        {blocks: []sim.Happening{block("a", 32, 2), block("b", 96, 1), block("a", 128, 1)}},
		"out of order": {blocks: []sim.Happening{block("a", 96, 2), block("a", 32, 2)}, disorder: 1},
		"twice":        {blocks: []sim.Happening{block("a", 32, 4), block("b", 96, 4)}, duplicates: 2, twin: 96},
		"within":       {blocks: []sim.Happening{block("a", 32, 4), block("b", 64, 1)}, duplicates: 1, twin: 64},
		"around": {
			blocks:     []sim.Happening{block("a", 64, 1), block("b", 128, 1), block("c", 32, 8)},
			duplicates: 2, twin: 64,
		},
	} {
		ids := 0
		for _, b := range tc.blocks {
			ids += b.Count
		}
		gotIDs, duplicates, disorder, twin := sim.Count(tc.blocks)
		if gotIDs != ids || duplicates != tc.duplicates || disorder != tc.disorder || twin != tc.twin {
			t.Errorf("%s: %d IDs, %d duplicates, %d out of order, first %d", name, gotIDs, duplicates, disorder, twin)
		}
	}
}

// TestForgotten: an ID of the distant past that is issued again is found out of order, although
// nobody knows any more whether it was issued; one of the near past is found twice.
func TestForgotten(t *testing.T) {
	var blocks []sim.Happening
	block := func(process string, i int) {
		blocks = append(blocks, sim.Happening{Kind: "issue", Process: process, SID: 3, First: flake.ID(i) << 5, Count: 1, Stride: 32})
	}
	for i := range 10_000 {
		block("a", i+1)
	}
	block("b", 9900)
	block("c", 1000)
	block("d", 10_001)
	if _, duplicates, disorder, twin := sim.Count(blocks); duplicates != 1 || disorder != 1 || twin != 9900<<5 {
		t.Errorf("%d duplicates, %d out of order, first %d", duplicates, disorder, twin>>5)
	}
}

// TestKept: a calm run that is watched for long keeps a bounded part of what was issued.
func TestKept(t *testing.T) {
	l := sim.Begin(7, sim.Options{Mode: sim.Calm, Nodes: 5}, nil)
	defer l.Close()
	most, mostOfSID, ids := 0, 0, 0
	for range 20 {
		l.Advance(time.Minute, 1<<30)
		history, sid := l.Kept()
		most, mostOfSID, ids = max(most, history), max(mostOfSID, sid), l.View().IDs
	}
	if ids < 100_000 || most > 1<<14 || mostOfSID > 1<<12 {
		t.Errorf("of %d IDs there are %d blocks in the history, and %d of one sid", ids, most, mostOfSID)
	}
}

func TestParseActs(t *testing.T) {
	const good = "kill:12.5s:n1:10s;step:13s:n2:-1m0s;fix:13s:n2:;etcd:20s::30s;restore:1m0s::"
	list, err := sim.ParseActs(good)
	if err != nil || len(list) != 5 {
		t.Fatalf("%v, %v", list, err)
	}
	var texts []string
	for _, a := range list {
		texts = append(texts, a.String())
	}
	if got := strings.Join(texts, ";"); got != good {
		t.Errorf("got %q", got)
	}
	for _, bad := range []string{
		"kill", "kill:12s:n1", "burn:12s:n1:1s", "kill:12s::1s", "etcd:12s:n1:1s", "kill:12s:n1:", "fix:12s:n1:1s",
		"kill:12s:n1:-1s", "kill:-12s:n1:1s", "kill:x:n1:1s", "kill:1s:n1:x", "pause:1s:n1:10000h", "kill:2s:n1:1s;kill:1s:n1:1s",
	} {
		if list, err := sim.ParseActs(bad); err == nil || list != nil {
			t.Errorf("%q is read as %v, %v", bad, list, err)
		}
	}
}

func FuzzParseActs(f *testing.F) {
	f.Add("kill:12.5s:n1:10s;step:13s:n2:-1m0s")
	f.Add("restore:1m0s::;recover:2m::")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := sim.ParseActs(text)
		if err != nil {
			return
		}
		var texts []string
		for _, a := range list {
			texts = append(texts, a.String())
		}
		again, err := sim.ParseActs(strings.Join(texts, ";"))
		if err != nil || !slices.Equal(again, list) {
			t.Errorf("%q is read as %v, and that as %v, %v", text, list, again, err)
		}
	})
}
