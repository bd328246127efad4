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

// TestNoPeakIsLost: however many values a slot has, the worst of all is drawn.
func TestNoPeakIsLost(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 4))
		g := grid{0, 1e9, 7}
		least, farthest := newGauge(g.n, true), newGauge(g.n, false)
		low, far := math.Inf(1), 0.0
		n := 1 + random.IntN(5_000)
		for i := range n {
			v := random.NormFloat64()
			low, far = min(low, v), max(far, math.Abs(v))
			slot, _ := g.slot(clock.Mono(i) * 1e9 / clock.Mono(n))
			least.set(slot, v, false)
			farthest.set(slot, v, false)
		}
		gotLow, gotFar := math.Inf(1), 0.0
		for i := range g.n {
			gotLow, gotFar = min(gotLow, float64(least.values()[i])), max(gotFar, math.Abs(float64(farthest.values()[i])))
		}
		if gotLow != low || gotFar != far || least.worst != low || math.Abs(farthest.worst) != far {
			t.Fatalf("seed %d: %v and %v, want %v and %v", seed, gotLow, gotFar, low, far)
		}
	}
}

func TestGaps(t *testing.T) {
	g := newGauge(6, true)
	g.set(1, 5, false)
	g.set(3, 7, false)
	g.set(3, 0, true)
	g.set(5, 2, false)
	text := ""
	for _, v := range g.values() {
		b, _ := v.MarshalJSON()
		text += string(b) + " "
	}
	if text != "null 5 5 7 null 2 " {
		t.Errorf("values %s", text)
	}
}

// TestTrack: a slot shows the worst state in it, and the last one goes on.
func TestTrack(t *testing.T) {
	g := grid{100, 100 + 10*trackSlots, 1}
	var k track
	k.set(g, 50, holding, "before") // what the span begins with
	k.set(g, 2101, refusing, "refuses")
	k.set(g, 2102, holding, "after")
	k.set(g, 9000, holding, "too late")
	got := ""
	for _, s := range k.segments(g) {
		got += s.Class + " " + s.Left + " " + s.Width + "; "
	}
	if want := "holding 0.000 50.000; refusing 50.000 0.250; holding 50.250 49.750; "; got != want {
		t.Errorf("got %s, want %s", got, want)
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
			t.Errorf("seed %d: maximum %v, want %v", seed, got, all[4999])
		}
	}
}

// TestNearest: of many ops around a violation the nearest are listed, in order.
func TestNearest(t *testing.T) {
	n := &near{at: 1000 * ms}
	for i := range 1000 {
		n.add(&history.Op{Time: 850*ms + clock.Mono(i)*ms/3, F: history.FLeader, Process: history.Etcd, Node: "e1"})
	}
	rows := n.Rows()
	if len(rows) != maxBefore+1+maxAfter {
		t.Fatalf("%d rows", len(rows))
	}
	if got, want := rows[0].Ms, "-39.667"; got != want {
		t.Errorf("the first row is at %s ms, want %s", got, want)
	}
	if got, want := rows[maxBefore+maxAfter].Ms, "+20.000"; got != want {
		t.Errorf("the last row is at %s ms, want %s", got, want)
	}
	if !slices.IsSortedFunc(rows, func(a, b opRow) int { return strings.Compare(a.At, b.At) }) {
		t.Error("rows are not in order")
	}
}

func TestContainsWord(t *testing.T) {
	for _, c := range []struct {
		text, name string
		want       bool
	}{{"n1#1 answered", "n1#1", true}, {"n1#12 answered", "n1#1", false}, {"by n12 and n1", "n1", true}, {"min1", "n1", false}, {"", "n1", false}} {
		if got := containsWord(c.text, c.name); got != c.want {
			t.Errorf("containsWord(%q, %q) = %v", c.text, c.name, got)
		}
	}
}
