package clock_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

type iv = clock.Interval

func TestInterval(t *testing.T) {
	const most, least = math.MaxInt64, math.MinInt64
	for _, c := range []struct {
		i     iv
		mid   int64
		half  time.Duration
		bound time.Duration
	}{
		{iv{0, 0}, 0, 0, 0},
		{iv{-3, 4}, 0, 4, 4},
		{iv{-5, -2}, -4, 2, 5},
		{iv{7, 9}, 8, 1, 9},
		{iv{least, most}, -1, most, most},
		{iv{least, least}, least, 0, most},
		{iv{most, most}, most, 0, most},
	} {
		if got := c.i.Mid(); got != c.mid {
			t.Errorf("%v.Mid() = %d, want %d", c.i, got, c.mid)
		}
		if got := c.i.Half(); got != c.half {
			t.Errorf("%v.Half() = %d, want %d", c.i, got, c.half)
		}
		if got := c.i.Bound(); got != c.bound {
			t.Errorf("%v.Bound() = %d, want %d", c.i, got, c.bound)
		}
	}
	if got, want := (iv{least + 1, most - 1}).Widen(5), (iv{least, most}); got != want {
		t.Errorf("Widen does not saturate: got %v, want %v", got, want)
	}
	if got, want := (iv{-1, most - 1}).Shift(5), (iv{4, most}); got != want {
		t.Errorf("Shift up does not saturate: got %v, want %v", got, want)
	}
	if got, want := (iv{least + 1, 1}).Shift(least), (iv{least, least + 1}); got != want {
		t.Errorf("Shift down does not saturate: got %v, want %v", got, want)
	}
}

func TestMarzullo(t *testing.T) {
	for _, c := range []struct {
		name    string
		sources []iv
		want    iv
		count   int
	}{
		{"none", nil, iv{}, 0},
		{"one", []iv{{-2, 5}}, iv{-2, 5}, 1},
		{"upside down", []iv{{5, -2}}, iv{}, 0},
		{"8-12, 11-13, 10-12", []iv{{8, 12}, {11, 13}, {10, 12}}, iv{11, 12}, 3},
		{"8-12, 11-13, 14-15", []iv{{8, 12}, {11, 13}, {14, 15}}, iv{11, 12}, 2},
		{"touching", []iv{{0, 5}, {5, 9}}, iv{5, 5}, 2},
		{"apart: the narrowest", []iv{{0, 5}, {10, 11}, {20, 25}}, iv{10, 11}, 1},
		{"apart, alike: the lowest", []iv{{10, 11}, {0, 1}}, iv{0, 1}, 1},
		{"nested", []iv{{0, 100}, {10, 90}, {50, 50}}, iv{50, 50}, 3},
		{"two pairs: the narrowest", []iv{{0, 10}, {2, 8}, {20, 30}, {21, 22}}, iv{21, 22}, 2},
		{"one liar among three", []iv{{-1, 1}, {0, 2}, {1000, 1001}}, iv{0, 1}, 2},
		{"the ends of the range", []iv{{math.MinInt64, math.MaxInt64}, {math.MaxInt64, math.MaxInt64}}, iv{math.MaxInt64, math.MaxInt64}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, count := clock.Marzullo(c.sources); got != c.want || count != c.count {
				t.Errorf("got %v in %d, want %v in %d", got, count, c.want, c.count)
			}
		})
	}
}

// TestMarzulloOracle checks the sweep against trying every pair of ends.
func TestMarzulloOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		sources := make([]iv, r.IntN(7))
		for i := range sources {
			lo := r.Int64N(24)
			sources[i] = iv{lo, lo + r.Int64N(9) - 1} // some are upside down
		}
		var want iv
		most := 0
		for _, a := range sources {
			for _, b := range sources {
				c, count := iv{a.Lo, b.Hi}, 0
				if a.Lo > a.Hi || b.Lo > b.Hi {
					continue
				}
				for _, s := range sources {
					if c.Lo <= c.Hi && s.Lo <= s.Hi && c.Inside(s) {
						count++
					}
				}
				narrower := c.Hi-c.Lo < want.Hi-want.Lo || c.Hi-c.Lo == want.Hi-want.Lo && c.Lo < want.Lo
				if count > most || count == most && count > 0 && narrower {
					want, most = c, count
				}
			}
		}
		if got, count := clock.Marzullo(sources); got != want || count != most {
			t.Fatalf("Marzullo(%v) = %v in %d, want %v in %d", sources, got, count, want, most)
		}
	}
}
