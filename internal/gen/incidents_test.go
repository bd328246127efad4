package gen

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// These tests replay how other generators came to issue an ID twice;
// docs/INCIDENTS.md has the whole list. Random draws are always the minimum, so that
// two IDs of one millisecond that start again are equal and no error is hidden.

// rising is a caller that insists on ever greater IDs.
type rising struct {
	t    *testing.T
	g    *Tenure
	last flake.ID
	seen clock.Millis
}

// next asks for n IDs at t0+at, and fails the test if one is not above all
// before it.
func (r *rising) next(at clock.Millis, n int) error {
	r.t.Helper()
	r.seen = max(r.seen, t0+at)
	b, err := r.g.Next(t0+at, r.seen, n, 0)
	if err != nil {
		return err
	}
	if b.First <= r.last {
		r.t.Fatalf("at t0%+d: ID %d after %d", at, b.First, r.last)
	}
	r.last = b.Last()
	return nil
}

// must is next where a refusal is wrong too.
func (r *rising) must(at clock.Millis, n int) {
	r.t.Helper()
	if err := r.next(at, n); err != nil {
		r.t.Fatalf("at t0%+d: %v", at, err)
	}
}

// T01: the sequence was set to 0 before the check that the clock had gone back.
// One millisecond back, refused, and forward to the same one: the same IDs again.
func TestT01StepBackAndForthByOneMillisecond(t *testing.T) {
	for _, most := range []clock.Millis{0, 250} {
		r := &rising{t: t, g: tenure(t, Config{MaxLead: most}, t0, t0+100, zero())}
		for range 3 {
			r.must(5, 1)
			r.must(5, 7)
			before := r.g.word.Load()
			if err := r.next(4, 1); most == 0 && err == nil {
				t.Error("with no lead allowed, issued on a clock that went back")
			} else if most == 0 && r.g.word.Load() != before {
				t.Error("the refusal changed the word")
			}
			r.must(5, 1)
		}
	}
}

// T02, T04: the clock goes back while IDs are issued, also six times, each
// before the clock has caught up. A generator with room for four did not handle a fifth.
func TestT04ManyRollbacks(t *testing.T) {
	for _, step := range []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second, time.Hour, 365 * 24 * time.Hour} {
		back := clock.MillisOf(step)
		for _, most := range []clock.Millis{0, 250} {
			const began = 2000
			r := &rising{t: t, g: tenure(t, Config{MaxLead: most}, t0, t0+10_000, zero())}
			r.must(began, 10)
			for k := range clock.Millis(6) { // overlapping: half of each is made up for
				at := began - (k+2)*back/2
				err := r.next(at, 1)
				if lead := clock.Millis(flake.Default.UnixMilli(r.last)) - (t0 + at); (err == nil) != (lead <= most) {
					t.Errorf("%v back, time %d: %v with a lead of %d, and %d are allowed", step, k+1, err, lead, most)
				}
			}
			r.must(began, 10)
			r.must(began+1, 10)
		}
	}
}

// T06: a mode that logs that the clock went back, and goes on with the old time.
func TestT06NoModeThatGoesBack(t *testing.T) {
	for _, cfg := range []Config{{}, {MaxLead: 250}, {MaxLead: 250, MaxStep: 255}, {Layout: flake.Fleet, MaxLead: 1}} {
		r := &rising{t: t, g: tenure(t, cfg, t0, t0+1<<40, zero())}
		r.must(1<<30, 1)
		err := r.next(1<<30-cfg.MaxLead-1, 1)
		lead(t, err, ErrRegression, 1)
		if err := r.next(-1<<30, 1); err == nil {
			t.Errorf("%+v: issued on a clock that is weeks back", cfg)
		}
	}
}

// T09: the millisecond is used up, the time is read again, and the variable that
// holds it is not: the sequence starts anew in the millisecond that is used up.
func TestT09UsedUpMillisecond(t *testing.T) {
	const perMilli = 1024
	r := &rising{t: t, g: tenure(t, Config{Layout: flake.Fleet, MaxLead: 2}, t0, t0+100, zero())}
	for ms := range clock.Millis(3) { // the clock does not advance
		for range perMilli {
			r.must(0, 1)
			if got := epoch + clock.Millis(flake.Scalable.Timestamp(r.last)); got != t0+ms {
				t.Fatalf("ID of t0%+d, want +%d", got-t0, ms)
			}
		}
	}
	for range 3 {
		lead(t, r.next(0, 1), ErrOverflow, 1)
	}
	for range perMilli {
		r.must(1, 1)
	}
	lead(t, r.next(1, 1), ErrOverflow, 1)
}

// T10: a second that comes twice, and one that is smeared over a day.
func TestT10RepeatedSecond(t *testing.T) {
	t.Run("T10 repeated", func(t *testing.T) {
		for _, most := range []clock.Millis{0, 250, 2000} {
			r := &rising{t: t, g: tenure(t, Config{MaxLead: most}, t0, t0+10_000, zero())}
			refused := 0
			for pass := range 2 {
				for ms := range clock.Millis(1000) {
					if err := r.next(1000+ms, 1+int(ms)%3); err != nil {
						if refused++; pass == 0 {
							t.Fatal(err)
						}
					}
				}
			}
			r.must(2000, 1)
			if want := max(0, 999-int(most)); refused != want {
				t.Errorf("lead %d: %d requests refused in the second second, want %d", most, refused, want)
			}
		}
	})
	t.Run("T10 smeared", func(t *testing.T) {
		r := &rising{t: t, g: tenure(t, Config{}, t0, t0+200_000_000, zero())}
		for s := range int64(86_400) { // a clock that is slow by a second a day
			r.must(clock.Millis(s*1000-s*1000/86_400), 1)
		}
	})
}

// T29: worker numbers beyond their field ran into the time, or were shifted in a
// type too small for them, and half of the workers issued the others' IDs.
func TestT29EverySidIsItsOwn(t *testing.T) {
	for _, l := range []flake.Layout{flake.Scalable, flake.Fleet, flake.Standalone} {
		cfg, holders := Config{Layout: l, Epoch: epoch, MaxLead: 1}, 1<<l.SIDBits()
		whose := map[flake.ID]flake.SID{}
		f := flake.Format{Layout: l, Epoch: int64(epoch)}
		for sid := range holders {
			g, err := NewTenure(cfg, flake.SID(sid), t0, t0+10, zero())
			fatal.If(t, err)
			b := issue(t, g, t0, t0, 20, 0)
			for i := range b.Count {
				id := b.At(i)
				if other, ok := whose[id]; ok {
					t.Fatalf("%v: %d is of sid %d and of sid %d", l, id, other, sid)
				}
				whose[id] = flake.SID(sid)
				if f.SID(id) != flake.SID(sid) || f.UnixMilli(id) != int64(t0) {
					t.Fatalf("%v: ID %d of sid %d reads as sid %d at %d", l, id, sid, f.SID(id), f.UnixMilli(id))
				}
			}
		}
		if _, err := NewTenure(cfg, flake.SID(holders), t0, t0+10, zero()); err == nil {
			t.Errorf("%v: sid %d was accepted", l, holders)
		}
	}
}

// T44: the exact boundary. The ceiling is the first millisecond that is not ours:
// the last ID below it and the next holder's first are consecutive, and not equal.
func TestT44BoundaryMillisecond(t *testing.T) {
	const ceil = t0 + 100
	full := fixed(1<<64 - 1)
	old, next := tenure(t, Config{MaxLead: 250}, t0, ceil, &full), tenure(t, Config{MaxLead: 250}, ceil, ceil+100, zero())
	r := &rising{t: t, g: old}
	r.must(99, 1)
	for _, n := range []int{1 << 10, 1} { // to the end of the millisecond, and no further
		for i := 0; r.next(99, n) == nil; i++ {
			if i > 1<<10 {
				t.Fatal("there is no ceiling")
			}
		}
	}
	for _, at := range []clock.Millis{99, 100, 101, 100_000} {
		if _, err := old.Next(t0+at, t0+at, 1, 0); err != ErrCeiling {
			t.Errorf("at t0%+d: %v", at, err)
		}
	}
	if old.Seal() != ceil {
		t.Errorf("sealed at %d, want the ceiling", old.Seal())
	}
	r.g = next
	r.must(99, 1) // its clock is a millisecond behind
	if got := clock.Millis(flake.Default.UnixMilli(r.last)); got != ceil {
		t.Errorf("the next holder's first ID is of t0%+d, want the ceiling", got-t0)
	}
}
