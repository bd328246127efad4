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

// TestHost: which clocks run on through what.
func TestHost(t *testing.T) {
	calm := func() (*world, *host) {
		w := &world{rng: rand.New(rand.NewPCG(1, 1)), trace: newTrace(nil)}
		return w, &host{node: "n", reading: clock.Readings{Wall: dawn}}
	}
	type moved struct{ wall, mono, raw, boot time.Duration }
	over := func(w *world, h *host, d time.Duration) moved {
		a := h.read(w.now)
		w.now += d
		b := h.read(w.now)
		return moved{time.Duration(b.Wall - a.Wall), b.Mono.Sub(a.Mono), time.Duration(b.Raw - a.Raw), time.Duration(b.Boot - a.Boot)}
	}
	const s = time.Second
	for name, tc := range map[string]struct {
		befall func(*world, *host)
		want   moved
	}{
		"nothing":  {func(*world, *host) {}, moved{10 * s, 10 * s, 10 * s, 10 * s}},
		"a drift":  {func(_ *world, h *host) { h.drift = 1000 }, moved{10*s + 10*time.Millisecond, 10 * s, 10 * s, 10 * s}},
		"a freeze": {func(_ *world, h *host) { h.frozen, h.frozenWall = 20*s, dawn }, moved{0, 10 * s, 10 * s, 10 * s}},
	} {
		w, h := calm()
		tc.befall(w, h)
		if got := over(w, h, 10*s); got != tc.want {
			t.Errorf("%s: clocks moved by %+v, want %+v", name, got, tc.want)
		}
	}
	for still, want := range map[bool]moved{
		false: {10 * s, 4 * s, 4 * s, 10 * s}, // asleep for six of ten seconds
		true:  {4 * s, 4 * s, 4 * s, 4 * s},
	} {
		w, h := calm()
		before := h.read(0)
		w.sleep(h, 6*s, still)
		w.now = 10 * s
		after := h.read(w.now)
		got := moved{time.Duration(after.Wall - before.Wall), after.Mono.Sub(before.Mono), time.Duration(after.Raw - before.Raw), time.Duration(after.Boot - before.Boot)}
		if got != want {
			t.Errorf("asleep, still=%v: clocks moved by %+v, want %+v", still, got, want)
		}
	}
}

// TestTerms: what the order per sid calls a violation, and what not.
func TestTerms(t *testing.T) {
	block := func(ms, entropy int64) gen.Block {
		return gen.Block{First: flake.ID(ms<<20 | entropy<<5 | 3), Count: 2, Stride: 32, SID: 3}
	}
	w := &world{trace: newTrace(nil)}
	a, b := &process{w: w, name: "a"}, &process{w: w, name: "b"}
	w.terms.add(w, a, block(100, 7))
	w.terms.add(w, a, block(101, 0))
	w.terms.add(w, b, block(102, 0))
	if got := w.terms.check(); len(got)+len(w.violations) != 0 {
		t.Errorf("one holder after the other: %v %v", got, w.violations)
	}
	w.terms.add(w, a, block(103, 0)) // in the hold that b's came after
	if got := w.terms.check(); len(got) != 1 {
		t.Errorf("two holders that interleave: %v", got)
	}
	ceil := clock.Millis(flake.DefaultEpoch + 103)
	w.terms.release(w, b, 3, ceil)
	if len(w.violations) != 0 {
		t.Errorf("given back above what was issued: %v", w.violations)
	}
	w.terms.release(w, a, 3, ceil)
	if len(w.violations) != 1 {
		t.Errorf("given back at what was issued: %v", w.violations)
	}
	w.terms.add(w, b, block(103, 5))
	if len(w.violations) != 2 {
		t.Errorf("issued after it was given back: %v", w.violations)
	}
}
