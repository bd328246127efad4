package crockford

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestAlphabetRises(t *testing.T) {
	if len(Alphabet) != 32 || !slices.IsSorted([]byte(Alphabet)) || strings.ContainsAny(Alphabet, "ILOU") {
		t.Errorf("alphabet %q", Alphabet)
	}
}

// value is what a byte stands for, by looking for it; -1 for none.
func value(c byte) int {
	if 'a' <= c && c <= 'z' {
		c -= 'a' - 'A'
	}
	return strings.IndexByte(Alphabet, c)
}

// slowEncode writes a number a letter at a time.
func slowEncode(hi, lo uint64, letters int) string {
	b := make([]byte, letters)
	for i := range b {
		b[letters-1-i] = Alphabet[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return string(b)
}

// slowDecode reads a number a letter at a time; it refuses what does not fit
// under a first letter of 3 bits.
func slowDecode(s string) (hi, lo uint64, ok bool) {
	if value(s[0]) > 7 {
		return 0, 0, false
	}
	for i := range len(s) {
		v := value(s[i])
		if v < 0 {
			return 0, 0, false
		}
		hi, lo = hi<<5|lo>>59, lo<<5|uint64(v)
	}
	return hi, lo, true
}

// checkDecode holds both decoders to the slow one; s has 26 bytes.
func checkDecode(t *testing.T, s string) {
	t.Helper()
	hi, lo, ok := Decode128(s)
	if wantHi, wantLo, want := slowDecode(s); ok != want || ok && (hi != wantHi || lo != wantLo) {
		t.Fatalf("Decode128(%q) = %#x, %#x, %v, want %#x, %#x, %v", s, hi, lo, ok, wantHi, wantLo, want)
	}
	v, ok := Decode64(s)
	if _, wantV, want := slowDecode(s[:13]); ok != want || ok && v != wantV {
		t.Fatalf("Decode64(%q) = %#x, %v, want %#x, %v", s[:13], v, ok, wantV, want)
	}
}

// Every byte at every place is the letter it is, or none.
func TestDecodeEveryByte(t *testing.T) {
	for _, around := range []byte{'0', 'Z', 'z', '7'} {
		for c := range 256 {
			for at := range Len128 {
				b := bytes.Repeat([]byte{around}, Len128)
				if at != 0 {
					b[0] = '5'
				}
				b[at] = byte(c)
				checkDecode(t, string(b))
				want := at
				if value(byte(c)) >= 0 {
					want = -1
				}
				if got := FirstBad(string(b)); got != want {
					t.Fatalf("FirstBad(%q) = %d, want %d", b, got, want)
				}
			}
		}
	}
}

func TestEncodeAndDecode(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		hi, lo := r.Uint64()>>r.IntN(65), r.Uint64()>>r.IntN(65)
		var short [Len64]byte
		var long [Len128]byte
		Encode64(&short, lo)
		Encode128(&long, hi, lo)
		if want := slowEncode(0, lo, Len64); string(short[:]) != want {
			t.Fatalf("Encode64(%#x) = %s, want %s", lo, short, want)
		}
		if want := slowEncode(hi, lo, Len128); string(long[:]) != want {
			t.Fatalf("Encode128(%#x, %#x) = %s, want %s", hi, lo, long, want)
		}
		checkDecode(t, string(long[:]))
		if gotHi, gotLo, ok := Decode128(string(long[:])); !ok || gotHi != hi || gotLo != lo {
			t.Fatalf("Decode128(%s) = %#x, %#x, %v", long, gotHi, gotLo, ok)
		}
		if v, ok := Decode64(string(short[:])); ok != (lo>>63 == 0) || ok && v != lo {
			t.Fatalf("Decode64(%s) = %#x, %v", short, v, ok)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "0000000000000!", "8", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s += strings.Repeat("0", Len128)
		checkDecode(t, s[:Len128])
	})
}

func TestDecodeShortPanics(t *testing.T) {
	for name, short := range map[string]func(){
		"12 bytes": func() { Decode64("000000000000") },
		"25 bytes": func() { Decode128("0000000000000000000000000") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s were read", name)
				}
			}()
			short()
		}()
	}
}

func TestFold(t *testing.T) {
	for _, x := range []struct {
		in   string
		want string
		n    int
	}{
		{"", "", 0},
		{"---", "", 0},
		{"iIlLoO", "1111", 6},
		{"-a-U-", "aU", 2},
		{"0-1\xffZz9", "01\xffZ", 6},
	} {
		dst := make([]byte, 4)
		n := Fold(dst, x.in)
		if got := string(dst[:min(n, 4)]); n != x.n || got != x.want {
			t.Errorf("Fold(%q) = %q, %d, want %q, %d", x.in, got, n, x.want, x.n)
		}
	}
}
