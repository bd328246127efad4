package ulid_test

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/flakelease/allocator/chaos/codectest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/ulid"
)

const t0 = int64(1_700_000_000_000) // some millisecond

func TestOfflineDefaultSources(t *testing.T) {
	o := ulid.NewOffline(ulid.OfflineConfig{})
	b := ids.DefaultSources(t, o, 0, ulid.ID.UnixMilli)
	next, _ := b.Increment()
	if d, err := o.NextAt(0); err != nil || d != next { // long past: the series stays where it is
		t.Errorf("after %v: %v, %v", b, d, err)
	}
}

// TestVectorsMonotonic: Increment, and the series of a generator, make what the vectors say, overflow included.
func TestVectorsMonotonic(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.Monotonic, 5)
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
			if ids.Class(err) != cmp.Or(x.Error, "none") || err != nil && !id.IsZero() || err == nil && id.String() != x.Next {
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

// A series goes on above what it observed, in that millisecond.
func TestOfflineObserve(t *testing.T) {
	o := ulid.NewOffline(ulid.OfflineConfig{})
	for _, observed := range []string{"00000000000000000000000000", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "00000000000000000000000000"} {
		id, err := ulid.Parse(observed)
		fatal.If(t, err)
		o.Observe(id)
	}
	if id, err := o.NextAt(0); err != nil || id.String() != "01ARZ3NDEKTSV4RRFFQ69G5FAW" {
		t.Errorf("%v, %v", id, err)
	}
	o = ulid.NewOffline(ulid.OfflineConfig{})
	o.Observe(ulid.ID{})
	if id, err := o.NextAt(0); err != nil || id.String() != "00000000000000000000000001" {
		t.Errorf("after the zero ID: %v, %v", id, err)
	}
}

func TestOfflineConcurrent(t *testing.T) {
	last, now, reads := ids.Concurrent(t, t0, ulid.ErrMonotonicOverflow, func(now func() int64, entropy io.Reader) codectest.Offline[ulid.ID] {
		return ulid.NewOffline(ulid.OfflineConfig{Now: now, Entropy: entropy})
	})
	if last.UnixMilli() != now || reads != 16_000 {
		t.Errorf("the last ID is of %d, the clock was at %d after %d reads", last.UnixMilli(), now, reads)
	}
}

func TestOfflineBitsToggle(t *testing.T) {
	o := ulid.NewOffline(ulid.OfflineConfig{Entropy: codectest.Seeded(3)})
	ids.BitsToggle(t, o, t0, 80, func(t *testing.T, id ulid.ID, ms int64) []byte {
		if id.UnixMilli() != ms {
			t.Fatalf("at %d: %v", ms, id)
		}
		return bytesOf(id)[6:]
	})
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
	codectest.Count(t, v.ULID, 40)
	for _, x := range v.ULID {
		if b, err := ulid.AppendTime(nil, x.UnixMs); err != nil || string(b) != x.TimeChars {
			t.Errorf("AppendTime(%d) = %q, %v, want %s", x.UnixMs, b, err, x.TimeChars)
		}
		if ms, err := ulid.ParseTime(x.TimeChars); err != nil || ms != x.UnixMs {
			t.Errorf("ParseTime(%s) = %d, %v", x.TimeChars, ms, err)
		}
	}
}
