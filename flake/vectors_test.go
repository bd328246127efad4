package flake_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"

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
		Layout string     `json:"layout"`
		TsMs   int64      `json:"ts_ms"`
		SID    flake.SID  `json:"sid"`
		Prev   uint32     `json:"prev_randomness"`
		Size   int        `json:"entropy_size_bytes"`
		Draws  []hexBytes `json:"entropy_draws_hex"`
		Rand   uint32     `json:"randomness"`
		Int    string     `json:"int"`
		Base32 string     `json:"base32"`
		Error  string     `json:"error"`
	} `json:"flake_increment"`
	Initial []struct {
		Layout string   `json:"layout"`
		Random hexBytes `json:"random_hex"`
		Rand   uint32   `json:"randomness"`
	} `json:"flake_initial_randomness"`
	InvalidStrings []invalidVector `json:"flake_invalid_strings"`
	InvalidInts    []invalidVector `json:"flake_invalid_ints"`
	InvalidFields  []invalidVector `json:"flake_invalid_fields"`
	Lenient        []struct {
		Input         string   `json:"input"`
		Canonical     string   `json:"canonical"`
		StrictAccepts bool     `json:"strict_accepts"`
		StrictClasses []string `json:"strict_classes"`
	} `json:"flake_lenient"`
}

type idVector struct {
	Layout string    `json:"layout"`
	Int    string    `json:"int"`
	Base32 string    `json:"base32"`
	Hex    string    `json:"hex"`
	Bin    string    `json:"bin"`
	Bytes  hexBytes  `json:"bytes_hex"`
	TsMs   int64     `json:"ts_ms"`
	Rand   uint32    `json:"randomness"`
	SID    flake.SID `json:"sid"`
	UnixMs int64     `json:"unix_ms"`
	Time   string    `json:"time"`
}

type invalidVector struct {
	Input   string   `json:"input"`
	Field   string   `json:"field"`
	Layout  string   `json:"layout"`
	Value   string   `json:"value"`
	Classes []string `json:"classes"`
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(b []byte) (err error) {
	*h, err = hex.DecodeString(string(b))
	return err
}

func load(t testing.TB) (v vectors) {
	t.Helper()
	b, err := os.ReadFile("../testdata/vectors/vectors.json")
	fatal.If(t, err)
	fatal.If(t, json.Unmarshal(b, &v))
	return v
}

// count fails the test if a section was not read, or has shrunk.
func count[T any](t *testing.T, section []T, want int) {
	t.Helper()
	if len(section) != want {
		t.Fatalf("section has %d vectors, want %d", len(section), want)
	}
}

// class is the vectors' label of an error of this package.
func class(err error) string {
	for _, c := range []struct {
		err  error
		name string
	}{
		{flake.ErrLength, "bad_length"},
		{flake.ErrAlphabet, "bad_char"},
		{flake.ErrOverflow, "overflow"},
		{flake.ErrRange, "out_of_range"},
		{flake.ErrBeforeEpoch, "time_before_epoch"},
		{flake.ErrTimeOverflow, "time_overflow"},
		{flake.ErrSID, "bad_sid"},
		{flake.ErrEntropySize, "bad_entropy_size"},
		{flake.ErrEntropy, "bad_randomness"},
		{flake.ErrMonotonicOverflow, "monotonic_overflow"},
	} {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return "none"
}

func wantClass(t *testing.T, err error, classes []string) {
	t.Helper()
	// The preferred class, not just a tolerated one.
	if got := class(err); got != classes[0] {
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
	count(t, v.Standalone, 20)
	count(t, v.Scalable, 20)
	count(t, v.DocExamples, 18)
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
	count(t, v.FromSeconds, 6)
	for _, x := range v.FromSeconds {
		id, err := flake.Default.FromUnixSeconds(x.UnixS, 9, 3)
		if err != nil || flake.Scalable.Timestamp(id) != x.TsMs || flake.Default.Entropy(id) != 9 || flake.Default.SID(id) != 3 {
			t.Errorf("%d s: got %d (timestamp %d), %v", x.UnixS, id, flake.Scalable.Timestamp(id), err)
		}
	}
}

func TestVectorsInitialEntropy(t *testing.T) {
	v := load(t)
	count(t, v.Initial, 12)
	for _, x := range v.Initial {
		if got, err := layout(t, x.Layout).InitialEntropy(x.Random); err != nil || got != x.Rand {
			t.Errorf("%s %x: got %d, %v, want %d", x.Layout, []byte(x.Random), got, err, x.Rand)
		}
	}
}

func TestVectorsInvalid(t *testing.T) {
	v := load(t)
	count(t, v.InvalidStrings, 12)
	count(t, v.InvalidInts, 5)
	count(t, v.InvalidFields, 8)
	for _, x := range v.InvalidStrings {
		id, err := flake.Parse(x.Input)
		// For a byte string that is both too long and not ASCII the first listed
		// class counts characters; rule 1 counts bytes, so length it is.
		if got := class(err); id != 0 || !slices.Contains(x.Classes, got) {
			t.Errorf("Parse(%q) = %d, %v, want one of %v", x.Input, id, err, x.Classes)
		}
		if err := id.UnmarshalText([]byte(x.Input)); id != 0 || !slices.Contains(x.Classes, class(err)) {
			t.Errorf("UnmarshalText(%q) = %d, %v, want one of %v", x.Input, id, err, x.Classes)
		}
	}
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
	count(t, v.Lenient, 11)
	for _, x := range v.Lenient {
		if id, err := flake.ParseLenient(x.Input); err != nil || id.String() != x.Canonical {
			t.Errorf("ParseLenient(%q) = %v, %v, want %s", x.Input, id, err, x.Canonical)
		}
		id, err := flake.Parse(x.Input)
		if x.StrictAccepts {
			if err != nil || id.String() != x.Canonical {
				t.Errorf("Parse(%q) = %v, %v, want %s", x.Input, id, err, x.Canonical)
			}
			continue
		}
		wantClass(t, err, x.StrictClasses)
	}
}
