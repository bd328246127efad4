package ulid_test

import (
	"bytes"
	"encoding/binary"
	"math/big"
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

func bytesOf(id ulid.ID) []byte {
	b := id.Bytes()
	return b[:]
}

// checkForms fails unless every form of id reads back as id.
func checkForms(t *testing.T, id ulid.ID) {
	t.Helper()
	for form, parse := range map[string]func() (ulid.ID, error){
		"text":    func() (ulid.ID, error) { return ulid.Parse(strings.ToLower(id.String())) },
		"lenient": func() (ulid.ID, error) { return ulid.ParseLenient("-" + id.String()) },
		"UUID":    func() (ulid.ID, error) { return ulid.ParseUUID(strings.ToUpper(id.UUID())) },
		"hex":     func() (ulid.ID, error) { return ulid.ParseHex(id.Hex()) },
		"u128":    func() (ulid.ID, error) { return ulid.ParseUint128(id.Uint128()) },
		"fields":  func() (ulid.ID, error) { return ulid.Make(id.UnixMilli(), id.Randomness()) },
		"bytes":   func() (ulid.ID, error) { return ulid.FromBytes(bytesOf(id)) },
		"array":   func() (ulid.ID, error) { return ulid.FromArray(id.Bytes()), nil },
		"JSON": func() (out ulid.ID, err error) {
			js, _ := id.MarshalJSON()
			err = out.UnmarshalJSON(js)
			return out, err
		},
		"SQL": func() (out ulid.ID, err error) {
			v, _ := id.Value()
			err = out.Scan(v)
			return out, err
		},
	} {
		if got, err := parse(); err != nil || got != id {
			t.Fatalf("%s from %s: %s, %v", id.Hex(), form, got.Hex(), err)
		}
	}
	if f, err := id.ForceV7().Flake(flake.Format{Layout: flake.Scalable}); err == nil {
		back, err := ulid.FromFlake(flake.Format{Layout: flake.Scalable}, f, binary.BigEndian.Uint64(bytesOf(id)[8:]))
		if err != nil || back != id.ForceV7() {
			t.Fatalf("%s from its flake: %s, %v", id.ForceV7().UUID(), back.UUID(), err)
		}
	}
}

// A codec is one form's parser and writer, and what a fuzz test holds them to.
type codec struct {
	parse func(string) (ulid.ID, error)
	write func(ulid.ID) string
	same  func(string) string                                 // the text write would have given; nil: s itself
	check func(t *testing.T, s string, id ulid.ID, err error) // nil: nothing more
}

// fuzz checks what c's parser accepts: every form reads back, and what is
// written is, but for case, what was read.
func (c codec) fuzz(f *testing.F, seeds ...string) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := c.parse(s)
		if c.check != nil {
			c.check(t, s, id, err)
		}
		if err != nil {
			if !id.IsZero() {
				t.Fatalf("%q: %s with %v", s, id.Hex(), err)
			}
			return
		}
		checkForms(t, id)
		want := s
		if c.same != nil {
			want = c.same(s)
		}
		if got := c.write(id); !strings.EqualFold(got, want) {
			t.Fatalf("%q is written %s", s, got)
		}
	})
}

func FuzzParse(f *testing.F) {
	v := load(f)
	for _, x := range v.ULID {
		f.Add(x.ULID)
	}
	for _, x := range v.InvalidStrings {
		f.Add(x.Input)
	}
	codec{parse: ulid.Parse, write: ulid.ID.String, check: func(t *testing.T, s string, id ulid.ID, err error) {
		if want, ok := slowParse(s); ok != (err == nil) || id != want {
			t.Fatalf("Parse(%q) = %s, %v, a digit at a time it is %s, %v", s, id.Hex(), err, want.Hex(), ok)
		}
	}}.fuzz(f)
}

// slowParse is Parse as one would do it on paper.
func slowParse(s string) (id ulid.ID, ok bool) {
	if len(s) != 26 || s[0] > '7' {
		return id, false
	}
	v := new(big.Int)
	for i := range len(s) {
		d := strings.IndexByte("0123456789ABCDEFGHJKMNPQRSTVWXYZ", s[i])
		if d < 0 {
			d = strings.IndexByte("0123456789abcdefghjkmnpqrstvwxyz", s[i])
		}
		if d < 0 {
			return id, false
		}
		v.Lsh(v, 5).Add(v, big.NewInt(int64(d)))
	}
	var b [16]byte
	v.FillBytes(b[:])
	return ulid.FromArray(b), true
}

func FuzzParseLenient(f *testing.F) {
	fold := strings.NewReplacer("-", "", "I", "1", "i", "1", "L", "1", "l", "1", "O", "0", "o", "0").Replace
	for _, x := range load(f).Lenient {
		f.Add(x.Input)
	}
	codec{parse: ulid.ParseLenient, write: ulid.ID.String, same: fold}.fuzz(f)
}

func FuzzParseUUID(f *testing.F) {
	for _, x := range load(f).UUIDv7 {
		f.Add(x.UUID)
	}
	codec{parse: ulid.ParseUUID, write: ulid.ID.UUID}.fuzz(f, someUUID, someHex, "{"+someUUID+"}")
}

func FuzzParseHex(f *testing.F) {
	codec{parse: ulid.ParseHex, write: ulid.ID.Hex}.fuzz(f, someHex, "0x"+someHex[2:], "")
}

func FuzzParseUint128(f *testing.F) {
	zeros := func(s string) string {
		if s = strings.TrimLeft(s, "0"); s == "" {
			return "0"
		}
		return s
	}
	refused := func(t *testing.T, s string, _ ulid.ID, err error) {
		v, ok := new(big.Int).SetString(s, 10)
		if err != nil && ok && strings.Trim(s, "0123456789") == "" && v.BitLen() <= 128 {
			t.Fatalf("ParseUint128(%q): %v", s, err)
		}
	}
	codec{parse: ulid.ParseUint128, write: ulid.ID.Uint128, same: zeros, check: refused}.fuzz(f, "0",
		"340282366920938463463374607431768211455", "340282366920938463463374607431768211456", "-1", "")
}

func FuzzUnmarshalJSON(f *testing.F) {
	parse := func(s string) (ulid.ID, error) {
		var id ulid.ID
		if s == "null" { // leaves id as it is, and is written otherwise
			return id, ulid.ErrJSON
		}
		err := id.UnmarshalJSON([]byte(s))
		return id, err
	}
	write := func(id ulid.ID) string { return `"` + id.String() + `"` }
	codec{parse: parse, write: write}.fuzz(f, `"`+someULID+`"`, "null", `""`, `"`, "12")
}

func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"", "0000000000", "01JGFJJZ00", "7ZZZZZZZZZ", "8000000000", "01jgfjjz0u", "01JGFJJZ0\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ms, err := ulid.ParseTime(s)
		id, ok := slowParse(s + strings.Repeat("0", 16))
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
	for _, n := range []int{0, 8, 15, 17} {
		f.Add(make([]byte, n))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := ulid.FromBytes(b)
		read := otherID
		if also := read.UnmarshalBinary(b); class(also) != class(err) || err == nil && read != id || err != nil && read != otherID {
			t.Fatalf("UnmarshalBinary(%x): %v, ID now %s; FromBytes: %s, %v", b, also, read, id, err)
		}
		if ok := len(b) == ulid.BinaryLen; ok != (err == nil) || !ok && id != (ulid.ID{}) {
			t.Fatalf("FromBytes(%x) = %s, %v", b, id, err)
		}
		if err == nil {
			if string(bytesOf(id)) != string(b) {
				t.Fatalf("FromBytes(%x) = %s", b, id.Hex())
			}
			checkForms(t, id)
		}
	})
}

// Scan reads what Parse, ParseUUID and FromBytes read, and tells them apart.
func FuzzScan(f *testing.F) {
	f.Add([]byte(someULID))
	f.Add([]byte(someUUID))
	f.Add([]byte("0123456789abcdef"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var want ulid.ID
		err := ulid.ErrLength
		switch len(b) {
		case ulid.TextLen:
			want, err = ulid.Parse(string(b))
		case ulid.UUIDLen:
			want, err = ulid.ParseUUID(string(b))
		case ulid.BinaryLen:
			want, err = ulid.FromBytes(b)
		}
		got := otherID
		if gotErr := got.Scan(b); (gotErr == nil) != (err == nil) || err == nil && got != want || err != nil && got != otherID {
			t.Fatalf("Scan(%q) = %s, %v, want %s, %v", b, got, gotErr, want, err)
		}
	})
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
