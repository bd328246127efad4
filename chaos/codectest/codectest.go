// Package codectest tests what an ID of package flake and one of package ulid do
// alike. Only tests import it.
package codectest

import (
	"bytes"
	"database/sql"
	"database/sql/driver"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// An ID is written in each of these forms.
type ID interface {
	comparable
	fmt.Stringer
	encoding.TextAppender
	encoding.TextMarshaler
	encoding.BinaryAppender
	encoding.BinaryMarshaler
	json.Marshaler
	driver.Valuer
}

// A Reader is a pointer to an ID, which reads each of these forms.
type Reader[I any] interface {
	*I
	encoding.TextUnmarshaler
	encoding.BinaryUnmarshaler
	json.Unmarshaler
	sql.Scanner
}

// Kind is a type of IDs.
type Kind[I ID, R Reader[I]] struct {
	Size           int // bytes of the binary form
	Kept           I   // any ID, which must be left by what cannot be read
	Parse, Lenient func(string) (I, error)
	FromBytes      func([]byte) (I, error)
	// Errors are the package's, by the names that the vectors have for them.
	Errors map[string]error
	// Forms parses the forms of an ID that are not among those of the interfaces.
	Forms   func(id I) map[string]func() (I, error)
	Compare func(a, b I) int
}

// Class is the vectors' name of err.
func (k Kind[I, R]) Class(err error) string {
	for name, e := range k.Errors {
		if errors.Is(err, e) {
			return name
		}
	}
	return "none"
}

// CheckForms fails unless every form of id reads back as id.
func (k Kind[I, R]) CheckForms(t *testing.T, id I) {
	t.Helper()
	text, err1 := id.MarshalText()
	js, err2 := id.MarshalJSON()
	bin, err3 := id.MarshalBinary()
	v, err4 := id.Value()
	if err := errors.Join(err1, err2, err3, err4); err != nil || string(text) != id.String() || len(bin) != k.Size {
		t.Fatalf("%v: %q %q %x, %v", id, text, js, bin, err)
	}
	for form, read := range map[string]func(R) error{
		"text":   func(r R) error { return r.UnmarshalText(text) },
		"JSON":   func(r R) error { return r.UnmarshalJSON(js) },
		"binary": func(r R) error { return r.UnmarshalBinary(bin) },
		"SQL":    func(r R) error { return r.Scan(v) },
	} {
		var got I
		if err := read(&got); err != nil || got != id {
			t.Fatalf("%v from %s: %v, %v", id, form, got, err)
		}
	}
	forms := k.Forms(id)
	forms["lower case"] = func() (I, error) { return k.Parse(strings.ToLower(id.String())) }
	forms["lenient"] = func() (I, error) { return k.Lenient("-" + id.String()) }
	for form, parse := range forms {
		if got, err := parse(); err != nil || got != id {
			t.Fatalf("%v from %s: %v, %v", id, form, got, err)
		}
	}
}

// Slow is Parse as one would do it on paper.
func (k Kind[I, R]) Slow(s string) (id I, ok bool) {
	if len(s) != (8*k.Size+4)/5 || s[0] > '7' {
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
	return id, R(&id).UnmarshalBinary(v.FillBytes(make([]byte, k.Size))) == nil
}

// ParseEveryByte: every byte at every place, between characters of both ends and
// cases, is read as one would on paper.
func (k Kind[I, R]) ParseEveryByte(t *testing.T) {
	for _, around := range []string{"0", "Z", "z", "7"} {
		for c := range 256 {
			for at := range (8*k.Size + 4) / 5 {
				b := []byte(strings.Repeat(around, (8*k.Size+4)/5))
				b[0] = '5'
				b[at] = byte(c)
				id, err := k.Parse(string(b))
				if want, ok := k.Slow(string(b)); ok != (err == nil) || id != want {
					t.Fatalf("Parse(%q) = %v, %v, want %v, %v", b, id, err, want, ok)
				}
			}
		}
	}
}

// Fold writes the characters that ParseLenient accepts as those of the alphabet.
var Fold = strings.NewReplacer("-", "", "I", "1", "i", "1", "L", "1", "l", "1", "O", "0", "o", "0").Replace

// FuzzParse: Parse is Slow; Lenient is strict after an obvious rewriting, and never less.
func (k Kind[I, R]) FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		id, err := k.Parse(s)
		if want, ok := k.Slow(s); ok != (err == nil) || id != want {
			t.Fatalf("Parse(%q) = %v, %v, a digit at a time it is %v, %v", s, id, err, want, ok)
		}
		if err == nil {
			k.CheckForms(t, id)
			if !strings.EqualFold(id.String(), s) {
				t.Fatalf("Parse(%q) is written %v", s, id)
			}
		}
		want, wantErr := k.Parse(Fold(s))
		if got, err := k.Lenient(s); got != want || k.Class(err) != k.Class(wantErr) {
			t.Fatalf("ParseLenient(%q) = %v, %v, want %v, %v", s, got, err, want, wantErr)
		}
	})
}

// FuzzText checks what parse accepts: every form reads back, and what write gives
// is, but for case, what canonical makes of the text that was read.
func (k Kind[I, R]) FuzzText(f *testing.F, parse func(string) (I, error), write func(I) string,
	canonical func(string) string, seeds ...string) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := parse(s)
		if err != nil {
			if id != *new(I) {
				t.Fatalf("%q: %v with %v", s, id, err)
			}
			return
		}
		k.CheckForms(t, id)
		if got := write(id); !strings.EqualFold(got, canonical(s)) {
			t.Fatalf("%q is written %s", s, got)
		}
	})
}

// Digits is the number that s writes, without zeros in front.
func Digits(s string) string {
	if s = strings.TrimLeft(s, "0"); s == "" {
		return "0"
	}
	return s
}

// FuzzBytes: FromBytes and UnmarshalBinary accept what valid says, and write it again.
func (k Kind[I, R]) FuzzBytes(f *testing.F, valid func([]byte) bool) {
	for _, n := range []int{0, 7, 8, 9, 15, 16, 17} {
		f.Add(make([]byte, n))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := k.FromBytes(b)
		read := k.Kept
		also := R(&read).UnmarshalBinary(b)
		want, none := id, id
		if err != nil {
			want, none = k.Kept, *new(I)
		}
		if k.Class(also) != k.Class(err) || read != want || id != none {
			t.Fatalf("UnmarshalBinary(%x): %v, ID now %v; FromBytes: %v, %v", b, also, read, id, err)
		}
		if valid(b) != (err == nil) {
			t.Fatalf("FromBytes(%x): %v", b, err)
		}
		if err == nil {
			k.CheckForms(t, id)
			if got, _ := id.MarshalBinary(); !bytes.Equal(got, b) {
				t.Fatalf("FromBytes(%x) is written %x", b, got)
			}
		}
	})
}

// FuzzJSON: what UnmarshalJSON accepts is written so, and what it refuses changes nothing.
func (k Kind[I, R]) FuzzJSON(f *testing.F) {
	good, _ := k.Kept.MarshalJSON()
	for _, s := range []string{string(good), `null`, `123`, `""`, `"`, `"00CMXB6TAK4S\u0041"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		id := k.Kept
		err := R(&id).UnmarshalJSON(b)
		switch {
		case err != nil || string(b) == "null":
			if id != k.Kept {
				t.Fatalf("UnmarshalJSON(%q) left %v, %v", b, id, err)
			}
		default:
			k.CheckForms(t, id)
			if js, _ := id.MarshalJSON(); !strings.EqualFold(string(js), string(b)) {
				t.Fatalf("UnmarshalJSON(%q) is written %s", b, js)
			}
		}
	})
}

// FuzzScan: Scan reads bytes as read does, and refusing changes nothing.
func (k Kind[I, R]) FuzzScan(f *testing.F, read func([]byte) (I, error), seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want, err := read(b)
		if err != nil {
			want = k.Kept
		}
		got := k.Kept
		if gotErr := R(&got).Scan(b); k.Class(gotErr) != k.Class(err) || got != want {
			t.Fatalf("Scan(%q) = %v, %v, want %v, %v", b, got, gotErr, want, err)
		}
	})
}

// Invalid is a text or a field that vectors.json says must be refused.
type Invalid struct {
	Input   string   `json:"input"`
	Field   string   `json:"field"`
	Layout  string   `json:"layout"`
	Value   string   `json:"value"`
	Classes []string `json:"classes"`
}

// Lenient is a text that ParseLenient accepts.
type Lenient struct {
	Input         string   `json:"input"`
	Canonical     string   `json:"canonical"`
	StrictAccepts bool     `json:"strict_accepts"`
	StrictClasses []string `json:"strict_classes"`
}

// HexBytes are written in hexadecimal digits.
type HexBytes []byte

// UnmarshalText reads hexadecimal digits.
func (h *HexBytes) UnmarshalText(b []byte) (err error) {
	*h, err = hex.DecodeString(string(b))
	return err
}

// Vectors reads testdata/vectors/vectors.json for a package one directory below the root.
func Vectors(t testing.TB, v any) {
	t.Helper()
	b, err := os.ReadFile("../testdata/vectors/vectors.json")
	fatal.If(t, err)
	fatal.If(t, json.Unmarshal(b, v))
}

// Count fails the test if a section was not read, or has shrunk.
func Count[T any](t *testing.T, section []T, want int) {
	t.Helper()
	if len(section) != want {
		t.Fatalf("section has %d vectors, want %d", len(section), want)
	}
}

// InvalidVectors fails unless the texts are refused with one of their classes: for a
// text that is both too long and not ASCII the first listed class counts characters,
// and rule 1 of the parsers bytes.
func (k Kind[I, R]) InvalidVectors(t *testing.T, section []Invalid) {
	for _, x := range section {
		id, err := k.Parse(x.Input)
		if id != *new(I) || !slices.Contains(x.Classes, k.Class(err)) {
			t.Errorf("Parse(%q) = %v, %v, want one of %v", x.Input, id, err, x.Classes)
		}
		if err := R(&id).UnmarshalText([]byte(x.Input)); id != *new(I) || !slices.Contains(x.Classes, k.Class(err)) {
			t.Errorf("UnmarshalText(%q) = %v, %v, want one of %v", x.Input, id, err, x.Classes)
		}
	}
}

// LenientVectors fails unless Lenient reads each text, and Parse those that it must.
func (k Kind[I, R]) LenientVectors(t *testing.T, section []Lenient) {
	for _, x := range section {
		if id, err := k.Lenient(x.Input); err != nil || id.String() != x.Canonical {
			t.Errorf("ParseLenient(%q) = %v, %v, want %s", x.Input, id, err, x.Canonical)
		}
		id, err := k.Parse(x.Input)
		if x.StrictAccepts {
			if err != nil || id.String() != x.Canonical {
				t.Errorf("Parse(%q) = %v, %v, want %s", x.Input, id, err, x.Canonical)
			}
		} else if got := k.Class(err); got != x.StrictClasses[0] {
			t.Errorf("Parse(%q): class %s (%v), want %v", x.Input, got, err, x.StrictClasses)
		}
	}
}
