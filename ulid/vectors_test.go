package ulid_test

import (
	"bytes"
	"encoding/hex"
	"strconv"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/codectest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// vectors is the part of testdata/vectors/vectors.json that is about ULIDs and
// UUIDs.
type vectors struct {
	ULID []struct {
		ULID      string             `json:"ulid"`
		U128      string             `json:"u128"`
		Bytes     codectest.HexBytes `json:"bytes_hex"`
		UUID      string             `json:"uuid"`
		UnixMs    int64              `json:"unix_ms"`
		Time      *string            `json:"time"`
		TimeChars string             `json:"time_chars"`
		Random    codectest.HexBytes `json:"randomness_hex"`
		ForcedV7  string             `json:"uuidv7_forced"`
	} `json:"ulid"`
	Monotonic []struct {
		Prev  string `json:"prev"`
		Next  string `json:"next_same_ms_plus1"`
		Error string `json:"error"`
	} `json:"ulid_monotonic"`
	InvalidStrings []codectest.Invalid `json:"ulid_invalid_strings"`
	InvalidFields  []codectest.Invalid `json:"ulid_invalid_fields"`
	Lenient        []codectest.Lenient `json:"ulid_lenient"`
	UUIDv7         []struct {
		UnixMs int64              `json:"unix_ms"`
		RandA  uint64             `json:"rand_a"`
		RandB  codectest.HexBytes `json:"rand_b_hex"`
		UUID   string             `json:"uuid"`
		U128   string             `json:"u128"`
		ULID   string             `json:"ulid"`
	} `json:"uuid_v7"`
}

func load(t testing.TB) (v vectors) {
	codectest.Vectors(t, &v)
	return v
}

func TestVectorsULID(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.ULID, 40)
	if !(ulid.ID{}).IsZero() || ulid.FromArray([16]byte{1}).IsZero() || ulid.FromArray([16]byte{15: 1}).IsZero() {
		t.Error("IsZero is not of the zero ID alone")
	}
	for _, x := range v.ULID {
		id := ulid.FromArray([16]byte(x.Bytes))
		if id.String() != x.ULID || id.Uint128() != x.U128 || id.UUID() != x.UUID || id.Hex() != hex.EncodeToString(x.Bytes) {
			t.Errorf("%s: written as %s %s %s %s", x.ULID, id, id.Uint128(), id.UUID(), id.Hex())
		}
		if id.UnixMilli() != x.UnixMs || id.String()[:10] != x.TimeChars {
			t.Errorf("%s: time %d, characters %s", x.ULID, id.UnixMilli(), id.String()[:10])
		}
		if r := id.Randomness(); !bytes.Equal(r[:], x.Random) {
			t.Errorf("%s: randomness %x", x.ULID, r)
		}
		if got := id.ForceV7(); got.UUID() != x.ForcedV7 || !got.IsV7() {
			t.Errorf("%s: forced %s, want %s", x.ULID, got.UUID(), x.ForcedV7)
		}
		if got := id.Time(); x.Time != nil && got.Format("2006-01-02T15:04:05.000Z") != *x.Time || x.Time == nil && got.Year() < 10000 || got.Location() != time.UTC {
			t.Errorf("%s: time %v, want %v", x.ULID, got, x.Time)
		}
		if got, err := ulid.Make(x.UnixMs, [10]byte(x.Random)); err != nil || got != id {
			t.Errorf("%s: Make = %v, %v", x.ULID, got, err)
		}
		for form, parse := range map[string]func() (ulid.ID, error){
			"text":    func() (ulid.ID, error) { return ulid.Parse(x.ULID) },
			"lenient": func() (ulid.ID, error) { return ulid.ParseLenient(x.ULID) },
			"UUID":    func() (ulid.ID, error) { return ulid.ParseUUID(x.UUID) },
			"u128":    func() (ulid.ID, error) { return ulid.ParseUint128(x.U128) },
			"hex":     func() (ulid.ID, error) { return ulid.ParseHex(hex.EncodeToString(x.Bytes)) },
			"bytes":   func() (ulid.ID, error) { return ulid.FromBytes(x.Bytes) },
		} {
			if got, err := parse(); err != nil || got != id {
				t.Errorf("%s from %s: %v, %v", x.ULID, form, got, err)
			}
		}
	}
}

func TestVectorsUUIDv7(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.UUIDv7, 10)
	for _, x := range v.UUIDv7 {
		id, err := ulid.ParseUUID(x.UUID)
		if err != nil || id.String() != x.ULID || id.Uint128() != x.U128 || id.UUID() != x.UUID || id.UnixMilli() != x.UnixMs {
			t.Errorf("%s: %v %s, %v", x.UUID, id, id.Uint128(), err)
		}
		if !id.IsV7() || id.ForceV7() != id {
			t.Errorf("%s: IsV7 = %v, forced %s", x.UUID, id.IsV7(), id.ForceV7().UUID())
		}
		// Its flake, put together from the RFC's fields.
		f, err := id.Flake(flake.Format{Layout: flake.Scalable})
		var randB uint64
		for _, b := range x.RandB {
			randB = randB<<8 | uint64(b)
		}
		if err != nil || uint64(f) != uint64(x.UnixMs)<<20|x.RandA<<8|randB>>54 {
			t.Errorf("%s: flake %#x, %v", x.UUID, f.Int64(), err)
		}
		if got, err := ulid.FromFlake(flake.Format{Layout: flake.Scalable}, f, randB); err != nil || got != id {
			t.Errorf("%s: from its flake %s, %v", x.UUID, got.UUID(), err)
		}
	}
}

func TestVectorsInvalid(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.InvalidStrings, 9)
	codectest.Count(t, v.InvalidFields, 5)
	ids.InvalidVectors(t, v.InvalidStrings)
	for _, x := range v.InvalidFields {
		var id ulid.ID
		var err error
		switch x.Field {
		case "unix_ms":
			ms, perr := strconv.ParseInt(x.Value, 10, 64)
			if perr != nil {
				t.Fatal(perr)
			}
			id, err = ulid.Make(ms, [10]byte{})
		case "u128":
			id, err = ulid.ParseUint128(x.Value)
		case "uuid":
			id, err = ulid.ParseUUID(x.Value)
		case "bytes_hex":
			var b codectest.HexBytes
			fatal.If(t, b.UnmarshalText([]byte(x.Value)))
			id, err = ulid.FromBytes(b)
		default:
			t.Fatalf("unknown field %q", x.Field)
		}
		if got := ids.Class(err); got != x.Classes[0] || !id.IsZero() {
			t.Errorf("%+v: %s, %v", x, id, err)
		}
	}
}

func TestVectorsLenient(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.Lenient, 12)
	ids.LenientVectors(t, v.Lenient)
}
