package bench

import (
	"slices"
	"strings"
	"testing"
)

// TestCases: each case does what its name says: libraries of one format agree on the text,
// nothing failed, and ours does not allocate.
func TestCases(t *testing.T) {
	groups := map[string]map[string]string{}
	for _, c := range Cases() {
		if !slices.Contains(Groups, c.Group) {
			t.Errorf("%s: unknown group %q", c.Library, c.Group)
		}
		sinkErr = nil
		c.Run(few + 1)
		if sinkErr != nil {
			t.Errorf("%s, %s: %v", c.Group, c.Library, sinkErr)
		}
		if groups[c.Group] == nil {
			groups[c.Group] = map[string]string{}
		}
		got := c.Do()
		if got == "" || strings.Trim(got, "0-") == "" || groups[c.Group][c.Library] != "" {
			t.Errorf("%s, %s: %q", c.Group, c.Library, got)
		}
		groups[c.Group][c.Library] = got
		if strings.HasPrefix(c.Library, Ours) && !strings.Contains(c.Library, "+") && !strings.Contains(c.Group, "cap") { // their overflows do
			if n := testing.AllocsPerRun(3, func() { c.Run(100) }); n != 0 {
				t.Errorf("%s, %s: %v allocations in 100", c.Group, c.Library, n)
			}
		}
	}
	if len(groups) != len(Groups) {
		t.Errorf("%d groups have cases, want %d", len(groups), len(Groups))
	}
	for _, g := range Goals {
		ours := Times{Cases: Cases()}.ours(g.Group) >= 0
		if g.Peer != "" && groups[g.Group][g.Peer] == "" || g.Case != "" && groups[g.Group][g.Case] == "" || !ours || g.Max <= 0 ||
			g.Peer != "" && g.Peer != Floor && !strings.HasPrefix(g.Peer, Ours) && g.Max > 1 {
			t.Errorf("goal %+v has no cases", g)
		}
	}
	for group, peer := range map[string]string{
		"encode 128 bits into a buffer": "oklog/ulid", "parse 128 bits strictly": "oklog/ulid",
		"encode a UUID into a buffer": "google/uuid", "parse a UUID": "google/uuid",
	} {
		if a, b := groups[group][Ours], groups[group][peer]; a != b {
			t.Errorf("%s: ours %s, %s %s", group, a, peer, b)
		}
	}
}

func Benchmark(b *testing.B) {
	for _, c := range Cases() {
		b.Run(c.Group+"/"+c.Library, func(b *testing.B) {
			b.ReportAllocs()
			c.Run(b.N)
		})
	}
}
