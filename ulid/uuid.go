package ulid

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/flakelease/allocator/internal/crockford"
)

// hexLen is the number of digits of the hexadecimal form.
const hexLen = 2 * BinaryLen

// uuidDigits holds the place of the first of the two digits of each byte in a
// UUID.
var uuidDigits = [BinaryLen]uint8{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}

// hexPairs holds the two lower-case digits of each byte, the first in the low byte.
var hexPairs [256]uint16

func init() {
	const digits = "0123456789abcdef"
	for i := range hexPairs {
		hexPairs[i] = uint16(digits[i>>4]) | uint16(digits[i&15])<<8
	}
}

// UUID returns the bytes of id as a UUID: 36 characters in lower case. Wide IDs
// give a legal UUIDv7; of any other ID, see ForceV7.
func (id ID) UUID() string {
	var t [UUIDLen]byte
	id.uuid(&t)
	return string(t[:])
}

// AppendUUID appends what UUID returns to b.
func (id ID) AppendUUID(b []byte) []byte {
	n := len(b)
	b = slices.Grow(b, UUIDLen)[:n+UUIDLen]
	id.uuid((*[UUIDLen]byte)(b[n:]))
	return b
}

func (id ID) uuid(t *[UUIDLen]byte) {
	for i, at := range uuidDigits[:8] {
		binary.LittleEndian.PutUint16(t[at:], hexPairs[byte(id.hi>>(56-8*i))])
	}
	for i, at := range uuidDigits[8:] {
		binary.LittleEndian.PutUint16(t[at:], hexPairs[byte(id.lo>>(56-8*i))])
	}
	t[8], t[13], t[18], t[23] = '-', '-', '-', '-'
}

// ParseUUID returns the ID with the bytes of the UUID written in s: 36
// characters, digits in either case, hyphens exactly behind 8, 12, 16 and 20
// digits; no braces and no prefix. Version and variant may be any: use IsV7.
//
// It returns ErrUUID; the ID is then zero.
//
// Source: RFC 9562, section 4.
func ParseUUID(s string) (ID, error) {
	if len(s) != UUIDLen {
		return ID{}, fmt.Errorf("%w: %d bytes, not %d", ErrUUID, len(s), UUIDLen)
	}
	var id ID
	seen := uint32(0)
	for _, at := range uuidDigits[:8] {
		h, l := crockford.HexDigit(s[at]), crockford.HexDigit(s[at+1])
		seen |= h | l
		id.hi = id.hi<<8 | uint64(h<<4|l)
	}
	for _, at := range uuidDigits[8:] {
		h, l := crockford.HexDigit(s[at]), crockford.HexDigit(s[at+1])
		seen |= h | l
		id.lo = id.lo<<8 | uint64(h<<4|l)
	}
	if seen > 15 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return ID{}, badUUID(s)
	}
	return id, nil
}

// badUUID names the first byte of 36 that is not what its place asks for.
func badUUID(s string) error {
	for i := range len(s) {
		want, ok := "a digit", crockford.HexDigit(s[i]) < 16
		switch i {
		case 8, 13, 18, 23:
			want, ok = "a hyphen", s[i] == '-'
		}
		if !ok {
			return fmt.Errorf("%w: %s at byte %d is not %s", ErrUUID, crockford.Quote(s[i]), i, want)
		}
	}
	return ErrUUID // not reached: the caller found one
}

// Hex returns the bytes of id as 32 lower-case hexadecimal digits.
func (id ID) Hex() string { return string(id.AppendHex(make([]byte, 0, hexLen))) }

// AppendHex appends what Hex returns to b.
func (id ID) AppendHex(b []byte) []byte {
	raw := id.Bytes()
	return hex.AppendEncode(b, raw[:])
}

// ParseHex returns the ID written in s as 32 hexadecimal digits in either case,
// without a prefix. It returns ErrLength or ErrAlphabet; the ID is then zero.
func ParseHex(s string) (ID, error) {
	if len(s) != hexLen {
		return ID{}, wrongLength(len(s), hexLen)
	}
	var id ID
	for i := range len(s) {
		d := crockford.HexDigit(s[i])
		if d > 15 {
			return ID{}, fmt.Errorf("%w %s at byte %d", ErrAlphabet, crockford.Quote(s[i]), i)
		}
		id.hi, id.lo = id.hi<<4|id.lo>>60, id.lo<<4|uint64(d)
	}
	return id, nil
}
