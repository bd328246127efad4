package report

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/internal/clock"
)

// TestNoPeakIsLost: however many values a slot has, the smallest and greatest of
// all are drawn.
func TestNoPeakIsLost(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 4))
		s := newSeries(span{0, 1e9})
		lo, hi := math.Inf(1), math.Inf(-1)
		n := 1 + random.IntN(20_000)
		for i := range n {
			v := random.NormFloat64()
			lo, hi = min(lo, v), max(hi, v)
			s.add(clock.Mono(i)*1e9/clock.Mono(n), v)
		}
		gotLo, gotHi := s.reach()
		if gotLo != lo || gotHi != hi {
			t.Fatalf("seed %d: [%v, %v], want [%v, %v]", seed, gotLo, gotHi, lo, hi)
		}
		for _, line := range s.lines() {
			if len(line) > 4*pieces || !slices.IsSortedFunc(line, func(a, b point) int { return int(a.t - b.t) }) {
				t.Fatalf("seed %d: %d points, in order of time or not", seed, len(line))
			}
		}
	}
}

func TestGaps(t *testing.T) {
	s := newSeries(span{100, 200})
	s.add(50, 1) // before the view: its line begins with it
	s.add(120, 2)
	s.gap(140)
	s.gap(150)
	s.add(160, 3)
	s.add(260, 4) // after it: where the line goes
	s.add(300, 5)
	want := [][]point{{{50, 1}, {120, 2}}, {{160, 3}, {260, 4}}}
	got := s.lines()
	if len(got) != 2 || !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
		t.Errorf("got %v, want %v", got, want)
	}
	s = newSeries(span{100, 200})
	s.add(50, 1)
	s.gap(60)
	s.add(250, 2)
	if got := s.lines(); len(got) != 0 {
		t.Errorf("nothing was known in the view, and %v is drawn", got)
	}
}

func TestQuantiles(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 5))
		var h histogram
		var all []float64
		for range 5000 {
			v := math.Exp(random.NormFloat64()*2 - 6)
			h.add(v)
			all = append(all, v)
		}
		slices.Sort(all)
		for _, q := range []float64{.5, .95, .99} {
			want := all[int(math.Ceil(q*5000))-1]
			if got := h.quantile(q); math.Abs(got/want-1) > .05 {
				t.Errorf("seed %d: quantile %v: %v, want %v", seed, q, got, want)
			}
		}
		if got := h.quantile(1); got != all[4999] {
			t.Errorf("seed %d: max %v, want %v", seed, got, all[4999])
		}
	}
}

func TestThinned(t *testing.T) {
	var p thinned
	for i := range 1000 {
		p.add(point{clock.Mono(i), float64((i * 37) % 1000)})
	}
	got := p.points()
	if len(got) > keep+2 {
		t.Errorf("%d points", len(got))
	}
	lo := slices.ContainsFunc(got, func(x point) bool { return x.v == 0 })
	hi := slices.ContainsFunc(got, func(x point) bool { return x.v == 999 })
	if !lo || !hi {
		t.Errorf("%v lacks the quickest or the slowest", got)
	}
}

// TestNearest: of many ops around a violation those next to it are told, in
// order.
func TestNearest(t *testing.T) {
	n := &near{at: 1000 * ms}
	for i := range 1000 {
		n.add(&history.Op{Time: 850*ms + clock.Mono(i)*ms/3, F: history.FLeader, Process: history.Etcd, Node: "e1"})
	}
	rows := n.rows()
	if len(rows) != mostBefore+1+mostAfter {
		t.Fatalf("%d rows", len(rows))
	}
	if got, want := rows[0].Ms, "-39.667"; got != want {
		t.Errorf("the first row is at %s ms, want %s", got, want)
	}
	if got, want := rows[mostBefore+mostAfter].Ms, "+20.000"; got != want {
		t.Errorf("the last row is at %s ms, want %s", got, want)
	}
	if !slices.IsSortedFunc(rows, func(a, b opRow) int { return strings.Compare(a.At, b.At) }) {
		t.Error("rows are not in order")
	}
}

func TestHolds(t *testing.T) {
	for _, c := range []struct {
		text, name string
		want       bool
	}{{"n1#1 answered", "n1#1", true}, {"n1#12 answered", "n1#1", false}, {"by n12 and n1", "n1", true}, {"min1", "n1", false}, {"", "n1", false}} {
		if got := holds(c.text, c.name); got != c.want {
			t.Errorf("holds(%q, %q) = %v", c.text, c.name, got)
		}
	}
}
