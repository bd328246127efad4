package trend

import (
	"slices"
	"testing"

	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

// holding returns a cluster of one process that serves from a sid in a term.
func holding(instance string, sid int, term int64) status.Cluster {
	n := status.Node{Instance: instance, Name: "a", State: status.Serving, SID: sid, Ceil: int64(start) + 30_000}
	return status.Cluster{
		Nodes: []status.Node{n},
		SIDs:  []status.SID{{SID: sid, State: status.Held, Term: term, Instance: instance}},
	}
}

// TestStretches: a process that is gone has its tenure until it was last seen, and the next one
// begins its own. Another term, sid or reason to refuse begins another stretch.
func TestStretches(t *testing.T) {
	var h History
	silent := holding("i-1", 3, 7)
	silent.Nodes[0].State, silent.SIDs = status.Silent, nil
	refuses := holding("i-2", 3, 8)
	refuses.Nodes[0].State, refuses.Nodes[0].Refusing = status.Refusing, node.ClockSkew
	for i, c := range []status.Cluster{
		holding("i-1", 3, 7), holding("i-1", 3, 7), silent, // It was killed,
		{},                                     // its registration ended,
		holding("i-2", 3, 8), refuses, refuses, // it was started again, refused,
		holding("i-2", 3, 9), holding("i-2", 3, 10), holding("i-2", 5, 10), // and took its sid anew, then another.
	} {
		h.Add(at(i), c)
	}
	got, latest := h.Stretches()
	ceil := int64(start) + 30_000
	want := []Stretch{
		{"a", "i-1", 3, 7, "serving", status.Serving, int64(at(0)), int64(at(1)), ceil},
		{"a", "i-1", 3, 7, "silent", status.Silent, int64(at(2)), int64(at(2)), ceil},
		{"a", "i-2", 3, 8, "serving", status.Serving, int64(at(4)), int64(at(4)), ceil},
		{"a", "i-2", 3, 8, "CLOCK_SKEW", status.Refusing, int64(at(5)), int64(at(6)), ceil},
		{"a", "i-2", 3, 9, "serving", status.Serving, int64(at(7)), int64(at(7)), ceil},
		{"a", "i-2", 3, 10, "serving", status.Serving, int64(at(8)), int64(at(8)), ceil},
		{"a", "i-2", 5, 10, "serving", status.Serving, int64(at(9)), int64(at(9)), ceil},
	}
	if !slices.Equal(got, want) || latest != int64(at(9)) {
		t.Errorf("until %d:\n%+v, want\n%+v", latest, got, want)
	}
}

// TestStretchThatWasNotSeen: a process that was away begins another stretch when it is back.
func TestStretchThatWasNotSeen(t *testing.T) {
	var h History
	for i, c := range []status.Cluster{holding("i-1", 3, 7), {}, holding("i-1", 3, 7)} {
		h.Add(at(i), c)
	}
	if got, _ := h.Stretches(); len(got) != 2 || got[0].Until != int64(at(0)) || got[1].From != int64(at(2)) {
		t.Errorf("%+v", got)
	}
}

// TestStretchesAreBounded: of a stretch that ends at each sample, those of an hour are kept, and
// with many nodes the latest, with each that lasts.
func TestStretchesAreBounded(t *testing.T) {
	h := new(History)
	for i := range 2 * samples {
		h.Add(at(i), holding("i-1", 3, int64(i+1)))
	}
	if got, _ := h.Stretches(); len(got) != samples+1 || got[0].Term != int64(samples) {
		t.Errorf("%d stretches, the first %+v", len(got), got[0])
	}
	lasting := holding("i-2", 1, 1).Nodes[0]
	first := 2 * samples
	for i := range maxStretches * 2 / 8 {
		c := status.Cluster{Nodes: []status.Node{lasting}}
		for sid := range 8 {
			c.Nodes = append(c.Nodes, holding(string(rune('a'+sid)), sid, 0).Nodes[0])
			c.SIDs = append(c.SIDs, holding(string(rune('a'+sid)), sid, int64(i+1)).SIDs[0])
		}
		h.Add(at(first+i), c)
	}
	got, latest := h.Stretches()
	lasts := slices.ContainsFunc(got, func(s Stretch) bool {
		return s.Instance == "i-2" && s.From == int64(at(first)) && s.Until == latest
	})
	if len(got) != maxStretches || !lasts {
		t.Errorf("%d stretches, want %d; what lasts is kept: %v", len(got), maxStretches, lasts)
	}
}
