package audit

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
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

// A Sorter finds exactly the surplus that counting finds, with the first place and another of each.
func TestDuplicatesAgainstCounting(t *testing.T) {
	for seed := range uint64(1000) {
		r := seeded(seed)
		seen := map[uint64][]uint64{} // positions, by key
		spool := &memory{}
		var sp Spool
		if seed%2 == 0 {
			sp = spool
		}
		f := NewSorter(0, sp)
		if sp != nil {
			f.limit = 1 + r.IntN(6) // many runs of a few
		}
		want := 0
		for pos := range uint64(1 + r.IntN(40)) {
			k := r.Uint64N(1 + r.Uint64N(60))
			fatal.If(t, f.Add(Item{Key{Lo: k}, pos}))
			if seen[k] = append(seen[k], pos); len(seen[k]) > 1 {
				want++
			}
		}
		listed := 0
		got, err := f.Duplicates(func(d Duplicate) {
			listed++
			if at := seen[d.Key.Lo]; len(at) < 2 || d.A != at[0] || d.B == at[0] || !slices.Contains(at, d.B) {
				t.Errorf("seed %d: %+v, seen at %d", seed, d, at)
			}
		})
		if err != nil || listed != want || got != uint64(want) || spool.open != 0 {
			t.Fatalf("seed %d: %v; %d, %d listed, want %d; %d spools are open", seed, err, got, listed, want, spool.open)
		}
	}
}

// Keys of 128 bits differ in either half.
func TestWideKeys(t *testing.T) {
	for _, sp := range []Spool{nil, &memory{}} {
		f := NewSorter(0, sp)
		if sp != nil {
			f.limit = 2
		}
		for pos, k := range []Key{{1, 5}, {5, 1}, {0, 5}, {1, 6}, {2, 5}, {1, 5}, {5, 1}, {1, 5}} {
			fatal.If(t, f.Add(Item{k, uint64(pos)}))
		}
		var got []Duplicate
		n, err := f.Duplicates(func(d Duplicate) { got = append(got, d) })
		if n != 3 || err != nil || len(got) != 3 || got[0].Key != (Key{1, 5}) || got[2].Key != (Key{5, 1}) || got[2].A != 1 || got[2].B != 6 {
			t.Errorf("%d %v %+v", n, err, got)
		}
	}
}

// More runs than can be merged at once, and a disk that fails at any write.
func TestManyRunsAndFailures(t *testing.T) {
	fill := func(sp *memory) (uint64, error) {
		r := rand.New(rand.NewPCG(7, 7))
		f := NewSorter(0, sp)
		f.limit = 16
		for i := range 16 * 300 {
			if err := f.Add(Item{Key{r.Uint64N(1 << 40), r.Uint64()}, uint64(i)}); err != nil {
				return 0, err
			}
		}
		if err := f.Add(Item{Key{1 << 50, 1}, 1}); err != nil {
			return 0, err
		}
		if err := f.Add(Item{Key{1 << 50, 1}, 2}); err != nil {
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
func TestTornRun(t *testing.T) {
	var b bytes.Buffer
	m := &memory{}
	s := NewSorter(0, m)
	s.limit = 4
	for i := range 4 {
		fatal.If(t, s.Add(Item{Key{uint64(i) << 40, 1 << 50}, 1 << 40}))
	}
	fatal.If(t, s.closeRun())
	b.Write(s.runs[0].(*memoryFile).Bytes())
	whole := b.Len()
	ends := 0
	for n := range whole {
		f := &memoryFile{m: m}
		f.Buffer.Write(b.Bytes()[:n])
		got := 0
		err := merge([]Spooled{f}, func(Item) { got++ })
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
