package gen

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// An oracle is the generator written to be obviously right: whole numbers
// without a size, one rule after the other, no concurrency.
type oracle struct {
	cfg        Config
	sid        flake.SID
	begins     clock.Millis // of the window
	base, ceil *big.Int     // units since the epoch
	last       *big.Int     // number of the last slot issued; nil if none was
	sealed     bool
	rnd        rand.Source
}

func num(x int64) *big.Int       { return big.NewInt(x) }
func add(a, b *big.Int) *big.Int { return new(big.Int).Add(a, b) }
func sub(a, b *big.Int) *big.Int { return new(big.Int).Sub(a, b) }
func mul(a, b *big.Int) *big.Int { return new(big.Int).Mul(a, b) }
func div(a, b *big.Int) *big.Int { return new(big.Int).Div(a, b) } // rounds down for b > 0
func mod(a, b *big.Int) *big.Int { return new(big.Int).Mod(a, b) } // at least 0
func less(a, b *big.Int) bool    { return a.Cmp(b) < 0 }
func smaller(a, b *big.Int) *big.Int {
	if less(b, a) {
		return b
	}
	return a
}

func newOracle(cfg Config, sid flake.SID, base, ceil clock.Millis, rnd rand.Source) *oracle {
	o := &oracle{cfg: cfg, sid: sid, begins: base, rnd: rnd}
	o.base, o.ceil = o.read(base), o.read(ceil)
	if less(mul(o.base, o.unit()), o.millis(base)) { // a unit that the window has in part
		o.base = add(o.base, num(1))
	}
	return o
}

func (o *oracle) unit() *big.Int    { return num(o.cfg.Layout.Unit()) }
func (o *oracle) perUnit() *big.Int { return num(1 << o.cfg.Layout.SequenceBits()) }
func (o *oracle) sids() *big.Int    { return num(int64(o.cfg.Layout.Holders())) }
func (o *oracle) end() *big.Int     { return num(1 << o.cfg.Layout.TimeBits()) }
func (o *oracle) maxLead() *big.Int { return div(num(int64(o.cfg.MaxLead)), o.unit()) }

// of returns the unit of time of a slot.
func (o *oracle) of(slot *big.Int) *big.Int { return div(slot, o.perUnit()) }

func (o *oracle) id(slot *big.Int) *big.Int {
	sid := num(int64(o.sid))
	if o.cfg.Layout.SIDFirst() {
		return add(mul(add(mul(o.of(slot), o.sids()), sid), o.perUnit()), mod(slot, o.perUnit()))
	}
	return add(mul(slot, o.sids()), sid)
}

// after returns the first slot whose ID is greater than x.
func (o *oracle) after(x *big.Int) *big.Int {
	all := mul(o.perUnit(), o.sids()) // IDs of a unit
	x = smaller(x, sub(mul(o.end(), all), num(1)))
	first := mul(div(x, all), o.perUnit())
	n := sort.Search(1<<o.cfg.Layout.SequenceBits(), func(i int) bool { return less(x, o.id(add(first, num(int64(i))))) })
	return add(first, num(int64(n)))
}

// fit returns slot, or the next unit's first where a block of n from slot would cross
// into it and must not.
func (o *oracle) fit(slot *big.Int, n int) *big.Int {
	next := mul(add(o.of(slot), num(1)), o.perUnit())
	if o.cfg.Layout.SIDFirst() && less(next, add(slot, num(int64(n)))) {
		return next
	}
	return slot
}

// millis is how the generator reads a clock: cut at the end of the layout, and far
// before the epoch.
func (o *oracle) millis(t clock.Millis) *big.Int {
	ms := sub(num(int64(t)), num(int64(o.cfg.Epoch)))
	if start := num(-1 << 60); less(ms, start) {
		return start
	}
	return smaller(ms, mul(o.end(), o.unit()))
}

// read is millis in whole units.
func (o *oracle) read(t clock.Millis) *big.Int { return div(o.millis(t), o.unit()) }

// below returns a number below span, from one draw.
func (o *oracle) below(span *big.Int) *big.Int {
	return div(mul(new(big.Int).SetUint64(o.rnd.Uint64()), span), new(big.Int).Lsh(num(1), 64))
}

func (o *oracle) next(now, seen clock.Millis, n int, after flake.ID) (Block, error) {
	if o.sealed {
		return Block{}, ErrSealed
	}
	limit := int64(1_000_000)
	fit := o.perUnit()
	if o.maxLead().Sign() > 0 && !o.cfg.Layout.SIDFirst() {
		fit = mul(fit, o.maxLead())
	}
	limit = smaller(fit, num(limit)).Int64()
	if n < 1 || int64(n) > limit {
		return Block{}, &CountError{n, int(limit)}
	}

	at := o.read(now)
	last := sub(mul(o.base, o.perUnit()), num(1))
	if o.last != nil {
		last = o.last
	}
	own := add(last, num(1))
	switch o.of(last).Cmp(at) {
	case -1: // a new unit
		span := num(int64(o.cfg.Layout.Start()))
		if o.cfg.Layout.Random() {
			span = div(o.perUnit(), num(2))
		}
		own = mul(at, o.perUnit())
		if span.Cmp(num(1)) > 0 {
			units := add(o.maxLead(), num(1))
			if o.cfg.Layout.SIDFirst() {
				units = num(1)
			}
			room := add(sub(mul(units, o.perUnit()), num(int64(n))), num(1))
			own = add(own, o.below(smaller(room, span)))
		}
	case 0:
		if o.cfg.MaxStep > 0 {
			own = add(own, o.below(num(int64(o.cfg.MaxStep))))
		}
	}
	own = o.fit(own, n)
	first := own
	if after > 0 {
		if a := o.fit(o.after(num(int64(after))), n); less(own, a) {
			first = a
		}
	}
	end := sub(add(first, num(int64(n))), num(1))

	if lead := sub(o.of(end), at); less(o.maxLead(), lead) {
		err := ErrOverflow
		if less(own, first) && less(o.maxLead(), sub(o.of(first), at)) {
			err = ErrAfterTooFar
		} else if !less(o.maxLead(), sub(o.of(end), o.read(seen))) {
			err = ErrRegression
		} else if o.last == nil && less(o.maxLead(), sub(o.base, at)) {
			err = ErrNotBegun
		}
		ms := sub(mul(o.of(end), o.unit()), o.millis(now))
		return Block{}, &LeadError{err, clock.Millis(ms.Int64()), clock.Millis(mul(o.maxLead(), o.unit()).Int64())}
	}
	if !less(o.of(end), o.ceil) {
		return Block{}, ErrCeiling
	}
	o.last = end
	stride := sub(o.id(num(1)), o.id(num(0)))
	return Block{flake.ID(o.id(first).Int64()), n, stride.Int64(), o.sid}, nil
}

func (o *oracle) raise(ceil clock.Millis) {
	if c := o.read(ceil); less(o.ceil, c) {
		o.ceil = c
	}
}

func (o *oracle) seal() clock.Millis {
	o.sealed = true
	if o.last == nil {
		return o.begins
	}
	return clock.Millis(mul(add(o.of(o.last), num(1)), o.unit()).Int64()) + o.cfg.Epoch
}

var refusals = []error{ErrSealed, ErrCount, ErrAfterTooFar, ErrRegression, ErrNotBegun, ErrOverflow, ErrCeiling}

// reason returns the name of what Next answered.
func reason(err error) string {
	for _, e := range refusals {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	return fmt.Sprint(err)
}

// same reports whether two errors of Next are equal.
func same(a, b error) bool {
	var la, lb *LeadError
	if errors.As(a, &la) && errors.As(b, &lb) {
		return *la == *lb
	}
	var ca, cb *CountError
	if errors.As(a, &ca) && errors.As(b, &cb) {
		return *ca == *cb
	}
	return a == b
}

// A call is one call of Next.
type call struct {
	now, seen clock.Millis
	n         int
	after     flake.ID
}

// A caller makes up calls as a seeded, jumpy clock and careless clients would.
type caller struct {
	r    *rand.Rand
	cfg  Config
	now  clock.Millis
	seen clock.Millis
	last flake.ID // largest ID issued
}

func (c *caller) next() call {
	r := c.r
	unit, end := c.cfg.Layout.Unit(), c.cfg.Epoch+clock.Millis(c.cfg.Layout.End())
	lead := int64(c.cfg.MaxLead) + unit - 1
	switch p := r.IntN(100); {
	case p < 60: // the same millisecond
	case p < 85:
		c.now += clock.Millis(1 + r.Int64N(3*unit))
	case p < 92:
		c.now -= clock.Millis(1 + r.Int64N(2*lead+4))
	case p < 98:
		c.now += clock.Millis(r.Int64N(2*lead + 4))
	}
	now := c.now
	if r.IntN(200) == 0 {
		now = []clock.Millis{0, -1, c.cfg.Epoch - 1, c.cfg.Epoch, math.MinInt64, math.MinInt64 + 1}[r.IntN(6)]
	}
	c.seen = max(c.seen, now)
	seen := c.seen
	if r.IntN(500) == 0 { // a clock in the far future, in one call only
		now = []clock.Millis{math.MaxInt64, end, end - 1}[r.IntN(3)]
		seen = max(seen, now)
	}

	most := c.cfg.MaxBlock()
	n := 1
	switch p := r.IntN(100); {
	case p < 55:
	case p < 75:
		n = 1 + r.IntN(40)
	case p < 88:
		n = 1 + r.IntN(most)
	case p < 92:
		n = most - r.IntN(2)
	case p < 94:
		n = []int{0, -1, most + 1, math.MaxInt, math.MinInt}[r.IntN(5)]
	}

	var after flake.ID
	switch p := r.IntN(100); {
	case p < 60:
	case p < 75: // around the last one, any sid
		after = c.last + flake.ID(r.IntN(5000)-2500)
	case p < 95: // around the clock
		low := c.cfg.Layout.LowBits()
		after = flake.ID((int64(c.now-c.cfg.Epoch)+r.Int64N(2*lead+6)-2)/unit<<low | r.Int64N(1<<low))
		if r.IntN(4) == 0 {
			after |= 1<<low - 1
		}
	case p < 97:
		after = []flake.ID{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 - 1<<20, -1, math.MinInt64, 1}[r.IntN(6)]
	}
	return call{now, seen, n, after}
}

// configs returns a configuration of each layout, lead and step: of the built-in layouts, of
// custom ones at the limits, and of some that seed draws.
func configs(seed uint64) (out []Config) {
	r := rand.New(rand.NewPCG(seed, 3))
	of := func(l flake.Layout, leads []clock.Millis, steps ...uint32) {
		if !l.Random() {
			steps = []uint32{0}
		}
		for _, lead := range leads {
			for _, step := range steps {
				out = append(out, Config{Layout: l, Epoch: clock.Millis(l.Epoch()), MaxLead: lead, MaxStep: step})
			}
		}
	}
	for _, name := range flake.Layouts() {
		l := parse(name)
		leads := []clock.Millis{0, 1, 250}
		if u := clock.Millis(l.Unit()); u > 1 {
			leads = []clock.Millis{0, u - 1, 2*u + 1}
		}
		of(l, leads, 0, 7, 255, 65535)
	}
	for _, text := range []string{
		"41/15/7,steps=random", "41/7/15,order=time-seq-sid,steps=random,unit=10ms", "32/22/9,steps=random,unit=1s",
		"39/0/24,unit=10ms", "39/24/0,order=time-seq-sid,unit=1m", "45/10/1,steps=random", "39/0/1,unit=1m",
		"41/10/12,start=4096", "39/8/16,order=time-seq-sid,unit=10ms,start=200", "29/22/12,unit=1s,start=7",
	} {
		of(parse(text), []clock.Millis{0, 1500}, 0, 255)
	}
	for range 30 {
		of(anyLayout(r), []clock.Millis{clock.Millis(r.Int64N(3000))}, uint32(r.IntN(1<<16)))
	}
	return out
}

func parse(s string) flake.Layout {
	l, err := flake.ParseLayout(s)
	if err != nil {
		panic(err)
	}
	return l
}

// anyLayout draws a layout of at least 100,000 units.
func anyLayout(r *rand.Rand) flake.Layout {
	for {
		s := fmt.Sprintf("%d/%d/%d,unit=%dms", 17+r.IntN(39), r.IntN(25), r.IntN(25), []int{1, 1, 10, 250, 1000, 28_000}[r.IntN(6)])
		if r.IntN(2) == 0 {
			s += ",order=time-seq-sid"
		}
		switch r.IntN(3) {
		case 0:
			s += ",steps=random"
		case 1:
			s += fmt.Sprintf(",start=%d", r.IntN(200))
		}
		if l, err := flake.ParseLayout(s); err == nil {
			return l
		}
	}
}

// everyConfig calls f for each configuration, and for a window at the usual time, at
// the epoch, and at the end of the layout. Windows begin anywhere in a unit.
func everyConfig(t *testing.T, f func(t *testing.T, cfg Config, base clock.Millis, seed uint64)) {
	seed := uint64(0)
	for i, cfg := range configs(1) {
		l := cfg.Layout
		for _, from := range []int64{1, l.End() / 3, l.End() - 400*l.Unit() + 3*l.Unit()/4} {
			seed++
			name := fmt.Sprintf("%v/lead%d/step%d/%d/from%d", l, cfg.MaxLead, cfg.MaxStep, i, from)
			t.Run(name, func(t *testing.T) { f(t, cfg, cfg.Epoch+clock.Millis(from), seed) })
		}
	}
}

// The fast generator against the obvious one, on the same draws.
//
// Incident T29 (worker numbers beyond their field ran into the time), docs/INCIDENTS.md.
func TestOracle(t *testing.T) {
	steps := map[bool]int{false: 600, true: 60}[tier.Raced]
	outcomes := map[string]int{}
	everyConfig(t, func(t *testing.T, cfg Config, base clock.Millis, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		for range 3 {
			s := r.Uint64()
			sid := flake.SID(r.IntN(cfg.Layout.Holders()))
			ceil := base + clock.Millis(r.Int64N(500*cfg.Layout.Unit()))
			g, err := NewTenure(cfg, sid, base, ceil, rand.NewPCG(s, 2))
			fatal.If(t, err)
			o := newOracle(cfg, sid, base, ceil, rand.NewPCG(s, 2))
			c := caller{r: r, cfg: cfg, now: base - clock.Millis(r.Int64N(int64(cfg.MaxLead)*2+3*cfg.Layout.Unit()))}
			c.seen = c.now
			for i := range steps {
				if r.IntN(20) == 0 {
					to := c.now + clock.Millis(r.Int64N(int64(cfg.MaxLead)*2+10*cfg.Layout.Unit())-3)
					if r.IntN(100) == 0 {
						to = math.MinInt64
					}
					ceil = max(ceil, to)
					g.Raise(to)
					o.raise(to)
				}
				in := c.next()
				got, gotErr := g.Next(in.now, in.seen, in.n, in.after)
				want, wantErr := o.next(in.now, in.seen, in.n, in.after)
				if got != want || !same(gotErr, wantErr) {
					t.Fatalf("seed %d, step %d: Next(%+v)\n got %+v, %v\nwant %+v, %v", seed, i, in, got, gotErr, want, wantErr)
				}
				if gotErr == nil {
					f := flake.Format{Layout: cfg.Layout, Epoch: int64(cfg.Epoch)}
					first, last := clock.Millis(f.UnixMilli(got.First)), clock.Millis(f.UnixMilli(got.Last()))
					if got.First <= max(c.last, in.after) || first < base || last+clock.Millis(cfg.Layout.Unit()) > ceil || f.SID(got.Last()) != sid {
						t.Fatalf("step %d: Next(%+v) = %+v in [%d,%d) breaks I2, I3 or I6", i, in, got, base, g.Ceil())
					}
					c.last = got.Last()
					if units := f.Layout.Timestamp(c.last) - f.Layout.Timestamp(got.First); cfg.Layout.SIDFirst() && units != 0 {
						t.Fatalf("step %d: Next(%+v) = %+v crosses %d units", i, in, got, units)
					}
				}
				outcomes[reason(gotErr)]++
				if le, ok := errors.AsType[*LeadError](gotErr); ok && cfg.MaxStep == 0 && in.now > cfg.Epoch-1<<50 {
					// Excess is how long to wait, neither more nor less.
					for _, early := range []clock.Millis{1, 0} {
						later, err := NewTenure(cfg, sid, base, math.MaxInt64, zero())
						fatal.If(t, err)
						later.word.Store(g.word.Load())
						at := in.now + le.Excess() - early
						_, err = later.Next(at, max(at, in.seen), in.n, in.after)
						if _, still := errors.AsType[*LeadError](err); still != (early > 0) {
							t.Fatalf("step %d: Next(%+v): %v, excess %d; %d ms earlier: %v", i, in, gotErr, le.Excess(), early, err)
						}
					}
				}
				if last, ok := g.Issued(); ok != (o.last != nil) || ok && last != c.last {
					t.Fatalf("step %d: Issued() = %d, %v, want %d", i, last, ok, c.last)
				}
			}
			if got, want := g.Seal(), o.seal(); got != want {
				t.Fatalf("Seal() = %d, want %d", got, want)
			}
			if _, err := g.Next(c.now, c.seen, 1, 0); err != ErrSealed {
				t.Fatalf("sealed: Next = %v", err)
			}
		}
	})
	t.Log(outcomes)
	for _, e := range append(refusals, nil) {
		if e != ErrSealed && outcomes[reason(e)] < 100 {
			t.Errorf("only %d calls ended in %q: the test proves little about it", outcomes[reason(e)], reason(e))
		}
	}
}

// FuzzNext gives two calls any arguments and compares them with the oracle's.
func FuzzNext(f *testing.F) {
	epoch := flake.DefaultEpoch
	f.Add(uint8(0), int64(250), uint16(255), int64(1000), int64(30_000), uint64(1), epoch+1000, int64(0), 1, int64(0), epoch+1000, int64(0), 1, int64(0))
	f.Add(uint8(1), int64(0), uint16(0), int64(1), int64(1), uint64(0), epoch, int64(9), 1<<20, int64(math.MaxInt64), int64(math.MinInt64), int64(math.MaxInt64), 1, int64(-1))
	f.Add(uint8(2), int64(1), uint16(7), int64(1<<43-1), int64(1), uint64(math.MaxUint64), epoch+1<<43-1, int64(0), 1024, int64(1<<62), epoch+1<<43, int64(5), 3, int64(math.MaxInt64-1))
	layouts := []flake.Layout{flake.Scalable, flake.Standalone, flake.Fleet}
	for _, cfg := range configs(1) {
		layouts = append(layouts, cfg.Layout)
	}
	f.Fuzz(func(t *testing.T, layout uint8, lead int64, step uint16, from, w int64, seed uint64,
		now1, fwd1 int64, n1 int, after1 int64, now2, fwd2 int64, n2 int, after2 int64) {
		l := layouts[int(layout)%len(layouts)]
		cfg := Config{Layout: l, Epoch: clock.Millis(epoch), MaxLead: clock.Millis(lead & (1<<43 - 1)), MaxStep: uint32(step)}
		if !l.Random() {
			cfg.MaxStep = 0
		}
		base := cfg.Epoch + clock.Millis(max(from&(1<<55-1), 1))
		ceil := base + clock.Millis(w&(1<<55-1))
		sid := flake.SID(seed % uint64(cfg.Layout.Holders()))
		g, err := NewTenure(cfg, sid, base, ceil, rand.NewPCG(seed, 0))
		fatal.If(t, err)
		o := newOracle(cfg, sid, base, ceil, rand.NewPCG(seed, 0))
		seen := clock.Millis(math.MinInt64)
		for _, in := range []call{{clock.Millis(now1), clock.Millis(fwd1), n1, flake.ID(after1)}, {clock.Millis(now2), clock.Millis(fwd2), n2, flake.ID(after2)}} {
			in.seen = max(in.now, in.seen, seen)
			seen = in.seen
			got, gotErr := g.Next(in.now, in.seen, in.n, in.after)
			want, wantErr := o.next(in.now, in.seen, in.n, in.after)
			if got != want || !same(gotErr, wantErr) {
				t.Fatalf("%+v, window [%d,%d): Next(%+v)\n got %+v, %v\nwant %+v, %v", cfg, base, ceil, in, got, gotErr, want, wantErr)
			}
		}
		if got, want := g.Seal(), o.seal(); got != want {
			t.Fatalf("Seal() = %d, want %d", got, want)
		}
	})
}
