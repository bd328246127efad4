package ulid

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/crockford"
)

// String returns the 26 characters of id, in upper case.
func (id ID) String() string {
	var t [TextLen]byte
	crockford.Encode128(&t, id.hi, id.lo)
	return string(t[:])
}

// AppendText appends the 26 characters of id to b. The error is always nil.
func (id ID) AppendText(b []byte) ([]byte, error) {
	// Written in place: to copy what was just stored in parts of other sizes
	// stalls the processor.
	n := len(b)
	if cap(b)-n < TextLen {
		return id.appendGrown(b)
	}
	b = b[:n+TextLen]
	crockford.Encode128((*[TextLen]byte)(b[n:]), id.hi, id.lo)
	return b, nil
}

// appendGrown is AppendText where b is too short. It is a function of its own so that the
// other case has no call to save its registers for, a tenth of its time.
func (id ID) appendGrown(b []byte) ([]byte, error) { return id.AppendText(slices.Grow(b, TextLen)) }

// MarshalText returns the 26 characters of id. The error is always nil.
func (id ID) MarshalText() ([]byte, error) { return id.AppendText(make([]byte, 0, TextLen)) }

// UnmarshalText sets id as Parse reads b. After an error id is unchanged.
func (id *ID) UnmarshalText(b []byte) error {
	// The length goes first also because up to 32 bytes become a string
	// without an allocation.
	if len(b) != TextLen {
		return wrongLength(len(b), TextLen)
	}
	return id.set(Parse(string(b)))
}

// Parse reads the text form of an ID and returns the ID.
//
// The text has exactly 26 bytes, each a character of the alphabet in either case,
// and the first of them not above 7: 26 characters could hold 130 bits, an
// ID has 128. Nothing is trimmed, mapped or folded; I, L, O and U, hyphens,
// spaces and Unicode's look-alikes are errors.
//
// The errors are ErrLength, ErrAlphabet and ErrOverflow, tested in this order,
// and come with the zero ID.
//
// Source: ULID specification, "Encoding" and "Overflow Errors when Parsing
// Base32 Strings".
func Parse(s string) (ID, error) {
	if len(s) != TextLen {
		return ID{}, wrongLength(len(s), TextLen)
	}
	// Cut where it suits the words: the first character has 3 bits, and the two in
	// the middle lie in both words.
	t := &crockford.Places
	top := t[5][s[0]]
	a := t[1][s[1]] | t[2][s[2]] | t[3][s[3]] | t[4][s[4]] | t[5][s[5]]
	b := t[0][s[6]] | t[1][s[7]] | t[2][s[8]] | t[3][s[9]] | t[4][s[10]] | t[5][s[11]]
	mid := t[4][s[12]] | t[5][s[13]]
	c := t[0][s[14]] | t[1][s[15]] | t[2][s[16]] | t[3][s[17]] | t[4][s[18]] | t[5][s[19]]
	d := t[0][s[20]] | t[1][s[21]] | t[2][s[22]] | t[3][s[23]] | t[4][s[24]] | t[5][s[25]]
	if top > 7 || a|b|mid|c|d >= crockford.Bad {
		return ID{}, badText(s)
	}
	return ID{
		hi: uint64(top)<<61 | uint64(a)<<36 | uint64(b)<<6 | uint64(mid)>>4,
		lo: uint64(mid)<<60 | uint64(c)<<30 | uint64(d),
	}, nil
}

// ParseLenient returns the ID a person may have meant by s: it drops hyphens
// and reads I and L as 1 and O as 0, then goes on as Parse, whose errors it
// returns. Positions in errors count without the hyphens. U stays invalid.
//
// For typed input only: several texts then mean one ID. It does not read
// UUIDs, whose 32 digits are also in the alphabet.
func ParseLenient(s string) (ID, error) {
	var t [TextLen]byte
	if n := crockford.Fold(t[:], s); n != TextLen {
		return ID{}, wrongLength(n, TextLen)
	}
	return Parse(string(t[:]))
}

func wrongLength(n, want int) error {
	return fmt.Errorf("%w: %d bytes, not %d", ErrLength, n, want)
}

// Repair returns s as ParseLenient reads it, and each byte this changed. It is
// flake.Repair: the characters that people mistake are the same in both formats.
// Repair(s) followed by Parse is ParseLenient(s).
func Repair(s string) (fixed string, changes []flake.Change) { return flake.Repair(s) }

// badText names what is wrong with the bytes of a text or a time: a byte that is
// outside the alphabet, or, if all are inside, the first character's size.
func badText(s string) error {
	if i := crockford.FirstBad(s); i >= 0 {
		return fmt.Errorf("%w %s at byte %d", ErrAlphabet, crockford.Quote(s[i]), i)
	}
	if len(s) == TimeLen {
		return fmt.Errorf("%w: first character %s is above 7", ErrTimeOverflow, crockford.Quote(s[0]))
	}
	return fmt.Errorf("%w: first character %s is above 7", ErrOverflow, crockford.Quote(s[0]))
}

// Uint128 returns id as a decimal integer.
func (id ID) Uint128() string { return string(id.AppendUint128(make([]byte, 0, maxDecimal))) }

const (
	maxDecimal = 39                         // digits of 2^128−1
	tenTo19    = 10_000_000_000_000_000_000 // largest power of ten in 64 bits
)

// AppendUint128 appends id as a decimal integer without leading zeros to b.
func (id ID) AppendUint128(b []byte) []byte {
	hi, lo := id.hi, id.lo
	var t [maxDecimal]byte
	i := len(t)
	// One division by 10^19 at a time gives 19 digits. What is left is at least
	// 1, since a value with a high word exceeds 10^19: no zeros go in front.
	for hi != 0 {
		var low uint64
		// hi divided first keeps the second quotient within 64 bits, as Div64
		// demands.
		q := hi / tenTo19
		lo, low = bits.Div64(hi%tenTo19, lo, tenTo19)
		hi = q
		for range 19 {
			i--
			t[i] = byte('0' + low%10)
			low /= 10
		}
	}
	for lo != 0 || i == len(t) {
		i--
		t[i] = byte('0' + lo%10)
		lo /= 10
	}
	return append(b, t[i:]...)
}

// ParseUint128 returns the ID written in s as a decimal integer: ASCII digits
// only, no sign, no spaces; leading zeros are allowed.
//
// It returns ErrAlphabet, also for an empty s, and ErrRange for a value above
// 2^128−1 and for digits behind a minus sign; the ID is then zero.
func ParseUint128(s string) (ID, error) {
	digits := s
	over := len(s) > 1 && s[0] == '-'
	if over {
		digits = s[1:]
	}
	if digits == "" {
		return ID{}, fmt.Errorf("%w: no digits", ErrAlphabet)
	}
	var hi, lo uint64
	for i := range len(digits) {
		d := uint64(digits[i] - '0')
		if d > 9 {
			return ID{}, fmt.Errorf("%w %s at byte %d", ErrAlphabet, crockford.Quote(digits[i]), len(s)-len(digits)+i)
		}
		// Keep reading after an overflow: a byte that is no digit further on is
		// the better answer.
		if over {
			continue
		}
		// value·10 + d in 192 bits; over if anything is left above 128.
		c1, l := bits.Mul64(lo, 10)
		c2, h := bits.Mul64(hi, 10)
		l, carry := bits.Add64(l, d, 0)
		h, carry = bits.Add64(h, c1, carry)
		over = c2|carry != 0
		hi, lo = h, l
	}
	if over {
		return ID{}, fmt.Errorf("%w: not within 0 and 2^128-1", ErrRange)
	}
	return ID{hi, lo}, nil
}
