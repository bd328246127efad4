package flake

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/flakelease/allocator/internal/crockford"
)

// String returns the 13 characters of id, in upper case.
//
// A negative ID, which nothing here makes, shows as a text no parser accepts.
func (id ID) String() string {
	var g [TextLen]byte
	crockford.Encode64(&g, uint64(id))
	return string(g[:])
}

// AppendText appends the 13 characters of id to b. It returns ErrRange for a
// negative ID, and b unchanged.
func (id ID) AppendText(b []byte) ([]byte, error) {
	// Written in place: to copy 13 bytes just stored in three parts stalls the
	// processor for longer than the encoding takes.
	n := len(b)
	if id < 0 || cap(b)-n < TextLen {
		return id.appendSlow(b)
	}
	b = b[:n+TextLen]
	crockford.Encode64((*[TextLen]byte)(b[n:]), uint64(id))
	return b, nil
}

// appendSlow is AppendText where something has to be done before. It is a
// separate function so that the usual case makes no call and saves no registers,
// which would take a tenth of its time.
func (id ID) appendSlow(b []byte) ([]byte, error) {
	if id < 0 {
		return b, negative(id)
	}
	return id.AppendText(slices.Grow(b, TextLen))
}

// MarshalText returns the 13 characters of id. It returns ErrRange for a negative
// ID.
func (id ID) MarshalText() ([]byte, error) { return id.AppendText(make([]byte, 0, TextLen)) }

// UnmarshalText sets id as Parse reads b. After an error id is unchanged.
func (id *ID) UnmarshalText(b []byte) error {
	// The length goes first also because up to 32 bytes become a string
	// without an allocation.
	if len(b) != TextLen {
		return wrongLength(len(b))
	}
	return id.set(Parse(string(b)))
}

// Parse reads the text form of an ID and returns the ID.
//
// The text has exactly 13 bytes, each a character of the alphabet in either case,
// and the first of them not above 7: 13 characters could hold 65 bits, an
// ID has 63. Nothing is trimmed, mapped or folded; I, L, O and U, hyphens,
// spaces and Unicode's look-alikes are errors.
//
// The errors are ErrLength, ErrAlphabet and ErrOverflow, tested in this order,
// and come with the zero ID.
//
// Source: Ulid-Flake specification, "Encoding" and "Overflow Errors when
// Parsing Base32 Strings".
func Parse(s string) (ID, error) {
	if len(s) != TextLen {
		return 0, wrongLength(len(s))
	}
	t := &crockford.Places
	top := t[5][s[0]]
	high := t[0][s[1]] | t[1][s[2]] | t[2][s[3]] | t[3][s[4]] | t[4][s[5]] | t[5][s[6]]
	low := t[0][s[7]] | t[1][s[8]] | t[2][s[9]] | t[3][s[10]] | t[4][s[11]] | t[5][s[12]]
	if top > 7 || high|low >= crockford.Bad {
		return 0, badText(s)
	}
	return ID(top)<<60 | ID(high)<<30 | ID(low), nil
}

// ParseLenient returns the ID a person may have meant by s: it drops hyphens
// and reads I and L as 1 and O as 0, then goes on as Parse, whose errors it
// returns. Positions in errors count without the hyphens. U stays invalid.
//
// For typed input only: several texts then mean one ID.
func ParseLenient(s string) (ID, error) {
	var g [TextLen]byte
	if n := crockford.Fold(g[:], s); n != TextLen {
		return 0, wrongLength(n)
	}
	return Parse(string(g[:]))
}

func wrongLength(n int) error {
	return fmt.Errorf("%w: %d bytes, not %d", ErrLength, n, TextLen)
}

func negative(id ID) error {
	return fmt.Errorf("%w: %d is negative", ErrRange, int64(id))
}

// badText names what is wrong with 13 bytes: a byte outside the alphabet, or, if
// all are, the first character's size.
func badText(s string) error {
	if i := crockford.FirstBad(s); i >= 0 {
		return fmt.Errorf("%w %s at byte %d", ErrAlphabet, crockford.Quote(s[i]), i)
	}
	return fmt.Errorf("%w: first character %s is above 7", ErrOverflow, crockford.Quote(s[0]))
}

// AppendInt appends id as a decimal integer to b.
func (id ID) AppendInt(b []byte) []byte { return strconv.AppendInt(b, int64(id), 10) }

// ParseInt returns the ID written in s as a decimal integer: ASCII digits only,
// no sign, no spaces; leading zeros are allowed.
//
// It returns ErrAlphabet, also for an empty s, and ErrRange for a value above
// 2^63−1 and for digits behind a minus sign; the ID is then zero.
func ParseInt(s string) (ID, error) {
	if uint(len(s)-1) >= 19 { // 19 digits fit into 64 bits
		return parseInt(s)
	}
	v := uint64(0)
	for _, c := range []byte(s) {
		d := uint64(c - '0')
		if d > 9 {
			return parseInt(s)
		}
		v = v*10 + d
	}
	if v > math.MaxInt64 {
		return parseInt(s)
	}
	return ID(v), nil
}

// parseInt is ParseInt of any number of digits, and where there is an error.
func parseInt(s string) (ID, error) {
	digits := s
	minus := len(s) > 1 && s[0] == '-'
	if minus {
		digits = s[1:]
	}
	if digits == "" {
		return 0, fmt.Errorf("%w: no digits", ErrAlphabet)
	}
	var v uint64
	over := minus
	for i := range len(digits) {
		d := uint64(digits[i] - '0')
		if d > 9 {
			return 0, fmt.Errorf("%w %s at byte %d", ErrAlphabet, crockford.Quote(digits[i]), len(s)-len(digits)+i)
		}
		// Keep reading after an overflow: a byte that is no digit further on is
		// the better answer.
		if over = over || v > (math.MaxInt64-d)/10; !over {
			v = v*10 + d
		}
	}
	if over {
		return 0, fmt.Errorf("%w: not within 0 and 2^63-1", ErrRange)
	}
	return ID(v), nil
}

// FromInt64 returns v as an ID. It returns ErrRange if v is negative.
func FromInt64(v int64) (ID, error) {
	if v < 0 {
		return 0, negative(ID(v))
	}
	return ID(v), nil
}

const hexLen = 2 * BinaryLen

// Hex returns id in hexadecimal as the reference implementations print it: 0x,
// then upper-case digits without leading zeros.
func (id ID) Hex() string { return string(id.AppendHex(make([]byte, 0, 2+hexLen))) }

// AppendHex appends what Hex returns to b.
func (id ID) AppendHex(b []byte) []byte {
	b = append(b, "0x"...)
	shift := 60
	for shift > 0 && uint64(id)>>shift == 0 {
		shift -= 4
	}
	for ; shift >= 0; shift -= 4 {
		b = append(b, crockford.Alphabet[uint64(id)>>shift&15])
	}
	return b
}

// AppendHex16 appends the binary form of id in hexadecimal to b: 16 lower-case
// digits without a prefix, which sort as IDs do.
func (id ID) AppendHex16(b []byte) []byte {
	var raw [BinaryLen]byte
	binary.BigEndian.PutUint64(raw[:], uint64(id))
	return hex.AppendEncode(b, raw[:])
}

// ParseHex returns the ID written in s in hexadecimal, digits in either case:
// either 0x and 1 to 16 digits, as AppendHex writes it, or 16 digits alone, as
// AppendHex16 does.
//
// It returns ErrLength, ErrAlphabet, or ErrRange if bit 63 is set; the ID is
// then zero.
func ParseHex(s string) (ID, error) {
	digits, minimum := s, hexLen
	if len(s) >= 2 && s[:2] == "0x" {
		digits, minimum = s[2:], 1
	}
	if len(digits) < minimum || len(digits) > hexLen {
		return 0, fmt.Errorf("%w: %d bytes, not 0x and 1 to 16 digits or 16 digits", ErrLength, len(s))
	}
	var v uint64
	for i := range len(digits) {
		d := crockford.HexDigit(digits[i])
		if d > 15 {
			return 0, fmt.Errorf("%w %s at byte %d", ErrAlphabet, crockford.Quote(digits[i]), len(s)-len(digits)+i)
		}
		v = v<<4 | uint64(d)
	}
	if v > math.MaxInt64 {
		return 0, fmt.Errorf("%w: bit 63 is set", ErrRange)
	}
	return ID(v), nil
}

// Bin returns id in binary as the reference implementations print it: 0b, then
// digits without leading zeros.
func (id ID) Bin() string { return string(id.AppendBin(make([]byte, 0, 2+64))) }

// AppendBin appends what Bin returns to b.
func (id ID) AppendBin(b []byte) []byte {
	return strconv.AppendUint(append(b, "0b"...), uint64(id), 2)
}
