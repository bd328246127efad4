package player

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/sim"
	"github.com/flakelease/allocator/chaos/tier"
)

// TestScenes: what the texts of the guided scenes say happens, and nothing is issued twice.
func TestScenes(t *testing.T) {
	want := map[string]func(*testing.T, []View){
		"crash": func(t *testing.T, views []View) {
			if a, b := at(views, 11).Nodes, at(views, 62).Nodes; !a[0].Held || a[1].Held || !b[1].Serving || b[1].SID != a[0].SID {
				t.Errorf("n2 did not take over the sid of n1: %+v, then %+v", a[:2], b[:2])
			}
		},
		"pause": func(t *testing.T, views []View) {
			a, b := at(views, 45).Nodes, at(views, 53).Nodes
			if !a[0].Paused || !a[1].Serving || a[0].SID != a[1].SID || b[0].Paused || b[0].Serving {
				t.Errorf("n1 does not refuse after its pause: %+v, then %+v", a[:2], b[:2])
			}
		},
		"clock": func(t *testing.T, views []View) {
			n := at(views, 30).Nodes[0]
			if n.Wall < 59_000 || n.Off > 100 || !n.Serving {
				t.Errorf("n1 follows the step: %+v", n)
			}
		},
		"etcd": func(t *testing.T, views []View) {
			a, b, c := at(views, 30), at(views, 55), at(views, 79)
			if !a.Etcd.Away || !a.Nodes[0].Serving || b.Nodes[0].Reason != "WINDOW_EXHAUSTED" || !c.Nodes[0].Serving {
				t.Errorf("with etcd away: %+v, then %+v, then %+v", a.Nodes[0], b.Nodes[0], c.Nodes[0])
			}
		},
		"restore": func(t *testing.T, views []View) {
			a, b := at(views, 60), at(views, 130)
			if a.Nodes[0].Reason != "HISTORY_REWOUND" || !b.Nodes[0].Serving || b.Etcd.Era != 2 {
				t.Errorf("after the backup: %+v, then %+v in era %d", a.Nodes[0], b.Nodes[0], b.Etcd.Era)
			}
		},
	}
	if len(want) != len(Scenes) {
		t.Fatalf("%d scenes, and %d are known here", len(Scenes), len(want))
	}
	for _, s := range Scenes {
		t.Run(s.Name, func(t *testing.T) {
			views := play(t, s)
			last := views[len(views)-1]
			if want[s.Name](t, views); last.IDs < 1000 || last.Duplicates+last.Disorder+len(last.Violations) > 0 {
				t.Errorf("%d IDs, %d duplicates, %d out of order, %v", last.IDs, last.Duplicates, last.Disorder, last.Violations)
			}
			for i, l := range s.Says {
				if l.At > s.Ends || i > 0 && l.At < s.Says[i-1].At+2_000_000_000 {
					t.Errorf("%q is said at %v, which leaves no time to read", l.Text, l.At)
				}
			}
		})
	}
}

// TestRules: with every rule in force nothing breaks in the scene that shows what happens
// without it. TestRulesLeftOut runs this test with each rule left out.
func TestRules(t *testing.T) {
	design, err := os.ReadFile("../../../docs/DESIGN.md")
	fatal.If(t, err)
	for _, r := range Rules {
		t.Run(r.Name, func(t *testing.T) {
			views := play(t, r.Scene)
			if last := views[len(views)-1]; last.Duplicates+last.Disorder+len(last.Violations) > 0 {
				t.Errorf("%d duplicates, %d out of order, %v", last.Duplicates, last.Disorder, last.Violations)
			}
			if !strings.Contains(plain(section(string(design), r.Section)), plain(r.Sentence)) {
				t.Errorf("DESIGN.md does not say in its section %s: %s", r.Section, r.Sentence)
			}
			bug, err := os.ReadFile(filepath.Join("../../planted/bugs", r.Bug+".txt"))
			if err != nil || !strings.Contains(string(bug), "./chaos/play/player -run TestRules/"+r.Name+"\n") {
				t.Errorf("the bug %s does not name this test: %v", r.Bug, err)
			}
		})
	}
}

// TestRulesLeftOut: without its rule each scene breaks a claim, which the page is for. Whatever changes the simulation
// may change what a seed does.
func TestRulesLeftOut(t *testing.T) {
	tier.Check(t, "compiles each bug")
	for _, r := range Rules {
		t.Run(r.Name, func(t *testing.T) {
			overlay := t.TempDir()
			out, err := exec.Command("go", "run", "../../planted", "-bugs", "^"+r.Bug+"$", "-overlay", overlay).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err = exec.Command("go", "test", "-vet=off", "-overlay", filepath.Join(overlay, "overlay.json"),
				"-run", "^TestRules$/^"+r.Name+"$", ".").CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte("out of order,")) {
				t.Errorf("nothing breaks without the rule: find another seed, or other acts\n%s", out)
			}
		})
	}
}

// section returns what a document says below the heading that a link names.
func section(doc, link string) string {
	var out strings.Builder
	level := 0 // of the heading, within its section
	for line := range strings.Lines(doc) {
		title := strings.TrimLeft(line, "#")
		switch l := len(line) - len(title); {
		case l > 0 && strings.ReplaceAll(strings.ToLower(strings.TrimSpace(title)), " ", "-") == link:
			level = l
		case l > 0 && l <= level:
			level = 0
		case level > 0:
			out.WriteString(line)
		}
	}
	return out.String()
}

// plain returns a text without the marks of Markdown, in one line.
func plain(s string) string {
	return strings.Join(strings.Fields(strings.NewReplacer("*", "", "`", "").Replace(s)), " ")
}

// play plays a scene, and returns a view of each second.
func play(t *testing.T, s Scene) (views []View) {
	t.Helper()
	var p Player
	text := s.text()
	v := p.Begin(Options{Seed: text.Seed, Mode: text.Mode, Nodes: text.Nodes, SIDs: text.SIDs, Acts: text.Acts})
	for !v.Over && v.Now < text.Ends {
		v = p.Advance(1000, 1<<30)
		if v.Error != "" {
			t.Fatal(v.Error)
		}
		views = append(views, v)
	}
	return views
}

// at returns the view after so many seconds.
func at(views []View, seconds int) View { return views[seconds-1] }

// TestSlices: a run that is shown in slices, as long as a page's frames are, ends where one slice does.
func TestSlices(t *testing.T) {
	var p, q Player
	v, want := p.Begin(Options{}), q.Begin(Options{})
	for v.Now < 3000 {
		slice := min(16.683, 3000-v.Now)
		if before := v.Now; p.Advance(slice, 1<<30).Now == before {
			t.Fatalf("%v ms after %v change nothing", slice, before)
		}
		v = p.Advance(0, 0)
	}
	if want = q.Advance(3000, 1<<30); v.Now != want.Now || v.Hash != want.Hash {
		t.Errorf("in slices: %v ms, hash %s; in one: %v ms, hash %s", v.Now, v.Hash, want.Now, want.Hash)
	}
}

// TestBack: a run that is played again up to an event is as it was there, and an act in it is
// repeated from the list.
func TestBack(t *testing.T) {
	var p, q Player
	p.Begin(Options{Seed: "7"})
	then := p.Advance(20_000, 1<<30)
	if v := p.Act("kill:n2:5s"); v.Error != "" || !strings.HasPrefix(v.Acts, "kill:20.000000001s:n2:5s") {
		t.Fatalf("acts %q, %s", v.Acts, v.Error)
	}
	end := p.Advance(30_000, 1<<30)
	for _, v := range []View{p.Back(end.Event), q.Begin(Options{Seed: "7", Acts: end.Acts, Until: end.Event})} {
		if v.Hash != end.Hash || v.IDs != end.IDs || v.Event != end.Event || len(v.Happened) == 0 {
			t.Errorf("again: event %d, hash %s; it was event %d, hash %s", v.Event, v.Hash, end.Event, end.Hash)
		}
	}
	if v := p.Back(then.Event); v.Hash != then.Hash || !v.Nodes[1].Up {
		t.Errorf("back: hash %s, was %s", v.Hash, then.Hash)
	}
}

// TestBackKeeps: after a step back the page gets again all that its timeline shows, and of the messages only
// those that still travel.
func TestBackKeeps(t *testing.T) {
	var p Player
	p.Begin(Options{Seed: "7", Nodes: 5})
	then := p.Advance(11*60_000, 1<<30)
	travels := func(h happening) bool { return h.Kind == "msg" && h.Until > then.Now }
	for !slices.ContainsFunc(then.Happened, travels) {
		then = p.Step()
	}
	v := p.Back(then.Event)
	first, messages := v.Now, 0
	for _, h := range v.Happened {
		switch {
		case h.Kind == "issue":
			first = min(first, h.At)
		case h.Kind == "msg":
			if messages++; h.Until <= v.Now {
				t.Errorf("a message that arrived at %v is on its way at %v", h.Until, v.Now)
			}
		}
	}
	if v.Now-first < 10*60_000 || messages == 0 {
		t.Errorf("at %v ms issues are known from %v ms on, and %d messages", v.Now, first, messages)
	}
}

// TestSeed: a seed of the campaigns is the same run in the page.
func TestSeed(t *testing.T) {
	modes := []sim.Mode{sim.Tampered, sim.Everything, sim.Unclocked}
	for _, mode := range modes[:tier.Of(t, "modes", 1, 3, 3)] {
		for _, minutes := range []float64{0, 0.5} {
			want := sim.Run(2, sim.Options{Mode: mode, Virtual: time.Duration(minutes * float64(time.Minute))})
			var p Player
			v := p.Begin(Options{Seed: "2", Mode: mode, Minutes: minutes})
			for !v.Over {
				v = p.Advance(60_000, 100_000)
			}
			if got := fmt.Sprintf("%016x", want.Hash); v.Hash != got || v.Duplicates != 0 {
				t.Errorf("%s, %v minutes: hash %s, and TestSim has %s", mode, minutes, v.Hash, got)
			}
		}
	}
}

// TestBounds: a visitor who types nonsense is told so, and the run goes on.
func TestBounds(t *testing.T) {
	var p Player
	for _, v := range []View{p.Step(), p.Advance(1, 1), p.Back(1), p.Act("kill:n1:1s")} {
		if v.Error == "" || v.Violations == nil || v.Nodes == nil || v.Happened == nil || v.Log == nil {
			t.Errorf("a player without a run does something, or says it badly: %s", JSON(v))
		}
	}
	p.Begin(Options{})
	for name, o := range map[string]Options{
		"seed": {Seed: "x"}, "mode": {Mode: "wild"}, "nodes": {Nodes: 100}, "sids": {SIDs: -1}, "acts": {Acts: "kill"},
		"minutes": {Minutes: -1}, "many minutes": {Minutes: 1e300},
		"many acts": {Acts: strings.Repeat("recover:1s::;", maxActs+1)},
	} {
		if v := p.Begin(o); v.Error == "" || len(v.Nodes) != 4 {
			t.Errorf("%s: %q, %d nodes", name, v.Error, len(v.Nodes))
		}
	}
	for _, act := range []string{"", "kill", "kill:n9:1s", "kill:n1:1s;kill:n2:1s", "restore::"} {
		if v := p.Act(act); v.Error == "" || v.Acts != "" {
			t.Errorf("act %q: %q, acts %q", act, v.Error, v.Acts)
		}
	}
	v := p.Advance(1e300, 200_000)
	if len(v.Happened) > maxHappened+maxMessages || len(v.Log) > maxLines || len(v.Happened) < maxHappened/2 {
		t.Errorf("%d events and %d lines are kept", len(v.Happened), len(v.Log))
	}
}

// TestJSON: the page gets every number of a view, also in a run of CI.
func TestJSON(t *testing.T) {
	var p Player
	p.Begin(Options{Seed: "18446744073709551615", Mode: sim.Everything})
	v := p.Advance(5000, 1<<30)
	var got map[string]any
	if err := json.Unmarshal([]byte(JSON(v)), &got); err != nil || got["seed"] != "18446744073709551615" {
		t.Errorf("%v, %v", got["seed"], err)
	}
	for _, list := range []string{"nodes", "happened", "log", "violations"} {
		if _, ok := got[list].([]any); !ok {
			t.Errorf("%s is no list: %v", list, got[list])
		}
	}
	if !slices.ContainsFunc(v.Happened, func(h happening) bool { return h.Kind == "msg" && h.Until > h.At }) {
		t.Error("no message travels")
	}
	for _, name := range []string{"t", "n", "sid", "base", "ceil", "by", "to"} {
		if _, ok := got["happened"].([]any)[0].(map[string]any)[name].(float64); !ok {
			t.Errorf("what happened lacks the number %s, which may be 0", name)
		}
	}
}
