package history

import (
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/audit"
	"github.com/flakelease/allocator/internal/audit/spool"
)

// The search finds exactly the surplus that counting every ID finds, for blocks of
// one stride; of several strides it finds some exactly when there is some.
func TestBlocksAgainstCounting(t *testing.T) {
	for seed := range uint64(3000) {
		r := seeded(seed)
		mixed := seed%3 == 0
		seen, pairs := map[uint64]int{}, 0
		f := blocks{sorter: audit.NewSorter(0, nil)}
		n := 1 + r.IntN(40)
		for pos := range n {
			b := Block{First: flake.ID(r.IntN(1 + r.IntN(4000))), Count: 1, Stride: 32}
			if r.IntN(3) > 0 {
				b.Count = 1 + r.Int64N(12)
			}
			if mixed {
				b.Stride = []int64{1, 6, 32, 1024}[r.IntN(4)]
			}
			if b.Count == 1 && r.IntN(2) == 0 {
				b.Stride = 1
			}
			fatal.If(t, f.add(b, uint64(pos)))
			for i := range b.Count {
				seen[uint64(b.First)+uint64(i*b.Stride)]++
			}
		}
		want, keys := uint64(0), uint64(0)
		for _, c := range seen {
			want += uint64(c - 1)
			keys += uint64(c)
			pairs += c * (c - 1) / 2
		}
		if f.ids != keys {
			t.Fatalf("%d IDs, want %d", f.ids, keys)
		}
		listed := uint64(0)
		got, err := f.duplicates(func(d duplicate) {
			listed += d.count
			if seen[d.first] < 2 {
				t.Errorf("seed %d: %d is no duplicate", seed, d.first)
			}
			if d.a >= uint64(n) || d.b >= uint64(n) {
				t.Errorf("seed %d: position %d, %d", seed, d.a, d.b)
			}
		})
		if err != nil || listed != got {
			t.Fatalf("%v; %d listed of %d", err, listed, got)
		}
		if !mixed && got != want || mixed && (got > uint64(pairs) || got < want) {
			t.Fatalf("seed %d: surplus %d, want %d (pairs %d)", seed, got, want, pairs)
		}
	}
}

// Progressions of any stride meet exactly where listing them says.
func TestCommonAgainstListing(t *testing.T) {
	r := seeded(1)
	for range 20_000 {
		sa, sb := 1+r.Uint64N(40), 1+r.Uint64N(40)
		a := reach{first: r.Uint64N(100)}
		b := reach{first: a.first + r.Uint64N(100)}
		a.last, b.last = a.first+r.Uint64N(30)*sa, b.first+r.Uint64N(30)*sb
		if a.last < b.first {
			continue
		}
		first, n := uint64(0), uint64(0)
		for x := b.first; x <= min(a.last, b.last); x += sb {
			if (x-a.first)%sa == 0 {
				if n == 0 {
					first = x
				}
				n++
			}
		}
		gotFirst, got := common(sa, a, sb, b)
		if got != n || n > 0 && gotFirst != first {
			t.Fatalf("%d+%d… to %d, %d+%d… to %d: %d from %d, want %d from %d", a.first, sa, a.last, b.first, sb, b.last, got, gotFirst, n, first)
		}
	}
}

// A block that is too large for a key is searched in parts.
func TestLargeBlocks(t *testing.T) {
	const count = mostIDs + 5
	f := blocks{sorter: audit.NewSorter(0, nil)}
	for pos, b := range []Block{{First: 0, Count: count, Stride: 1}, {First: count - 1, Count: 2, Stride: 1}, {First: mostIDs / 2, Count: 1, Stride: 1}} {
		fatal.If(t, f.add(b, uint64(pos)))
	}
	surplus, err := f.duplicates(func(duplicate) {})
	if err != nil || surplus != 2 || f.ids != count+3 {
		t.Errorf("%d of %d, %v", surplus, f.ids, err)
	}
}

// Blocks that do not fit in memory are found in files, wherever they came.
func TestBlocksInFiles(t *testing.T) {
	const n, count, stride = 3 << 16, 8, 32
	d, err := spool.NewDir(t.TempDir(), nil)
	fatal.If(t, err)
	f := blocks{sorter: audit.NewSorter(1, d)}
	for i := range n {
		at := i * 65_537 % n // each once, in another order
		b := Block{First: flake.ID(at * count * stride), Count: count, Stride: stride}
		if i == n-1 {
			b.First -= 3 * stride // It has three IDs of the block before.
		}
		fatal.If(t, f.add(b, uint64(i)))
	}
	surplus, err := f.duplicates(func(duplicate) {})
	if err != nil || surplus != 3 {
		t.Errorf("%d, %v; want 3", surplus, err)
	}
}
