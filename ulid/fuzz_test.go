package ulid_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/codectest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

func bytesOf(id ulid.ID) []byte {
	b := id.Bytes()
	return b[:]
}

var ids = codectest.Kind[ulid.ID, *ulid.ID]{
	Size:      ulid.BinaryLen,
	Kept:      otherID,
	Parse:     ulid.Parse,
	Lenient:   ulid.ParseLenient,
	FromBytes: ulid.FromBytes,
	Compare:   ulid.ID.Compare,
	Errors: map[string]error{
		"bad_length":         ulid.ErrLength,
		"bad_char":           ulid.ErrAlphabet,
		"overflow":           ulid.ErrOverflow,
		"out_of_range":       ulid.ErrRange,
		"time_before_epoch":  ulid.ErrBeforeEpoch,
		"time_overflow":      ulid.ErrTimeOverflow,
		"bad_uuid":           ulid.ErrUUID,
		"monotonic_overflow": ulid.ErrMonotonicOverflow,
	},
	Forms: func(id ulid.ID) map[string]func() (ulid.ID, error) {
		forms := map[string]func() (ulid.ID, error){
			"UUID":   func() (ulid.ID, error) { return ulid.ParseUUID(strings.ToUpper(id.UUID())) },
			"hex":    func() (ulid.ID, error) { return ulid.ParseHex(id.Hex()) },
			"u128":   func() (ulid.ID, error) { return ulid.ParseUint128(id.Uint128()) },
			"fields": func() (ulid.ID, error) { return ulid.Make(id.UnixMilli(), id.Randomness()) },
			"array":  func() (ulid.ID, error) { return ulid.FromArray(id.Bytes()), nil },
		}
		format := flake.Format{Layout: flake.Scalable}
		if f, err := id.ForceV7().Flake(format); err == nil {
			forms["flake"] = func() (ulid.ID, error) {
				back, err := ulid.FromFlake(format, f, binary.BigEndian.Uint64(bytesOf(id)[8:]))
				if back == id.ForceV7() {
					back = id
				}
				return back, err
			}
		}
		return forms
	},
}

func FuzzParse(f *testing.F) {
	v := load(f)
	for _, x := range v.ULID {
		f.Add(x.ULID)
	}
	for _, x := range v.InvalidStrings {
		f.Add(x.Input)
	}
	for _, x := range v.Lenient {
		f.Add(x.Input)
	}
	ids.FuzzParse(f)
}

func same(s string) string { return s }

func FuzzParseUUID(f *testing.F) {
	for _, x := range load(f).UUIDv7 {
		f.Add(x.UUID)
	}
	ids.FuzzText(f, ulid.ParseUUID, ulid.ID.UUID, same, someUUID, someHex, "{"+someUUID+"}")
}

func FuzzParseHex(f *testing.F) {
	ids.FuzzText(f, ulid.ParseHex, ulid.ID.Hex, same, someHex, "0x"+someHex[2:], "")
}

func FuzzParseUint128(f *testing.F) {
	ids.FuzzText(f, ulid.ParseUint128, ulid.ID.Uint128, codectest.Digits, "0",
		"340282366920938463463374607431768211455", "340282366920938463463374607431768211456", "-1", "")
}

func FuzzUnmarshalJSON(f *testing.F) { ids.FuzzJSON(f) }

func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"", "0000000000", "01JGFJJZ00", "7ZZZZZZZZZ", "8000000000", "01jgfjjz0u", "01JGFJJZ0\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ms, err := ulid.ParseTime(s)
		id, ok := ids.Slow(s + strings.Repeat("0", 16))
		if want := id.UnixMilli(); len(s) != ulid.TimeLen && err == nil || len(s) == ulid.TimeLen && (ok != (err == nil) || ms != want) {
			t.Fatalf("ParseTime(%q) = %d, %v, want %d, %v", s, ms, err, want, ok)
		}
		if err != nil {
			return
		}
		if b, err := ulid.AppendTime(nil, ms); err != nil || !strings.EqualFold(string(b), s) {
			t.Fatalf("ParseTime(%q) is written %s, %v", s, b, err)
		}
	})
}

func FuzzFromBytes(f *testing.F) {
	f.Add([]byte("0123456789abcdef"))
	ids.FuzzBytes(f, func(b []byte) bool { return len(b) == ulid.BinaryLen })
}

// Scan reads what Parse, ParseUUID and FromBytes read, and tells them apart.
func FuzzScan(f *testing.F) {
	ids.FuzzScan(f, func(b []byte) (ulid.ID, error) {
		switch len(b) {
		case ulid.UUIDLen:
			return ulid.ParseUUID(string(b))
		case ulid.BinaryLen:
			return ulid.FromBytes(b)
		}
		return ulid.Parse(string(b))
	}, someULID, someUUID, "0123456789abcdef")
}

// Whatever is drawn at whatever time, a series rises, never goes below its
// clock, and refuses with a reason.
func FuzzOffline(f *testing.F) {
	f.Add([]byte("0123456789abcdefghij"), []byte{0, 0, 1, 200, 3})
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), []byte{9, 0, 0})
	f.Fuzz(func(t *testing.T, draws, steps []byte) {
		o := ulid.NewOffline(ulid.OfflineConfig{Entropy: bytes.NewReader(draws)})
		now, last := int64(0), ulid.ID{}
		for i, step := range steps {
			now += int64(int8(step)) // back and forth
			id, err := o.NextAt(now)
			if err != nil {
				if id != (ulid.ID{}) {
					t.Fatalf("%v with %v", id, err)
				}
				continue
			}
			if i > 0 && last != (ulid.ID{}) && id.Compare(last) <= 0 || id.UnixMilli() < now {
				t.Fatalf("at %d after %v: %v", now, last, id)
			}
			last = id
		}
	})
}
