package audit

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// memory is a Spool in memory that counts what is not closed.
type memory struct {
	open, made int
	fail       int // this many more writes succeed; 0: all do
}

type memoryFile struct {
	bytes.Buffer
	m *memory
}

var errDisk = errors.New("no disk")

func (m *memory) Create() (Spooled, error) { m.open++; m.made++; return &memoryFile{m: m}, nil }
func (f *memoryFile) Close() error         { return nil }
func (f *memoryFile) Write(b []byte) (int, error) {
	if f.m.fail > 0 {
		if f.m.fail--; f.m.fail == 0 {
			return 0, errDisk
		}
	}
	return f.Buffer.Write(b)
}
func (f *memoryFile) Open() (io.ReadCloser, error) { return &memoryReader{&f.Buffer, f.m}, nil }

type memoryReader struct {
	io.Reader
	m *memory
}

func (r *memoryReader) Close() error { r.m.open--; return nil }

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// A Finder finds exactly the surplus that counting every ID finds, for blocks of
// one stride; of several strides it finds some exactly when there is some.
func TestFinderAgainstCounting(t *testing.T) {
	for seed := range uint64(3000) {
		r := seeded(seed)
		mixed := seed%3 == 0
		seen, pairs := map[uint64]int{}, 0
		spool := &memory{}
		var sp Spool
		if seed%2 == 0 {
			sp = spool
		}
		f := NewFinder(0, sp)
		if sp != nil {
			f.sorter.limit = 1 + r.IntN(6) // many runs of a few
		}
		n := 1 + r.IntN(40)
		for pos := range n {
			b := Block{First: Key{Lo: uint64(r.IntN(1 + r.IntN(4000)))}, Count: 1, Stride: 32}
			if r.IntN(3) > 0 {
				b.Count = 1 + r.Uint64N(12)
			}
			if mixed {
				b.Stride = []uint64{1, 6, 32, 1024}[r.IntN(4)]
			}
			if b.Count == 1 && r.IntN(2) == 0 {
				b = One(b.First)
			}
			fatal.If(t, f.Add(b, uint64(pos)))
			for i := range b.Count {
				seen[b.First.Lo+i*b.Stride]++
			}
		}
		want, keys := uint64(0), uint64(0)
		for _, c := range seen {
			want += uint64(c - 1)
			keys += uint64(c)
			pairs += c * (c - 1) / 2
		}
		if f.Keys() != keys {
			t.Fatalf("%d keys, want %d", f.Keys(), keys)
		}
		listed := uint64(0)
		got, err := f.Duplicates(func(d Duplicate) {
			listed += d.Count
			if seen[d.First.Lo] < 2 {
				t.Errorf("seed %d: %d is no duplicate", seed, d.First.Lo)
			}
			if d.A >= uint64(n) || d.B >= uint64(n) {
				t.Errorf("seed %d: position %d, %d", seed, d.A, d.B)
			}
		})
		if err != nil || listed != got {
			t.Fatalf("%v; %d listed of %d", err, listed, got)
		}
		if !mixed && got != want || mixed && (got > uint64(pairs) || got < want) {
			t.Fatalf("seed %d: surplus %d, want %d (pairs %d)", seed, got, want, pairs)
		}
		if spool.open != 0 {
			t.Fatalf("seed %d: %d spools are open", seed, spool.open)
		}
	}
}

// Keys of 128 bits differ in either half.
func TestFinderWide(t *testing.T) {
	for _, sp := range []Spool{nil, &memory{}} {
		f := NewFinder(0, sp)
		if sp != nil {
			f.sorter.limit = 2
		}
		for pos, k := range []Key{{1, 5}, {5, 1}, {0, 5}, {1, 6}, {2, 5}, {1, 5}, {5, 1}, {1, 5}} {
			fatal.If(t, f.Add(One(k), uint64(pos)))
		}
		var got []Duplicate
		n, err := f.Duplicates(func(d Duplicate) { got = append(got, d) })
		if n != 3 || err != nil || len(got) != 3 || got[0].First != (Key{1, 5}) || got[2].First != (Key{5, 1}) || got[2].A+got[2].B != 1+6 {
			t.Errorf("%d %v %+v", n, err, got)
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

// More runs than can be merged at once, and a disk that fails at any write.
func TestFinderManyRunsAndFailures(t *testing.T) {
	fill := func(sp *memory) (uint64, error) {
		r := rand.New(rand.NewPCG(7, 7))
		f := NewFinder(0, sp)
		f.sorter.limit = 16
		for i := range 16 * 300 {
			if err := f.Add(One(Key{r.Uint64N(1 << 40), r.Uint64()}), uint64(i)); err != nil {
				return 0, err
			}
		}
		if err := f.Add(One(Key{1 << 50, 1}), 1); err != nil {
			return 0, err
		}
		if err := f.Add(One(Key{1 << 50, 1}), 2); err != nil {
			return 0, err
		}
		return f.Duplicates(func(Duplicate) {})
	}
	sp := &memory{}
	n, err := fill(sp)
	if n != 1 || err != nil || sp.open != 0 || sp.made < 300 {
		t.Fatalf("%d, %v, %d open of %d", n, err, sp.open, sp.made)
	}
	for fail := 1; fail < 300; fail += 7 {
		if _, err := fill(&memory{fail: fail}); !errors.Is(err, errDisk) {
			t.Fatalf("write %d failed: %v", fail, err)
		}
	}
}

// A run that was cut short on the disk is an error, never an end.
func TestFinderTornRun(t *testing.T) {
	var b bytes.Buffer
	m := &memory{}
	s := newSorter(0, m)
	s.limit = 4
	for i := range 4 {
		fatal.If(t, s.add(item{Key{uint64(i) << 40, 1 << 50}, 1 << 40, 3, 32}))
	}
	fatal.If(t, s.closeRun())
	b.Write(s.runs[0].(*memoryFile).Bytes())
	whole := b.Len()
	ends := 0
	for n := range whole {
		f := &memoryFile{m: m}
		f.Buffer.Write(b.Bytes()[:n])
		got := 0
		err := merge([]Spooled{f}, func(item) { got++ })
		if err == nil {
			ends++
			if got == 0 || got == 4 {
				t.Errorf("%d of %d bytes: %d items and no error", n, whole, got)
			}
		}
	}
	if ends > 3 { // between items alone
		t.Errorf("%d cuts passed for ends", ends)
	}
}
