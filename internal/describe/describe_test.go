package describe_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/ulid"
)

type invalid struct {
	Input   string   `json:"input"`
	Classes []string `json:"classes"`
}

type lenient struct {
	Input     string `json:"input"`
	Canonical string `json:"canonical"`
	Strict    bool   `json:"strict_accepts"`
}

type answers struct {
	Meta struct {
		Classes []string `json:"error_classes"`
	} `json:"meta"`
	Standalone []map[string]any `json:"flake_standalone"`
	Scalable   []map[string]any `json:"flake_scalable"`
	ULID       []map[string]any `json:"ulid"`
	UUIDv7     []map[string]any `json:"uuid_v7"`
	BadFlake   []invalid        `json:"flake_invalid_strings"`
	BadInt     []invalid        `json:"flake_invalid_ints"`
	BadULID    []invalid        `json:"ulid_invalid_strings"`
	LooseFlake []lenient        `json:"flake_lenient"`
	LooseULID  []lenient        `json:"ulid_lenient"`
}

func load(t testing.TB) answers {
	t.Helper()
	b, err := os.ReadFile("../../testdata/vectors/vectors.json")
	fatal.If(t, err)
	var a answers
	fatal.If(t, json.Unmarshal(b, &a))
	return a
}

// fieldsOf returns the names of the fields of an ID's JSON in order, and the object.
func fieldsOf(t testing.TB, id describe.ID, f flake.Format) ([]string, map[string]any) {
	t.Helper()
	b := describe.AppendJSON(nil, id, f)
	var names []string
	d := json.NewDecoder(bytes.NewReader(b))
	_, _ = d.Token()
	for d.More() {
		name, _ := d.Token()
		names = append(names, name.(string))
		var skip json.RawMessage
		fatal.If(t, d.Decode(&skip))
	}
	var m map[string]any
	fatal.If(t, json.Unmarshal(b, &m))
	return names, m
}

// same fails unless the fields that the known answer names are in got.
func same(t *testing.T, what string, got, want map[string]any, names map[string]string) {
	t.Helper()
	for theirs, ours := range names {
		if g, w := fmt.Sprint(got[ours]), fmt.Sprint(want[theirs]); g != w {
			t.Errorf("%s: %s is %s, want %s", what, ours, g, w)
		}
	}
}

// TestKnownAnswers takes every form of every known answer apart.
func TestKnownAnswers(t *testing.T) {
	a := load(t)
	names := map[string]string{
		"base32": "base32", "int": "int", "hex": "hex", "bin": "bin", "bytes_hex": "bytes_hex",
		"ts_ms": "timestamp_ms", "unix_ms": "unix_ms", "time": "time", "randomness": "randomness", "sid": "sid",
	}
	order := strings.Fields("kind layout base32 int hex bin bytes_hex timestamp_ms unix_ms time randomness sid")
	for layout, list := range map[flake.Layout][]map[string]any{flake.Standalone: a.Standalone, flake.Scalable: a.Scalable} {
		f := flake.Format{Layout: layout, Epoch: flake.DefaultEpoch}
		for _, v := range list {
			for kind, form := range map[describe.Kind]string{describe.Auto: "base32", describe.Flake: "base32", describe.Int: "int", describe.Hex: "hex"} {
				id, err := describe.Parse(v[form].(string), kind, f)
				fatal.If(t, err)
				fields, got := fieldsOf(t, id, f)
				want := order
				if layout == flake.Standalone {
					want = order[:len(order)-1] // it has no sid
				}
				if !slices.Equal(fields, want) {
					t.Fatalf("fields %v, want %v", fields, want)
				}
				same(t, v["base32"].(string), got, v, names)
			}
		}
	}
	order = strings.Fields("kind ulid uuid u128 bytes_hex unix_ms time randomness_hex issued_here flake")
	for _, v := range slices.Concat(a.ULID, a.UUIDv7) {
		for _, form := range []string{"ulid", "uuid"} {
			id, err := describe.Parse(v[form].(string), "", flake.Default)
			fatal.If(t, err)
			fields, got := fieldsOf(t, id, flake.Default)
			want := order
			if form == "uuid" {
				of := []string{"uuid_version", "uuid_variant"}
				if got["uuid_variant"] != describe.RFC9562 {
					of = of[1:]
				}
				want = slices.Concat(order[:8], of, order[8:])
			}
			if !slices.Equal(fields, want) || got["kind"] != form {
				t.Fatalf("fields %v of a %v, want %v of a %s", fields, got["kind"], want, form)
			}
			names := map[string]string{"ulid": "ulid", "uuid": "uuid", "u128": "u128", "unix_ms": "unix_ms"}
			if _, ok := v["randomness_hex"]; ok {
				names["randomness_hex"], names["time"], names["bytes_hex"] = "randomness_hex", "time", "bytes_hex"
			}
			if form == "uuid" && !id.Wide.IsV7() {
				delete(names, "time")
				if got["time"] != nil {
					t.Errorf("%s is no UUIDv7, and has the time %v", v["uuid"], got["time"])
				}
			}
			same(t, v["ulid"].(string), got, v, names)
			_, err = id.Wide.Flake(flake.Default)
			if (got["flake"] != nil) != (err == nil) || (got["issued_here"] == describe.Possible) != (err == nil) {
				t.Errorf("%s: flake %v, issued here %v, but %v", v["ulid"], got["flake"], got["issued_here"], err)
			}
		}
	}
}

// TestWide: the flake within is shown as a flake is.
func TestWide(t *testing.T) {
	id, err := flake.Default.Make(1_769_904_000_123, 77, 7)
	fatal.If(t, err)
	w, err := ulid.FromFlake(flake.Default, id, 1<<63+12345)
	fatal.If(t, err)
	parsed, err := describe.Parse(w.UUID(), describe.Auto, flake.Default)
	fatal.If(t, err)
	within := describe.AppendJSON(nil, parsed, flake.Default)
	alone := describe.AppendJSON([]byte(`"flake":`), describe.ID{Kind: describe.Flake, Flake: id}, flake.Default)
	if !bytes.HasSuffix(within, append(alone, '}')) {
		t.Errorf("within %s, alone %s", within, alone)
	}
	if got, err := parsed.AsFlake(flake.Default); got != id || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if dec, err := describe.Parse(w.Uint128(), describe.U128, flake.Default); err != nil || dec.Wide != w || dec.Kind != describe.ULID {
		t.Errorf("from a decimal: %+v, %v", dec, err)
	}
	if _, err := describe.ParseKind("u128"); err == nil {
		t.Error("u128 is a kind of every surface; the contracts do not list it")
	}
	if hex, err := describe.Parse(w.Hex(), describe.Hex, flake.Default); err != nil || hex.Wide != w || hex.Kind != describe.ULID {
		t.Errorf("from 32 digits: %+v, %v", hex, err)
	}
}

// TestClasses: every input that must be refused is, with the class that known
// answers prefer, through the kind and through Auto.
func TestClasses(t *testing.T) {
	a := load(t)
	known := append(a.Meta.Classes, "not_v7", "bad_kind", "bad_layout", "invalid")
	check := func(kind describe.Kind, list []invalid) {
		t.Helper()
		for _, v := range list {
			_, err := describe.Parse(v.Input, kind, flake.Default)
			if got := describe.Class(err); !slices.Contains(v.Classes, got) || !slices.Contains(known, got) {
				t.Errorf("%q as %s: %q, want one of %v", v.Input, kind, got, v.Classes)
			}
		}
	}
	check(describe.Flake, a.BadFlake)
	check(describe.Auto, a.BadFlake)
	check(describe.Int, a.BadInt)
	check(describe.ULID, a.BadULID)
	check(describe.Auto, a.BadULID)
	check(describe.UUID, []invalid{
		{"", []string{"bad_uuid"}}, {"017f22e2-79b0-7cc3-98c4-dc0c0c07398", []string{"bad_uuid"}},
		{"017f22e2x79b0-7cc3-98c4-dc0c0c07398f", []string{"bad_uuid"}}, {"017f22e279b07cc398c4dc0c0c07398", []string{"bad_uuid"}},
		{"urn:uuid:017f22e279b07cc398c4dc0c0c07398f", []string{"bad_uuid"}}, {"urn:uuid:urn:uuid:017f22e2-79b0-7cc3-98c4-dc0c0c07398f", []string{"bad_uuid"}},
	})
	check(describe.Auto, []invalid{
		{"-1", []string{"out_of_range"}}, {"9223372036854775808", []string{"out_of_range"}}, {"12a", []string{"bad_length"}},
		{"0x", []string{"bad_length"}}, {"0x1G", []string{"bad_char"}}, {"-", []string{"bad_length"}}, {"٣", []string{"bad_length"}},
		{"017f22e2-79b0-7cc3-98c4-dc0c0c07398g", []string{"bad_uuid"}},
	})
	check(describe.Hex, []invalid{
		{"1F", []string{"bad_length"}}, {"0x8000000000000000", []string{"out_of_range"}}, {"0xG", []string{"bad_char"}},
		{"0x", []string{"bad_length"}}, {strings.Repeat("g", 32), []string{"bad_char"}},
	})
	check(describe.U128, []invalid{
		{"", []string{"bad_char"}}, {"340282366920938463463374607431768211456", []string{"out_of_range"}}, {"0x1", []string{"bad_char"}},
	})
	check("base64", []invalid{{"0000000000000", []string{"bad_kind"}}})
	if _, err := describe.ParseKind("Flake"); describe.Class(err) != "bad_kind" {
		t.Errorf("%v", err)
	}
	for class, err := range map[string]error{"": nil, "invalid": os.ErrNotExist, "bad_sid": fmt.Errorf("x: %w", flake.ErrSID)} {
		if got := describe.Class(err); got != class {
			t.Errorf("%v: %q, want %q", err, got, class)
		}
	}
}

// TestLenient: what people may have meant is read when asked for, and only
// then.
func TestLenient(t *testing.T) {
	a := load(t)
	for kind, list := range map[describe.Kind][]lenient{describe.Flake: a.LooseFlake, describe.ULID: a.LooseULID} {
		for _, v := range list {
			for _, k := range []describe.Kind{kind, describe.Auto} {
				id, err := describe.ParseLenient(v.Input, k, flake.Default)
				if err != nil || text(id) != v.Canonical {
					t.Errorf("%q as %s: %s, %v, want %s", v.Input, k, text(id), err, v.Canonical)
				}
			}
			if _, err := describe.Parse(v.Input, kind, flake.Default); (err == nil) != v.Strict {
				t.Errorf("%q, strict: %v", v.Input, err)
			}
		}
	}
	for _, c := range []struct {
		in   string
		kind describe.Kind
	}{
		{"017f22e2-79b0-7cc3-98c4-dc0c0c07398f", describe.UUID}, // the shape goes first, though hyphens may be anywhere
		{"01FWHE4YDG-FK1SHH6W1G60EECF", describe.ULID},
		{"00CM-XB6T-AK4SA", describe.Flake},
		{"123", describe.Flake}, // an integer is a flake
		{"0-0-C-M-X-B-6-T-A-K-4-S-A", describe.Flake},
	} {
		if id, err := describe.ParseLenient(c.in, describe.Auto, flake.Default); err != nil || id.Kind != c.kind {
			t.Errorf("%q: %s, %v, want %s", c.in, id.Kind, err, c.kind)
		}
	}
	for in, class := range map[string]string{
		"12-3": "bad_length", "-1": "out_of_range", "00CMXB6TAK4SU": "bad_char", "": "bad_length",
		"017f22e2-79b0-7cc3-98c4-dc0c0c07398g": "bad_uuid",
	} {
		if _, err := describe.ParseLenient(in, describe.Auto, flake.Default); describe.Class(err) != class {
			t.Errorf("%q: %v, want %s", in, err, class)
		}
	}
}

// text writes a parsed ID in its own form.
func text(id describe.ID) string {
	switch id.Kind {
	case describe.ULID:
		return id.Wide.String()
	case describe.UUID:
		return id.Wide.UUID()
	}
	return id.Flake.String()
}

// whole fails unless the JSON of an ID has what the packages of IDs and the standard library write of each part.
func whole(t testing.TB, id describe.ID, f flake.Format) {
	t.Helper()
	b := describe.AppendJSON([]byte("x"), id, f)[1:]
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var got map[string]any
	if err := d.Decode(&got); err != nil || !json.Valid(b) {
		t.Fatalf("%s: %v", b, err)
	}
	ms := f.UnixMilli(id.Flake)
	if id.IsWide() {
		ms = id.Wide.UnixMilli()
	}
	want := map[string]any{"kind": string(id.Kind), "unix_ms": json.Number(fmt.Sprint(ms)), "time": nil}
	if at := time.UnixMilli(ms).UTC(); at.Year() >= 0 && at.Year() <= 9999 && (id.Kind != describe.UUID || id.Wide.IsV7()) {
		want["time"] = at.Format("2006-01-02T15:04:05.000Z")
	}
	if w := id.Wide; id.IsWide() {
		r := w.Randomness()
		want["ulid"], want["uuid"], want["u128"], want["bytes_hex"] = w.String(), w.UUID(), w.Uint128(), w.Hex()
		want["randomness_hex"], want["issued_here"], want["flake"] = hex.EncodeToString(r[:]), describe.No, nil
		if version, variant := describe.Version(w); id.Kind == describe.UUID {
			if want["uuid_variant"] = variant; variant == describe.RFC9562 {
				want["uuid_version"] = json.Number(fmt.Sprint(version))
			}
		}
		if low, err := w.Flake(f); err == nil {
			of := describe.ID{Kind: describe.Flake, Flake: low}
			whole(t, of, f)
			if !bytes.HasSuffix(b, append(describe.AppendJSON([]byte(`"flake":`), of, f), '}')) {
				t.Fatalf("the flake in %s", b)
			}
			want["issued_here"], want["flake"] = describe.Possible, got["flake"]
		}
	} else {
		k := id.Flake
		want["layout"], want["base32"], want["int"], want["hex"] = f.Layout.String(), k.String(), fmt.Sprint(k.Int64()), k.Hex()
		want["bin"], want["bytes_hex"] = k.Bin(), fmt.Sprintf("%016x", k.Int64())
		want["timestamp_ms"], want["randomness"] = json.Number(fmt.Sprint(ms-f.Epoch)), json.Number(fmt.Sprint(f.Entropy(k)))
		if f.Layout.SIDBits() > 0 {
			want["sid"] = json.Number(fmt.Sprint(f.SID(k)))
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
}

// TestAppendJSON: the JSON has every part as others write it, in every
// layout, for flakes and for wide IDs with one, with one before the epoch and
// without, and at the ends of the calendar.
func TestAppendJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	for i := range 2000 {
		f := flake.Format{Layout: []flake.Layout{flake.Scalable, flake.Standalone, flake.Fleet}[i%3], Epoch: flake.DefaultEpoch - r.Int64N(1<<41)}
		low := flake.ID(r.Uint64() >> (1 + r.IntN(63)))
		whole(t, describe.ID{Kind: describe.Flake, Flake: low}, f)
		var b [ulid.BinaryLen]byte
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if i%4 == 0 {
			b[0] = 0 // years that RFC 3339 has
		}
		w := ulid.FromArray(b)
		for _, w := range []ulid.ID{w, w.ForceV7()} {
			whole(t, describe.ID{Kind: describe.ULID, Wide: w}, f)
			whole(t, describe.ID{Kind: describe.UUID, Wide: w}, f)
		}
		if within, err := ulid.FromFlake(f, low, r.Uint64()); err == nil {
			whole(t, describe.ID{Kind: describe.ULID, Wide: within}, f)
		}
	}
}

// TestAppendTime: as the standard library writes it, to the end of its years.
// Every way to write a UUID gives the same, and so does every way to write a flake.
func TestOtherForms(t *testing.T) {
	for _, c := range []struct {
		want  string
		kind  describe.Kind
		forms []string
	}{
		{"017f22e2-79b0-7cc3-98c4-dc0c0c07398f", describe.UUID, []string{
			"017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "017F22E279B07CC398C4DC0C0C07398F", "urn:uuid:017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "URN:UUID:017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
		}},
		{"17", describe.Flake, []string{"17", "0x11", "0x0000000000000011"}},
		{"32", describe.Flake, []string{"0x20", "0000000000010"}},
	} {
		for _, form := range c.forms {
			id, err := describe.Parse(form, describe.Auto, flake.Default)
			got := string(id.Flake.AppendInt(nil))
			if id.IsWide() {
				got = id.Wide.UUID()
			}
			if err != nil || id.Kind != c.kind || got != c.want {
				t.Errorf("%s: %s of kind %s, %v, want %s", form, got, id.Kind, err, c.want)
			}
		}
	}
}

func TestAppendTime(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 11))
	for _, ms := range []int64{0, -1, -62167219200000, 253402300799999, 951782399999, 951868800000} {
		check := func(ms int64) {
			got, ok := describe.AppendTime(nil, ms)
			if want := time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z"); !ok || string(got) != want {
				t.Fatalf("%d: %s, %v, want %s", ms, got, ok, want)
			}
		}
		check(ms)
		for range 1000 {
			check(r.Int64N(253402300799999+62167219200000) - 62167219200000)
		}
	}
	for _, ms := range []int64{-62167219200001, 253402300800000} {
		if got, ok := describe.AppendTime([]byte("x"), ms); ok || string(got) != "x" || describe.Time(ms) != nil {
			t.Errorf("%d: %s, %v", ms, got, ok)
		}
	}
}

// FuzzParse: whatever is read can be written and read again, and is described
// in forms that all read as the same ID.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "0", "1000000000000", "01XA2VP000037", "01FWHE4YDGFK1SHH6W1G60EECF", "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "-1", "0x1"} {
		for i := range describe.Kinds {
			f.Add(s, uint8(i), i%2 == 0)
		}
	}
	f.Fuzz(func(t *testing.T, s string, k uint8, loose bool) {
		kind := describe.Kinds[int(k)%len(describe.Kinds)]
		parse := describe.Parse
		if loose {
			parse = describe.ParseLenient
		}
		id, err := parse(s, kind, flake.Default)
		if err != nil {
			if c := describe.Class(err); c == "" || c == "invalid" || id != (describe.ID{}) {
				t.Fatalf("%q as %s: class %q of %v, %+v", s, kind, c, err, id)
			}
			return
		}
		whole(t, id, flake.Default)
		var forms map[string]describe.Kind
		if k := id.Flake; !id.IsWide() {
			forms = map[string]describe.Kind{k.String(): describe.Auto, fmt.Sprint(k.Int64()): describe.Int, k.Hex(): describe.Hex,
				string(k.AppendHex16(nil)): describe.Hex}
		} else {
			forms = map[string]describe.Kind{id.Wide.String(): describe.Auto, id.Wide.UUID(): describe.Auto, id.Wide.Hex(): describe.Hex}
		}
		for form, kind := range forms {
			// 13 digits are a flake or an integer: nobody but the caller knows which.
			if kind == describe.Auto && len(form) == 13 && form[0] != '0' && strings.Trim(form, "0123456789") == "" {
				if _, err := describe.Parse(form, kind, flake.Default); !errors.Is(err, describe.ErrAmbiguous) {
					t.Fatalf("%q: %v", form, err)
				}
				kind = describe.Flake
			}
			again, err := describe.Parse(form, kind, flake.Default)
			if err != nil || again.Flake != id.Flake || again.Wide != id.Wide {
				t.Fatalf("%q as %s: %+v, %v, want %+v", form, kind, again, err, id)
			}
		}
	})
}

// TestThirteenDigits: from 16 minutes to 2 h 39 min after a space's epoch, integers
// have 13 digits, as flakes have characters. They were read as flakes of 34 to 278 years
// after the epoch.
func TestThirteenDigits(t *testing.T) {
	for _, c := range []struct {
		in   string
		kind describe.Kind
		want flake.ID
		err  error
	}{
		{"999999999999", describe.Auto, 999_999_999_999, nil},
		{"1000000000000", describe.Auto, 0, describe.ErrAmbiguous},
		{"7999999999999", describe.Auto, 0, describe.ErrAmbiguous},
		{"9999999999999", describe.Auto, 0, describe.ErrAmbiguous},
		{"10000000000000", describe.Auto, 10_000_000_000_000, nil},
		{"1000000000000", describe.Int, 1_000_000_000_000, nil},
		{"1000000000000", describe.Flake, 1 << 60, nil},
		{"01000000000000", describe.Auto, 1_000_000_000_000, nil},
		{"1152921504606846976", describe.Auto, 1 << 60, nil}, // the flake 1000000000000
		{"0000000000001", describe.Auto, 1, nil},
		{"0000000000010", describe.Auto, 32, nil},
		{"100000000000A", describe.Auto, 1<<60 + 10, nil},
	} {
		for name, parse := range map[string]func(string, describe.Kind, flake.Format) (describe.ID, error){
			"Parse": describe.Parse, "ParseLenient": describe.ParseLenient,
		} {
			id, err := parse(c.in, c.kind, flake.Default)
			if id.Flake != c.want || !errors.Is(err, c.err) {
				t.Errorf("%s(%s, %s) = %d, %v, want %d, %v", name, c.in, c.kind, id.Flake, err, c.want, c.err)
			}
		}
	}
}

// TestShortLayouts: an ID has no more bits than its layout, in any form. Up to 60
// bits, flakes begin with a 0, and 13 other digits are an integer.
func TestShortLayouts(t *testing.T) {
	for _, c := range []struct {
		layout, in string
		kind       describe.Kind
		want       flake.ID
		err        error
	}{
		{"js53", "9007199254740991", describe.Auto, 1<<53 - 1, nil},
		{"js53", "9007199254740992", describe.Auto, 0, flake.ErrRange},
		{"js53", "007ZZZZZZZZZZ", describe.Auto, 1<<53 - 1, nil},
		{"js53", "0080000000000", describe.Auto, 0, flake.ErrRange},
		{"js53", "0x20000000000000", describe.Hex, 0, flake.ErrRange},
		{"js53", "1000000000000", describe.Auto, 1_000_000_000_000, nil},
		{"js53", "0000000000010", describe.Auto, 32, nil},
		{"js53", "1000000000000", describe.Flake, 0, flake.ErrRange},
		{"39/8/13", "9999999999999", describe.Auto, 9_999_999_999_999, nil}, // 60 bits
		{"40/8/13", "9999999999999", describe.Auto, 0, describe.ErrAmbiguous},
		{"40/8/13", "1000000000000", describe.Flake, 1 << 60, nil},
		{"twitter", "7ZZZZZZZZZZZZ", describe.Auto, 1<<63 - 1, nil},
	} {
		f, err := flake.ParseFormat(c.layout)
		fatal.If(t, err)
		for name, parse := range map[string]func(string, describe.Kind, flake.Format) (describe.ID, error){
			"Parse": describe.Parse, "ParseLenient": describe.ParseLenient,
		} {
			id, err := parse(c.in, c.kind, f)
			if id.Flake != c.want || !errors.Is(err, c.err) || err != nil && id != (describe.ID{}) {
				t.Errorf("%s: %s(%s, %s) = %d, %v, want %d, %v", c.layout, name, c.in, c.kind, id.Flake, err, c.want, c.err)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	for text, want := range map[string]string{
		"01a1f9d9-1a9a-7082-a8a2-962be40838f5": "7 RFC 9562", "9f0c1c44-6b1a-4f6e-9b0a-3f1d2c3b4a59": "4 RFC 9562",
		"00000000-0000-0000-0000-000000000000": "0 nil", "01a1f9d9-1a9a-7082-28a2-962be40838f5": "0 NCS",
		"01a1f9d9-1a9a-7082-c8a2-962be40838f5": "0 Microsoft", "01a1f9d9-1a9a-7082-e8a2-962be40838f5": "0 reserved",
	} {
		id, err := describe.Parse(text, describe.UUID, flake.Default)
		fatal.If(t, err)
		if version, variant := describe.Version(id.Wide); fmt.Sprint(version, " ", variant) != want {
			t.Errorf("%s: %d %s, want %s", text, version, variant, want)
		}
	}
}
