package gen

import (
	"testing"
	"time"

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
