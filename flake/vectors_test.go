package flake_test

import (
	"bytes"
	"encoding/hex"
	"strconv"
	"testing"

	"github.com/flakelease/allocator/chaos/codectest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
)

// vectors is the part of testdata/vectors/vectors.json that is about flakes.
type vectors struct {
	Standalone  []idVector `json:"flake_standalone"`
	Scalable    []idVector `json:"flake_scalable"`
	DocExamples []idVector `json:"doc_examples"`
	FromSeconds []struct {
		UnixS int64 `json:"unix_s"`
		TsMs  int64 `json:"ts_ms"`
	} `json:"flake_from_unix_seconds"`
	Increment []struct {
		Layout string               `json:"layout"`
		TsMs   int64                `json:"ts_ms"`
		SID    flake.SID            `json:"sid"`
		Prev   uint32               `json:"prev_randomness"`
		Size   int                  `json:"entropy_size_bytes"`
		Draws  []codectest.HexBytes `json:"entropy_draws_hex"`
		Rand   uint32               `json:"randomness"`
		Int    string               `json:"int"`
		Base32 string               `json:"base32"`
		Error  string               `json:"error"`
	} `json:"flake_increment"`
	Initial []struct {
		Layout string             `json:"layout"`
		Random codectest.HexBytes `json:"random_hex"`
		Rand   uint32             `json:"randomness"`
	} `json:"flake_initial_randomness"`
	InvalidStrings []codectest.Invalid `json:"flake_invalid_strings"`
	InvalidInts    []codectest.Invalid `json:"flake_invalid_ints"`
	InvalidFields  []codectest.Invalid `json:"flake_invalid_fields"`
	Lenient        []codectest.Lenient `json:"flake_lenient"`
}

type idVector struct {
	Layout string             `json:"layout"`
	Int    string             `json:"int"`
	Base32 string             `json:"base32"`
	Hex    string             `json:"hex"`
	Bin    string             `json:"bin"`
	Bytes  codectest.HexBytes `json:"bytes_hex"`
	TsMs   int64              `json:"ts_ms"`
	Rand   uint32             `json:"randomness"`
	SID    flake.SID          `json:"sid"`
	UnixMs int64              `json:"unix_ms"`
	Time   string             `json:"time"`
}

func load(t testing.TB) (v vectors) {
	codectest.Vectors(t, &v)
	return v
}

func wantClass(t *testing.T, err error, classes []string) {
	t.Helper()
	// The preferred class, not just a tolerated one.
	if got := ids.Class(err); got != classes[0] {
		t.Errorf("got class %s (%v), want %s of %v", got, err, classes[0], classes)
	}
}

func layout(t *testing.T, name string) flake.Format {
	t.Helper()
	l, err := flake.ParseLayout(name)
	fatal.If(t, err)
	return flake.Format{Layout: l, Epoch: flake.DefaultEpoch}
}

func TestVectorsIDs(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.Standalone, 20)
	codectest.Count(t, v.Scalable, 20)
	codectest.Count(t, v.DocExamples, 18)
	for _, x := range v.Standalone {
		x.Layout = "standalone"
		testIDVector(t, x)
	}
	for _, x := range v.Scalable {
		x.Layout = "scalable"
		testIDVector(t, x)
	}
	for _, x := range v.DocExamples {
		testIDVector(t, x)
	}
}

func testIDVector(t *testing.T, x idVector) {
	t.Helper()
	f := layout(t, x.Layout)
	n, err := strconv.ParseInt(x.Int, 10, 64)
	fatal.If(t, err)
	id := flake.ID(n)
	if got, err := f.Make(x.UnixMs, x.Rand, x.SID); err != nil || got != id {
		t.Errorf("%s: Make = %d, %v", x.Int, got, err)
	}
	if flake.Scalable.Timestamp(id) != x.TsMs || f.UnixMilli(id) != x.UnixMs || f.Entropy(id) != x.Rand || f.SID(id) != x.SID {
		t.Errorf("%s: fields are %d %d %d %d", x.Int, flake.Scalable.Timestamp(id), f.UnixMilli(id), f.Entropy(id), f.SID(id))
	}
	if got := id.String(); got != x.Base32 {
		t.Errorf("%s: String = %s, want %s", x.Int, got, x.Base32)
	}
	if got := id.Hex(); got != x.Hex {
		t.Errorf("%s: Hex = %s, want %s", x.Int, got, x.Hex)
	}
	if got := string(id.AppendInt(nil)); got != x.Int {
		t.Errorf("%s: AppendInt = %s", x.Int, got)
	}
	for form, parse := range map[string]func() (flake.ID, error){
		"base32": func() (flake.ID, error) { return flake.Parse(x.Base32) },
		"int":    func() (flake.ID, error) { return flake.ParseInt(x.Int) },
		"hex":    func() (flake.ID, error) { return flake.ParseHex(x.Hex) },
		"int64":  func() (flake.ID, error) { return flake.FromInt64(n) },
	} {
		if got, err := parse(); err != nil || got != id {
			t.Errorf("%s: from %s = %d, %v", x.Int, form, got, err)
		}
	}
	if x.Bytes == nil { // the documents' examples end here
		return
	}
	if got := id.Bin(); got != x.Bin {
		t.Errorf("%s: Bin = %s, want %s", x.Int, got, x.Bin)
	}
	if got, err := id.MarshalBinary(); err != nil || !bytes.Equal(got, x.Bytes) {
		t.Errorf("%s: MarshalBinary = %x, %v, want %x", x.Int, got, err, []byte(x.Bytes))
	}
	if got, err := flake.FromBytes(x.Bytes); err != nil || got != id {
		t.Errorf("%s: FromBytes = %d, %v", x.Int, got, err)
	}
	if got := string(id.AppendHex16(nil)); got != hex.EncodeToString(x.Bytes) {
		t.Errorf("%s: AppendHex16 = %s", x.Int, got)
	}
	if got := id.Time().Format("2006-01-02T15:04:05.000Z"); got != x.Time {
		t.Errorf("%s: Time = %s, want %s", x.Int, got, x.Time)
	}
}

func TestVectorsFromUnixSeconds(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.FromSeconds, 6)
	for _, x := range v.FromSeconds {
		id, err := flake.Default.FromUnixSeconds(x.UnixS, 9, 3)
		if err != nil || flake.Scalable.Timestamp(id) != x.TsMs || flake.Default.Entropy(id) != 9 || flake.Default.SID(id) != 3 {
			t.Errorf("%d s: got %d (timestamp %d), %v", x.UnixS, id, flake.Scalable.Timestamp(id), err)
		}
	}
}

func TestVectorsInitialEntropy(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.Initial, 12)
	for _, x := range v.Initial {
		if got, err := layout(t, x.Layout).InitialEntropy(x.Random); err != nil || got != x.Rand {
			t.Errorf("%s %x: got %d, %v, want %d", x.Layout, []byte(x.Random), got, err, x.Rand)
		}
	}
}

func TestVectorsInvalid(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.InvalidStrings, 12)
	codectest.Count(t, v.InvalidInts, 5)
	codectest.Count(t, v.InvalidFields, 8)
	ids.InvalidVectors(t, v.InvalidStrings)
	for _, x := range v.InvalidInts {
		id, err := flake.ParseInt(x.Input)
		if id != 0 {
			t.Errorf("ParseInt(%q) = %d", x.Input, id)
		}
		wantClass(t, err, x.Classes)
	}
	for _, x := range v.InvalidFields {
		n, err := strconv.ParseInt(x.Value, 10, 64)
		fatal.If(t, err)
		var id flake.ID
		switch f := flake.Default; x.Field {
		case "sid":
			id, err = f.Make(flake.DefaultEpoch, 0, flake.SID(n)) // −1 is 65535
		case "entropy_size":
			id, err = layout(t, x.Layout).Increment(0, int(n), bytes.NewReader([]byte{1, 1, 1, 1}))
		case "unix_ms":
			id, err = f.Make(n, 0, 0)
		case "unix_s":
			id, err = f.FromUnixSeconds(n, 0, 0)
		default:
			t.Fatalf("unknown field %q", x.Field)
		}
		if id != 0 {
			t.Errorf("%+v: got ID %d", x, id)
		}
		wantClass(t, err, x.Classes)
	}
}

func TestVectorsLenient(t *testing.T) {
	v := load(t)
	codectest.Count(t, v.Lenient, 11)
	ids.LenientVectors(t, v.Lenient)
}
