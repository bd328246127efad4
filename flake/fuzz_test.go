package flake_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
)

// checkForms fails unless every form of id reads back as id.
func checkForms(t *testing.T, id flake.ID) {
	t.Helper()
	if id < 0 {
		t.Fatalf("a parser made the negative ID %d", id)
	}
	text, err1 := id.MarshalText()
	js, err2 := id.MarshalJSON()
	bin, err3 := id.MarshalBinary()
	if err1 != nil || err2 != nil || err3 != nil || string(text) != id.String() || len(text) != flake.TextLen {
		t.Fatalf("%d: %q %q %x, %v %v %v", id, text, js, bin, err1, err2, err3)
	}
	var fromText, fromJSON, fromBin, scanned flake.ID
	v, _ := id.Value()
	for form, err := range map[string]error{
		"text": fromText.UnmarshalText(text), "JSON": fromJSON.UnmarshalJSON(js),
		"binary": fromBin.UnmarshalBinary(bin), "SQL": scanned.Scan(v),
	} {
		if err != nil {
			t.Fatalf("%d: %s: %v", id, form, err)
		}
	}
	if fromText != id || fromJSON != id || fromBin != id || scanned != id {
		t.Fatalf("%d reads back as %d %d %d %d", id, fromText, fromJSON, fromBin, scanned)
	}
	for form, parse := range map[string]func() (flake.ID, error){
		"text":    func() (flake.ID, error) { return flake.Parse(strings.ToLower(id.String())) },
		"lenient": func() (flake.ID, error) { return flake.ParseLenient("-" + id.String()) },
		"int":     func() (flake.ID, error) { return flake.ParseInt(string(id.AppendInt(nil))) },
		"hex":     func() (flake.ID, error) { return flake.ParseHex(id.Hex()) },
		"hex16":   func() (flake.ID, error) { return flake.ParseHex(string(id.AppendHex16(nil))) },
	} {
		if got, err := parse(); err != nil || got != id {
			t.Fatalf("%d from %s: %d, %v", id, form, got, err)
		}
	}
	for _, l := range []flake.Layout{flake.Scalable, flake.Standalone, flake.Fleet} {
		f := flake.Format{Layout: l, Epoch: flake.DefaultEpoch}
		if got, err := f.Make(f.UnixMilli(id), f.Entropy(id), f.SID(id)); err != nil || got != id {
			t.Fatalf("%d in parts of %v: %d, %v", id, l, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	v := load(f)
	for _, x := range v.Scalable {
		f.Add(x.Base32)
	}
	for _, x := range v.InvalidStrings {
		f.Add(x.Input)
	}
	for _, x := range v.Lenient {
		f.Add(x.Input)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := flake.Parse(s)
		if want, ok := slowParse(s); ok != (err == nil) || id != want {
			t.Fatalf("Parse(%q) = %d, %v, a digit at a time it is %d, %v", s, id, err, want, ok)
		}
		if err == nil {
			checkForms(t, id)
			if !strings.EqualFold(id.String(), s) {
				t.Fatalf("Parse(%q) is written %s", s, id)
			}
		}
		// Lenient is strict after an obvious rewriting, and never less.
		folded := strings.NewReplacer("-", "", "I", "1", "i", "1", "L", "1", "l", "1", "O", "0", "o", "0").Replace(s)
		want, wantErr := flake.Parse(folded)
		if got, err := flake.ParseLenient(s); got != want || class(err) != class(wantErr) {
			t.Fatalf("ParseLenient(%q) = %d, %v, want %d, %v", s, got, err, want, wantErr)
		}
	})
}

// slowParse is Parse as one would do it on paper.
func slowParse(s string) (flake.ID, bool) {
	if len(s) != 13 || s[0] > '7' {
		return 0, false
	}
	var v uint64
	for i := range len(s) {
		d := strings.IndexByte("0123456789ABCDEFGHJKMNPQRSTVWXYZ", s[i])
		if d < 0 {
			d = strings.IndexByte("0123456789abcdefghjkmnpqrstvwxyz", s[i])
		}
		if d < 0 {
			return 0, false
		}
		v = v*32 + uint64(d)
	}
	return flake.ID(v), true
}

func FuzzParseInt(f *testing.F) {
	for _, s := range []string{"0", "9223372036854775807", "9223372036854775808", "-1", "", "12a", "00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := flake.ParseInt(s)
		if err != nil {
			if id != 0 {
				t.Fatalf("ParseInt(%q) = %d with %v", s, id, err)
			}
			return
		}
		checkForms(t, id)
		canonical := strings.TrimLeft(s, "0")
		if canonical == "" {
			canonical = "0"
		}
		if got := string(id.AppendInt(nil)); got != canonical {
			t.Fatalf("ParseInt(%q) is written %s", s, got)
		}
	})
}

func FuzzParseHex(f *testing.F) {
	for _, s := range []string{"0x0", "0x7FFFFFFFFFFFFFFF", "7fffffffffffffff", "0x8000000000000000", "", "0x", "0xg"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := flake.ParseHex(s)
		if err != nil {
			if id != 0 {
				t.Fatalf("ParseHex(%q) = %d with %v", s, id, err)
			}
			return
		}
		checkForms(t, id)
		digits := strings.ToUpper(strings.TrimLeft(strings.TrimPrefix(s, "0x"), "0"))
		if digits == "" {
			digits = "0"
		}
		if id.Hex() != "0x"+digits {
			t.Fatalf("ParseHex(%q) is written %s", s, id.Hex())
		}
	})
}

func FuzzFromBytes(f *testing.F) {
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x80, 0, 0, 0, 0, 0, 0, 0})
	for _, n := range []int{0, 7, 9, 16} {
		f.Add(make([]byte, n))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := flake.FromBytes(b)
		read := flake.ID(7)
		if also := read.UnmarshalBinary(b); class(also) != class(err) || err == nil && read != id || err != nil && read != 7 {
			t.Fatalf("UnmarshalBinary(%x): %v, ID now %d; FromBytes: %d, %v", b, also, read, id, err)
		}
		if ok := len(b) == 8 && b[0] < 0x80; ok != (err == nil) {
			t.Fatalf("FromBytes(%x): %v", b, err)
		}
		if err == nil {
			checkForms(t, id)
			if got, _ := id.MarshalBinary(); !bytes.Equal(got, b) {
				t.Fatalf("FromBytes(%x) is written %x", b, got)
			}
		}
	})
}

func FuzzUnmarshalJSON(f *testing.F) {
	for _, s := range []string{`"00CMXB6TAK4SA"`, `null`, `123`, `""`, `"`, `"00CMXB6TAK4S\u0041"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		id := flake.ID(7)
		err := id.UnmarshalJSON(b)
		switch {
		case err != nil || string(b) == "null":
			if id != 7 {
				t.Fatalf("UnmarshalJSON(%q) left %d, %v", b, id, err)
			}
		default:
			checkForms(t, id)
			if js, _ := id.MarshalJSON(); !strings.EqualFold(string(js), string(b)) {
				t.Fatalf("UnmarshalJSON(%q) is written %s", b, js)
			}
		}
	})
}

func FuzzRepair(f *testing.F) {
	for _, x := range load(f).Lenient {
		f.Add(x.Input)
	}
	for _, s := range []string{
		"", "-----", "\xff\u017f-o", "00CMXB6TAK4SA", "00cmxb6tak4su\xff ", "iIlLoO", "a-Lb",
		strings.Repeat("z", 50) + "-" + strings.Repeat("y", 50),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fixed, changes := flake.Repair(s)
		if want := strings.NewReplacer("-", "", "I", "1", "i", "1", "L", "1", "l", "1", "O", "0", "o", "0").Replace(s); fixed != want {
			t.Fatalf("Repair(%q) = %q, want %q", s, fixed, want)
		}
		// Undone from the end, the changes give s back.
		back := fixed
		for i := len(changes) - 1; i >= 0; i-- {
			c := changes[i]
			rest := len(s) - c.At - 1 // bytes of s behind the change
			for _, later := range changes[i+1:] {
				if later.To == 0 {
					rest--
				}
			}
			at := len(fixed) - rest
			if c.To == 0 {
				back = back[:at] + string([]byte{c.From}) + back[at:]
				continue
			}
			if fixed[at-1] != c.To {
				t.Fatalf("Repair(%q) = %q: %v is not so", s, fixed, c)
			}
			back = back[:at-1] + string([]byte{c.From}) + back[at:]
		}
		if back != s {
			t.Fatalf("Repair(%q) = %q, %v: undone it is %q", s, fixed, changes, back)
		}
		got, gotErr := flake.Parse(fixed)
		want, wantErr := flake.ParseLenient(s)
		if got != want || class(gotErr) != class(wantErr) {
			t.Fatalf("%q: repaired and parsed %d, %v; leniently %d, %v", s, got, gotErr, want, wantErr)
		}
	})
}

func FuzzParseLayout(f *testing.F) {
	for _, s := range append(flake.Layouts(), "", "Fleet", "scalable\x00", "41/10/12", "39/8/16,order=time-seq-sid,unit=10ms,epoch=2014-09-01", "30/4/8,start=9,steps=random") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := flake.ParseFormat(s)
		if err != nil {
			if l != (flake.Format{}) || !errors.Is(err, flake.ErrLayout) {
				t.Fatalf("ParseFormat(%q) = %v, %v", s, l, err)
			}
			return
		}
		if again, err := flake.ParseFormat(l.String()); again != l || err != nil || l.Layout.Validate() != nil {
			t.Fatalf("ParseFormat(%q) = %v, which is read as %v, %v", s, l, again, err)
		}
	})
}

// Whatever is drawn at whatever time, a series rises, keeps its sid and its
// time, and refuses with a reason.
func FuzzOffline(f *testing.F) {
	f.Add(uint8(0), uint8(1), uint16(7), []byte{0, 5, 1, 1, 9, 9}, []byte{0, 0, 1, 200, 3})
	f.Add(uint8(2), uint8(1), uint16(1023), []byte{255, 255, 7, 8}, []byte{0, 0, 0})
	f.Fuzz(func(t *testing.T, layout, size uint8, sid uint16, draws, steps []byte) {
		c := flake.OfflineConfig{
			Format: flake.Format{Layout: []flake.Layout{flake.Scalable, flake.Standalone, flake.Fleet, 0}[layout%4], Epoch: flake.DefaultEpoch},
			SID:    flake.SID(sid), EntropySize: int(size % 5), Entropy: bytes.NewReader(draws),
		}
		o, err := flake.NewOffline(c)
		if err != nil {
			if o != nil || class(err) == "none" && layout%4 != 3 {
				t.Fatalf("%+v: %v", c, err)
			}
			return
		}
		now, last := flake.DefaultEpoch, flake.ID(-1)
		for _, step := range steps {
			now += int64(int8(step)) // back and forth
			id, err := o.NextAt(now)
			if err != nil {
				if id != 0 {
					t.Fatalf("%v with %v", id, err)
				}
				continue
			}
			if id <= last || c.Format.UnixMilli(id) != now || c.Format.SID(id) != c.SID {
				t.Fatalf("at %d after %v: %v", now, last, id)
			}
			last = id
		}
	})
}

// Scan reads what Parse and FromBytes read, and tells them apart.
func FuzzScan(f *testing.F) {
	f.Add([]byte("00CMXB6TAK4SA"))
	f.Add([]byte("\x7f1234567"))
	f.Add([]byte("\x801234567"))
	f.Fuzz(func(t *testing.T, b []byte) {
		want, err := flake.Parse(string(b))
		if len(b) == flake.BinaryLen {
			want, err = flake.FromBytes(b)
		}
		got := flake.ID(7)
		if gotErr := got.Scan(b); class(gotErr) != class(err) || err == nil && got != want || err != nil && got != 7 {
			t.Fatalf("Scan(%q) = %d, %v, want %d, %v", b, got, gotErr, want, err)
		}
	})
}
