package history

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
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

// Merge finds exactly the surplus that counting every ID finds, for blocks of
// one stride; of several strides it finds some exactly when there is some.
func TestMergeAgainstCounting(t *testing.T) {
	for seed := range uint64(3000) {
		r := seeded(seed)
		mixed := seed%3 == 0
		seen, pairs := map[uint64]int{}, 0
		spool := &memory{}
		var sp Spool
		if seed%2 == 0 {
			sp = spool
		}
		m := NewMerge(0, sp)
		if sp != nil {
			m.s.most = 1 + r.IntN(6) // many runs of a few
		}
		n := 1 + r.IntN(40)
		for pos := range n {
			b := Block{First: flake.ID(r.IntN(1 + r.IntN(4000))), Count: 1, Stride: 32}
			if r.IntN(3) > 0 {
				b.Count = 1 + r.Int64N(12)
			}
			if mixed {
				b.Stride = []int64{1, 6, 32, 1024}[r.IntN(4)]
			}
			var err error
			if b.Count == 1 && r.IntN(2) == 0 {
				err = m.Add(Key{Lo: uint64(b.First)}, uint64(pos))
			} else {
				err = m.AddBlock(b, uint64(pos))
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range b.Count {
				seen[uint64(int64(b.First)+i*b.Stride)]++
			}
		}
		want, keys := uint64(0), uint64(0)
		for _, c := range seen {
			want += uint64(c - 1)
			keys += uint64(c)
			pairs += c * (c - 1) / 2
		}
		if m.Keys() != keys {
			t.Fatalf("%d keys, want %d", m.Keys(), keys)
		}
		listed := uint64(0)
		got, err := m.Duplicates(func(d Duplicate) {
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
func TestMergeWide(t *testing.T) {
	for _, sp := range []Spool{nil, &memory{}} {
		m := NewMerge(0, sp)
		if sp != nil {
			m.s.most = 2
		}
		for pos, k := range []Key{{1, 5}, {5, 1}, {0, 5}, {1, 6}, {2, 5}, {1, 5}, {5, 1}, {1, 5}} {
			if err := m.Add(k, uint64(pos)); err != nil {
				t.Fatal(err)
			}
		}
		var got []Duplicate
		n, err := m.Duplicates(func(d Duplicate) { got = append(got, d) })
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
func TestMergeManyRunsAndFailures(t *testing.T) {
	fill := func(sp *memory) (uint64, error) {
		r := rand.New(rand.NewPCG(7, 7))
		m := NewMerge(0, sp)
		m.s.most = 16
		for i := range 16 * 300 {
			if err := m.Add(Key{r.Uint64N(1 << 40), r.Uint64()}, uint64(i)); err != nil {
				return 0, err
			}
		}
		if err := m.Add(Key{1 << 50, 1}, 1); err != nil {
			return 0, err
		}
		if err := m.Add(Key{1 << 50, 1}, 2); err != nil {
			return 0, err
		}
		return m.Duplicates(func(Duplicate) {})
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
	u := NewUnique(0, &memory{fail: 1})
	u.m.s.most = 1
	u.Add(&Op{Process: "1", Type: OK, F: FAllocate, Block: Block{1, 1, 1}})
	u.Add(&Op{Process: "1", Type: OK, F: FAllocate, Block: Block{2, 1, 1}})
	if r := u.Finish(); r.Verdict != Unknown {
		t.Errorf("after a failed disk: %+v", r)
	}
}

// A run that was cut short on the disk is an error, never an end.
func TestMergeTornRun(t *testing.T) {
	var b bytes.Buffer
	m := &memory{}
	s := newSorter(0, m)
	s.most = 4
	for i := range 4 {
		if err := s.add(item{Key{uint64(i) << 40, 1 << 50}, 1 << 40, 3, 32}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.closeRun(); err != nil {
		t.Fatal(err)
	}
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

func TestSpansAgainstSet(t *testing.T) {
	for seed := range uint64(2000) {
		r := seeded(seed)
		var s, o spans
		in, other := map[int64]bool{}, map[int64]bool{}
		for range r.IntN(30) {
			from := r.Int64N(200)
			to := from + r.Int64N(8)
			if r.IntN(2) == 0 {
				s.add(from, to)
				for i := from; i <= to; i++ {
					in[i] = true
				}
			} else {
				o.add(from, to)
				for i := from; i <= to; i++ {
					other[i] = true
				}
			}
			if r.IntN(8) == 0 {
				cut := r.Int64N(210)
				o.cut(cut)
				for i := cut; i < 300; i++ {
					delete(other, i)
				}
			}
		}
		for i := 1; i < len(s); i++ {
			if s[i].from <= s[i-1].to+1 {
				t.Fatalf("seed %d: %v touch", seed, s)
			}
		}
		without, shared := int64(-1), int64(-1)
		for i := int64(220); i >= 0; i-- {
			if in[i] && !other[i] {
				without = i
			}
			if in[i] && other[i] {
				shared = i
			}
		}
		if got, ok := s.without(o); ok != (without >= 0) || ok && got != without {
			t.Fatalf("seed %d: %v without %v: %d, want %d", seed, s, o, got, without)
		}
		if got, ok := s.shared(o); ok != (shared >= 0) || ok && got != shared {
			t.Fatalf("seed %d: %v and %v share %d, want %d", seed, s, o, got, shared)
		}
	}
}

// randomRun makes a run of a few processes whose clients overlap, with IDs that
// mostly rise.
func randomRun(r *rand.Rand) []Op {
	s := told()
	busy := map[int]bool{}
	for i := range 30 + r.IntN(60) {
		ms, p := int64(i), r.IntN(5)
		if !busy[p] {
			s.askAfter(ms, p, []string{"", "s"}[p%2], flake.ID(r.IntN(2)*int(flakeAt(int64(max(i-3, 0)), 0, 1))))
		} else {
			jitter := int64(r.IntN(1 + r.IntN(8)))
			s.ok(ms, p, fmt.Sprintf("n%d#%d", 1+r.IntN(2), r.IntN(2)), flakeAt(ms*100-jitter*160, int64(i), flake.SID(r.IntN(2))), 1)
		}
		busy[p] = !busy[p]
	}
	return s.ops
}

// Order, Causal and RealTime say what comparing every pair of calls says.
func TestOrdersAgainstPairs(t *testing.T) {
	found := [3]int{}
	for seed := range uint64(3000) {
		r := seeded(seed)
		ops := randomRun(r)
		order, causal, real := NewOrder(), NewCausal(), NewRealTime()
		type call struct {
			begin, end int
			ask, ok    Op
		}
		var done []call
		open := map[string]int{}
		for i, op := range ops {
			order.Add(&op)
			causal.Add(&op)
			real.Add(&op)
			if seed%2 == 0 { // as a long run does now and then
				order.forget()
				real.all.forget(real.oldest())
			}
			switch op.Type {
			case Invoke:
				open[op.Process] = i
			case OK:
				done = append(done, call{open[op.Process], i, ops[open[op.Process]], op})
			}
		}
		format := flake.Default
		var badOrder, badCausal, badReal bool
		for _, b := range done {
			if b.ask.After != 0 && b.ok.Block.First <= b.ask.After {
				badCausal = true
			}
			for _, a := range done {
				if a.end >= b.begin {
					continue
				}
				smaller := b.ok.Block.First <= a.ok.Block.First
				if smaller && (a.ok.Run == b.ok.Run || a.ask.Session == "s" && b.ask.Session == "s" && a.ask.After != 0 && b.ask.After != 0) {
					badOrder = true
				}
				if smaller && format.SID(a.ok.Block.First) == format.SID(b.ok.Block.First) && a.ok.Run != b.ok.Run {
					least := a.ok.Block.First // that a's process was seen to have on the sid by then
					for _, c := range done {
						if c.ok.Run == a.ok.Run && c.end < b.end && format.SID(c.ok.Block.First) == format.SID(b.ok.Block.First) {
							least = min(least, c.ok.Block.First)
						}
					}
					badOrder = badOrder || b.ok.Block.First >= least
				}
				if format.UnixMilli(a.ok.Block.First)-format.UnixMilli(b.ok.Block.First) > 750 {
					badReal = true
				}
			}
		}
		for i, tc := range []struct {
			c    Checker
			want bool
		}{{order, badOrder}, {causal, badCausal}, {real, badReal}} {
			got := tc.c.Finish()
			if (got.Verdict == Broken) != tc.want {
				t.Fatalf("seed %d: %s: %+v, want broken = %v", seed, got.Check, got, tc.want)
			}
			if tc.want {
				found[i]++
			}
		}
	}
	for i, n := range found {
		if n < 50 || n > 2950 {
			t.Errorf("check %d: %d of 3000 runs are broken: that tests little", i, n)
		}
	}
}

// tenThousand makes the history of a busy run: n blocks of 300 IDs of 16
// processes, with their invokes.
func tenThousand(n int) []byte {
	var b []byte
	s := told()
	b, _ = s.ops[0].AppendJSON(b)
	b = append(b, '\n')
	var entropy [32]int64
	for i := range n {
		p := i % 16
		ask := Op{Time: clock.Mono(time.Duration(i) * 50 * time.Microsecond), Process: fmt.Sprint(p), Type: Invoke, F: FAllocate, Node: "n1", Block: Block{Count: 300}}
		ok := Op{Time: clock.Mono(time.Duration(i) * 50 * time.Microsecond), Process: fmt.Sprint(p), Type: OK, F: FAllocate, Node: "n1", Run: fmt.Sprintf("n%d#0", p), Via: "grpc",
			Block: Block{flakeAt(0, 0, flake.SID(p)) + flake.ID(entropy[p]*32), 300, 32}}
		entropy[p] += 300
		for _, op := range []Op{ask, ok} {
			b, _ = op.AppendJSON(b)
			b = append(b, '\n')
		}
	}
	return b
}

func BenchmarkRead(b *testing.B) {
	in := tenThousand(50_000)
	for b.Loop() {
		r := NewReader(bytes.NewReader(in))
		var op Op
		for r.Read(&op) == nil {
		}
	}
	b.ReportMetric(100_001*float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

func BenchmarkSuite(b *testing.B) {
	in := tenThousand(50_000)
	for b.Loop() {
		if _, err := NewSuite(0, nil).Check(bytes.NewReader(in)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(100_001*float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(50_000*300*float64(b.N)/b.Elapsed().Seconds(), "IDs/s")
}

func BenchmarkWrite(b *testing.B) {
	w := NewWriter(io.Discard, WriterConfig{})
	op := Op{Process: "1", Type: OK, F: FAllocate, Node: "n1", Run: "n1#0", Via: "grpc", Block: Block{1 << 60, 300, 32}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Write(op); err != nil {
			b.Fatal(err)
		}
	}
}
