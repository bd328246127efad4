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

// Every byte is a letter of one value, or none.
func TestDecodeEveryByte(t *testing.T) {
	for c := range 256 {
		want := strings.IndexByte(Alphabet, byte(c))
		if want < 0 && c >= 'a' && c <= 'z' {
			want = strings.IndexByte(Alphabet, byte(c)-'a'+'A')
		}
		for at := range GroupLen {
			b := bytes.Repeat([]byte{'0'}, GroupLen)
			b[at] = byte(c)
			top, rest, ok := Decode(string(b))
			if ok != (want >= 0) {
				t.Fatalf("byte %#x at %d: ok = %v", c, at, ok)
			}
			if !ok {
				if i := FirstBad(string(b)); i != at {
					t.Fatalf("byte %#x at %d: FirstBad = %d", c, at, i)
				}
				continue
			}
			var wantTop byte
			var wantRest uint64
			if at == 0 {
				wantTop = byte(want)
			} else {
				wantRest = uint64(want) << (5 * (12 - at))
			}
			if top != wantTop || rest != wantRest {
				t.Fatalf("byte %#x at %d: %d, %#x, want %d, %#x", c, at, top, rest, wantTop, wantRest)
			}
		}
	}
	if i := FirstBad(Alphabet + strings.ToLower(Alphabet)); i != -1 {
		t.Errorf("FirstBad of all letters = %d", i)
	}
}

func TestEncodeIsDecodeBackwards(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		top, rest := byte(r.Uint32()), r.Uint64()
		var g [GroupLen]byte
		Encode(&g, top, rest)
		for i := range GroupLen - 1 {
			if want := Alphabet[rest>>(5*i)&31]; g[GroupLen-1-i] != want {
				t.Fatalf("Encode(%d, %#x) = %s", top, rest, g)
			}
		}
		gotTop, gotRest, ok := Decode(string(g[:]))
		if !ok || gotTop != top&31 || gotRest != rest&(1<<60-1) {
			t.Fatalf("Encode(%d, %#x) = %s, which is %d, %#x, %v", top, rest, g, gotTop, gotRest, ok)
		}
	}
}

func TestDecodeShortPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("12 bytes were read as a group")
		}
	}()
	Decode("000000000000")
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
