package resp

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func words(args [][]byte) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = string(a)
	}
	return out
}

func TestRequests(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []string
	}{
		{"array", "*1\r\n$7\r\nID.NEXT\r\n", []string{"ID.NEXT"}},
		{"several words", "*3\r\n$4\r\nHGET\r\n$2\r\nid\r\n$4\r\nnext\r\n", []string{"HGET", "id", "next"}},
		{"empty word", "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", []string{"ECHO", ""}},
		{"bytes of any kind", "*2\r\n$4\r\nECHO\r\n$5\r\n\r\n$\x00*\r\n", []string{"ECHO", "\r\n$\x00*"}},
		{"no words", "*0\r\n", nil},
		{"fewer than none", "*-1\r\n", nil},
		{"line", "id.next count 3\r\n", []string{"id.next", "count", "3"}},
		{"line without a carriage return", "PING\n", []string{"PING"}},
		{"spaces", "  PING \t x  \r\n", []string{"PING", "x"}},
		{"empty line", "\r\n", nil},
		{"empty line without a carriage return", "\n", nil},
		{"quotes", `ECHO "a b\n"` + "\r\n", []string{"ECHO", `"a`, `b\n"`}},
		{"most words", "*64\r\n" + strings.Repeat("$1\r\nx\r\n", 64), slices.Repeat([]string{"x"}, 64)},
		{"longest word", "*1\r\n$4096\r\n" + strings.Repeat("x", 4096) + "\r\n", []string{strings.Repeat("x", 4096)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r Reader
			in := []byte(tc.in + "PING\r\n")
			n, err := r.Next(in)
			if got := words(r.Args); n != len(tc.in) || err != nil || !slices.Equal(got, tc.want) {
				t.Fatalf("%d bytes, %.80q, %v; want %d, %.80q", n, got, err, len(tc.in), tc.want)
			}
			for cut := range min(len(tc.in), 200) { // a part is not taken for the whole
				n, err := r.Next([]byte(tc.in[:cut]))
				if n != 0 || err != nil || len(r.Args) != 0 {
					t.Fatalf("%q alone: %d bytes, %q, %v", tc.in[:cut], n, words(r.Args), err)
				}
			}
		})
	}
}

// fullBut returns as much of a request as a buffer can hold, of which words are
// missing; it ends in last.
func fullBut(last string) string {
	first := "*5\r\n$4096\r\n" + strings.Repeat("x", 4096) + "\r\n"
	head := "$4000\r\n"
	rest := MaxRequest - len(first) - len(last)
	second := head + strings.Repeat("x", 4000) + "\r\n"
	rest -= len(second) + len("$NN\r\n\r\n")
	return first + second + fmt.Sprintf("$%d\r\n", rest) + strings.Repeat("x", rest) + "\r\n" + last
}

func TestRequestsThatAreNone(t *testing.T) {
	for in, want := range map[string]string{
		"*x\r\n":                            "invalid multibulk length",
		"*\r\n":                             "invalid multibulk length",
		"*+1\r\n":                           "invalid multibulk length",
		"*01\r\n":                           "invalid multibulk length",
		"*1\rx":                             "invalid multibulk length",
		"*65\r\n":                           "invalid multibulk length",
		"*9999999999\r\n":                   "invalid multibulk length",
		"*" + strings.Repeat("1", 40):       "too big mbulk count string",
		"*1\r\n:5\r\n":                      "expected '$', got ':'",
		"*1\r\n ":                           "expected '$', got ' '",
		"*1\r\n~":                           "expected '$', got '~'",
		"*1\r\n\x7f":                        "expected '$', got '?'",
		"*1;\r\n":                           "invalid multibulk length",
		"*1/\r\n":                           "invalid multibulk length",
		"*1:\r\n":                           "invalid multibulk length",
		"*1\r\n$1 \r\nx\r\n":                "invalid bulk length",
		"*1\r\n$1\r\nx\rz":                  "expected the end of a line after a bulk string",
		"*1\r\n$1\r\nxy\n":                  "expected the end of a line after a bulk string",
		"*1\r\n\x01":                        "expected '$', got '?'",
		"*1\r\n$-1\r\n":                     "invalid bulk length",
		"*1\r\n$4097\r\n":                   "invalid bulk length",
		"*1\r\n$" + strings.Repeat("0", 40): "too big bulk count string",
		"*1\r\n$1\r\nxyz":                   "expected the end of a line after a bulk string",
		strings.Repeat("x", maxInline):      "too big inline request",
		strings.Repeat("x ", 65) + "\r\n":   "too many words in an inline request",
		"*2\r\n$4090\r\n" + strings.Repeat("x", 4090) + "\r\n$4090\r\n": "request above 8192 bytes",
		fullBut("$10"): "request above 8192 bytes",
		fullBut(""):    "request above 8192 bytes",
	} {
		var r Reader
		_, err := r.Next([]byte(in))
		if _, ok := errors.AsType[ProtocolError](err); !ok || err.Error() != "Protocol error: "+want {
			t.Errorf("%.40q: %v, want %s", in, err, want)
		}
	}
}

// TestLargestRequest: a request of the largest length is read, one byte more is refused
// when its last length is read, before its bytes arrive.
func TestLargestRequest(t *testing.T) {
	request := func(total int) string {
		head := "*2\r\n$4096\r\n" + strings.Repeat("x", 4096) + "\r\n"
		rest := total - len(head) - len("$NNNN\r\n\r\n")
		return head + fmt.Sprintf("$%d\r\n", rest) + strings.Repeat("x", rest) + "\r\n"
	}
	var r Reader
	in := []byte(request(MaxRequest))
	if n, err := r.Next(in); n != MaxRequest || err != nil || len(r.Args) != 2 {
		t.Errorf("%d of %d bytes, %v", n, len(in), err)
	}
	in = []byte(request(MaxRequest + 1))
	if n, err := r.Next(in[:4200]); n != 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// FuzzRequests: whatever arrives, and however it is cut, it is the same requests,
// within the bounds; and what is written as an array is read again.
func FuzzRequests(f *testing.F) {
	f.Add([]byte("*1\r\n$7\r\nID.NEXT\r\n*3\r\n$4\r\nHGET\r\n$2\r\nid\r\n$4\r\nnext\r\n"), 5)
	f.Add([]byte("PING \"a\\x41\" 'b'\r\n\r\n*-1\r\n*0\r\nx"), 3)
	f.Add([]byte("*2\r\n$4\r\nECHO\r\n$-1\r\n"), 1)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		whole, err := readAll(bytes.Clone(in), len(in))
		parts, partErr := readAll(bytes.Clone(in), max(1, cut))
		if !slices.EqualFunc(whole, parts, slices.Equal) || (err == nil) != (partErr == nil) {
			t.Fatalf("whole %q, %v; in parts %q, %v", whole, err, parts, partErr)
		}
		for _, req := range whole {
			size := 0
			wire := AppendArray(nil, len(req))
			for _, w := range req {
				size += len(w)
				wire = AppendBulk(wire, w)
			}
			if len(req) > maxArgs || size > MaxRequest {
				t.Fatalf("%d words of %d bytes", len(req), size)
			}
			var r Reader
			if n, err := r.Next(wire); n != len(wire) || err != nil || !slices.Equal(words(r.Args), req) {
				t.Fatalf("%q written and read: %d of %d bytes, %q, %v", req, n, len(wire), words(r.Args), err)
			}
		}
	})
}

// readAll reads what arrives in parts of the given size, as a connection does.
func readAll(in []byte, size int) (out [][]string, err error) {
	var r Reader
	var have []byte
	for len(in) > 0 {
		n := min(size, len(in))
		have, in = append(have, in[:n]...), in[n:]
		for {
			before := string(have)
			n, err := r.Next(have)
			if string(have) != before { // it may have to be read again
				panic(fmt.Sprintf("%q was changed to %q", before, have))
			}
			if err != nil {
				return out, err
			}
			if n == 0 {
				break
			}
			out = append(out, words(r.Args))
			have = have[n:]
		}
	}
	return out, nil
}
