package server

import (
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// Form is a text form of IDs. The zero Form is the flake.
type Form uint8

// The forms.
const (
	Flake Form = iota // 13 characters of Base32
	Int               // decimal
	ULID
	UUID
	Number // decimal, and without quotes in JSON
	numForms
)

var forms = [numForms]struct {
	name string
	len  int
}{{"flake", 13}, {"int", 19}, {"ulid", 26}, {"uuid", 36}, {"number", 16}}

// ParseForm returns the form of a name: flake, int, ulid or uuid. Number is not among
// them: only some requests can ask for it, see ParseOrder.
func ParseForm(name string) (Form, bool) {
	for i, f := range forms[:Number] {
		if name == f.name {
			return Form(i), true
		}
	}
	return 0, false
}

// String returns the form's name.
func (f Form) String() string { return forms[f].name }

// Wide reports whether the form has 128 bits, some of them random.
func (f Form) Wide() bool { return f == ULID || f == UUID }

// Len returns the maximum length of an ID in this form, in bytes.
func (f Form) Len() int { return forms[f].len }

// Append appends the text of id, of format space. A wide form takes its random bits
// from random; the others ignore it. Append panics
// if id has no such form: check Limits.Wide first.
func (f Form) Append(text []byte, id flake.ID, space flake.Format, random uint64) []byte {
	switch f {
	case Int, Number:
		return id.AppendInt(text)
	case ULID, UUID:
		w, err := ulid.FromFlake(space, id, random)
		if err != nil {
			panic("server: flake " + id.String() + " has no wide form: " + err.Error())
		}
		if f == UUID {
			return w.AppendUUID(text)
		}
		text, _ = w.AppendText(text) // never fails
		return text
	default:
		text, err := id.AppendText(text)
		if err != nil {
			panic("server: a negative flake was issued: " + err.Error())
		}
		return text
	}
}
