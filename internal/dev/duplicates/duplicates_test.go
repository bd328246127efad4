package duplicates

import (
	"testing"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

func TestSpansShare(t *testing.T) {
	s := func(first, last flake.ID) span { return span{first: first, last: last, stride: 10} }
	for _, c := range []struct {
		before, after span
		want          int64
	}{
		{s(0, 90), s(100, 190), 0}, {s(0, 90), s(90, 190), 1}, {s(0, 90), s(50, 190), 5},
		{s(0, 190), s(50, 90), 5}, {s(50, 50), s(50, 50), 1}, {s(0, 90), s(0, 90), 10},
	} {
		if got := c.after.shared(c.before); got != c.want {
			t.Errorf("%+v, %+v: %d", c.before, c.after, got)
		}
	}
}

func ms(n int) flake.ID { return flake.ID(n) << 20 }

// blockAt is a block of n IDs of the layout scalable.
func blockAt(first flake.ID, n int) client.Block {
	return client.Block{First: first, Count: n, Stride: 32}
}

// TestChecker: duplicates are found within an answer's time and across rounds of
// comparing; what comes too late counts as unchecked and never as checked.
func TestChecker(t *testing.T) {
	sid := func(sid flake.ID, first flake.ID, n int) client.Block { return blockAt(first+sid, n) }
	one := func(id flake.ID) client.Block { return client.Block{First: id, Count: 1} }
	for name, c := range map[string]struct {
		rounds                      [][]client.Block // each answer is another worker's
		duplicates, unchecked, seen int64
	}{
		"apart":                       {[][]client.Block{{sid(1, ms(5), 10), sid(1, ms(5)+320, 10)}}, 0, 0, 20},
		"overlapping":                 {[][]client.Block{{sid(1, ms(5), 10), sid(1, ms(5)+288, 10)}}, 1, 0, 20},
		"the same":                    {[][]client.Block{{sid(1, ms(5), 10), sid(1, ms(5), 10)}}, 10, 0, 20},
		"of another sid":              {[][]client.Block{{sid(1, ms(5), 10), sid(2, ms(5), 10)}}, 0, 0, 20},
		"single":                      {[][]client.Block{{one(ms(5) + 7), one(ms(5) + 9), one(ms(5) + 8), one(ms(5) + 9)}}, 1, 0, 4},
		"three times":                 {[][]client.Block{{one(ms(5)), one(ms(5)), one(ms(5))}}, 2, 0, 3},
		"rounds later":                {[][]client.Block{{one(ms(5))}, {one(ms(9))}, {one(ms(5))}}, 1, 0, 3},
		"just forgotten":              {[][]client.Block{{one(ms(5))}, {one(ms(5 + 2*checkKeep))}, {one(ms(5))}}, 1, 0, 3},
		"long forgotten":              {[][]client.Block{{one(ms(5)), one(ms(6))}, {one(ms(6 + 2*checkKeep))}, {one(ms(5))}}, 0, 1, 4},
		"in a long one, before":       {[][]client.Block{{sid(1, ms(5), 100)}, {sid(1, ms(5+2*checkKeep), 1)}, {sid(1, ms(5)+64, 2)}}, 2, 0, 103},
		"kept beside what is settled": {[][]client.Block{{one(ms(5)), one(ms(5 + 2*checkKeep))}, {one(ms(5 + 2*checkKeep))}}, 1, 0, 3},
	} {
		check := NewChecker()
		for _, round := range c.rounds {
			for _, b := range round {
				check.Add(b, 0)
			}
			check.settle(false)
		}
		check.settle(true)
		if got := check.Checks(); got != (Checks{Checked: c.seen, Duplicates: c.duplicates, Unchecked: c.unchecked}) || len(check.pending) != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}

	check := NewChecker()
	check.Add(blockAt(ms(5), 10), 0)
	if check.Add(blockAt(ms(5)+9*32, 1), ms(5)+9*32); check.Checks().OutOfOrder != 1 {
		t.Errorf("%+v, want the one that is the last again out of order", check.Checks())
	}
}

// TestCheckerForgets: memory holds the last seconds alone.
func TestCheckerForgets(t *testing.T) {
	check := NewChecker()
	for i := range 20 * checkKeep {
		check.Add(client.Block{First: ms(i + 1), Count: 1}, 0)
		if i%100 == 0 {
			check.settle(false)
		}
		if n := len(check.pending) + len(check.fresh); n > checkKeep+200 {
			t.Fatalf("%d kept after %d", n, i)
		}
	}
	if c := check.Checks(); len(check.done) != 1 || c.Duplicates+c.Unchecked != 0 {
		t.Errorf("%d sids, %+v", len(check.done), c)
	}
}
