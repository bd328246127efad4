package flake_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/flakelease/allocator/chaos/codectest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
)

const t0 = flake.DefaultEpoch + 1_000_000 // some millisecond

func offline(t testing.TB, c flake.OfflineConfig) *flake.Offline {
	t.Helper()
	o, err := flake.NewOffline(c)
	fatal.If(t, err)
	return o
}

// everyOffline calls f for each layout and entropy size.
func everyOffline(t *testing.T, f func(t *testing.T, c flake.OfflineConfig)) {
	for _, l := range []flake.Layout{flake.Scalable, flake.Standalone, flake.Fleet} {
		for size := range l.MaxEntropySize() + 1 {
			t.Run(l.String()+"/"+string(rune('0'+size)), func(t *testing.T) {
				f(t, flake.OfflineConfig{Format: flake.Format{Layout: l, Epoch: flake.DefaultEpoch}, EntropySize: size})
			})
		}
	}
}

func TestOfflineConfig(t *testing.T) {
	format := func(l flake.Layout) flake.Format { return flake.Format{Layout: l, Epoch: flake.DefaultEpoch} }
	for _, x := range []struct {
		c   flake.OfflineConfig
		err error
	}{
		{flake.OfflineConfig{}, flake.ErrLayout},
		{flake.OfflineDefaults(), nil},
		{flake.OfflineConfig{Format: format(flake.Layout(0))}, flake.ErrLayout},
		{flake.OfflineConfig{Format: format(flake.Scalable), SID: 31, EntropySize: 2}, nil},
		{flake.OfflineConfig{Format: format(flake.Scalable), SID: 32}, flake.ErrSID},
		{flake.OfflineConfig{Format: format(flake.Scalable), EntropySize: 3}, flake.ErrEntropySize},
		{flake.OfflineConfig{Format: format(flake.Scalable), EntropySize: -1}, flake.ErrEntropySize},
		{flake.OfflineConfig{Format: format(flake.Standalone), EntropySize: 3}, nil},
		{flake.OfflineConfig{Format: format(flake.Standalone), EntropySize: 4}, flake.ErrEntropySize},
		{flake.OfflineConfig{Format: format(flake.Standalone), SID: 1}, flake.ErrSID},
		{flake.OfflineConfig{Format: format(flake.Fleet), SID: 1023, EntropySize: 1}, nil},
		{flake.OfflineConfig{Format: format(flake.Fleet), SID: 1024}, flake.ErrSID},
		{flake.OfflineConfig{Format: format(flake.Fleet), EntropySize: 2}, flake.ErrEntropySize},
	} {
		o, err := flake.NewOffline(x.c)
		if !errors.Is(err, x.err) || (o == nil) != (err != nil) {
			t.Errorf("%+v: %v, want %v", x.c, err, x.err)
		}
		if err == nil && o.Format() != x.c.Format {
			t.Errorf("%+v: Format = %v", x.c, o.Format())
		}
	}
	if got, want := flake.OfflineDefaults(), (flake.OfflineConfig{Format: flake.Default, EntropySize: 1}); got.Format != want.Format || got.SID != 0 || got.EntropySize != want.EntropySize {
		t.Errorf("defaults: %+v", got)
	}
}

func TestOfflineDefaultSources(t *testing.T) {
	o := offline(t, flake.OfflineDefaults())
	b := ids.DefaultSources(t, o, t0, flake.Default.UnixMilli)
	if d, err := o.NextAt(flake.Default.UnixMilli(b) + 1); err != nil || d <= b {
		t.Errorf("after %v: %v, %v", b, d, err)
	}
}

// TestVectorsIncrement: Increment, and the series of a generator, make what the vectors say of each step.
func TestVectorsIncrement(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.Increment, 24)
	for _, x := range v.Increment {
		f := layout(t, x.Layout)
		var draws bytes.Buffer // the previous ID's entropy, then the step's bytes
		for shift := 8 * (f.Layout.InitialSize() - 1); shift >= 0; shift -= 8 {
			draws.WriteByte(byte(x.Prev >> shift))
		}
		for _, d := range x.Draws {
			draws.Write(d)
		}
		o := offline(t, flake.OfflineConfig{Format: f, SID: x.SID, EntropySize: x.Size, Entropy: &draws})
		prev, err := o.NextAt(flake.DefaultEpoch + x.TsMs)
		if err != nil || f.Entropy(prev) != x.Prev || f.SID(prev) != x.SID || flake.Scalable.Timestamp(prev) != x.TsMs {
			t.Fatalf("%+v: previous ID %v, %v", x, prev, err)
		}
		step := bytes.Clone(draws.Bytes())
		for name, next := range map[string]func() (flake.ID, error){
			"Increment": func() (flake.ID, error) { return f.Increment(prev, x.Size, bytes.NewBuffer(step)) },
			"NextAt":    func() (flake.ID, error) { return o.NextAt(flake.DefaultEpoch + x.TsMs) },
		} {
			id, err := next()
			switch {
			case ids.Class(err) != cmp.Or(x.Error, "none") || err != nil && id != 0:
				t.Errorf("%s of %+v: got %v, %v", name, x, id, err)
			case err == nil && (id.String() != x.Base32 || string(id.AppendInt(nil)) != x.Int || f.Entropy(id) != x.Rand || f.SID(id) != x.SID):
				t.Errorf("%s of %+v: got %v", name, x, id)
			}
		}
		if draws.Len() != 0 {
			t.Errorf("%+v: %d bytes not drawn", x, draws.Len())
		}
	}
}

// flaky fails when told to.
type flaky struct {
	r   io.Reader
	err error
}

func (f *flaky) Read(b []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return f.r.Read(b)
}

// An error changes nothing: a generator that met with errors goes on as its
// twin that met with none.
func TestOfflineErrorsChangeNothing(t *testing.T) {
	everyOffline(t, func(t *testing.T, c flake.OfflineConfig) {
		errRead := errors.New("broken")
		source := &flaky{}
		c.Entropy = source
		c.Now = func() int64 { return t0 - 1 }
		o := offline(t, c)
		seed := byte(0)
		rest := 0
		twin := func() *flake.Offline { // of o, at a millisecond's first ID
			c2 := c
			c2.Entropy = codectest.Seeded(seed)
			return offline(t, c2)
		}
		for ms := int64(t0); ms < t0+200; ms++ {
			seed++
			// Errors around a millisecond's start …
			if _, err := o.NextAt(flake.DefaultEpoch - 1); !errors.Is(err, flake.ErrBeforeEpoch) {
				t.Fatal(err)
			}
			if _, err := o.NextAt(flake.DefaultEpoch + flake.Scalable.MaxTimestamp() + 1); !errors.Is(err, flake.ErrTimeOverflow) {
				t.Fatal(err)
			}
			source.err = errRead
			if id, err := o.NextAt(ms); !errors.Is(err, flake.ErrEntropySource) || !errors.Is(err, errRead) || id != 0 {
				t.Fatalf("%v, %v", id, err)
			}
			source.err, source.r = nil, codectest.Seeded(seed)
			o2 := twin()
			for i := range 12 {
				got, err := o.NextAt(ms)
				want, wantErr := o2.NextAt(ms)
				if got != want || ids.Class(err) != ids.Class(wantErr) {
					t.Fatalf("%d at %d: %v, %v, the twin made %v, %v", i, ms, got, err, want, wantErr)
				}
				rest++
				// … and within it.
				if i > 0 && c.EntropySize > 0 {
					source.err = errRead
					if id, err := o.NextAt(ms); !errors.Is(err, flake.ErrEntropySource) || id != 0 {
						t.Fatalf("%v, %v", id, err)
					}
					source.err = nil
				}
				if id, err := o.Next(); ms > t0 && (!errors.Is(err, flake.ErrRegression) || id != 0) {
					t.Fatalf("clock at %d: %v, %v", t0-1, id, err)
				}
			}
		}
		if rest != 200*12 {
			t.Errorf("%d comparisons", rest)
		}
	})
}

// The ID that does not fit is refused; the one after it, in the same
// millisecond or the next, is as if nobody had asked.
func TestOfflineOverflow(t *testing.T) {
	everyOffline(t, func(t *testing.T, c flake.OfflineConfig) {
		l := c.Format.Layout
		first := bytes.Repeat([]byte{0xFF}, l.InitialSize())
		first[len(first)-1] = 0xFD // two below the last entropy
		over := bytes.Repeat([]byte{0xFF}, c.EntropySize)
		one := make([]byte, c.EntropySize)
		if c.EntropySize > 0 {
			one[c.EntropySize-1] = 1
		}
		last := uint32(1)<<l.SequenceBits() - 1
		var calls = []struct {
			ms   int64
			draw []byte
			want uint32
			err  error
		}{
			{t0, first, last - 2, nil},
			{t0, one, last - 1, nil},
			{t0, over, 0, flake.ErrMonotonicOverflow}, // but for size 0: one step, to the last entropy
			{t0, one, last, nil},
			{t0, one, 0, flake.ErrMonotonicOverflow},
			{t0, one, 0, flake.ErrMonotonicOverflow},
			{t0 + 1, first, last - 2, nil},
			{t0 + 1, one, last - 1, nil},
		}
		if c.EntropySize == 0 {
			calls = slices.Delete(calls, 2, 3)
		}
		draws := &flaky{}
		c.Entropy = draws
		c.SID = flake.SID(l.Holders() - 1)
		o := offline(t, c)
		prev := flake.ID(0)
		for i, x := range calls {
			draws.r = bytes.NewReader(x.draw)
			id, err := o.NextAt(x.ms)
			if !errors.Is(err, x.err) || (err != nil) != (x.err != nil) {
				t.Fatalf("call %d: %v, %v, want error %v", i, id, err, x.err)
			}
			if err != nil {
				if id != 0 {
					t.Fatalf("call %d: %v with %v", i, id, err)
				}
				continue
			}
			f := c.Format
			if f.Entropy(id) != x.want || f.UnixMilli(id) != x.ms || f.SID(id) != c.SID || id <= prev {
				t.Fatalf("call %d: %v after %v, entropy %d, want %d", i, id, prev, f.Entropy(id), x.want)
			}
			prev = id
		}
	})
}

// A series goes on above what it observed: in that unit of time, with its own sid, as long as it has room there.
func TestOfflineObserve(t *testing.T) {
	for _, l := range []flake.Layout{flake.Scalable, flake.Standalone, flake.Fleet, flake.Twitter} {
		f := flake.Format{Layout: l, Epoch: flake.DefaultEpoch}
		last, top := uint32(1)<<l.SequenceBits()-1, flake.SID(l.Holders()-1)
		for _, sid := range []flake.SID{0, top / 2, top} {
			for _, of := range []flake.SID{0, top / 2, top} {
				for _, entropy := range []uint32{0, 7, last - 1, last} {
					o := offline(t, flake.OfflineConfig{Format: f, SID: sid})
					seen, err := f.Make(t0, entropy, of)
					fatal.If(t, err)
					o.Observe(seen)
					o.Observe(seen - 1)
					if id, err := o.NextAt(t0 - 1); !errors.Is(err, flake.ErrRegression) {
						t.Fatalf("%v: %v, %v", l, id, err)
					}
					id, err := o.NextAt(t0)
					full := entropy == last && !(l.SIDFirst() && sid > of) || l.SIDFirst() && sid < of
					if full != errors.Is(err, flake.ErrMonotonicOverflow) ||
						!full && (id <= seen || f.SID(id) != sid || f.UnixMilli(id) != t0) {
						t.Errorf("%v: sid %d after %d of sid %d: %d, %v", l, sid, seen, of, id, err)
					}
					if id, err := o.NextAt(t0 + 1); err != nil || f.SID(id) != sid {
						t.Errorf("%v: %v, %v", l, id, err)
					}
				}
			}
		}
	}
}

func TestOfflineConcurrent(t *testing.T) {
	ids.Concurrent(t, t0, flake.ErrMonotonicOverflow, func(now func() int64, entropy io.Reader) codectest.Offline[flake.ID] {
		c := flake.OfflineDefaults()
		c.Now, c.Entropy = now, entropy
		return offline(t, c)
	})
}

// The bits beside the random ones are what they must be.
func TestOfflineBitsToggle(t *testing.T) {
	everyOffline(t, func(t *testing.T, c flake.OfflineConfig) {
		c.Entropy = codectest.Seeded(3)
		c.SID = flake.SID(c.Format.Layout.Holders() / 3)
		ids.BitsToggle(t, offline(t, c), t0, int(c.Format.Layout.SequenceBits()), func(t *testing.T, id flake.ID, ms int64) []byte {
			if c.Format.UnixMilli(id) != ms || c.Format.SID(id) != c.SID {
				t.Fatalf("at %d: %v", ms, id)
			}
			return binary.BigEndian.AppendUint32(nil, c.Format.Entropy(id))
		})
	})
}

// Steps are uniform in 1..2^(8·size)−1 (fleet: 1..7), and no other occurs.
func TestOfflineStepsAreUniform(t *testing.T) {
	everyOffline(t, func(t *testing.T, c flake.OfflineConfig) {
		if c.EntropySize == 0 {
			return // the step is always 1
		}
		most := uint32(1)<<(8*c.EntropySize) - 1
		if c.Format.Layout == flake.Fleet {
			most = 7
		}
		// From entropy 0, the steps that fit are those up to fits.
		fits := min(most, 1<<c.Format.Layout.SequenceBits()-1)
		cells, shift := int(fits), 0 // a cell for each step, but at most 256
		for cells > 256 {
			shift++
			cells = int(fits>>shift) + 1
		}
		draws := codectest.Seeded(byte(c.EntropySize) + 3)
		counts := make([]float64, cells)
		source := &flaky{}
		c.Entropy = source
		o := offline(t, c)
		const n = 60_000
		for i := range int64(n) {
			source.r = bytes.NewReader(make([]byte, c.Format.Layout.InitialSize()))
			a, err1 := o.NextAt(t0 + i)
			source.r = draws
			b, err2 := o.NextAt(t0 + i)
			if err := errors.Join(err1, err2); err != nil && !errors.Is(err, flake.ErrMonotonicOverflow) {
				t.Fatal(err)
			} else if err != nil {
				continue
			}
			step := c.Format.Entropy(b) - c.Format.Entropy(a)
			if step < 1 || step > fits {
				t.Fatalf("step %d", step)
			}
			if shift == 0 {
				step--
			}
			counts[step>>shift]++
		}
		// Chi-square against the uniform distribution, as distance from its mean
		// in standard deviations.
		var total, chi float64
		for _, x := range counts {
			total += x
		}
		want := total / float64(len(counts))
		for _, x := range counts {
			chi += (x - want) * (x - want) / want
		}
		k := float64(len(counts) - 1)
		if x := (chi - k) * (chi - k) / (2 * k); x > 16 { // 4 standard deviations
			t.Errorf("chi-square %.1f of %v cells, expected about %.0f", chi, len(counts), k)
		}
		p := float64(fits) / float64(most)
		if d := total - n*p; d*d > 25*n*p*(1-p) {
			t.Errorf("%v steps of %d fit, expected about %.0f", total, n, n*p)
		}
	})
}

func TestOfflineDoesNotAllocate(t *testing.T) {
	ms := int64(t0)
	c := flake.OfflineDefaults()
	c.Now = func() int64 { ms++; return ms / 4 * 4 }
	o := offline(t, c)
	if n := testing.AllocsPerRun(500, func() { _, _ = o.New(); _, _ = o.At(t0) }); n != 0 {
		t.Errorf("New and At: %v allocations", n)
	}
	overflows := 0
	if n := testing.AllocsPerRun(500, func() {
		if _, err := o.Next(); err != nil {
			overflows++
		}
	}); n > 0.5 { // the text of a rare overflow allocates
		t.Errorf("Next: %v allocations, %d overflows", n, overflows)
	}
}
