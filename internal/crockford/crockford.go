// Package crockford turns bits into the 32 letters of Crockford's Base32 and
// back, in the one shape both ID formats are made of: a group of 13 letters,
// that is, 5 bits over 60 bits.
//
// A 64-bit ID is one group, a 128-bit ID two. What the bits mean, how long a
// text must be and which values are too large is for packages flake and ulid,
// its only callers. The letters rise in ASCII, which is what makes text order
// number order (I8).
package crockford

import (
	"encoding/binary"
	"strconv"
)

// Alphabet holds the letters of the values 0 to 31: the digits and the upper
// case letters without I, L, O and U.
//
// Source: Douglas Crockford, "Base 32".
const Alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// GroupLen is the number of letters in a group.
const GroupLen = 13

// bad marks a byte that is no letter. Four letters have 20 bits: wherever among
// four a bad byte stands, its mark comes to lie above them, so that one test at
// the end finds it.
const bad = 1 << 20

var (
	// pairs holds the two letters of each 10-bit value, the first one in the
	// low byte: half the lookups and stores of a table of single letters.
	pairs [1 << 10]uint16
	// values holds the value of each letter in either case, else bad. It has
	// the width of the sums made of it: narrower, the conversions cost a sixth
	// of the time to decode.
	values [256]uint64
)

func init() {
	for i := range pairs {
		pairs[i] = uint16(Alphabet[i>>5]) | uint16(Alphabet[i&31])<<8
	}
	for i := range values {
		values[i] = bad
	}
	for v := range len(Alphabet) {
		c := Alphabet[v]
		values[c] = uint64(v)
		if c >= 'A' {
			values[c+'a'-'A'] = uint64(v)
		}
	}
}

// Encode writes the group of the low 5 bits of top followed by the low 60 bits
// of rest. Other bits are ignored.
func Encode(dst *[GroupLen]byte, top byte, rest uint64) {
	dst[0] = Alphabet[top&31]
	// Eight letters in one store: the pairs lie in memory in the order they
	// are read, so the first one goes into the lowest bytes.
	binary.LittleEndian.PutUint64(dst[1:9],
		uint64(pairs[rest>>50&1023])|
			uint64(pairs[rest>>40&1023])<<16|
			uint64(pairs[rest>>30&1023])<<32|
			uint64(pairs[rest>>20&1023])<<48)
	binary.LittleEndian.PutUint32(dst[9:13],
		uint32(pairs[rest>>10&1023])|
			uint32(pairs[rest&1023])<<16)
}

// Decode reads the group in the first 13 bytes of s, which must have as many:
// top is the value of its first letter, rest the 60 bits of the others.
//
// Letters count in either case. If a byte is no letter, ok is false and the
// values mean nothing; FirstBad finds it. The value stays in two parts because
// a group has 65 bits: a 64-bit sum would lose the top one unnoticed.
func Decode(s string) (top byte, rest uint64, ok bool) {
	_ = s[GroupLen-1]
	t := values[s[0]]
	a := values[s[1]]<<15 | values[s[2]]<<10 | values[s[3]]<<5 | values[s[4]]
	b := values[s[5]]<<15 | values[s[6]]<<10 | values[s[7]]<<5 | values[s[8]]
	c := values[s[9]]<<15 | values[s[10]]<<10 | values[s[11]]<<5 | values[s[12]]
	return byte(t), a<<40 | b<<20 | c, (t|a|b|c)>>20 == 0
}

// FirstBad returns the index of the first byte of s that is no letter, or -1.
func FirstBad(s string) int {
	for i := range len(s) {
		if values[s[i]] == bad {
			return i
		}
	}
	return -1
}

// Quote renders one byte for an error message. It takes the byte and not the
// text around it, so that building a message does not move a caller's text to
// the heap.
func Quote(c byte) string { return strconv.Quote(string([]byte{c})) }

// Hyphen is the byte that Meant drops.
const Hyphen = '-'

// Meant returns the byte people may have meant by c: I and L are 1 and O is 0,
// in either case, and any other byte is itself. Where c is a Hyphen they meant
// none, and keep is false.
//
// Source: Douglas Crockford, "Base 32", decode symbols and hyphens.
func Meant(c byte) (b byte, keep bool) {
	switch c {
	case 'I', 'i', 'L', 'l':
		return '1', true
	case 'O', 'o':
		return '0', true
	}
	return c, c != Hyphen
}

// Fold copies s to dst byte by byte as Meant reads it. It returns the number of
// bytes s has without its hyphens; what does not fit into dst is counted and
// not stored.
func Fold(dst []byte, s string) int {
	n := 0
	for i := range len(s) {
		c, keep := Meant(s[i])
		if !keep {
			continue
		}
		if n < len(dst) {
			dst[n] = c
		}
		n++
	}
	return n
}
