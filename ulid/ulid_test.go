package ulid_test

import (
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

const (
	someULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	someUUID = "01563e3a-b5d3-d676-4c61-efb99302bd5b"
	someHex  = "01563e3ab5d3d6764c61efb99302bd5b"
)

var someID = ulid.FromArray([16]byte{0x01, 0x56, 0x3e, 0x3a, 0xb5, 0xd3, 0xd6, 0x76, 0x4c, 0x61, 0xef, 0xb9, 0x93, 0x02, 0xbd, 0x5b})

var otherID = ulid.FromArray([16]byte{7})

// Uint128 writes what package big does. TestULIDCodec in chaos/real/interop compares the
// other forms with other libraries.
func TestUint128AgainstBig(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		var b [16]byte
		for i := range b {
			b[i] = byte(r.Uint32()) >> r.IntN(9) // small bytes and zeros too
		}
		id := ulid.FromArray(b)
		if got := new(big.Int).SetBytes(bytesOf(id)).String(); got != id.Uint128() {
			t.Fatalf("%s: u128 %s, want %s", id.Hex(), id.Uint128(), got)
		}
	}
}

func TestParseEveryByte(t *testing.T) { ids.ParseEveryByte(t) }

func TestUint128Limits(t *testing.T) {
	one := big.NewInt(1)
	for _, base := range []*big.Int{
		big.NewInt(1),
		new(big.Int).Lsh(one, 64),
		new(big.Int).Exp(big.NewInt(10), big.NewInt(19), nil),
		new(big.Int).Exp(big.NewInt(10), big.NewInt(38), nil),
		new(big.Int).Lsh(one, 128),
	} {
		for d := int64(-1); d <= 1; d++ {
			v := new(big.Int).Add(base, big.NewInt(d))
			id, err := ulid.ParseUint128(v.String())
			if v.BitLen() > 128 {
				if !errors.Is(err, ulid.ErrRange) || !id.IsZero() {
					t.Errorf("%s: %s, %v", v, id, err)
				}
				continue
			}
			if err != nil || id.Uint128() != v.String() || new(big.Int).SetBytes(bytesOf(id)).Cmp(v) != 0 {
				t.Errorf("%s: %s written %s, %v", v, id.Hex(), id.Uint128(), err)
			}
		}
	}
}

func TestParsers(t *testing.T) {
	for _, x := range []struct {
		name  string
		parse func(string) (ulid.ID, error)
		in    string
		err   error
	}{
		{"text", ulid.Parse, someULID, nil},
		{"text", ulid.Parse, strings.ToLower(someULID), nil},
		{"text", ulid.Parse, someULID + "0", ulid.ErrLength},
		{"text", ulid.Parse, someULID[1:], ulid.ErrLength},
		{"text", ulid.Parse, someUUID, ulid.ErrLength},
		{"text", ulid.Parse, "O1ARZ3NDEKTSV4RRFFQ69G5FAV", ulid.ErrAlphabet},
		{"text", ulid.Parse, "01ARZ3NDEKTSUsRRFFQ69G5FAV", ulid.ErrAlphabet},
		{"text", ulid.Parse, "01ARZ3NDEKTSVuRRFFQ69G5FAV", ulid.ErrAlphabet},
		{"text", ulid.Parse, "01ARZ3NDEKTSV4RRFFQ69G5FA\x80", ulid.ErrAlphabet},
		{"text", ulid.Parse, "01ARZ3NDEKTSV4RRFFQ69G5FA\u017f", ulid.ErrLength},
		{"text", ulid.Parse, "01ARZ3NDEKTSV4RRFFQ69G5F\u017f", ulid.ErrAlphabet},
		{"text", ulid.Parse, "8" + someULID[1:], ulid.ErrOverflow},
		{"text", ulid.Parse, "G" + someULID[1:], ulid.ErrOverflow},
		{"text", ulid.Parse, "8" + someULID[1:25] + "!", ulid.ErrAlphabet},
		{"lenient", ulid.ParseLenient, "oiARZ3-NDEKTSV4RRFFQ69G5FAV-", nil},
		{"lenient", ulid.ParseLenient, "0LARZ3NDEKTSV4RRFFQ69G5FAV", nil},
		{"lenient", ulid.ParseLenient, "OlARZ3NDEKTSV4RRFFQ69G5FAV", nil},
		{"lenient", ulid.ParseLenient, someULID[:25] + "-", ulid.ErrLength},
		{"lenient", ulid.ParseLenient, someULID + "0", ulid.ErrLength},
		{"lenient", ulid.ParseLenient, someULID[:25] + "U", ulid.ErrAlphabet},
		{"lenient", ulid.ParseLenient, someULID[:25] + " ", ulid.ErrAlphabet},
		{"lenient", ulid.ParseLenient, someUUID, ulid.ErrLength},
		{"UUID", ulid.ParseUUID, someUUID, nil},
		{"UUID", ulid.ParseUUID, strings.ToUpper(someUUID), nil},
		{"UUID", ulid.ParseUUID, "", ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, someHex, ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, "{" + someUUID + "}", ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, "urn:uuid:" + someUUID, ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, " " + someUUID[1:], ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, someUUID[:35] + "g", ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, someUUID[:35] + "-", ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, "01563e3ab-5d3-d676-4c61-efb99302bd5b", ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, "01563e3a_b5d3-d676-4c61-efb99302bd5b", ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, "01563e3a-b5d30d676-4c61-efb99302bd5b", ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, "01563e3a-b5d3-d67604c61-efb99302bd5b", ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, "01563e3a-b5d3-d676-4c610efb99302bd5b", ulid.ErrUUID},
		{"UUID", ulid.ParseUUID, "01563e3a-b5d3-d676-4c61-efb99302b\uff10", ulid.ErrUUID},
		{"hex", ulid.ParseHex, someHex, nil},
		{"hex", ulid.ParseHex, strings.ToUpper(someHex), nil},
		{"hex", ulid.ParseHex, "0x" + someHex, ulid.ErrLength},
		{"hex", ulid.ParseHex, someHex[1:], ulid.ErrLength},
		{"hex", ulid.ParseHex, "0x" + someHex[2:], ulid.ErrAlphabet},
		{"hex", ulid.ParseHex, someHex[:31] + "g", ulid.ErrAlphabet},
		{"u128", ulid.ParseUint128, "1777027686520646174104517696511196507", nil},
		{"u128", ulid.ParseUint128, "00001777027686520646174104517696511196507", nil},
		{"u128", ulid.ParseUint128, "340282366920938463463374607431768211456", ulid.ErrRange},
		{"u128", ulid.ParseUint128, "3402823669209384634633746074317682114560", ulid.ErrRange},
		{"u128", ulid.ParseUint128, strings.Repeat("9", 99), ulid.ErrRange},
		{"u128", ulid.ParseUint128, strings.Repeat("9", 99) + "x", ulid.ErrAlphabet},
		{"u128", ulid.ParseUint128, "", ulid.ErrAlphabet},
		{"u128", ulid.ParseUint128, "-", ulid.ErrAlphabet},
		{"u128", ulid.ParseUint128, "-1", ulid.ErrRange},
		{"u128", ulid.ParseUint128, "+1", ulid.ErrAlphabet},
		{"u128", ulid.ParseUint128, "1 ", ulid.ErrAlphabet},
		{"u128", ulid.ParseUint128, "1/", ulid.ErrAlphabet},
		{"u128", ulid.ParseUint128, "1:", ulid.ErrAlphabet},
	} {
		id, err := x.parse(x.in)
		if !errors.Is(err, x.err) || err != nil && !id.IsZero() || err == nil && id != someID {
			t.Errorf("%s %q = %s, %v, want error %v", x.name, x.in, id, err, x.err)
		}
	}
}

func TestPositions(t *testing.T) {
	_, err1 := ulid.Parse("01ARZ3NDEKTSV4RRFFQ69G5FA!")
	_, err2 := ulid.ParseUUID("01563e3a-b5d3-d676-4c61-efb99302bd5\xff")
	_, err3 := ulid.ParseUUID("01563e3a0b5d3-d676-4c61-efb99302bd5b")
	_, err4 := ulid.ParseHex(someHex[:31] + "g")
	for _, x := range []struct {
		err  error
		want string
	}{
		{err1, `ulid: invalid character "!" at byte 25`},
		{err2, `ulid: not a UUID: "\xff" at byte 35 is not a digit`},
		{err3, `ulid: not a UUID: "0" at byte 8 is not a hyphen`},
		{err4, `ulid: invalid character "g" at byte 31`},
	} {
		if x.err == nil || x.err.Error() != x.want {
			t.Errorf("got %v, want %s", x.err, x.want)
		}
	}
}

func TestTimeLimits(t *testing.T) {
	for ms, want := range map[int64]error{
		0: nil, ulid.MaxUnixMilli: nil,
		-1: ulid.ErrBeforeEpoch, math.MinInt64: ulid.ErrBeforeEpoch,
		ulid.MaxUnixMilli + 1: ulid.ErrTimeOverflow, math.MaxInt64: ulid.ErrTimeOverflow,
	} {
		lo, err1 := ulid.Min(ms)
		hi, err2 := ulid.Max(ms)
		if !errors.Is(err1, want) || !errors.Is(err2, want) {
			t.Errorf("%d ms: %v, %v, want %v", ms, err1, err2, want)
		}
		if want != nil {
			if !lo.IsZero() || !hi.IsZero() {
				t.Errorf("%d ms: %s, %s", ms, lo, hi)
			}
			continue
		}
		if lo.UnixMilli() != ms || hi.UnixMilli() != ms ||
			lo.Hex()[12:] != strings.Repeat("0", 20) || hi.Hex()[12:] != strings.Repeat("f", 20) {
			t.Errorf("%d ms: %s, %s", ms, lo.Hex(), hi.Hex())
		}
	}
}

func TestFromFlakeLimits(t *testing.T) {
	const last = flake.ID(math.MaxInt64)
	for _, x := range []struct {
		f     flake.ID
		epoch int64
		err   error
	}{
		{last, flake.DefaultEpoch, nil},
		{last, ulid.MaxUnixMilli - (1<<43 - 1), nil},
		{last, ulid.MaxUnixMilli - (1<<43 - 1) + 1, ulid.ErrTimeOverflow},
		{0, ulid.MaxUnixMilli, nil},
		{0, ulid.MaxUnixMilli + 1, ulid.ErrTimeOverflow},
		{last, math.MaxInt64, ulid.ErrTimeOverflow},
		{0, -1, ulid.ErrBeforeEpoch},
		{1 << 20, -1, nil},
		{last, math.MinInt64, ulid.ErrBeforeEpoch},
		{-1, flake.DefaultEpoch, ulid.ErrRange},
	} {
		id, err := ulid.FromFlake(flake.Format{Layout: flake.Scalable, Epoch: x.epoch}, x.f, 1)
		if !errors.Is(err, x.err) || (err == nil) == id.IsZero() {
			t.Errorf("FromFlake(%d, %d) = %s, %v, want error %v", x.f, x.epoch, id, err, x.err)
		}
	}
}

func TestFlakeErrors(t *testing.T) {
	id, err := ulid.FromFlake(flake.Format{Layout: flake.Scalable, Epoch: 1_000_000}, 5<<20|0xABCDE, 7)
	fatal.If(t, err)
	for _, x := range []struct {
		epoch int64
		want  flake.ID
		err   error
	}{
		{1_000_000, 5<<20 | 0xABCDE, nil},
		{1_000_005, 0xABCDE, nil},
		{1_000_006, 0, flake.ErrBeforeEpoch},
		{1_000_005 - (1<<43 - 1), (1<<43-1)<<20 | 0xABCDE, nil},
		{1_000_004 - (1<<43 - 1), 0, flake.ErrTimeOverflow},
		{math.MinInt64, 0, flake.ErrTimeOverflow},
		{math.MaxInt64, 0, flake.ErrBeforeEpoch},
	} {
		if f, err := id.Flake(flake.Format{Layout: flake.Scalable, Epoch: x.epoch}); f != x.want || !errors.Is(err, x.err) {
			t.Errorf("Flake(%d) = %d, %v, want %d, %v", x.epoch, f, err, x.want, x.err)
		}
	}
	// Every other version and variant is refused, and made v7 by force.
	for v := range 64 {
		b := id.Bytes()
		b[6] = b[6]&0x0F | byte(v)<<4
		b[8] = b[8]&0x3F | byte(v>>4)<<6
		got := ulid.FromArray(b)
		v7 := v == 0b10_0111
		f, err := got.Flake(flake.Format{Layout: flake.Scalable, Epoch: 1_000_000})
		if got.IsV7() != v7 || v7 != (err == nil) || !v7 && (f != 0 || !errors.Is(err, ulid.ErrNotV7)) {
			t.Errorf("%s: IsV7 = %v, flake %d, %v", got.UUID(), got.IsV7(), f, err)
		}
		if got.ForceV7() != id {
			t.Errorf("%s: forced %s", got.UUID(), got.ForceV7().UUID())
		}
	}
}

func TestJSON(t *testing.T) {
	b, err := json.Marshal(map[ulid.ID]ulid.ID{someID: someID})
	if err != nil || string(b) != `{"`+someULID+`":"`+someULID+`"}` {
		t.Errorf("%s, %v", b, err)
	}
	var out map[ulid.ID]ulid.ID
	if err := json.Unmarshal(b, &out); err != nil || out[someID] != someID {
		t.Errorf("%v, %v", out, err)
	}
	for in, want := range map[string]error{
		`null`: nil, `1777027686520646174104517696511196507`: ulid.ErrJSON, `true`: ulid.ErrJSON, `{}`: ulid.ErrJSON,
		`""`: ulid.ErrLength, `"` + someUUID + `"`: ulid.ErrLength, `"8` + someULID[1:] + `"`: ulid.ErrOverflow,
		`"` + someULID[1:] + `U"`: ulid.ErrAlphabet,
	} {
		id := otherID
		if err := json.Unmarshal([]byte(in), &id); !errors.Is(err, want) || id != otherID {
			t.Errorf("%s: %v, ID now %s, want error %v", in, err, id, want)
		}
	}
	for _, in := range []string{"", `"`, `"0`, `0"`} {
		id := someID
		if err := id.UnmarshalJSON([]byte(in)); !errors.Is(err, ulid.ErrJSON) || id != someID {
			t.Errorf("UnmarshalJSON(%q): %v", in, err)
		}
	}
}

func TestSQL(t *testing.T) {
	if v, err := someID.Value(); err != nil || v != someULID || !driver.IsValue(v) {
		t.Errorf("Value = %v, %v", v, err)
	}
	for _, x := range []struct {
		src any
		err error
	}{
		{someULID, nil},
		{someUUID, nil},
		{[]byte(someULID), nil},
		{[]byte(someUUID), nil},
		{bytesOf(someID), nil},
		{nil, ulid.ErrType},
		{int64(1), ulid.ErrType},
		{someID, ulid.ErrType},
		{"", ulid.ErrLength},
		{string(bytesOf(someID)), ulid.ErrLength}, // 16 bytes, but as a text
		{[]byte{}, ulid.ErrLength},
		{someHex, ulid.ErrLength},
		{"U" + someULID[1:], ulid.ErrAlphabet},
		{"9" + someULID[1:], ulid.ErrOverflow},
		{"g" + someUUID[1:], ulid.ErrUUID},
	} {
		id := otherID
		err := id.Scan(x.src)
		if !errors.Is(err, x.err) || err != nil && id != otherID || err == nil && id != someID {
			t.Errorf("Scan(%T %v): %v, ID now %s, want error %v", x.src, x.src, err, id, x.err)
		}
	}
}

func TestAppendKeepsPrefix(t *testing.T) {
	pre := []byte("id=")
	text, _ := someID.AppendText(pre)
	js, _ := someID.AppendJSON(pre)
	bin, _ := someID.AppendBinary(pre)
	for _, x := range []struct {
		got  []byte
		want string
	}{
		{text, "id=" + someULID},
		{js, `id="` + someULID + `"`},
		{bin, "id=" + string(bytesOf(someID))},
		{someID.AppendUUID(pre), "id=" + someUUID},
		{someID.AppendHex(pre), "id=" + someHex},
		{someID.AppendUint128(pre), "id=1777027686520646174104517696511196507"},
		{ulid.ID{}.AppendUint128(pre), "id=0"},
	} {
		if string(x.got) != x.want {
			t.Errorf("got %q, want %q", x.got, x.want)
		}
	}
	if got := fmt.Sprintf("%v %s", someID, someID); got != someULID+" "+someULID {
		t.Errorf("formatted: %s", got)
	}
}

func TestNoAllocations(t *testing.T) {
	buf := make([]byte, 0, 128)
	text, js, bin := []byte(someULID), []byte(`"`+someULID+`"`), bytesOf(someID)
	var id ulid.ID
	var f flake.ID
	var err error
	for name, run := range map[string]func(){
		"AppendText":      func() { buf, err = someID.AppendText(buf[:0]) },
		"AppendBinary":    func() { buf, err = someID.AppendBinary(buf[:0]) },
		"AppendJSON":      func() { buf, err = someID.AppendJSON(buf[:0]) },
		"AppendUUID":      func() { buf = someID.AppendUUID(buf[:0]) },
		"AppendHex":       func() { buf = someID.AppendHex(buf[:0]) },
		"AppendUint128":   func() { buf = someID.AppendUint128(buf[:0]) },
		"Parse":           func() { id, err = ulid.Parse(someULID) },
		"ParseLenient":    func() { id, err = ulid.ParseLenient(someULID) },
		"ParseUUID":       func() { id, err = ulid.ParseUUID(someUUID) },
		"ParseHex":        func() { id, err = ulid.ParseHex(someHex) },
		"ParseUint128":    func() { id, err = ulid.ParseUint128("1777027686520646174104517696511196507") },
		"UnmarshalText":   func() { err = id.UnmarshalText(text) },
		"UnmarshalJSON":   func() { err = id.UnmarshalJSON(js) },
		"UnmarshalBinary": func() { err = id.UnmarshalBinary(bin) },
		"Bytes":           func() { id = ulid.FromArray(someID.Bytes()) },
		"FromFlake":       func() { id, err = ulid.FromFlake(flake.Default, 1<<40, 99) },
		"Flake":           func() { f, err = id.ForceV7().Flake(flake.Format{Layout: flake.Scalable}) },
		"Increment":       func() { id, err = someID.Increment() },
	} {
		if n := testing.AllocsPerRun(100, run); n != 0 || err != nil && name != "Flake" {
			t.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
	_ = f
}
