package flake_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/codectest"
	"github.com/flakelease/allocator/flake"
)

var ids = codectest.Kind[flake.ID, *flake.ID]{
	Size:      flake.BinaryLen,
	Kept:      someID,
	Parse:     flake.Parse,
	Lenient:   flake.ParseLenient,
	FromBytes: flake.FromBytes,
	Compare:   flake.ID.Compare,
	Errors: map[string]error{
		"bad_length":         flake.ErrLength,
		"bad_char":           flake.ErrAlphabet,
		"overflow":           flake.ErrOverflow,
		"out_of_range":       flake.ErrRange,
		"time_before_epoch":  flake.ErrBeforeEpoch,
		"time_overflow":      flake.ErrTimeOverflow,
		"bad_sid":            flake.ErrSID,
		"bad_entropy_size":   flake.ErrEntropySize,
		"bad_randomness":     flake.ErrEntropy,
		"monotonic_overflow": flake.ErrMonotonicOverflow,
	},
	Forms: func(id flake.ID) map[string]func() (flake.ID, error) {
		forms := map[string]func() (flake.ID, error){
			"int":   func() (flake.ID, error) { return flake.ParseInt(string(id.AppendInt(nil))) },
			"hex":   func() (flake.ID, error) { return flake.ParseHex(id.Hex()) },
			"hex16": func() (flake.ID, error) { return flake.ParseHex(string(id.AppendHex16(nil))) },
		}
		for _, l := range []flake.Layout{flake.Scalable, flake.Standalone, flake.Fleet} {
			f := flake.Format{Layout: l, Epoch: flake.DefaultEpoch}
			forms["parts of "+l.String()] = func() (flake.ID, error) { return f.Make(f.UnixMilli(id), f.Entropy(id), f.SID(id)) }
		}
		return forms
	},
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
	ids.FuzzParse(f)
}

func FuzzParseInt(f *testing.F) {
	ids.FuzzText(f, flake.ParseInt, func(id flake.ID) string { return string(id.AppendInt(nil)) }, codectest.Digits,
		"0", "9223372036854775807", "9223372036854775808", "-1", "", "12a", "00")
}

func FuzzParseHex(f *testing.F) {
	ids.FuzzText(f, flake.ParseHex, flake.ID.Hex, func(s string) string { return "0x" + codectest.Digits(strings.TrimPrefix(s, "0x")) },
		"0x0", "0x7FFFFFFFFFFFFFFF", "7fffffffffffffff", "0x8000000000000000", "", "0x", "0xg")
}

func FuzzFromBytes(f *testing.F) {
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x80, 0, 0, 0, 0, 0, 0, 0})
	ids.FuzzBytes(f, func(b []byte) bool { return len(b) == 8 && b[0] < 0x80 })
}

func FuzzUnmarshalJSON(f *testing.F) { ids.FuzzJSON(f) }

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
		if want := codectest.Fold(s); fixed != want {
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
		if got != want || ids.Class(gotErr) != ids.Class(wantErr) {
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
			if o != nil || ids.Class(err) == "none" && layout%4 != 3 {
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
	ids.FuzzScan(f, func(b []byte) (flake.ID, error) {
		if len(b) == flake.BinaryLen {
			return flake.FromBytes(b)
		}
		return flake.Parse(string(b))
	}, "00CMXB6TAK4SA", "\x7f1234567", "\x801234567")
}
