// Package crockford turns numbers into the 32 characters of Crockford's Base32 and
// back, in the two shapes the ID formats have: 64 bits are 13 characters, 128 bits
// are 26.
//
// How IDs are laid out and which errors there are is for packages flake and
// ulid, its only callers: internal at the root is the lowest place that both may import.
// The characters rise in ASCII, which is what makes text order number order (I8).
package crockford

import (
	"encoding/binary"
	"strconv"
)

// Alphabet holds the characters of the values 0 to 31: the digits and the
// upper-case letters without I, L, O and U.
//
// Source: Douglas Crockford, "Base 32".
const Alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// Characters of a number of 64 and of 128 bits.
const (
	Len64  = 13
	Len128 = 26
)

// Run is how many characters, with a mark for bytes that are none, fit into the 32
// bits of an entry of Places.
const Run = 6

// Bad is above all sums of characters in their places, and Places holds it for a
// byte outside the alphabet: an OR of entries is at least Bad if one of them was.
const Bad = 1 << (5 * Run)

var (
	// pairs (2 KiB) holds the two characters of each 10-bit value, the first one in
	// the low byte: half the lookups and stores of a table of single characters.
	pairs [1 << 10]uint16
	// Places holds the value of each character in either case, shifted to its place
	// in a run of 6, else Bad. So 6 characters are read with 6 lookups joined by OR,
	// which one comparison checks. Last are the values themselves.
	//
	// It has 6 KiB, of which characters of one case touch 1. Parsers use it
	// directly: to call a decoder from them costs a fifth of the time to parse.
	// Nobody but init writes to it.
	Places [Run][256]uint32
)

func init() {
	for i := range pairs {
		pairs[i] = uint16(Alphabet[i>>5]) | uint16(Alphabet[i&31])<<8
	}
	for p := range Places {
		table := &Places[p]
		for c := range table {
			table[c] = Bad
		}
		for v := range len(Alphabet) {
			c, placed := Alphabet[v], uint32(v)<<(5*(Run-1-p))
			table[c] = placed
			if c >= 'A' {
				table[c+'a'-'A'] = placed
			}
		}
	}
}

// Encode64 writes v as 13 characters.
//
// The numbers are cut into pairs of characters from their low end. Eight characters go
// out in one store: pairs lie in memory in the order they are read, so the first
// one goes into the lowest bytes.
func Encode64(dst *[Len64]byte, v uint64) {
	dst[0] = Alphabet[v>>60]
	binary.LittleEndian.PutUint64(dst[1:9],
		uint64(pairs[v>>50&1023])|
			uint64(pairs[v>>40&1023])<<16|
			uint64(pairs[v>>30&1023])<<32|
			uint64(pairs[v>>20&1023])<<48)
	binary.LittleEndian.PutUint32(dst[9:13],
		uint32(pairs[v>>10&1023])|
			uint32(pairs[v&1023])<<16)
}

// Encode128 writes the number of the words hi and lo as 26 characters. 128 bits are
// 8 in the first pair and 10 in each of 12 more, one of which lies in both words.
func Encode128(dst *[Len128]byte, hi, lo uint64) {
	binary.LittleEndian.PutUint64(dst[0:8],
		uint64(pairs[hi>>56])|
			uint64(pairs[hi>>46&1023])<<16|
			uint64(pairs[hi>>36&1023])<<32|
			uint64(pairs[hi>>26&1023])<<48)
	binary.LittleEndian.PutUint64(dst[8:16],
		uint64(pairs[hi>>16&1023])|
			uint64(pairs[hi>>6&1023])<<16|
			uint64(pairs[(hi<<4|lo>>60)&1023])<<32|
			uint64(pairs[lo>>50&1023])<<48)
	binary.LittleEndian.PutUint64(dst[16:24],
		uint64(pairs[lo>>40&1023])|
			uint64(pairs[lo>>30&1023])<<16|
			uint64(pairs[lo>>20&1023])<<32|
			uint64(pairs[lo>>10&1023])<<48)
	binary.LittleEndian.PutUint16(dst[24:26], pairs[lo&1023])
}

// HexDigit returns the value of a hexadecimal digit in either case, and for any other byte
// more than 15: the first 16 characters are those digits.
func HexDigit(c byte) uint32 { return Places[Run-1][c] }

// FirstBad returns the index of the first byte of s outside the alphabet, or -1.
func FirstBad(s string) int {
	for i := range len(s) {
		if Places[Run-1][s[i]] == Bad {
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
