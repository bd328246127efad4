package ulid_test

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/ulid"
)

const t0 = int64(1_700_000_000_000) // some millisecond

// seeded is a source of random bytes that repeats itself in every run.
func seeded(n byte) io.Reader { return rand.NewChaCha8([32]byte{n}) }

// The zero configuration is the machine's clock and random bits that differ.
func TestOfflineDefaultSources(t *testing.T) {
	o := ulid.NewOffline(ulid.OfflineConfig{})
	before := time.Now().UnixMilli()
	a, err1 := o.New()
	b, err2 := o.Next()
	c, err3 := o.At(0)
	d, err4 := o.NextAt(0) // long past: the series stays where it is
	after := time.Now().UnixMilli()
	fatal.If(t, errors.Join(err1, err2, err3, err4))
	for _, id := range []ulid.ID{a, b} {
		if ms := id.UnixMilli(); ms < before || ms > after {
			t.Errorf("%v is of %d, not within %d and %d", id, ms, before, after)
		}
	}
	if next, _ := b.Increment(); c.UnixMilli() != 0 || d != next {
		t.Errorf("at 0: %v; after %v: %v", c, b, d)
	}
	seen := map[ulid.ID]bool{}
	for range 1000 {
		id, err := o.At(t0)
		fatal.If(t, err)
		seen[id] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d different IDs of 1000", len(seen))
	}
}

// TestVectorsMonotonic: Increment, and the series of a generator, make what the vectors say, overflow included.
func TestVectorsMonotonic(t *testing.T) {
	v := load(t)
	count(t, v.Monotonic, 5)
	for _, x := range v.Monotonic {
		prev, err := ulid.Parse(x.Prev)
		fatal.If(t, err)
		o := ulid.NewOffline(ulid.OfflineConfig{Entropy: bytes.NewReader(bytesOf(prev)[6:])})
		if id, err := o.NextAt(prev.UnixMilli()); err != nil || id != prev {
			t.Fatalf("%s: previous ID %v, %v", x.Prev, id, err)
		}
		for name, next := range map[string]func() (ulid.ID, error){
			"Increment": prev.Increment,
			"NextAt":    func() (ulid.ID, error) { return o.NextAt(prev.UnixMilli()) },
		} {
			id, err := next()
			if class(err) != cmp.Or(x.Error, "none") || err != nil && !id.IsZero() || err == nil && id.String() != x.Next {
				t.Errorf("%s after %s: %v, %v, want %s%s", name, x.Prev, id, err, x.Next, x.Error)
			}
		}
		if prev.String() != x.Prev {
			t.Errorf("%s: changed to %s", x.Prev, prev)
		}
	}
}

var errRead = errors.New("broken")

// draws yields what it is given, and errRead when there is no more.
type draws struct{ b []byte }

func (d *draws) Read(b []byte) (int, error) {
	if len(d.b) == 0 {
		return 0, errRead
	}
	n := copy(b, d.b)
	d.b = d.b[n:]
	return n, nil
}

// An error changes nothing, and the call after it does what it would have done.
func TestOfflineErrorsChangeNothing(t *testing.T) {
	var source draws
	o := ulid.NewOffline(ulid.OfflineConfig{Entropy: &source})
	full := bytes.Repeat([]byte{0xFF}, ulid.RandomLen)
	almost := bytes.Clone(full)
	almost[9] = 0xFE
	low := make([]byte, ulid.RandomLen)
	var prev ulid.ID
	for i, x := range []struct {
		ms   int64
		draw []byte
		want string
		err  error
	}{
		{-1, full, "", ulid.ErrBeforeEpoch},
		{math.MinInt64, full, "", ulid.ErrBeforeEpoch},
		{ulid.MaxUnixMilli + 1, full, "", ulid.ErrTimeOverflow},
		{0, nil, "", ulid.ErrEntropySource},
		{0, full[:9], "", ulid.ErrEntropySource},
		{0, low, "00000000000000000000000000", nil}, // the first, and the zero ID
		{0, nil, "00000000000000000000000001", nil}, // draws nothing
		{-1, nil, "", ulid.ErrBeforeEpoch},          // not pinned: no clock says that
		{0, nil, "00000000000000000000000002", nil},
		{1, nil, "", ulid.ErrEntropySource},
		{0, nil, "00000000000000000000000003", nil}, // the failed millisecond was not begun
		{1, almost, "0000000001ZZZZZZZZZZZZZZZY", nil},
		{1, nil, "0000000001ZZZZZZZZZZZZZZZZ", nil},
		{1, full, "", ulid.ErrMonotonicOverflow},
		{1, full, "", ulid.ErrMonotonicOverflow},
		{0, full, "", ulid.ErrMonotonicOverflow}, // pinned, and full
		{2, low, "00000000020000000000000000", nil},
		{1, nil, "00000000020000000000000001", nil},
		{ulid.MaxUnixMilli + 1, low, "", ulid.ErrTimeOverflow},
		{3, almost, "0000000003ZZZZZZZZZZZZZZZY", nil},
		{ulid.MaxUnixMilli, full, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", nil},
		{ulid.MaxUnixMilli, full, "", ulid.ErrMonotonicOverflow}, // not zero
	} {
		source.b = bytes.Clone(x.draw)
		id, err := o.NextAt(x.ms)
		if !errors.Is(err, x.err) || (err == nil) != (x.err == nil) {
			t.Fatalf("call %d: %v, %v, want error %v", i, id, err, x.err)
		}
		if err != nil {
			if id != (ulid.ID{}) {
				t.Fatalf("call %d: %v with %v", i, id, err)
			}
			continue
		}
		if id.String() != x.want || i > 5 && id.Compare(prev) <= 0 {
			t.Fatalf("call %d: %v after %v, want %s", i, id, prev, x.want)
		}
		prev = id
	}
}

// Goroutines share a generator: no ID twice, each sees its own rise, and the
// clock, which this one keeps without a lock, is read under the generator's.
func TestOfflineConcurrent(t *testing.T) {
	reads := int64(0)
	o := ulid.NewOffline(ulid.OfflineConfig{
		Now:     func() int64 { reads++; return t0 + reads/50 },
		Entropy: seeded(2),
	})
	const each = 2000
	var wg sync.WaitGroup
	made := make([][]ulid.ID, 8)
	for g := range made {
		wg.Go(func() {
			for range each {
				id, err := o.Next()
				if err != nil {
					t.Error(err)
					return
				}
				made[g] = append(made[g], id)
			}
		})
	}
	wg.Wait()
	for g := range made {
		if !slices.IsSortedFunc(made[g], ulid.ID.Compare) {
			t.Errorf("goroutine %d saw IDs go down", g)
		}
	}
	if reads != int64(len(made)*each) {
		t.Errorf("the clock was read %d times", reads)
	}
	all := slices.Concat(made...)
	slices.SortFunc(all, ulid.ID.Compare)
	if last := all[len(all)-1].UnixMilli(); last != t0+reads/50 {
		t.Errorf("the last ID is of %d, the clock was at %d", last, t0+reads/50)
	}
	if n := len(slices.Compact(all)); n != len(made)*each {
		t.Errorf("%d different IDs of %d", n, len(made)*each)
	}
}

// Each of the 80 random bits is 1 about as often as 0, in New and where a
// millisecond of the series begins.
func TestOfflineBitsToggle(t *testing.T) {
	const n = 4000 // standard deviation of a count: 31.6
	o := ulid.NewOffline(ulid.OfflineConfig{Entropy: seeded(3)})
	var ones [2][80]int
	for i := range int64(n) {
		a, err1 := o.At(t0)
		b, err2 := o.NextAt(t0 + i)
		fatal.If(t, errors.Join(err1, err2))
		if a.UnixMilli() != t0 || b.UnixMilli() != t0+i {
			t.Fatalf("%v, %v", a, b)
		}
		for k, id := range []ulid.ID{a, b} {
			random := id.Randomness()
			for bit := range ones[k] {
				ones[k][bit] += int(random[bit/8] >> (bit % 8) & 1)
			}
		}
	}
	for k := range ones {
		for bit, count := range ones[k] {
			if count < n/2-160 || count > n/2+160 { // 5 standard deviations
				t.Errorf("bit %d is set in %d of %d (New: 0, Next: 1; here %d)", bit, count, n, k)
			}
		}
	}
}

func TestOfflineDoesNotAllocate(t *testing.T) {
	o := ulid.NewOffline(ulid.OfflineConfig{})
	if n := testing.AllocsPerRun(500, func() { _, _ = o.New(); _, _ = o.At(t0); _, _ = o.Next() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestFromUnixSeconds(t *testing.T) {
	random := [ulid.RandomLen]byte{9}
	for _, x := range []struct {
		sec int64
		err error
	}{
		{0, nil},
		{1_735_689_600, nil},
		{ulid.MaxUnixMilli / 1000, nil},
		{ulid.MaxUnixMilli/1000 + 1, ulid.ErrTimeOverflow},
		{1 + 1<<61, ulid.ErrTimeOverflow}, // times 1000 it is 1000, modulo 2^64
		{math.MaxInt64, ulid.ErrTimeOverflow},
		{-1, ulid.ErrBeforeEpoch},
		{1 - 1<<61, ulid.ErrBeforeEpoch},
		{math.MinInt64, ulid.ErrBeforeEpoch},
	} {
		id, err := ulid.FromUnixSeconds(x.sec, random)
		if !errors.Is(err, x.err) {
			t.Errorf("%d s: %v, want %v", x.sec, err, x.err)
		}
		if err == nil && (id.UnixMilli() != 1000*x.sec || id.Randomness() != random) || err != nil && id != (ulid.ID{}) {
			t.Errorf("%d s: %v", x.sec, id)
		}
	}
}

func TestTimeText(t *testing.T) {
	for _, x := range []struct {
		in   string
		want int64
		err  error
	}{
		{"0000000000", 0, nil},
		{"01JGFJJZ00", 1735689600000, nil},
		{"01jgfjjz00", 1735689600000, nil},
		{"7ZZZZZZZZZ", ulid.MaxUnixMilli, nil},
		{"8000000000", 0, ulid.ErrTimeOverflow},
		{"G000000000", 0, ulid.ErrTimeOverflow},
		{"ZZZZZZZZZZ", 0, ulid.ErrTimeOverflow},
		{"Z!ZZZZZZZZ", 0, ulid.ErrAlphabet},
		{"01JGFJJZ0O", 0, ulid.ErrAlphabet},
		{"", 0, ulid.ErrLength},
		{"01JGFJJZ0", 0, ulid.ErrLength},
		{"01JGFJJZ000", 0, ulid.ErrLength},
	} {
		if got, err := ulid.ParseTime(x.in); got != x.want || !errors.Is(err, x.err) {
			t.Errorf("ParseTime(%q) = %d, %v, want %d, %v", x.in, got, err, x.want, x.err)
		}
	}
	for ms, want := range map[int64]error{-1: ulid.ErrBeforeEpoch, ulid.MaxUnixMilli + 1: ulid.ErrTimeOverflow} {
		if b, err := ulid.AppendTime([]byte("x"), ms); string(b) != "x" || !errors.Is(err, want) {
			t.Errorf("AppendTime(%d) = %q, %v", ms, b, err)
		}
	}
	v := load(t)
	count(t, v.ULID, 40)
	for _, x := range v.ULID {
		if b, err := ulid.AppendTime(nil, x.UnixMs); err != nil || string(b) != x.TimeChars {
			t.Errorf("AppendTime(%d) = %q, %v, want %s", x.UnixMs, b, err, x.TimeChars)
		}
		if ms, err := ulid.ParseTime(x.TimeChars); err != nil || ms != x.UnixMs {
			t.Errorf("ParseTime(%s) = %d, %v", x.TimeChars, ms, err)
		}
	}
}
