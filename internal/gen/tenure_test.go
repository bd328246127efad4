package gen

import (
	"errors"
	"math"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

const (
	epoch = clock.Millis(flake.DefaultEpoch)
	t0    = epoch + 60_000_000_000 // the base of most tests
)

// fixed is a source of one number over and over: 0 draws the minimum of any
// range, MaxUint64 the largest.
type fixed uint64

func (f *fixed) Uint64() uint64 { return uint64(*f) }

// zero returns a source that draws the minimum of any range.
func zero() *fixed { return new(fixed) }

func tenure(t testing.TB, cfg Config, base, ceil clock.Millis, rnd rand.Source) *Tenure {
	t.Helper()
	if cfg.Epoch == 0 {
		cfg.Epoch = epoch
	}
	if cfg.Layout == (flake.Layout(0)) {
		cfg.Layout = flake.Scalable
	}
	g, err := NewTenure(cfg, 0, base, ceil, rnd)
	fatal.If(t, err)
	return g
}

// issue returns the block of a call that must succeed.
func issue(t testing.TB, g *Tenure, now, seen clock.Millis, n int, after flake.ID) Block {
	t.Helper()
	b, err := g.Next(now, seen, n, after)
	if err != nil {
		t.Fatalf("Next(t0%+d, t0%+d, %d, %d): %v", now-t0, seen-t0, n, after, err)
	}
	return b
}

// lead checks that err is a *LeadError with these values.
func lead(t testing.TB, err, cause error, excess clock.Millis) {
	t.Helper()
	var le *LeadError
	if !errors.As(err, &le) || le.Err != cause || le.Excess() != excess || !errors.Is(err, cause) {
		t.Fatalf("got %v, want %v with an excess of %d", err, cause, excess)
	}
}

func at(ms clock.Millis, entropy, sid int64, l flake.Layout) flake.ID {
	id, err := flake.Format{Layout: l, Epoch: int64(epoch)}.Make(int64(ms), uint32(entropy), flake.SID(sid))
	if err != nil {
		panic(err)
	}
	return id
}

// Incident T29 (worker numbers beyond their field), docs/INCIDENTS.md.
func TestNewTenure(t *testing.T) {
	ok := Config{Layout: flake.Scalable, Epoch: epoch, MaxLead: 250, MaxStep: 255}
	for _, c := range []struct {
		name       string
		cfg        Config
		sid        flake.SID
		base, ceil clock.Millis
		nilSource  bool
		want       string // part of the error; "" for none
	}{
		{name: "usual", cfg: ok, sid: 31, base: t0, ceil: t0 + 30_000},
		{name: "empty window", cfg: ok, base: t0, ceil: t0},
		{name: "whole layout", cfg: ok, base: epoch + 1, ceil: epoch + 1<<43},
		{name: "base at the epoch", cfg: ok, base: epoch, ceil: t0, want: "base"},
		{name: "base before the epoch", cfg: ok, base: math.MinInt64, ceil: t0, want: "base"},
		{name: "ceiling below base", cfg: ok, base: t0, ceil: t0 - 1, want: "below the base"},
		{name: "sid", cfg: ok, sid: 32, base: t0, ceil: t0 + 1, want: "sid"},
		{name: "standalone sid", cfg: Config{Layout: flake.Standalone, Epoch: epoch}, sid: 1, base: t0, ceil: t0 + 1, want: "sid"},
		{name: "fleet sid", cfg: Config{Layout: flake.Fleet, Epoch: epoch}, sid: 1023, base: t0, ceil: t0 + 1},
		{name: "no source", cfg: ok, base: t0, ceil: t0 + 1, nilSource: true, want: "random source"},
		{name: "layout", cfg: Config{Layout: flake.Layout(0)}, base: t0, ceil: t0 + 1, want: "layout"},
		{name: "lead", cfg: Config{Layout: flake.Scalable, MaxLead: -1}, base: t0, ceil: t0 + 1, want: "max lead"},
		{name: "long lead", cfg: Config{Layout: flake.Scalable, MaxLead: 1 << 43}, base: t0, ceil: t0 + 1, want: "max lead"},
		{name: "step", cfg: Config{Layout: flake.Scalable, MaxStep: 65536}, base: t0, ceil: t0 + 1, want: "max step"},
		{name: "epoch", cfg: Config{Layout: flake.Scalable, Epoch: math.MaxInt64}, base: t0, ceil: t0 + 1, want: "epoch"},
		{name: "early epoch", cfg: Config{Layout: flake.Scalable, Epoch: math.MinInt64}, base: t0, ceil: t0 + 1, want: "epoch"},
	} {
		rnd := rand.Source(zero())
		if c.nilSource {
			rnd = nil
		}
		g, err := NewTenure(c.cfg, c.sid, c.base, c.ceil, rnd)
		switch {
		case c.want != "":
			if err == nil || !strings.Contains(err.Error(), c.want) || g != nil {
				t.Errorf("%s: got %v, want an error about %q", c.name, err, c.want)
			}
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case g.SID() != c.sid || g.Base() != c.base || g.Ceil() != c.ceil:
			t.Errorf("%s: got sid %d, [%d,%d)", c.name, g.SID(), g.Base(), g.Ceil())
		}
	}
}

func TestMaxBlock(t *testing.T) {
	for _, c := range []struct {
		layout flake.Layout
		lead   clock.Millis
		want   int
	}{
		{flake.Scalable, 250, 1_000_000},
		{flake.Scalable, 30, 30 << 15},
		{flake.Scalable, 31, 1_000_000},
		{flake.Scalable, 1, 1 << 15},
		{flake.Scalable, 0, 1 << 15},
		{flake.Standalone, 0, 1_000_000},
		{flake.Fleet, 250, 256_000},
		{flake.Fleet, 0, 1024},
		{flake.Fleet, (1<<43 - 1), 1_000_000},
	} {
		cfg := Config{Layout: c.layout, Epoch: epoch, MaxLead: c.lead, MaxStep: 7}
		if got := cfg.MaxBlock(); got != c.want {
			t.Errorf("%v, lead %d: MaxBlock = %d, want %d", c.layout, c.lead, got, c.want)
		}
		// The largest block fits into a new millisecond whatever is drawn.
		for _, draw := range []fixed{0, math.MaxUint64} {
			g := tenure(t, cfg, t0, t0+3000, &draw)
			if b := issue(t, g, t0+1, t0+1, c.want, 0); b.Count != c.want {
				t.Errorf("%v, lead %d: got %+v", c.layout, c.lead, b)
			}
		}
		g := tenure(t, cfg, t0, t0+3000, zero())
		for _, n := range []int{0, -1, math.MinInt, c.want + 1, math.MaxInt} {
			_, err := g.Next(t0, t0, n, 0)
			var ce *CountError
			if !errors.Is(err, ErrCount) || !errors.As(err, &ce) || ce.Limit != c.want || ce.Count != n {
				t.Errorf("%v, lead %d: Next of %d: %v", c.layout, c.lead, n, err)
			}
		}
	}
}

// One tenure from start to end with the smallest draws, computed by hand.
//
// Incident T09 (the sequence starts anew in a millisecond that is used up), docs/INCIDENTS.md.
func TestTenureByHand(t *testing.T) {
	l := flake.Scalable
	g := tenure(t, Config{MaxLead: 2, MaxStep: 255}, t0, t0+10, zero())
	if _, ok := g.Issued(); ok {
		t.Error("a new tenure has issued")
	}
	want := func(b Block, first flake.ID) {
		t.Helper()
		if b.First != first || b.Stride != 32 || b.SID != 0 {
			t.Fatalf("got %+v, want first %d", b, first)
		}
	}
	want(issue(t, g, t0, t0, 1, 0), at(t0, 0, 0, l))
	want(issue(t, g, t0, t0, 3, 0), at(t0, 1, 0, l))
	want(issue(t, g, t0, t0, 1, 0), at(t0, 4, 0, l))
	// A block carries into the next two milliseconds, which are the lead.
	want(issue(t, g, t0, t0, 2<<15, 0), at(t0, 5, 0, l))
	want(issue(t, g, t0, t0, 1<<15-5, 0), at(t0+2, 5, 0, l))
	if got := g.Ahead(t0); got != 2 {
		t.Fatalf("Ahead = %d, want 2", got)
	}
	_, err := g.Next(t0, t0, 1, 0)
	lead(t, err, ErrOverflow, 1)
	_, err = g.Next(t0-7, t0, 1, 0)
	lead(t, err, ErrOverflow, 8) // the clock is back by 7 only
	_, err = g.Next(t0-7, t0+2, 1, 0)
	lead(t, err, ErrRegression, 8)
	want(issue(t, g, t0+1, t0+1, 1, 0), at(t0+3, 0, 0, l))
	// after, in our own millisecond, of a greater sid and of an equal one.
	want(issue(t, g, t0+4, t0+4, 1, at(t0+4, 100, 5, l)), at(t0+4, 101, 0, l))
	want(issue(t, g, t0+4, t0+4, 1, at(t0+4, 200, 0, l)), at(t0+4, 201, 0, l))
	want(issue(t, g, t0+4, t0+4, 1, at(t0+4, 200, 0, l)), at(t0+4, 202, 0, l)) // does not bind
	want(issue(t, g, t0+4, t0+4, 1, at(t0+4, 32767, 31, l)), at(t0+5, 0, 0, l))
	_, err = g.Next(t0+4, t0+4, 1, at(t0+7, 0, 0, l))
	lead(t, err, ErrAfterTooFar, 1)
	_, err = g.Next(t0+4, t0+4, 1, math.MaxInt64)
	lead(t, err, ErrAfterTooFar, 1<<43-(t0+4-epoch)-2)
	// The ceiling; the lead's reason wins if both apply.
	want(issue(t, g, t0+9, t0+9, 1, 0), at(t0+9, 0, 0, l))
	if _, err = g.Next(t0+10, t0+10, 1, 0); err != ErrCeiling {
		t.Fatalf("at the ceiling: %v", err)
	}
	_, err = g.Next(t0+10, t0+10, 1, at(t0+13, 0, 0, l))
	lead(t, err, ErrAfterTooFar, 1)
	g.Raise(t0 + 5)
	if g.Ceil() != t0+10 {
		t.Fatal("Raise lowered the ceiling")
	}
	g.Raise(t0 + 11)
	want(issue(t, g, t0+10, t0+10, 2, 0), at(t0+10, 0, 0, l))
	for range 2 {
		if got := g.Seal(); got != t0+11 {
			t.Fatalf("Seal = t0%+d, want +11", got-t0)
		}
		g.Raise(t0 + 99)
		if _, err := g.Next(t0+20, t0+20, -1, 0); err != ErrSealed {
			t.Fatalf("sealed: %v", err)
		}
	}
	if last, ok := g.Issued(); !ok || last != at(t0+10, 1, 0, l) || g.Ahead(t0+8) != 2 {
		t.Fatalf("sealed: Issued = %d, %v", last, ok)
	}
}

// Where the lead comes from decides the reason: what a program does about a
// clock that went back is not what it does about too many requests.
//
// Incident T06 (a mode that goes on with the old time), docs/INCIDENTS.md.
func TestLeadReasons(t *testing.T) {
	l := flake.Scalable
	cfg := Config{Layout: l, MaxLead: 250}
	begun := func(t *testing.T) *Tenure {
		g := tenure(t, cfg, t0, t0+30_000, zero())
		issue(t, g, t0+1000, t0+1000, 1, 0)
		return g
	}
	fresh := func(t *testing.T) *Tenure { return tenure(t, cfg, t0+1000, t0+30_000, zero()) }
	for _, c := range []struct {
		name      string
		g         func(*testing.T) *Tenure
		now, seen clock.Millis // after t0
		n         int
		after     flake.ID
		want      error
		excess    clock.Millis
	}{
		{"clock back by 300", begun, 700, 1000, 1, 0, ErrRegression, 50},
		{"clock back by 1 less than the excess", begun, 700, 749, 1, 0, ErrOverflow, 50},
		{"clock back by as much as the excess", begun, 700, 750, 1, 0, ErrRegression, 50},
		{"clock before the epoch", begun, -t0, 1000, 1, 0, ErrRegression, t0 + 750},
		{"demand", begun, 750, 750, 1 << 15, 0, ErrOverflow, 1},
		{"after, 1 ms too far", begun, 1000, 1000, 1, at(t0+1251, 0, 0, l), ErrAfterTooFar, 1},
		{"after, too far for a clock that went back", begun, 700, 1000, 1, at(t0+1251, 0, 0, l), ErrAfterTooFar, 301},
		{"after within the lead, the block is not", begun, 1000, 1000, 1 << 15, at(t0+1250, 0, 0, l), ErrOverflow, 1},
		{"after does not bind", begun, 700, 1000, 1, at(t0+1000, 0, 0, l) - 1, ErrRegression, 50},
		{"base ahead", fresh, 700, 700, 1, 0, ErrNotBegun, 50},
		{"base ahead since the clock went back", fresh, 700, 1000, 1, 0, ErrRegression, 50},
		{"base within the lead, the block is not", fresh, 750, 750, 1<<15 + 1, 0, ErrOverflow, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := c.g(t)
			_, err := g.Next(t0+c.now, t0+c.seen, c.n, c.after)
			lead(t, err, c.want, c.excess)
			// Excess is how long to wait, neither more nor less.
			if c.now+t0 == 0 {
				return
			}
			if _, err := g.Next(t0+c.now+c.excess-1, t0+30_000, c.n, c.after); err == nil {
				t.Error("1 ms less than the excess was enough")
			}
			issue(t, g, t0+c.now+c.excess, t0+30_000, c.n, c.after)
		})
	}
}

// With no lead allowed the generator is the specification's: it fills the
// clock's own millisecond and refuses what does not fit.
func TestNoLead(t *testing.T) {
	g := tenure(t, Config{Layout: flake.Fleet}, t0, t0+10, zero())
	issue(t, g, t0, t0, 1024, 0)
	_, err := g.Next(t0, t0, 1, 0)
	lead(t, err, ErrOverflow, 1)
	issue(t, g, t0+1, t0+1, 1024, 0)
	_, err = g.Next(t0, t0+2, 1, 0)
	lead(t, err, ErrRegression, 2)
	_, err = g.Next(t0-1, t0+3, 1, 0)
	lead(t, err, ErrRegression, 3)
}

// The clock may read anything; only what fits the layout and the window is issued. A
// clock past the end of the layout, and a window that it made, are no reason to panic.
//
// Incident T40 (time bits run out), docs/INCIDENTS.md.
func TestEndOfLayout(t *testing.T) {
	for _, name := range flake.Layouts() {
		l := parse(name)
		unit, end := clock.Millis(l.Unit()), epoch+clock.Millis(l.End())
		big := fixed(math.MaxUint64)
		cfg := Config{Layout: l, MaxLead: 250 * unit}
		if l.Random() {
			cfg.MaxStep = 255
		}
		g := tenure(t, cfg, end-unit, end+1, &big)
		for _, now := range []clock.Millis{end, end + 1, math.MaxInt64} {
			if _, err := g.Next(now, math.MaxInt64, 1, 0); err != ErrCeiling {
				t.Errorf("%v, clock past the end: %v", l, err)
			}
			if _, err := g.Next(now, now, g.maxBlockInt(), math.MaxInt64); err != ErrCeiling {
				t.Errorf("%v, after the last ID: %v", l, err)
			}
		}
		g.Raise(math.MaxInt64)
		if g.Ceil() != end {
			t.Errorf("%v: raised to %d, past the end %d", l, g.Ceil(), end)
		}
		k := l.SequenceBits()
		last := flake.ID(l.MaxTimestamp()<<l.LowBits() | (1<<k-1)*l.Stride()) // of sid 0
		b := issue(t, g, end-1, end-1, 1<<(k-1)-1, last-flake.ID(1<<(k-1)-1)*flake.ID(l.Stride()))
		if b.Last() != last {
			t.Errorf("%v: last ID %d, want %d", l, b.Last(), last)
		}
		if _, err := g.Next(end-1, end-1, 1, 0); err != ErrCeiling {
			t.Errorf("%v, nothing left: %v", l, err)
		}
		if got := g.Seal(); got != end {
			t.Errorf("%v: Seal = %d, want %d", l, got, end)
		}
		g = tenure(t, cfg, end+5, math.MaxInt64, &big)
		if _, err := g.Next(end+5, end+5, 1, 0); err != ErrCeiling || g.Seal() != end+5 {
			t.Errorf("%v, a window past the end: %v", l, err)
		}
	}
}

func (t *Tenure) maxBlockInt() int { return int(t.maxBlock) }

// A cut within a unit of time: of two windows that follow each other, neither uses the unit,
// and both use all others. So no ID comes twice, and the first window's are the smaller.
func TestWindowsCutWithinAUnit(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for _, cfg := range configs(2) {
		l := cfg.Layout
		unit := clock.Millis(l.Unit())
		sid := flake.SID(r.IntN(l.Holders()))
		base := cfg.Epoch + clock.Millis(1+r.Int64N(l.End()/2))
		cut := base + 2*unit + clock.Millis(r.Int64N(l.Unit()))
		ceil := cut + 2*unit + clock.Millis(r.Int64N(l.Unit()))
		f := flake.Format{Layout: l, Epoch: int64(cfg.Epoch)}
		units := map[int64]bool{}
		var last flake.ID
		for _, w := range [][2]clock.Millis{{base, cut}, {cut, ceil}} {
			g, err := NewTenure(cfg, sid, w[0], w[1], Random())
			fatal.If(t, err)
			n := min(cfg.MaxBlock(), 1<<l.SequenceBits())
			for now := base - unit; now <= ceil+unit; now += max(unit/7, 1) {
				for range 3 {
					b, err := g.Next(now, now, 1+r.IntN(n), 0)
					if err != nil {
						break
					}
					if b.First <= last {
						t.Fatalf("%v, %+v, window %v: %v after %v", l, cfg, w, b.First, last)
					}
					last = b.Last()
					for _, id := range []flake.ID{b.First, last} {
						at := clock.Millis(f.UnixMilli(id))
						if at < w[0] || at+unit > w[1] {
							t.Fatalf("%v: the unit %d to %d is not in the window %v", l, at, at+unit, w)
						}
						units[f.Layout.Timestamp(id)] = true
					}
				}
			}
			if end := g.Seal(); end > w[1] || end <= clock.Millis(f.UnixMilli(last)) {
				t.Fatalf("%v: sealed at %d, with the window %v and %v issued", l, end, w, last)
			}
		}
		up := func(ms clock.Millis) int64 { return (int64(ms-cfg.Epoch) + l.Unit() - 1) / l.Unit() }
		down := func(ms clock.Millis) int64 { return int64(ms-cfg.Epoch) / l.Unit() }
		want := down(cut) - up(base) + down(ceil) - up(cut)
		if got := int64(len(units)); got > want || got < want && cfg.MaxStep == 0 { // random steps may skip one
			t.Errorf("%v, %+v: %d units were used, want %d", l, cfg, got, want)
		}
	}
}

func TestSealUnused(t *testing.T) {
	g := tenure(t, Config{MaxLead: 250}, t0, t0+10, zero())
	if got := g.Seal(); got != t0 {
		t.Errorf("Seal = t0%+d, want the base", got-t0)
	}
	if _, ok := g.Issued(); ok || g.Ahead(t0-3) != 3 || g.Ahead(t0+3) != 0 {
		t.Error("a sealed tenure that issued nothing reports an ID")
	}
}

func TestBlock(t *testing.T) {
	b := Block{First: 1000, Count: 5, Stride: 32, SID: 8}
	want := []flake.ID{1000, 1032, 1064, 1096, 1128}
	for i, w := range want {
		if b.At(i) != w {
			t.Errorf("At(%d) = %d, want %d", i, b.At(i), w)
		}
	}
	for size := range 8 {
		dst := make([]flake.ID, size)
		if n := b.Fill(dst); n != min(size, 5) {
			t.Errorf("Fill of %d = %d", size, n)
		}
		for i := range dst {
			if w := append(want, 0, 0, 0)[i]; dst[i] != w {
				t.Errorf("Fill of %d: [%d] = %d, want %d", size, i, dst[i], w)
			}
		}
	}
	if got := b.Append([]flake.ID{7}); len(got) != 6 || got[0] != 7 || got[5] != b.Last() || b.Last() != 1128 {
		t.Errorf("Append = %v", got)
	}
	for _, i := range []int{-1, 5} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("At(%d) gave an ID outside the block", i)
				}
			}()
			b.At(i)
		}()
	}
	if (Block{}).Fill(make([]flake.ID, 3)) != 0 || len(Block{}.Append(nil)) != 0 {
		t.Error("the zero Block has IDs")
	}
}

// I7: what follows a refused call is what would have come without it.
//
// Incident T01 (a millisecond back, refused, and forward: the same IDs again), docs/INCIDENTS.md.
func TestRefusalChangesNothing(t *testing.T) {
	seen := map[string]int{}
	everyConfig(t, func(t *testing.T, cfg Config, base clock.Millis, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 7))
		draw := zero() // both twins draw the same in one step, however often each drew before
		ceil := base + 200*clock.Millis(cfg.Layout.Unit())
		a, b := tenure(t, cfg, base, ceil, draw), tenure(t, cfg, base, ceil, draw)
		c := caller{r: r, cfg: cfg, now: base - cfg.MaxLead - 1, seen: base - cfg.MaxLead - 1}
		for i := range 1500 {
			*draw = fixed(r.Uint64())
			if r.IntN(15) == 0 {
				to := c.now + clock.Millis(r.Int64N(10*cfg.Layout.Unit()))
				a.Raise(to)
				b.Raise(to)
			}
			if i == 1450 {
				a.Seal()
				b.Seal()
			}
			in := c.next()
			before := [2]uint64{a.word.Load(), uint64(a.ceil.Load())}
			got, err := a.Next(in.now, in.seen, in.n, in.after)
			if err != nil {
				seen[reason(err)]++
				if after := [2]uint64{a.word.Load(), uint64(a.ceil.Load())}; after != before || got != (Block{}) {
					t.Fatalf("step %d: Next(%+v) = %+v, %v and changed %x to %x", i, in, got, err, before, after)
				}
				continue // the twin is not asked
			}
			want, wantErr := b.Next(in.now, in.seen, in.n, in.after)
			if wantErr != nil || got != want {
				t.Fatalf("step %d: Next(%+v) = %+v; had nothing been refused: %+v, %v", i, in, got, want, wantErr)
			}
			c.last = got.Last()
		}
	})
	for _, e := range refusals {
		if seen[reason(e)] < 100 {
			t.Errorf("only %d refusals were %q", seen[reason(e)], e)
		}
	}
}

// hook is a source that does something in the middle of Next: after the word is
// read, before anything is decided.
type hook struct{ do func() }

func (h *hook) Uint64() uint64 {
	if do := h.do; do != nil {
		h.do = nil
		do()
	}
	return 0
}

// TestTwitterByHand: the sid above the sequence, a block within a millisecond, and
// whose fault it is that one does not fit.
func TestTwitterByHand(t *testing.T) {
	f := flake.Format{Layout: flake.Twitter, Epoch: int64(epoch)}
	g, err := NewTenure(Config{Layout: flake.Twitter, Epoch: epoch, MaxLead: 1}, 5, t0, t0+10, zero())
	fatal.If(t, err)
	for _, x := range []struct {
		n     int
		after flake.ID
		ms    clock.Millis
		seq   uint32
		err   error
	}{
		{n: 1, ms: t0, seq: 0},
		{n: 1, ms: t0, seq: 1},
		{n: 4000, ms: t0, seq: 2},
		{n: 100, ms: t0 + 1, seq: 0}, // 94 were left
		{n: 4097, err: ErrCount},
		{n: 4000, err: ErrOverflow}, // it would start 2 ms ahead, and nobody gave an after
		{n: 3996, ms: t0 + 1, seq: 100},
		{n: 1, err: ErrOverflow},
		{n: 1, after: at(t0+3, 0, 4, f.Layout), err: ErrAfterTooFar},
	} {
		b, err := g.Next(t0, t0, x.n, x.after)
		if !errors.Is(err, x.err) {
			t.Fatalf("%+v: %v", x, err)
		}
		if x.err == nil && (f.UnixMilli(b.First) != int64(x.ms) || f.Entropy(b.First) != x.seq || f.SID(b.First) != 5 || f.SID(b.Last()) != 5 || b.Stride != 1) {
			t.Fatalf("%+v: %+v, at %d, sequence %d", x, b, f.UnixMilli(b.First), f.Entropy(b.First))
		}
	}
}

// Incident T08 (a thread with an old time), docs/INCIDENTS.md.
func TestBetweenReadAndCommit(t *testing.T) {
	cfg := Config{Layout: flake.Scalable, MaxLead: 250, MaxStep: 255}
	t.Run("raise", func(t *testing.T) {
		h := &hook{}
		g := tenure(t, cfg, t0, t0+5, h)
		h.do = func() { g.Raise(t0 + 6) }
		issue(t, g, t0+5, t0+5, 1, 0) // not refused: the ceiling is read after the word
	})
	t.Run("seal", func(t *testing.T) {
		h := &hook{}
		g := tenure(t, cfg, t0, t0+50, h)
		h.do = func() { g.Seal() }
		if _, err := g.Next(t0+5, t0+5, 1, 0); err != ErrSealed {
			t.Fatalf("got %v", err)
		}
		if _, ok := g.Issued(); ok || g.Seal() != t0 {
			history.Violated(t, "I3", "issued after the seal")
		}
	})
	t.Run("next", func(t *testing.T) {
		h := &hook{}
		g := tenure(t, cfg, t0, t0+50, h)
		var inner Block
		h.do = func() { inner = issue(t, g, t0+9, t0+9, 10, 0) }
		if outer := issue(t, g, t0+5, t0+5, 10, 0); outer.First <= inner.Last() {
			t.Fatalf("outer %+v is not above inner %+v", outer, inner)
		}
	})
}

// The word must never be copied; go vet has to notice.
//
// Incident T38 (two generators in one process), docs/INCIDENTS.md.
func TestVetForbidsCopies(t *testing.T) {
	tier.Check(t, "runs go vet")
	out, err := exec.Command("go", "vet", "-copylocks", "./testdata/copies").CombinedOutput()
	if err == nil || strings.Count(string(out), "gen.Tenure contains") < 2 {
		t.Errorf("go vet did not forbid both copies: %v\n%s", err, out)
	}
}

func TestAllocations(t *testing.T) {
	g := tenure(t, Config{MaxLead: 250, MaxStep: 255}, t0, t0+1<<30, Random())
	dst := make([]flake.ID, 1000)
	now := t0
	for _, n := range []int{1, 1000} {
		if got := testing.AllocsPerRun(1000, func() {
			now++
			b, err := g.Next(now, now, n, 12345)
			if err != nil || b.Fill(dst) != n {
				t.Error(err)
			}
		}); got != 0 {
			t.Errorf("%v allocations for %d IDs", got, n)
		}
	}
}

// TestLeadInUnits: what IDs may be ahead of the clock is whole units of time.
func TestLeadInUnits(t *testing.T) {
	sonyflake, err := flake.ParseLayout("sonyflake")
	fatal.If(t, err)
	for layout, want := range map[flake.Layout]clock.Millis{flake.Scalable: 255, sonyflake: 250} {
		if got := (Config{Layout: layout, MaxLead: 255}).Lead(); got != want {
			t.Errorf("%v: %d ms, want %d", layout, got, want)
		}
	}
}

// TestLift: after a lift nothing is issued with a time below the floor, whatever the clock reads,
// and nothing at or above it is used up. A lift below what was issued, or of a sealed tenure,
// changes nothing.
func TestLift(t *testing.T) {
	for _, name := range flake.Layouts() {
		l, err := flake.ParseLayout(name)
		fatal.If(t, err)
		if l.Holders() < 2 {
			continue // It is never leased.
		}
		f := flake.Format{Layout: l, Epoch: flake.DefaultEpoch}
		unit := l.Unit()
		base := clock.Millis(flake.DefaultEpoch + 1_000_000*unit)
		tenure, err := NewTenure(Config{Layout: l, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: clock.Millis(100 * unit)}, 1, base, base+clock.Millis(1000*unit), Random())
		fatal.If(t, err)
		tenure.Lift(base - 5)
		if b, err := tenure.Next(base, base, 1, 0); err != nil || f.UnixMilli(b.First) != int64(base) {
			t.Errorf("%v: a lift below the base: %v, %v", l, b, err)
		}
		first, _ := tenure.Issued()
		floor := base + clock.Millis(50*unit)
		tenure.Lift(floor)
		tenure.Lift(floor - 1)
		b, err := tenure.Next(base, floor, 1, 0)
		if err != nil || f.UnixMilli(b.First) != int64(floor) || b.First < first {
			t.Errorf("%v: got %v of %d, %v, want one of %d", l, b, f.UnixMilli(b.First), err, floor)
		}
		if unit > 1 {
			tenure.Lift(floor + clock.Millis(unit) + 1) // within a unit: the whole unit may not be used
			if b, err = tenure.Next(base, floor, 1, 0); err != nil || f.UnixMilli(b.First) != int64(floor)+2*unit {
				t.Errorf("%v: got %d, %v after a lift within a unit", l, f.UnixMilli(b.First), err)
			}
		}
		last, _ := tenure.Issued()
		tenure.Lift(base)
		if now, _ := tenure.Issued(); now != last {
			t.Errorf("%v: a lift below %v changed it to %v", l, last, now)
		}
		ceil := tenure.Seal()
		tenure.Lift(ceil + 1)
		if again := tenure.Seal(); again != ceil {
			t.Errorf("%v: a lift after the seal moved %d to %d", l, ceil, again)
		}
		tenure.Lift(1 << 60)
	}
}
