package flake_test

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
)

const someID = flake.ID(14246757444195114) // 00CMXB6TAK4SA

func TestLayouts(t *testing.T) {
	for _, x := range []struct {
		l                              flake.Layout
		text                           string
		number, time, entropy, holders int
		unit                           int64
		epoch                          string
		maxEntropySize                 int
		safe                           bool
	}{
		{flake.Scalable, "scalable", 1, 43, 15, 32, 1, "2024-01-01T00:00:00Z", 2, false},
		{flake.Standalone, "standalone", 2, 43, 20, 1, 1, "2024-01-01T00:00:00Z", 3, false},
		{flake.Fleet, "fleet", 3, 43, 10, 1024, 1, "2024-01-01T00:00:00Z", 1, false},
		{flake.Twitter, "twitter", 4, 41, 12, 1024, 1, "2010-11-04T01:42:54.657Z", 0, false},
		{flake.Discord, "discord", 5, 41, 12, 1024, 1, "2015-01-01T00:00:00Z", 0, false},
		{flake.Instagram, "instagram", 6, 40, 10, 8192, 1, "2011-08-24T21:07:01.721Z", 0, false},
		{flake.Sonyflake, "sonyflake", 7, 39, 8, 65536, 10, "2014-09-01T00:00:00Z", 0, false},
		{flake.Leaf, "leaf", 8, 41, 12, 1024, 1, "2010-11-04T01:42:54.657Z", 0, false},
		{flake.Baidu, "baidu", 9, 28, 13, 1 << 22, 1000, "2016-05-19T16:00:00Z", 0, false},
		{flake.JS53, "js53", 10, 41, 7, 32, 1, "2024-01-01T00:00:00Z", 0, true},
		{parsed(t, "41/10/12"),
			"41/10/12,order=time-sid-seq,unit=1ms", 0, 41, 12, 1024, 1, "2024-01-01T00:00:00Z", 0, false},
		{parsed(t, "30/15/4,unit=10ms,order=time-seq-sid,steps=random"),
			"30/15/4,order=time-seq-sid,unit=10ms,steps=random", 0, 30, 15, 16, 10, "2024-01-01T00:00:00Z", 2, true},
		{parsed(t, "30/4/8,unit=1m,start=256,steps=count,order=time-sid-seq"),
			"30/4/8,order=time-sid-seq,unit=60000ms,start=256", 0, 30, 8, 16, 60_000, "2024-01-01T00:00:00Z", 0, true},
	} {
		l := x.l
		if l.String() != x.text || l.Number() != x.number || int(l.TimeBits()) != x.time || int(l.SequenceBits()) != x.entropy || l.Unit() != x.unit ||
			l.Holders() != x.holders || l.MaxEntropySize() != x.maxEntropySize || l.Safe() != x.safe || l.Validate() != nil {
			t.Errorf("%v: %+v, safe %v, %v", l, l, l.Safe(), l.Validate())
		}
		if got := time.UnixMilli(l.Epoch()).UTC().Format(time.RFC3339Nano); got != x.epoch {
			t.Errorf("%v: epoch %s, want %s", l, got, x.epoch)
		}
		if got, err := flake.ParseLayout(x.text); got != l || err != nil {
			t.Errorf("ParseLayout(%q) = %+v, %v", x.text, got, err)
		}
		if b, err := l.MarshalText(); string(b) != x.text || err != nil {
			t.Errorf("%v: MarshalText = %q, %v", l, b, err)
		}
		if got, err := flake.ByNumber(x.number); x.number > 0 && (got != l || err != nil) {
			t.Errorf("ByNumber(%d) = %v, %v", x.number, got, err)
		}
		for _, epoch := range []int64{l.Epoch(), 1_600_000_000_123} {
			f := flake.Format{Layout: l, Epoch: epoch}
			if got, err := flake.ParseFormat(f.String()); got != f || err != nil {
				t.Errorf("ParseFormat(%q) = %+v, %v", f, got, err)
			}
		}
	}
	for _, n := range []int{-1, 0, 11} {
		if l, err := flake.ByNumber(n); l != 0 || !errors.Is(err, flake.ErrLayout) {
			t.Errorf("ByNumber(%d) = %v, %v", n, l, err)
		}
	}
	var c struct{ Layout flake.Layout }
	if err := json.Unmarshal([]byte(`{"Layout":"fleet"}`), &c); err != nil || c.Layout != flake.Fleet {
		t.Errorf("JSON: %v, %v", c, err)
	}
	for _, l := range []flake.Layout{0, 1, 3, 11 << 50, flake.Twitter + 1, flake.Twitter &^ (255 << 50) &^ (1 << 18), math.MaxUint64} {
		if b, err := l.MarshalText(); b != nil || !errors.Is(err, flake.ErrLayout) {
			t.Errorf("layout %#x: %q, %v", uint64(l), b, err)
		}
		_ = l.String()
	}
}

func parsed(t *testing.T, s string) flake.Layout {
	t.Helper()
	l, err := flake.ParseLayout(s)
	fatal.If(t, err)
	return l
}

func TestMakeLimits(t *testing.T) {
	const e = flake.DefaultEpoch
	format := func(l flake.Layout, epoch int64) flake.Format { return flake.Format{Layout: l, Epoch: epoch} }
	for _, x := range []struct {
		f       flake.Format
		ms      int64
		entropy uint32
		sid     flake.SID
		want    flake.ID
		err     error
	}{
		{flake.Default, e, 0, 0, 0, nil},
		{flake.Default, e + flake.Scalable.MaxTimestamp(), 1<<15 - 1, 31, math.MaxInt64, nil},
		{format(flake.Standalone, e), e + flake.Scalable.MaxTimestamp(), 1<<20 - 1, 0, math.MaxInt64, nil},
		{format(flake.Fleet, e), e + flake.Scalable.MaxTimestamp(), 1<<10 - 1, 1023, math.MaxInt64, nil},
		{format(flake.Fleet, e), e + 1, 2, 3, 1<<20 | 2<<10 | 3, nil},
		{flake.Default, e - 1, 0, 0, 0, flake.ErrBeforeEpoch},
		{flake.Default, math.MinInt64, 0, 0, 0, flake.ErrBeforeEpoch},
		{flake.Default, e + flake.Scalable.MaxTimestamp() + 1, 0, 0, 0, flake.ErrTimeOverflow},
		{flake.Default, math.MaxInt64, 0, 0, 0, flake.ErrTimeOverflow},
		{flake.Default, e, 1 << 15, 0, 0, flake.ErrEntropy},
		{flake.Default, e, math.MaxUint32, 0, 0, flake.ErrEntropy},
		{flake.Default, e, 0, 32, 0, flake.ErrSID},
		{format(flake.Standalone, e), e, 1 << 20, 0, 0, flake.ErrEntropy},
		{format(flake.Standalone, e), e, 0, 1, 0, flake.ErrSID},
		{format(flake.Fleet, e), e, 1 << 10, 0, 0, flake.ErrEntropy},
		{format(flake.Fleet, e), e, 0, 1024, 0, flake.ErrSID},
		{format(flake.Layout(0), e), e, 0, 0, 0, flake.ErrLayout},
		// Epochs whose distance from the time needs 64 bits.
		{format(flake.Scalable, math.MinInt64), math.MaxInt64, 0, 0, 0, flake.ErrTimeOverflow},
		{format(flake.Scalable, math.MinInt64), math.MinInt64 + 5, 0, 0, 5 << 20, nil},
		{format(flake.Scalable, math.MaxInt64), math.MinInt64, 0, 0, 0, flake.ErrBeforeEpoch},
		{format(flake.Scalable, -5), 1, 0, 0, 6 << 20, nil},
	} {
		id, err := x.f.Make(x.ms, x.entropy, x.sid)
		if id != x.want || !errors.Is(err, x.err) {
			t.Errorf("%v.Make(%d, %d, %d) = %d, %v, want %d, %v", x.f, x.ms, x.entropy, x.sid, id, err, x.want, x.err)
		}
		if err != nil {
			if errors.Is(err, flake.ErrBeforeEpoch) || errors.Is(err, flake.ErrTimeOverflow) {
				low, err1 := x.f.Min(x.ms)
				high, err2 := x.f.Max(x.ms)
				if !errors.Is(err1, x.err) || !errors.Is(err2, x.err) || low != 0 || high != 0 {
					t.Errorf("%v: bounds at %d are %d and %d, %v, %v", x.f, x.ms, low, high, err1, err2)
				}
			}
			continue
		}
		if x.f.UnixMilli(id) != x.ms || x.f.Entropy(id) != x.entropy || x.f.SID(id) != x.sid {
			t.Errorf("%v: %d reads back as %d %d %d", x.f, id, x.f.UnixMilli(id), x.f.Entropy(id), x.f.SID(id))
		}
	}
}

func TestFromUnixSecondsDoesNotWrap(t *testing.T) {
	const e = flake.DefaultEpoch / 1000
	// This many seconds times 1000 is, modulo 2^64, one second after the epoch.
	wraps := e + 1 + 1<<61
	for _, x := range []struct {
		sec int64
		err error
	}{
		{e + 1, nil},
		{wraps, flake.ErrTimeOverflow},
		{wraps - 1<<62, flake.ErrBeforeEpoch},
		{math.MaxInt64, flake.ErrTimeOverflow},
		{math.MinInt64, flake.ErrBeforeEpoch},
		{math.MaxInt64 / 1000, flake.ErrTimeOverflow},
		{math.MinInt64 / 1000, flake.ErrBeforeEpoch},
	} {
		if id, err := flake.Default.FromUnixSeconds(x.sec, 0, 0); !errors.Is(err, x.err) || (id == 1000<<20) != (err == nil) {
			t.Errorf("%d s: got %d, %v, want error %v", x.sec, id, err, x.err)
		}
	}
	if 1000*wraps != 1000*(e+1) {
		t.Error("the test's seconds do not wrap to a legal time")
	}
}

func TestAccessors(t *testing.T) {
	if flake.ID(1).IsZero() || !flake.ID(0).IsZero() || someID.Time().Location() != time.UTC ||
		someID.Compare(someID-1) != 1 || someID.Compare(someID) != 0 || someID.Compare(someID+1) != -1 {
		t.Error("IsZero, Time or Compare")
	}
}

func TestParseErrors(t *testing.T) {
	const good = "00CMXB6TAK4SA"
	for _, x := range []struct {
		in      string
		strict  error
		lenient error
	}{
		{good, nil, nil},
		{strings.ToLower(good), nil, nil},
		{"", flake.ErrLength, flake.ErrLength},
		{good[1:], flake.ErrLength, flake.ErrLength},
		{good + "0", flake.ErrLength, flake.ErrLength},
		{" " + good[1:], flake.ErrAlphabet, flake.ErrAlphabet},
		{good + "\n", flake.ErrLength, flake.ErrLength},
		{"00CM-XB6TAK4SA", flake.ErrLength, nil},
		{"-0-0CMXB6TAK4SA-", flake.ErrLength, nil},
		{"00CM-XB6TAK4S", flake.ErrAlphabet, flake.ErrLength}, // 13 with its hyphen
		{"ooCMXB6TAK4SA", flake.ErrAlphabet, nil},
		{"OOCMXB6TAK4SA", flake.ErrAlphabet, nil},
		{"iCMXB6TAK4SA0", flake.ErrAlphabet, nil},
		{"ICMXB6TAK4SA0", flake.ErrAlphabet, nil},
		{"lCMXB6TAK4SA0", flake.ErrAlphabet, nil},
		{"LCMXB6TAK4SA0", flake.ErrAlphabet, nil},
		{"0UCMXB6TAK4SA", flake.ErrAlphabet, flake.ErrAlphabet},
		{"0uCMXB6TAK4SA", flake.ErrAlphabet, flake.ErrAlphabet},
		{"00CMXB6TAK4S\x00", flake.ErrAlphabet, flake.ErrAlphabet},
		{"00CMXB6TAK4S\xff", flake.ErrAlphabet, flake.ErrAlphabet},
		{"00CMXB6TAK4\u017f", flake.ErrAlphabet, flake.ErrAlphabet}, // long s, 13 bytes
		{"00CMXB6TAK\u212a", flake.ErrAlphabet, flake.ErrAlphabet},  // Kelvin, 13 bytes
		{"00CMXB6TAK4S\u212a", flake.ErrLength, flake.ErrLength},    // 13 characters
		{"0\uff10CMXB6TAK4", flake.ErrAlphabet, flake.ErrAlphabet},  // wide zero, 13 bytes
		{"8000000000000", flake.ErrOverflow, flake.ErrOverflow},     // bit 63
		{"G000000000000", flake.ErrOverflow, flake.ErrOverflow},     // bit 64: wraps to 0
		{"q1N584R7MFNSS", flake.ErrOverflow, flake.ErrOverflow},     // wraps to a legal ID
		{"ZZZZZZZZZZZZZ", flake.ErrOverflow, flake.ErrOverflow},     // all bits
		{"Z!ZZZZZZZZZZZ", flake.ErrAlphabet, flake.ErrAlphabet},     // alphabet before overflow
		{"Z!ZZZZZZZZZZ", flake.ErrLength, flake.ErrLength},          // length before both
		{"U000000000000", flake.ErrAlphabet, flake.ErrAlphabet},     // not read as a valid character
	} {
		if id, err := flake.Parse(x.in); !errors.Is(err, x.strict) || err != nil && id != 0 {
			t.Errorf("Parse(%q) = %d, %v, want error %v", x.in, id, err, x.strict)
		}
		if id, err := flake.ParseLenient(x.in); !errors.Is(err, x.lenient) || err != nil && id != 0 {
			t.Errorf("ParseLenient(%q) = %d, %v, want error %v", x.in, id, err, x.lenient)
		}
	}
}

func TestParseEveryByte(t *testing.T) { ids.ParseEveryByte(t) }

func TestPositions(t *testing.T) {
	for _, x := range []struct{ in, want string }{
		{"00CMXB6TAK4S!", `flake: invalid character "!" at byte 12`},
		{"UUCMXB6TAK4S!", `flake: invalid character "U" at byte 0`},
		{"00CMXB6TAK4S\xff", `flake: invalid character "\xff" at byte 12`},
		{"00C", "flake: wrong length: 3 bytes, not 13"},
		{"G000000000000", `flake: more than 63 bits: first character "G" is above 7`},
	} {
		if _, err := flake.Parse(x.in); err == nil || err.Error() != x.want {
			t.Errorf("Parse(%q): %v, want %s", x.in, err, x.want)
		}
	}
}

func TestParseIntAndHex(t *testing.T) {
	type parser = func(string) (flake.ID, error)
	for _, x := range []struct {
		name  string
		parse parser
		in    string
		want  flake.ID
		err   error
	}{
		{"int", flake.ParseInt, "0", 0, nil},
		{"int", flake.ParseInt, "00012", 12, nil},
		{"int", flake.ParseInt, "9223372036854775807", math.MaxInt64, nil},
		{"int", flake.ParseInt, "09223372036854775807", math.MaxInt64, nil},
		{"int", flake.ParseInt, "9223372036854775808", 0, flake.ErrRange},
		{"int", flake.ParseInt, "9223372036854775817", 0, flake.ErrRange},
		{"int", flake.ParseInt, "18446744073709551617", 0, flake.ErrRange}, // wraps to 1
		{"int", flake.ParseInt, strings.Repeat("9", 99), 0, flake.ErrRange},
		{"int", flake.ParseInt, strings.Repeat("9", 99) + "x", 0, flake.ErrAlphabet},
		{"int", flake.ParseInt, "", 0, flake.ErrAlphabet},
		{"int", flake.ParseInt, "-", 0, flake.ErrAlphabet},
		{"int", flake.ParseInt, "-1", 0, flake.ErrRange},
		{"int", flake.ParseInt, "-0", 0, flake.ErrRange},
		{"int", flake.ParseInt, "-1a", 0, flake.ErrAlphabet},
		{"int", flake.ParseInt, "--1", 0, flake.ErrAlphabet},
		{"int", flake.ParseInt, "+1", 0, flake.ErrAlphabet},
		{"int", flake.ParseInt, "1_0", 0, flake.ErrAlphabet},
		{"int", flake.ParseInt, "1e3", 0, flake.ErrAlphabet},
		{"int", flake.ParseInt, " 1", 0, flake.ErrAlphabet},
		{"int", flake.ParseInt, "1/", 0, flake.ErrAlphabet}, // the byte before '0'
		{"int", flake.ParseInt, "1:", 0, flake.ErrAlphabet}, // the byte behind '9'
		{"int", flake.ParseInt, "\u0661", 0, flake.ErrAlphabet},
		{"hex", flake.ParseHex, "0x0", 0, nil},
		{"hex", flake.ParseHex, "0x1aF", 0x1af, nil},
		{"hex", flake.ParseHex, "0x7FFFFFFFFFFFFFFF", math.MaxInt64, nil},
		{"hex", flake.ParseHex, "7fffffffffffffff", math.MaxInt64, nil},
		{"hex", flake.ParseHex, "0x00000000000000001", 0, flake.ErrLength},
		{"hex", flake.ParseHex, "0x8000000000000000", 0, flake.ErrRange},
		{"hex", flake.ParseHex, "ffffffffffffffff", 0, flake.ErrRange},
		{"hex", flake.ParseHex, "", 0, flake.ErrLength},
		{"hex", flake.ParseHex, "0x", 0, flake.ErrLength},
		{"hex", flake.ParseHex, "1F", 0, flake.ErrLength},
		{"hex", flake.ParseHex, "0X1F", 0, flake.ErrLength},
		{"hex", flake.ParseHex, "0xG", 0, flake.ErrAlphabet},
		{"hex", flake.ParseHex, "0x/", 0, flake.ErrAlphabet},
		{"hex", flake.ParseHex, "0x:", 0, flake.ErrAlphabet},
		{"hex", flake.ParseHex, "0x@", 0, flake.ErrAlphabet},
		{"hex", flake.ParseHex, "0x`", 0, flake.ErrAlphabet},
		{"hex", flake.ParseHex, "0xg", 0, flake.ErrAlphabet},
		{"hex", flake.ParseHex, "0x-1", 0, flake.ErrAlphabet},
	} {
		if id, err := x.parse(x.in); id != x.want || !errors.Is(err, x.err) {
			t.Errorf("%s %q = %d, %v, want %d, %v", x.name, x.in, id, err, x.want, x.err)
		}
	}
	if _, err := flake.FromInt64(-1); !errors.Is(err, flake.ErrRange) {
		t.Errorf("FromInt64(-1): %v", err)
	}
}

// zeros yields zero bytes and counts them.
type zeros struct{ n int }

func (z *zeros) Read(b []byte) (int, error) {
	clear(b)
	z.n += len(b)
	return len(b), nil
}

func TestIncrementErrors(t *testing.T) {
	f := flake.Default
	z := new(zeros)
	if id, err := f.Increment(someID, 2, z); !errors.Is(err, flake.ErrEntropySource) || id != 0 || z.n > 100 {
		t.Errorf("endless zeros: %d, %v after %d bytes", id, err, z.n)
	}
	if id, err := f.Increment(someID, 2, strings.NewReader("x")); !errors.Is(err, flake.ErrEntropySource) || !errors.Is(err, io.ErrUnexpectedEOF) || id != 0 {
		t.Errorf("one byte of two: %d, %v", id, err)
	}
	if id, err := f.Increment(-1, 1, strings.NewReader("x")); !errors.Is(err, flake.ErrRange) || id != 0 {
		t.Errorf("negative: %d, %v", id, err)
	}
	unknown := flake.Format{}
	if _, err := unknown.Increment(1, 1, strings.NewReader("x")); !errors.Is(err, flake.ErrLayout) {
		t.Errorf("layout: %v", err)
	}
	if _, err := unknown.InitialEntropy(nil); !errors.Is(err, flake.ErrLayout) {
		t.Errorf("layout: %v", err)
	}
	for _, n := range []int{0, 1, 3} {
		if _, err := f.InitialEntropy(make([]byte, n)); !errors.Is(err, flake.ErrEntropySize) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	fleet := flake.Format{Layout: flake.Fleet, Epoch: flake.DefaultEpoch}
	if e, err := fleet.InitialEntropy([]byte{0xFF, 0xFE}); err != nil || e != 1022 {
		t.Errorf("fleet: %d, %v", e, err)
	}
	prev, _ := fleet.Make(flake.DefaultEpoch, 1018, 77) // steps are 3 bits: 0x1D is 5, 0xF8 is drawn again
	if id, err := fleet.Increment(prev, 1, strings.NewReader("\xF8\x1D")); err != nil || fleet.Entropy(id) != 1023 || fleet.SID(id) != 77 {
		t.Errorf("fleet to the last entropy: %v, %v", id, err)
	}
	if id, err := fleet.Increment(prev, 1, strings.NewReader("\xFE")); !errors.Is(err, flake.ErrMonotonicOverflow) || id != 0 {
		t.Errorf("fleet past the last entropy: %v, %v", id, err)
	}
}
