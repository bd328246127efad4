package gen

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// An oracle is the generator written to be obviously right: whole numbers
// without a size, one rule after the other, no concurrency.
type oracle struct {
	cfg        Config
	sid        flake.SID
	base, ceil *big.Int // ms since the epoch
	last       *big.Int // number of the last slot issued; nil if none was
	sealed     bool
	rnd        rand.Source
}

func num(x int64) *big.Int                  { return big.NewInt(x) }
func add(a, b *big.Int) *big.Int            { return new(big.Int).Add(a, b) }
func sub(a, b *big.Int) *big.Int            { return new(big.Int).Sub(a, b) }
func mul(a, b *big.Int) *big.Int            { return new(big.Int).Mul(a, b) }
func div(a, b *big.Int) *big.Int            { return new(big.Int).Div(a, b) } // rounds down for b > 0
func less(a, b *big.Int) bool               { return a.Cmp(b) < 0 }
func ms2(c Config, t clock.Millis) *big.Int { return sub(num(int64(t)), num(int64(c.Epoch))) }

func newOracle(cfg Config, sid flake.SID, base, ceil clock.Millis, rnd rand.Source) *oracle {
	return &oracle{cfg: cfg, sid: sid, base: ms2(cfg, base), ceil: ms2(cfg, ceil), rnd: rnd}
}

func (o *oracle) perMs() *big.Int { return num(1 << o.cfg.Layout.SequenceBits()) }

func (o *oracle) id(slot *big.Int) *big.Int {
	return add(mul(slot, num(int64(o.cfg.Layout.Holders()))), num(int64(o.sid)))
}

// read is how the generator reads a clock: cut at the end of the layout, and far
// before the epoch.
func (o *oracle) read(t clock.Millis) *big.Int {
	ms := ms2(o.cfg, t)
	if end := num(1 << 43); less(end, ms) {
		return end
	}
	if start := num(-1 << 60); less(ms, start) {
		return start
	}
	return ms
}

// below returns a number below span, from one draw.
func (o *oracle) below(span *big.Int) *big.Int {
	return div(mul(new(big.Int).SetUint64(o.rnd.Uint64()), span), new(big.Int).Lsh(num(1), 64))
}

func (o *oracle) next(now, seen clock.Millis, n int, after flake.ID) (Block, error) {
	if o.sealed {
		return Block{}, ErrSealed
	}
	limit := int64(1_000_000)
	fit := o.perMs()
	if o.cfg.MaxLead > 0 {
		fit = mul(fit, num(int64(o.cfg.MaxLead)))
	}
	if less(fit, num(limit)) {
		limit = fit.Int64()
	}
	if n < 1 || int64(n) > limit {
		return Block{}, &CountError{n, int(limit)}
	}

	at := o.read(now)
	last := sub(mul(o.base, o.perMs()), num(1))
	if o.last != nil {
		last = o.last
	}
	own := add(last, num(1))
	switch div(last, o.perMs()).Cmp(at) {
	case -1: // a new millisecond
		span := div(o.perMs(), num(2))
		room := add(sub(mul(add(num(int64(o.cfg.MaxLead)), num(1)), o.perMs()), num(int64(n))), num(1))
		if less(room, span) {
			span = room
		}
		own = add(mul(at, o.perMs()), o.below(span))
	case 0:
		if o.cfg.MaxStep > 0 {
			own = add(own, o.below(num(int64(o.cfg.MaxStep))))
		}
	}
	first := own
	x := num(int64(after))
	if !less(x, o.id(first)) {
		first = div(x, num(int64(o.cfg.Layout.Holders())))
		for !less(x, o.id(first)) {
			first = add(first, num(1))
		}
	}
	end := sub(add(first, num(int64(n))), num(1))
	endMs := div(end, o.perMs())

	maxLead := num(int64(o.cfg.MaxLead))
	if lead := sub(endMs, at); less(maxLead, lead) {
		excess := sub(lead, maxLead)
		err := ErrOverflow
		if less(own, first) && less(maxLead, sub(div(first, o.perMs()), at)) {
			err = ErrAfterTooFar
		} else if !less(sub(o.read(seen), at), excess) {
			err = ErrRegression
		} else if o.last == nil && less(maxLead, sub(o.base, at)) {
			err = ErrNotBegun
		}
		return Block{}, &LeadError{err, clock.Millis(lead.Int64()), o.cfg.MaxLead}
	}
	if !less(endMs, o.ceil) {
		return Block{}, ErrCeiling
	}
	o.last = end
	return Block{flake.ID(o.id(first).Int64()), n, int64(o.cfg.Layout.Holders()), o.sid}, nil
}

func (o *oracle) raise(ceil clock.Millis) {
	if c := o.read(ceil); less(o.ceil, c) {
		o.ceil = c
	}
}

func (o *oracle) seal() clock.Millis {
	o.sealed = true
	if o.last == nil {
		return clock.Millis(o.base.Int64()) + o.cfg.Epoch
	}
	return clock.Millis(div(o.last, o.perMs()).Int64()) + 1 + o.cfg.Epoch
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
	lead := int64(c.cfg.MaxLead)
	switch p := r.IntN(100); {
	case p < 60: // the same millisecond
	case p < 85:
		c.now += clock.Millis(1 + r.IntN(3))
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
		now = []clock.Millis{math.MaxInt64, c.cfg.Epoch + 1<<43, c.cfg.Epoch + 1<<43 - 1}[r.IntN(3)]
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
		ms := int64(c.now-c.cfg.Epoch) + r.Int64N(2*lead+6) - 2
		after = flake.ID(ms<<20 | r.Int64N(1<<20))
		if r.IntN(4) == 0 {
			after |= 1<<20 - 1
		}
	case p < 97:
		after = []flake.ID{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 - 1<<20, -1, math.MinInt64, 1}[r.IntN(6)]
	}
	return call{now, seen, n, after}
}

// everyConfig calls f for each layout, lead and step, and for a window at the
// usual time, at the epoch, and at the end of the layout.
func everyConfig(t *testing.T, f func(t *testing.T, cfg Config, base clock.Millis, seed uint64)) {
	seed := uint64(0)
	for _, l := range []flake.Layout{flake.Scalable, flake.Standalone, flake.Fleet} {
		for _, lead := range []clock.Millis{0, 1, 250} {
			for _, step := range []uint32{0, 7, 255, 65535} {
				for _, from := range []int64{1, 90_000_000_000, 1<<43 - 400} {
					seed++
					cfg := Config{Layout: l, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: lead, MaxStep: step}
					name := fmt.Sprintf("%v/lead%d/step%d/from%d", l, lead, step, from)
					t.Run(name, func(t *testing.T) { f(t, cfg, cfg.Epoch+clock.Millis(from), seed) })
				}
			}
		}
	}
}

// The fast generator against the obvious one, on the same draws.
func TestOracle(t *testing.T) {
	steps := 1500
	if testing.Short() {
		steps = 400
	}
	outcomes := map[string]int{}
	everyConfig(t, func(t *testing.T, cfg Config, base clock.Millis, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		for range 3 {
			s := r.Uint64()
			sid := flake.SID(r.IntN(cfg.Layout.Holders()))
			end := cfg.Epoch + 1<<43
			ceil := min(base+clock.Millis(r.IntN(300)), end)
			g, err := NewTenure(cfg, sid, base, ceil, rand.NewPCG(s, 2))
			if err != nil {
				t.Fatal(err)
			}
			o := newOracle(cfg, sid, base, ceil, rand.NewPCG(s, 2))
			c := caller{r: r, cfg: cfg, now: base - clock.Millis(r.Int64N(int64(cfg.MaxLead)*2+3))}
			c.seen = c.now
			for i := range steps {
				if r.IntN(20) == 0 {
					to := c.now + clock.Millis(r.Int64N(int64(cfg.MaxLead)*2+10)-3)
					if r.IntN(100) == 0 {
						to = math.MinInt64
					}
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
					if got.First <= max(c.last, in.after) || first < base || last >= g.Ceil() || f.SID(got.Last()) != sid {
						t.Fatalf("step %d: Next(%+v) = %+v in [%d,%d) breaks I2, I3 or I6", i, in, got, base, g.Ceil())
					}
					c.last = got.Last()
				}
				outcomes[reason(gotErr)]++
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
	f.Fuzz(func(t *testing.T, layout uint8, lead int64, step uint16, from, w int64, seed uint64,
		now1, fwd1 int64, n1 int, after1 int64, now2, fwd2 int64, n2 int, after2 int64) {
		cfg := Config{Layout: []flake.Layout{flake.Scalable, flake.Standalone, flake.Fleet}[layout%3], Epoch: clock.Millis(epoch), MaxLead: clock.Millis(lead & (1<<43 - 1)), MaxStep: uint32(step)}
		from = max(from&(1<<43-1), 1)
		base := cfg.Epoch + clock.Millis(from)
		ceil := base + clock.Millis(min(w&(1<<43-1), 1<<43-from))
		sid := flake.SID(seed % uint64(cfg.Layout.Holders()))
		g, err := NewTenure(cfg, sid, base, ceil, rand.NewPCG(seed, 0))
		if err != nil {
			t.Fatal(err)
		}
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
