package lease_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

func TestParseSIDRange(t *testing.T) {
	for _, tt := range []struct {
		text           string
		want           lease.SIDRange
		first, outside flake.SID
	}{
		{"0-23", lease.SIDRange{From: 0, To: 24}, 0, 24},
		{"24-31", lease.SIDRange{From: 24, To: 32}, 24, 23},
		{"7", lease.SIDRange{From: 7, To: 8}, 7, 8},
		{"0", lease.SIDRange{From: 0, To: 1}, 0, 1},
		{"4194303", lease.SIDRange{From: 4194303, To: 4194304}, 4194303, 0},
	} {
		got, err := lease.ParseSIDRange(tt.text)
		if err != nil || got != tt.want || got.String() != tt.text || got.All() {
			t.Errorf("%q: %+v, %v; prints %q", tt.text, got, err, got)
		}
		if !got.Has(tt.first) || got.Has(tt.outside) || got.Has(got.To) || got.Len() != int(got.To-got.From) {
			t.Errorf("%q: has %d, or not %d", tt.text, tt.outside, tt.first)
		}
	}
	if all, err := lease.ParseSIDRange(""); err != nil || !all.All() || all.String() != "" {
		t.Errorf("all: %+v, %v", all, err)
	}
	for _, text := range []string{"-", "1-", "-1", "3-2", "0-4194304", "4194304", "a-b", "0,1", " 1", "1 - 2", "+1", "0-1-2", "9999999"} {
		if got, err := lease.ParseSIDRange(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

// TestWorkersRange: what is left to a node is one range, or an error.
func TestWorkersRange(t *testing.T) {
	for _, tt := range []struct {
		workers, node, left string // left "": an error
	}{
		{"", "0-31", "0-31"}, {"16-31", "0-31", "0-15"}, {"0-15", "0-31", "16-31"}, {"31", "0-31", "0-30"},
		{"16-31", "0-15", "0-15"}, {"16-31", "8-19", "8-15"}, {"0-9", "8-19", "10-19"}, {"0", "1", "1"},
		{"8-15", "0-31", ""}, {"0-31", "0-31", ""}, {"0-31", "4-7", ""}, {"7", "7", ""}, {"31-32", "0-15", ""}, {"40-50", "0-31", ""},
	} {
		w, err1 := lease.ParseSIDRange(tt.workers)
		n, err2 := lease.ParseSIDRange(tt.node)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		left, err := lease.Space{Layout: flake.Scalable, Pool: "p"}.Workers(w, n)
		if left.String() != tt.left || (err == nil) != (tt.left != "") {
			t.Errorf("%q for workers, of %q: %q is left, %v", tt.workers, tt.node, left, err)
		}
	}
}

// TestSpaceSIDs: what a node may take is its range within the sids of the space.
func TestSpaceSIDs(t *testing.T) {
	for _, tt := range []struct {
		layout      flake.Layout
		part, nodes string
		sids, takes string // takes "": refused
	}{
		{flake.Scalable, "", "", "0-31", "0-31"},
		{flake.Scalable, "", "24-31", "0-31", "24-31"},
		{flake.Twitter, "", "", "0-1023", "0-1023"},
		{flake.Twitter, "256-511", "", "256-511", "256-511"},
		{flake.Twitter, "256-511", "256-511", "256-511", "256-511"},
		{flake.Twitter, "256-511", "300", "256-511", "300"},
		{flake.Twitter, "256-511", "0-1023", "256-511", ""},
		{flake.Twitter, "256-511", "255-256", "256-511", ""},
		{flake.Twitter, "256-511", "511-512", "256-511", ""},
		{flake.Sonyflake, "", "", "0-1023", "0-1023"},
		{flake.Sonyflake, "", "1024", "0-1023", ""},
		{flake.Sonyflake, "64512-65535", "65535", "64512-65535", "65535"},
		{flake.Baidu, "4193280-4194303", "", "4193280-4194303", "4193280-4194303"},
	} {
		part, err1 := lease.ParseSIDRange(tt.part)
		nodes, err2 := lease.ParseSIDRange(tt.nodes)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		space := lease.Space{Layout: tt.layout, Pool: "p", Part: part}
		takes, err := space.SIDsOf(nodes)
		var outside *lease.RangeError
		switch {
		case space.SIDs().String() != tt.sids, takes.String() != tt.takes:
			t.Errorf("%v %q, node %q: space %v, node %v", tt.layout, tt.part, tt.nodes, space.SIDs(), takes)
		case tt.takes == "" && (!errors.As(err, &outside) || !strings.Contains(err.Error(), tt.nodes) || !strings.Contains(err.Error(), tt.sids)):
			t.Errorf("%v %q, node %q: %v", tt.layout, tt.part, tt.nodes, err)
		case tt.takes != "" && err != nil:
			t.Error(err)
		}
		if back, err := lease.Decode[lease.Space](lease.Encode(space)); err != nil || back != space {
			t.Errorf("%+v is read back as %+v: %v", space, back, err)
		}
	}
	if raw := lease.Encode(lease.Space{Layout: flake.Twitter, Pool: "p"}); strings.Contains(raw, "sids") {
		t.Errorf("a space of all sids is stored as %s", raw)
	}
}

func TestParsePart(t *testing.T) {
	for _, tt := range []struct {
		text   string
		layout flake.Layout
		says   string // "": it is a part
	}{
		{"0-255", flake.Twitter, ""},
		{"1023", flake.Twitter, ""},
		{"0-1023", flake.Sonyflake, ""},
		{"4193280-4194303", flake.Baidu, ""},
		{"", flake.Twitter, "empty: write first-last"},
		{"3-2", flake.Twitter, "last sid is below the first"},
		{"0-1024", flake.Twitter, "beyond sid 1023, the last of layout twitter: use lower ones"},
		{"32", flake.Scalable, "beyond sid 31"},
		{"0-1024", flake.Sonyflake, "1025 sids, and a space has at most 1024"},
		{"0-4194303", flake.Baidu, "at most 1024, since every node keeps the records of all: use fewer"},
		{"0-255 of 1024", flake.Twitter, "write first-last"},
	} {
		r, err := lease.ParsePart(tt.text, tt.layout)
		if tt.says == "" {
			if err != nil || r.String() != tt.text {
				t.Errorf("%q of %v: %v, %v", tt.text, tt.layout, r, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.says) || r != (lease.SIDRange{}) {
			t.Errorf("%q of %v: %v, %v, want %q", tt.text, tt.layout, r, err, tt.says)
		}
		// A record that somebody wrote is held to the same.
		if bad, err := lease.ParseSIDRange(tt.text); err == nil && !bad.All() {
			if _, err := lease.Decode[lease.Space](lease.Encode(lease.Space{Layout: tt.layout, Pool: "p", Part: bad})); !errors.Is(err, lease.ErrMalformed) {
				t.Errorf("a record with %q of %v: %v", tt.text, tt.layout, err)
			}
		}
	}
}
