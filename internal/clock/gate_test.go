package clock_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/clock"
)

// TestGateTranscripts runs the transcripts in testdata/gate. Commands:
//
//	new [strict]          a gate, at 0 s
//	PEERS [for D]         judge by PEERS (as in TestSituations) and step the gate, once a
//	                      second for D, or once; "alone" for no peers
//	pass D                D goes by unseen
//
// They print each transition, and the state of the gate in the end.
func TestGateTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/gate", func(t *testing.T, path string) {
		p := gatePlayer{t: t}
		datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.String()) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
					out.WriteString(p.play(line))
				}
			}
			return out.String()
		})
	})
}

// gatePlayer is the gate of a transcript, at its time.
type gatePlayer struct {
	t   *testing.T
	g   *clock.Gate
	now clock.Mono
}

// play carries out a command and returns what it prints.
func (p *gatePlayer) play(line string) string {
	words := strings.Fields(line)
	var told []string
	switch words[0] {
	case "new":
		p.g, p.now = clock.NewGate(clock.GateConfig{Strict: slices.Contains(words, "strict")}), 0
	case "pass":
		p.now = p.now.Add(parse(p.t, words[1]))
		return ""
	default:
		told = p.judge(line)
	}
	v := p.g.Verdict()
	if v.Limit != 250 || v.Confirmed() != (v.Phase == clock.Confirmed) || v != p.g.Stats().Verdict {
		p.t.Errorf("verdict %+v does not fit", v)
	}
	told = append(told, fmt.Sprintf("%v: %v, offset %v, reserve %v, release %v",
		v.State, v.Phase, v.Offset.Duration(), p.g.MayReserve(), p.g.ReleaseDue()))
	return strings.Join(told, "\n") + "\n"
}

// judge steps the gate by what peers say and returns its transitions.
func (p *gatePlayer) judge(line string) (told []string) {
	what, length, long := strings.Cut(line, " for ")
	turns := 1
	if long {
		turns = int(parse(p.t, length) / time.Second)
	}
	j := clock.Judge(clock.Input{Peers: peers(strings.TrimPrefix(what, "alone")), MaxSkew: limit})
	for turn := range turns {
		if turn > 0 {
			p.now = p.now.Add(time.Second)
		}
		_, changes := p.g.Step(p.now, j)
		for _, c := range changes {
			told = append(told, fmt.Sprintf("%3ds %s", p.now/clock.Mono(time.Second), tell(c)))
		}
	}
	return told
}

func tell(c clock.Transition) string {
	if c.Kind == clock.PhaseChanged {
		return fmt.Sprintf("%v -> %v (%v)", c.From, c.To, c.Judgement.Finding)
	}
	return fmt.Sprintf("%v (%v)", c.Kind, c.Judgement.Finding)
}

func parse(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	fatal.If(t, err)
	return d
}

// TestSecondLook: two findings less than a second apart do not shut the gate,
// nor do two with an agreement in between, or more than 10 s apart.
func TestSecondLook(t *testing.T) {
	agreed, split := clock.Judge(clock.Input{Peers: peers("1 1"), MaxSkew: limit}), clock.Judge(clock.Input{Peers: peers("900 901"), MaxSkew: limit})
	silent := clock.Judgement{}
	type step struct {
		at time.Duration // since the first
		j  clock.Judgement
	}
	for _, c := range []struct {
		name  string
		steps []step
		want  clock.State
	}{
		{"one", []step{{0, split}}, clock.Open},
		{"two in 999 ms", []step{{0, split}, {999 * time.Millisecond, split}}, clock.Open},
		{"two in 1 s", []step{{0, split}, {time.Second, split}}, clock.Skewed},
		{"agreed in between", []step{{0, split}, {time.Second, agreed}, {2 * time.Second, split}}, clock.Open},
		{"silent in between", []step{{0, split}, {time.Second, silent}, {2 * time.Second, split}}, clock.Skewed},
		{"10 s apart", []step{{0, split}, {10 * time.Second, split}}, clock.Skewed},
		{"over 10 s apart", []step{{0, split}, {10*time.Second + 1, split}}, clock.Open},
		{"over 10 s apart, with silence", []step{{0, split}, {11 * time.Second, silent}, {12 * time.Second, split}}, clock.Open},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := clock.NewGate(clock.GateConfig{})
			g.Step(0, agreed)
			for _, s := range c.steps {
				g.Step(clock.Mono(5*time.Second+s.at), s.j)
			}
			if got := g.Verdict().State; got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestGateConfig(t *testing.T) {
	g := clock.NewGate(clock.GateConfig{MaxSkew: time.Second, Grace: 2 * time.Second, Strict: true})
	if v := g.Verdict(); v.State != clock.Unverified || v.Limit != 1000 || g.MayReserve() {
		t.Errorf("before the first step: %+v, reserve %v", v, g.MayReserve())
	}
	for s, want := range []clock.State{clock.Unverified, clock.Open, clock.Open, clock.Unverified} {
		if v, _ := g.Step(clock.Mono(s)*clock.Mono(time.Second), clock.Judgement{}); v.State != want {
			t.Errorf("after %d s: %v, want %v", s, v.State, want)
		}
	}
	if got := g.Stats(); got.Unverified != 2*time.Second || got.Evaluations != 4 {
		t.Errorf("stats %+v, want 2 s unverified in 4 evaluations", got)
	}
}
