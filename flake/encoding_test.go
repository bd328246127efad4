package flake_test

import (
	"database/sql"
	"database/sql/driver"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
)

var (
	_ encoding.TextAppender    = flake.Layout(0)
	_ encoding.TextMarshaler   = flake.Layout(0)
	_ encoding.TextUnmarshaler = (*flake.Layout)(nil)
)

// Incident T39 (consumers that keep 53 bits of 64), docs/INCIDENTS.md.
func TestJSON(t *testing.T) {
	type doc struct {
		ID  flake.ID
		P   *flake.ID           `json:",omitempty"`
		Map map[flake.ID]string `json:",omitempty"`
	}
	id := someID
	in := doc{id, &id, map[flake.ID]string{id: "x"}}
	b, err := json.Marshal(in)
	const want = `{"ID":"00CMXB6TAK4SA","P":"00CMXB6TAK4SA","Map":{"00CMXB6TAK4SA":"x"}}`
	if err != nil || string(b) != want {
		t.Fatalf("got %s, %v, want %s", b, err, want)
	}
	var out doc
	if err := json.Unmarshal(b, &out); err != nil || out.ID != id || *out.P != id || out.Map[id] != "x" {
		t.Errorf("reads back as %+v, %v", out, err)
	}

	var others struct { // as clients for other languages write and read IDs
		ID  flake.Decimal
		Map map[flake.Decimal]string
	}
	const digits = `{"ID":"14246757444195114","Map":{"14246757444195114":"x"}}`
	if err := json.Unmarshal([]byte(digits), &others); err != nil || fmt.Sprint(others.ID) != "14246757444195114" {
		t.Errorf("digits are read as %v, %v", others, err)
	}
	if b, err := json.Marshal(others); err != nil || string(b) != digits {
		t.Errorf("got %s, %v, want %s", b, err, digits)
	}
	for in, want := range map[string]string{
		`{"ID":14246757444195114}`: "cannot unmarshal number", `{"ID":"00CMXB6TAK4SA"}`: "invalid character",
		`{"ID":"9223372036854775808"}`: "range", `{"ID":"-1"}`: "range", `{"ID":""}`: "no digits",
	} {
		if err := json.Unmarshal([]byte(in), &others); err == nil || !strings.Contains(err.Error(), want) || others.ID != 14246757444195114 {
			t.Errorf("%s: %v, %v", in, others.ID, err)
		}
	}
	if b, err := json.Marshal(flake.Decimal(-1)); !errors.Is(err, flake.ErrRange) {
		t.Errorf("a negative ID is %s, %v", b, err)
	}

	for _, x := range []struct {
		in  string
		err error
	}{
		{`null`, nil},
		{`14246757444195114`, flake.ErrJSON},
		{`0`, flake.ErrJSON},
		{`1.5e3`, flake.ErrJSON},
		{`true`, flake.ErrJSON},
		{`{}`, flake.ErrJSON},
		{`["00CMXB6TAK4SA"]`, flake.ErrJSON},
		{`""`, flake.ErrLength},
		{`"14246757444195114"`, flake.ErrLength},
		{`"00CMXB6TAK4S"`, flake.ErrLength},
		{`"00CMXB6TAK4SU"`, flake.ErrAlphabet},
		{`"G0CMXB6TAK4SA"`, flake.ErrOverflow},
		{`"\u0030CMXB6TAK4SA0"`, flake.ErrLength},
	} {
		got := flake.ID(7)
		if err := json.Unmarshal([]byte(x.in), &got); !errors.Is(err, x.err) || got != 7 {
			t.Errorf("%s: %v, ID now %d, want error %v", x.in, err, got, x.err)
		}
	}
	// Handed over without encoding/json, which would have caught these.
	for _, in := range []string{"", `"`, `"0`, `0"`, `'00CMXB6TAK4SA'`} {
		if err := id.UnmarshalJSON([]byte(in)); !errors.Is(err, flake.ErrJSON) || id != someID {
			t.Errorf("UnmarshalJSON(%q): %v, ID now %d", in, err, id)
		}
	}
	if err := id.UnmarshalJSON([]byte("5")); err == nil || !strings.Contains(err.Error(), "2^53") {
		t.Errorf("a number's error does not say why: %v", err)
	}
}

func TestSQL(t *testing.T) {
	if v, err := someID.Value(); err != nil || v != int64(14246757444195114) || !driver.IsValue(v) {
		t.Errorf("Value = %v, %v", v, err)
	}
	b, _ := someID.MarshalBinary()
	for _, x := range []struct {
		src any
		err error
	}{
		{int64(14246757444195114), nil},
		{"00CMXB6TAK4SA", nil},
		{[]byte("00cmxb6tak4sa"), nil},
		{b, nil},
		{nil, flake.ErrType},
		{14246757444195114, flake.ErrType}, // int is no driver.Value
		{float64(1), flake.ErrType},
		{true, flake.ErrType},
		{int64(-1), flake.ErrRange},
		{"", flake.ErrLength},
		{"14246757444195114", flake.ErrLength},
		{[]byte{}, flake.ErrLength},
		{[]byte(nil), flake.ErrLength},
		{[]byte("1234567"), flake.ErrLength},
		{[]byte{0x80, 0, 0, 0, 0, 0, 0, 0}, flake.ErrRange},
		{"OOCMXB6TAK4SA", flake.ErrAlphabet},
		{"8000000000000", flake.ErrOverflow},
	} {
		id := flake.ID(7)
		err := id.Scan(x.src)
		if !errors.Is(err, x.err) || err != nil && id != 7 || err == nil && id != someID {
			t.Errorf("Scan(%T %v): %v, ID now %v, want error %v", x.src, x.src, err, id, x.err)
		}
	}
	var n sql.Null[flake.ID]
	if err := n.Scan(nil); err != nil || n.Valid {
		t.Errorf("NULL through sql.Null: %v, %v", n, err)
	}
	if err := n.Scan(int64(5)); err != nil || !n.Valid || n.V != 5 {
		t.Errorf("5 through sql.Null: %v, %v", n, err)
	}
}

// A negative ID is written in no form that a parser would have to refuse.
func TestNegative(t *testing.T) {
	for _, id := range []flake.ID{-1, math.MinInt64} {
		for form, write := range map[string]func([]byte) ([]byte, error){
			"text": id.AppendText, "binary": id.AppendBinary, "JSON": id.AppendJSON,
		} {
			if b, err := write([]byte("x")); !errors.Is(err, flake.ErrRange) || string(b) != "x" {
				t.Errorf("%d as %s: %q, %v", id, form, b, err)
			}
		}
		if v, err := id.Value(); !errors.Is(err, flake.ErrRange) || v != nil {
			t.Errorf("%d: Value = %v, %v", id, v, err)
		}
		if _, err := flake.Parse(id.String()); !errors.Is(err, flake.ErrOverflow) {
			t.Errorf("%d: String %s parses: %v", id, id, err)
		}
	}
}

func TestAppendKeepsPrefix(t *testing.T) {
	pre := []byte("id=")
	text, _ := someID.AppendText(pre)
	js, _ := someID.AppendJSON(pre)
	bin, _ := someID.AppendBinary(pre)
	for _, x := range []struct {
		got  []byte
		want string
	}{
		{text, "id=00CMXB6TAK4SA"},
		{js, `id="00CMXB6TAK4SA"`},
		{bin, "id=\x00\x32\x9D\x59\xB4\xA9\x93\x2A"},
		{someID.AppendInt(pre), "id=14246757444195114"},
		{someID.AppendHex(pre), "id=0x329D59B4A9932A"},
		{someID.AppendHex16(pre), "id=00329d59b4a9932a"},
		{flake.ID(5).AppendBin(pre), "id=0b101"},
	} {
		if string(x.got) != x.want {
			t.Errorf("got %q, want %q", x.got, x.want)
		}
	}
	if got := fmt.Sprintf("%v %s", someID, someID); got != "00CMXB6TAK4SA 00CMXB6TAK4SA" {
		t.Errorf("formatted: %s", got)
	}
}

func TestNoAllocations(t *testing.T) {
	buf := make([]byte, 0, 128)
	text, js, bin := []byte("00CMXB6TAK4SA"), []byte(`"00CMXB6TAK4SA"`), []byte{0, 1, 2, 3, 4, 5, 6, 7}
	str := string(text)
	var id flake.ID
	var err error
	for name, f := range map[string]func(){
		"AppendText":      func() { buf, err = someID.AppendText(buf[:0]) },
		"AppendBinary":    func() { buf, err = someID.AppendBinary(buf[:0]) },
		"AppendJSON":      func() { buf, err = someID.AppendJSON(buf[:0]) },
		"AppendInt":       func() { buf = someID.AppendInt(buf[:0]) },
		"AppendHex":       func() { buf = someID.AppendHex(buf[:0]) },
		"AppendHex16":     func() { buf = someID.AppendHex16(buf[:0]) },
		"AppendBin":       func() { buf = someID.AppendBin(buf[:0]) },
		"Parse":           func() { id, err = flake.Parse(str) },
		"ParseLenient":    func() { id, err = flake.ParseLenient(str) },
		"ParseInt":        func() { id, err = flake.ParseInt("14246757444195114") },
		"ParseHex":        func() { id, err = flake.ParseHex("0x329D59B4A9932A") },
		"FromBytes":       func() { id, err = flake.FromBytes(bin) },
		"UnmarshalText":   func() { err = id.UnmarshalText(text) },
		"UnmarshalJSON":   func() { err = id.UnmarshalJSON(js) },
		"UnmarshalBinary": func() { err = id.UnmarshalBinary(bin) },
		"Repair":          func() { _, _ = flake.Repair(str) },
		"Make":            func() { id, err = flake.Default.Make(flake.DefaultEpoch+5, 6, 7) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 || err != nil {
			t.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
}
