package flake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
)

// layoutVectors is a file of testdata/layouts.
type layoutVectors struct {
	Layout     string     `json:"layout"`
	Sources    []string   `json:"sources"`
	Bits       layoutBits `json:"bits"`
	SIDSplit   string     `json:"sid_split"`
	Note       string     `json:"note"`
	IDs        []layoutID `json:"ids"`
	OutOfRange []layoutID `json:"out_of_range"`
	Variants   []struct {
		Name string     `json:"name"`
		Bits layoutBits `json:"bits"`
		IDs  []layoutID `json:"ids"`
	} `json:"variants"`
}

type layoutBits struct {
	Time     int    `json:"time"`
	SID      int    `json:"sid"`
	Sequence int    `json:"sequence"`
	Order    string `json:"order"`
	Unit     int64  `json:"unit_ms"`
	Epoch    int64  `json:"epoch_unix_ms"`
}

type layoutID struct {
	ID        string `json:"id"`
	UnixMilli int64  `json:"unix_ms"`
	UTC       string `json:"utc"`
	Units     int64  `json:"time_units"`
	SID       SID    `json:"sid"`
	Sequence  uint32 `json:"sequence"`
	Kind      string `json:"kind"`
	Source    string `json:"source"`
}

// IDs of other systems have in their layout the time, sid and sequence that these
// systems give them, and are made again from these.
func TestLayoutVectors(t *testing.T) {
	files, err := filepath.Glob("../testdata/layouts/*.json")
	if err != nil || len(files) != 6 {
		t.Fatalf("%d files, %v: want 6", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		fatal.If(t, err)
		var v layoutVectors
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		if err := d.Decode(&v); err != nil {
			t.Fatal(file, err)
		}
		t.Run(v.Layout, func(t *testing.T) {
			f, err := ParseFormat(v.Layout)
			fatal.If(t, err)
			v.Bits.check(t, f)
			checkLayoutIDs(t, f, v.IDs)
			for _, variant := range v.Variants {
				f := variant.Bits.format(t)
				variant.Bits.check(t, f)
				checkLayoutIDs(t, f, variant.IDs)
			}
			for _, bad := range v.OutOfRange {
				if id, err := ParseInt(bad.ID); !errors.Is(err, ErrRange) {
					t.Errorf("%s: %v, %v: want %v", bad.ID, id, err, ErrRange)
				}
			}
		})
	}
}

// format returns the bits as a custom layout.
func (b layoutBits) format(t *testing.T) Format {
	second, third := b.SID, b.Sequence
	if b.Order == orderSeq {
		second, third = third, second
	}
	f, err := ParseFormat(fmt.Sprintf("%d/%d/%d,order=%s,unit=%dms,epoch=%d", b.Time, second, third, b.Order, b.Unit, b.Epoch))
	fatal.If(t, err)
	return f
}

// check compares a format with the original's bits, of which we use 63.
func (b layoutBits) check(t *testing.T, f Format) {
	t.Helper()
	l := f.Layout
	order := orderSeq
	if l.SIDFirst() {
		order = orderSID
	}
	got := layoutBits{l.TimeBits(), l.SIDBits(), l.SequenceBits(), order, l.Unit(), f.Epoch}
	if b.Time = min(b.Time, maxBits-b.SID-b.Sequence); got != b {
		t.Errorf("%v is %+v, want %+v", f, got, b)
	}
}

func checkLayoutIDs(t *testing.T, f Format, ids []layoutID) {
	t.Helper()
	if len(ids) == 0 {
		t.Errorf("%v: no IDs", f)
	}
	for _, v := range ids {
		id, err := ParseInt(v.ID)
		if err != nil {
			t.Fatalf("%s: %v", v.ID, err)
		}
		got := layoutID{v.ID, f.UnixMilli(id), f.Time(id).Format("2006-01-02T15:04:05.000Z07:00"), f.Layout.Timestamp(id), f.SID(id), f.Entropy(id), v.Kind, v.Source}
		if got != v {
			t.Errorf("%v: %+v, want %+v", f, got, v)
		}
		if again, err := f.Make(v.UnixMilli, v.Sequence, v.SID); err != nil || again != id {
			t.Errorf("%v: made %d, %v, want %s", f, again, err, v.ID)
		}
		if err := f.Holds(id); err != nil {
			t.Errorf("%v: %v", f, err)
		}
		if v.Source == "" || v.Kind == "" {
			t.Errorf("%s has no source", v.ID)
		}
	}
}

func TestParseFormat(t *testing.T) {
	for _, s := range append(Layouts(), "41/10/12,order=time-sid-seq,unit=1ms", "39/8/16,order=time-seq-sid,unit=10ms", "41/10/12,order=time-seq-sid,unit=1ms,steps=random",
		"41/10/12,order=time-sid-seq,unit=1ms,start=100", "twitter,epoch=2020-01-01T00:00:00Z", "28/22/13,order=time-sid-seq,unit=1000ms,epoch=2026-01-01T00:00:00.007Z") {
		if f, err := ParseFormat(s); err != nil || f.String() != s {
			t.Errorf("%s: %v, %v", s, f, err)
		}
	}
	for s, want := range map[string]string{
		"":                              "it is none of scalable, standalone, fleet, twitter,",
		"twiter":                        "it is none of",
		"41/10":                         "not three numbers of bits such as 41/10/12",
		"41/10/13":                      "41 + 10 + 13 = 64 bits of time, sid and sequence: an ID has 63",
		"63/63/63":                      "an ID has 63",
		"99/1/1":                        `"99" is not a number of bits, 0 to 63`,
		"0/10/12":                       "no bits of time",
		"20/23/12":                      "23 bits of sid: at most 22",
		"41/10/0":                       "0 bits of sequence: use 1 to 24",
		"30/5/25":                       "25 bits of sequence: use 1 to 24",
		"50/1/1,unit=1m":                "over a million years: use fewer",
		"39/8/16,unit=7ms":              "a unit of 7ms: it must divide 1s, or be whole seconds up to 1m",
		"39/8/16,unit=1500ms":           "a unit of 1.5s: it must divide 1s",
		"39/8/16,unit=0s":               "a unit of 0s",
		"39/8/16,unit=2m":               "whole milliseconds up to a minute",
		"39/8/16,unit=1us":              "whole milliseconds up to a minute",
		"41/10/12,start=4097":           "start 4097: it is for sequences that count, and at most 4096",
		"41/10/12,steps=random,start=1": "it is for sequences that count",
		"41/10/12,order=sid-time-seq":   "it must be time-sid-seq or time-seq-sid",
		"41/10/12,steps=2":              "it must be count or random",
		"41/10/12,node=3":               `"node" is not a setting of layouts`,
		"41/10/12,unit=1ms,unit=1ms":    "twice",
		"Scalable":                      "it is none of",
		"scalable ":                     "it is none of",
		"41/x/12":                       `"x" is not a number of bits`,
		"45/10/8,unit=1m":               "over a million years",
		"39/8/16,unit=61s":              "whole milliseconds up to a minute",
		"41/10/12,start=x":              "a number up to",
		"twitter,unit=1ms":              "only epoch= can be set",
		"twitter,epoch=281474976710656": "it must be a date",
		"twitter,epoch=tomorrow":        "it must be a date, a time such as 2024-01-01T00:00:00Z, or Unix milliseconds",
		strings.Repeat("4", 201):        "longer than 200 bytes",
	} {
		f, err := ParseFormat(s)
		if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), want) || f != (Format{}) {
			t.Errorf("%q: %v, %v: want %q", s, f, err, want)
		}
		l := Fleet
		if err := l.UnmarshalText([]byte(s)); !errors.Is(err, ErrLayout) || l != Fleet {
			t.Errorf("UnmarshalText(%q): %v, layout now %v", s, err, l)
		}
	}
	if _, err := ParseLayout("twitter,epoch=2020-01-01"); !errors.Is(err, ErrLayout) {
		t.Errorf("ParseLayout with an epoch: %v", err)
	}
}

// Every layout takes an ID apart into what it was made of, and Min and Max are the
// bounds of its unit of time.
func TestLayoutsRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 2))
	for range 3000 {
		f := randomFormat(r)
		l := f.Layout
		if again, err := ParseFormat(f.String()); err != nil || again != f {
			t.Fatalf("%v: read as %v, %v", f, again, err)
		}
		at := f.Epoch + r.Int64N(l.End())
		seq, sid := r.Uint32N(1<<l.SequenceBits()), SID(r.IntN(l.Holders()))
		id, err := f.Make(at, seq, sid)
		if err != nil {
			t.Fatalf("%v: %v", f, err)
		}
		first := at - (at-f.Epoch)%l.Unit()
		if f.UnixMilli(id) != first || f.Entropy(id) != seq || f.SID(id) != sid || f.Holds(id) != nil {
			t.Fatalf("%v: %d has time %v, sequence %d, sid %d, %v", f, id, f.Time(id), f.Entropy(id), f.SID(id), f.Holds(id))
		}
		low, err1 := f.Min(at)
		high, err2 := f.Max(at)
		if err := errors.Join(err1, err2); err != nil || id < low || id > high || f.UnixMilli(low) != first || f.UnixMilli(high) != first || f.UnixMilli(high+1) == first && high < 1<<63-1 {
			t.Fatalf("%v: %d is not within %d and %d of %v, %v", f, id, low, high, time.UnixMilli(at), err)
		}
		if top := ID(1) << (l.TimeBits() + l.LowBits()); top > 0 && !errors.Is(f.Holds(id|top), ErrRange) {
			t.Fatalf("%v holds %d", f, id|top)
		}
	}
}

// randomFormat returns a built-in format or a custom one.
func randomFormat(r *rand.Rand) Format {
	for {
		seq := 1 + r.IntN(maxSequenceBits)
		sid := r.IntN(maxSIDBits + 1)
		units := []int{1, 2, 5, 10, 100, 500, 1000, 2000, 30_000, 60_000}
		s := fmt.Sprintf("%d/%d/%d,unit=%dms", 1+r.IntN(maxBits), sid, seq, units[r.IntN(len(units))])
		if r.IntN(2) == 0 {
			s = fmt.Sprintf("%d/%d/%d,order=time-seq-sid,unit=%dms", 1+r.IntN(maxBits), seq, sid, units[r.IntN(len(units))])
		}
		if r.IntN(2) == 0 {
			s += ",steps=random"
		}
		if r.IntN(4) == 0 {
			s = Layouts()[r.IntN(len(builtins))]
		}
		if r.IntN(2) == 0 {
			s += fmt.Sprintf(",epoch=%d", r.Int64N(2_000_000_000_000))
		}
		if f, err := ParseFormat(s); err == nil {
			return f
		}
	}
}
