package describe

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// Kind names a form of an ID: the kind that a caller states for the input.
type Kind string

// The kinds.
const (
	Auto  Kind = "auto"  // by length, see Parse
	Flake Kind = "flake" // 13 characters
	Int   Kind = "int"   // decimal, of a flake
	Hex   Kind = "hex"   // 0x and 1 to 16 digits, or 16 digits: a flake; 32 digits: 128 bits
	ULID  Kind = "ulid"  // 26 characters
	UUID  Kind = "uuid"  // 36 characters
	U128  Kind = "u128"  // decimal, of a ULID or UUID; never guessed, and not among Kinds
)

// Kinds lists the kinds that every surface takes, in the order in which people
// are shown them.
var Kinds = []Kind{Auto, Flake, Int, Hex, ULID, UUID}

// ErrKind is returned for a kind that does not exist.
var ErrKind = errors.New("describe: unknown kind")

// ErrAmbiguous is returned for 13 digits without a leading 0, whose kind was not
// stated. They are the integer of an ID of the first three hours of a space, or
// the text of a flake from 34 years after its epoch on.
var ErrAmbiguous = errors.New("describe: 13 digits are an integer or a flake")

// flakeDigit is how many bits are below the first character of a flake: an ID with
// fewer has a 0 there.
const flakeDigit = 5 * (flake.TextLen - 1)

// IsAmbiguous reports whether text can be the integer of a flake and the text of
// another.
func IsAmbiguous[T string | []byte](text T) bool {
	if len(text) != flake.TextLen || text[0] == '0' { // no integer is written with a leading 0
		return false
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return true
}

// ParseKind returns the kind of a name, in that case; "" is Auto. It returns
// ErrKind.
func ParseKind(s string) (Kind, error) {
	if s == "" {
		return Auto, nil
	}
	for _, k := range Kinds {
		if s == string(k) {
			return k, nil
		}
	}
	return "", fmt.Errorf("%w %.20q: use auto, flake, int, hex, ulid or uuid", ErrKind, s)
}

// An ID is a parsed ID of either width.
type ID struct {
	Kind  Kind     // Flake for 64 bits however they were written; ULID or UUID, as written, for 128
	Flake flake.ID // Only an ID of 64 bits has it.
	Wide  ulid.ID  // Only an ID of 128 bits has it.
}

// IsWide reports whether the ID has 128 bits.
func (id ID) IsWide() bool { return id.Kind != Flake }

// AsFlake returns the flake: the ID itself, or the one that a wide ID was
// derived from. f is the format of the space.
//
// It returns the errors of ulid.ID.Flake; the flake is then zero.
func (id ID) AsFlake(f flake.Format) (flake.ID, error) {
	if !id.IsWide() {
		return id.Flake, nil
	}
	return id.Wide.Flake(f)
}

// Parse returns the ID written in input, a text of the given kind ("" is Auto).
//
// Auto goes by length in bytes: 13 is a flake, 26 a ULID, 36 a UUID. urn:uuid:
// and 36 bytes are a UUID too, and so are 32 hexadecimal digits. Other text is an integer
// if it has digits alone (or behind a minus sign, to be refused as out of range),
// and hexadecimal behind 0x: with 11 digits that would be 13 characters, and is
// a flake. 13 digits are a flake if the first is 0; else they could be either, and are
// refused, unless IDs of f have too few bits for such a flake: then they are an integer.
//
// It returns ErrKind, ErrAmbiguous, flake.ErrRange for a flake that has more bits than
// IDs of f, or the errors of packages flake and ulid, which Class names; the ID is then zero.
func Parse(input string, kind Kind, f flake.Format) (ID, error) {
	return parse(input, kind, f, false)
}

// ParseLenient is Parse for typed input: characters may be what people mistake for
// others, and hyphens anywhere are dropped. Auto then looks for the shape of a
// UUID first, and else goes by the length without hyphens. Integers,
// hexadecimal and UUIDs are read as strictly as ever.
func ParseLenient(input string, kind Kind, f flake.Format) (ID, error) {
	return parse(input, kind, f, true)
}

func parse(input string, kind Kind, f flake.Format, lenient bool) (ID, error) {
	id, err := read(input, kind, f, lenient)
	if err == nil && !id.IsWide() {
		err = f.Holds(id.Flake)
	}
	if err != nil {
		return ID{}, err
	}
	return id, nil
}

func read(input string, kind Kind, f flake.Format, lenient bool) (ID, error) {
	switch kind {
	case Auto, "":
		guessed, err := guess(input, f, lenient)
		if err != nil {
			return ID{}, err
		}
		return read(input, guessed, f, lenient)
	case Flake:
		if lenient {
			return narrow(flake.ParseLenient(input))
		}
		return narrow(flake.Parse(input))
	case Int:
		return narrow(flake.ParseInt(input))
	case Hex:
		if len(input) == 2*ulid.BinaryLen {
			return wide(ULID)(ulid.ParseHex(input))
		}
		return narrow(flake.ParseHex(input))
	case ULID:
		if lenient {
			return wide(ULID)(ulid.ParseLenient(input))
		}
		return wide(ULID)(ulid.Parse(input))
	case UUID:
		if isHex128(input) {
			return wide(UUID)(ulid.ParseHex(input))
		}
		return wide(UUID)(ulid.ParseUUID(withoutURN(input)))
	case U128:
		return wide(ULID)(ulid.ParseUint128(input))
	}
	return ID{}, fmt.Errorf("%w %.20q", ErrKind, string(kind))
}

func narrow(id flake.ID, err error) (ID, error) { return ID{Kind: Flake, Flake: id}, err }

func wide(kind Kind) func(ulid.ID, error) (ID, error) {
	return func(id ulid.ID, err error) (ID, error) {
		if err != nil {
			return ID{}, err
		}
		return ID{Kind: kind, Wide: id}, nil
	}
}

// guess returns the kind that Auto means.
func guess(s string, f flake.Format, lenient bool) (Kind, error) {
	if IsAmbiguous(s) {
		if f.Layout.TimeBits()+f.Layout.LowBits() <= flakeDigit {
			return Int, nil
		}
		return "", fmt.Errorf("%w: write the integer with a leading 0, as 0%s, and a flake as its integer; or state "+
			"the kind, int or flake", ErrAmbiguous, s)
	}
	n := len(s)
	if lenient && !uuidShape(s) {
		n -= strings.Count(s, "-")
	}
	switch n {
	case flake.TextLen:
		return Flake, nil
	case ulid.TextLen:
		return ULID, nil
	case ulid.UUIDLen:
		return UUID, nil
	}
	switch {
	case isHex128(s), len(s) == len(urn)+ulid.UUIDLen && withoutURN(s) != s:
		return UUID, nil
	case strings.HasPrefix(s, "0x"):
		return Hex, nil
	}
	if digits := strings.TrimPrefix(s, "-"); digits != "" && strings.Trim(digits, "0123456789") == "" {
		return Int, nil
	}
	return "", shapeError(shape(s, f, lenient))
}

// A shapeError says why a text has the shape of no ID. Its class is bad_length.
type shapeError string

func (e shapeError) Error() string { return string(e) }

func (e shapeError) Is(target error) bool { return target == flake.ErrLength }

// floating is how programs write numbers that they keep as floating point.
var floating = regexp.MustCompile(`^-?[0-9]+([.,][0-9]+)?([eE]\+?[0-9]+)?$`)

// shape says what keeps s from being an ID in its usual forms.
func shape(s string, f flake.Format, lenient bool) string {
	if s == "" {
		return "it is empty"
	}
	if floating.MatchString(s) {
		return "it is a floating-point number, and a program that writes IDs so loses their last digits: export " +
			"them as text"
	}
	core := strings.TrimFunc(s, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if core != s && core != "" {
		if _, err := guess(core, f, lenient); err == nil {
			before, after, _ := strings.Cut(s, core)
			return fmt.Sprintf("it has %.20q around the ID: leave that out", before+after)
		}
	}
	return fmt.Sprintf("%d bytes are no ID: a flake has 13, a ULID 26, a UUID 36 or 32, an integer only digits, and "+
		"hexadecimal 0x in front", len(s))
}

// urn is what RFC 9562 puts in front of a UUID, in any case.
const urn = "urn:uuid:"

func withoutURN(s string) string {
	if len(s) >= len(urn) && strings.EqualFold(s[:len(urn)], urn) {
		return s[len(urn):]
	}
	return s
}

// isHex128 reports whether s is 128 bits in hexadecimal, as UUIDs without hyphens are.
func isHex128(s string) bool {
	return len(s) == 2*ulid.BinaryLen && strings.Trim(s, "0123456789abcdefABCDEF") == ""
}

func uuidShape(s string) bool {
	return len(s) == ulid.UUIDLen && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-'
}

// classes pairs errors with the names that surfaces show. The names are a
// closed set and part of the output's contract.
var classes = []struct {
	name string
	errs []error
}{
	{"bad_length", []error{flake.ErrLength, ulid.ErrLength}},
	{"bad_char", []error{flake.ErrAlphabet, ulid.ErrAlphabet}},
	{"overflow", []error{flake.ErrOverflow, ulid.ErrOverflow}},
	{"out_of_range", []error{flake.ErrRange, ulid.ErrRange}},
	{"time_before_epoch", []error{flake.ErrBeforeEpoch, ulid.ErrBeforeEpoch}},
	{"time_overflow", []error{flake.ErrTimeOverflow, ulid.ErrTimeOverflow}},
	{"bad_sid", []error{flake.ErrSID}},
	{"bad_entropy_size", []error{flake.ErrEntropySize}},
	{"bad_randomness", []error{flake.ErrEntropy}},
	{"bad_uuid", []error{ulid.ErrUUID}},
	{"not_v7", []error{ulid.ErrNotV7}},
	{"monotonic_overflow", []error{flake.ErrMonotonicOverflow, ulid.ErrMonotonicOverflow}},
	{"clock_regression", []error{flake.ErrRegression}},
	{"bad_layout", []error{flake.ErrLayout}},
	{"bad_kind", []error{ErrKind}},
	{"no_form", []error{ErrForm}},
	{"ambiguous", []error{ErrAmbiguous}},
}

// Class returns the name of the mistake in err, such as
// "bad_length" or "overflow". It is "" for nil and "invalid" for an error that
// is of neither codec.
func Class(err error) string {
	if err == nil {
		return ""
	}
	for _, c := range classes {
		for _, e := range c.errs {
			if errors.Is(err, e) {
				return c.name
			}
		}
	}
	return "invalid"
}
