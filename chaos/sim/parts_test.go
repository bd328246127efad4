package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
)

// TestQueue: events come by time, and those of one time in the order they were
// planned in.
func TestQueue(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var q queue
	var want []event
	for i := range 2000 {
		e := event{at: time.Duration(r.IntN(100)), gen: i}
		q.push(e)
		want = append(want, e)
	}
	slices.SortStableFunc(want, func(a, b event) int { return int(a.at - b.at) })
	for i, e := range want {
		if got := q.pop(); got.at != e.at || got.gen != e.gen {
			t.Fatalf("event %d: got %v of %d, want %v of %d", i, got.at, got.gen, e.at, e.gen)
		}
	}
}

// TestPoints: each situation has a name of its own.
func TestPoints(t *testing.T) {
	seen := map[string]Point{}
	for p := range numPoints {
		if other, ok := seen[p.String()]; ok || p.String() == "" {
			t.Errorf("point %d is named %q, as %d is", p, p, other)
		}
		seen[p.String()] = p
	}
}

// TestHost: which clocks run on through what.
func TestHost(t *testing.T) {
	calm := func() (*simulation, *host) {
		sim := &simulation{rng: rand.New(rand.NewPCG(1, 1)), trace: newTrace(nil)}
		return sim, &host{node: "n", reading: clock.Readings{Wall: startTime}}
	}
	type moved struct{ wall, mono, raw, boot time.Duration }
	over := func(sim *simulation, h *host, d time.Duration) moved {
		a := h.read(sim.now)
		sim.now += d
		b := h.read(sim.now)
		return moved{time.Duration(b.Wall - a.Wall), b.Mono.Sub(a.Mono), time.Duration(b.Raw - a.Raw), time.Duration(b.Boot - a.Boot)}
	}
	const s = time.Second
	for name, tc := range map[string]struct {
		cause func(*simulation, *host)
		want  moved
	}{
		"nothing":  {func(*simulation, *host) {}, moved{10 * s, 10 * s, 10 * s, 10 * s}},
		"a drift":  {func(_ *simulation, h *host) { h.drift = 1000 }, moved{10*s + 10*time.Millisecond, 10 * s, 10 * s, 10 * s}},
		"a freeze": {func(_ *simulation, h *host) { h.frozen, h.frozenWall = 20*s, startTime }, moved{0, 10 * s, 10 * s, 10 * s}},
	} {
		sim, h := calm()
		tc.cause(sim, h)
		if got := over(sim, h, 10*s); got != tc.want {
			t.Errorf("%s: clocks moved by %+v, want %+v", name, got, tc.want)
		}
	}
	for still, want := range map[bool]moved{
		false: {10 * s, 4 * s, 4 * s, 10 * s}, // suspended for six of ten seconds
		true:  {4 * s, 4 * s, 4 * s, 4 * s},
	} {
		sim, h := calm()
		before := h.read(0)
		sim.sleep(h, 6*s, still)
		sim.now = 10 * s
		after := h.read(sim.now)
		got := moved{time.Duration(after.Wall - before.Wall), after.Mono.Sub(before.Mono), time.Duration(after.Raw - before.Raw), time.Duration(after.Boot - before.Boot)}
		if got != want {
			t.Errorf("suspended, still=%v: clocks moved by %+v, want %+v", still, got, want)
		}
	}
}

// TestTerms: what the order per sid calls a violation, and what not.
func TestTerms(t *testing.T) {
	block := func(ms, entropy int64) gen.Block {
		return gen.Block{First: flake.ID(ms<<20 | entropy<<5 | 3), Count: 2, Stride: 32, SID: 3}
	}
	sim := &simulation{trace: newTrace(nil), plan: plan{format: flake.Default}}
	a, b := &process{sim: sim, name: "a"}, &process{sim: sim, name: "b"}
	sim.terms.add(sim, a, block(100, 7))
	sim.terms.add(sim, a, block(101, 0))
	sim.terms.add(sim, b, block(102, 0))
	if got := sim.terms.check(); len(got)+len(sim.violations) != 0 {
		t.Errorf("one holder after the other: %v %v", got, sim.violations)
	}
	sim.terms.add(sim, a, block(103, 0)) // in the hold that b's came after
	if got := sim.terms.check(); len(got) != 1 {
		t.Errorf("two holders that interleave: %v", got)
	}
	ceil := clock.Millis(flake.DefaultEpoch + 103)
	sim.terms.release(sim, b, 3, ceil)
	if len(sim.violations) != 0 {
		t.Errorf("given back above what was issued: %v", sim.violations)
	}
	sim.terms.release(sim, a, 3, ceil)
	if len(sim.violations) != 1 {
		t.Errorf("given back at what was issued: %v", sim.violations)
	}
	sim.terms.add(sim, b, block(103, 5))
	if len(sim.violations) != 2 {
		t.Errorf("issued after it was given back: %v", sim.violations)
	}
}
