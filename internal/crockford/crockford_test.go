package crockford

import (
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

// slowEncode writes a number one character at a time.
func slowEncode(hi, lo uint64, length int) string {
	b := make([]byte, length)
	for i := range b {
		b[length-1-i] = Alphabet[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return string(b)
}

// Every byte at every place is read as its character, or as none.
func TestPlaces(t *testing.T) {
	for c := range 256 {
		v := value(byte(c))
		for p := range Places {
			want := uint32(Bad)
			if v >= 0 {
				want = uint32(v) << (5 * (len(Places) - 1 - p))
			}
			if got := Places[p][c]; got != want {
				t.Fatalf("byte %#x at place %d: %#x, want %#x", c, p, got, want)
			}
			if v >= 0 && want >= Bad {
				t.Fatalf("byte %#x at place %d is a character and marked bad", c, p)
			}
		}
		for at := range 3 {
			b := []byte("0z0")
			b[at] = byte(c)
			want := at
			if v >= 0 {
				want = -1
			}
			if got := FirstBad(string(b)); got != want {
				t.Fatalf("FirstBad(%q) = %d, want %d", b, got, want)
			}
		}
	}
}

func TestEncode(t *testing.T) {
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
