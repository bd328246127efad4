package lease_test

import (
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

func TestSIDs(t *testing.T) {
	for _, tt := range []struct {
		text           string
		want           lease.SIDRange
		within, fleet  string // of layouts scalable and fleet
		first, outside flake.SID
	}{
		{"", lease.SIDRange{}, "0-31", "0-1023", 0, 32},
		{"0-23", lease.SIDRange{From: 0, To: 24}, "0-23", "0-23", 0, 24},
		{"24-31", lease.SIDRange{From: 24, To: 32}, "24-31", "24-31", 24, 23},
		{"7", lease.SIDRange{From: 7, To: 8}, "7", "7", 7, 8},
		{"0", lease.SIDRange{From: 0, To: 1}, "0", "0", 0, 1},
		{"24-1023", lease.SIDRange{From: 24, To: 1024}, "24-31", "24-1023", 24, 32},
	} {
		got, err := lease.ParseSIDRange(tt.text)
		if err != nil || got != tt.want || got.String() != tt.text {
			t.Errorf("%q: %+v, %v; prints %q", tt.text, got, err, got)
		}
		in := got.In(flake.Scalable)
		if in.String() != tt.within || got.In(flake.Fleet).String() != tt.fleet {
			t.Errorf("%q: %v of scalable, %v of fleet", tt.text, in, got.In(flake.Fleet))
		}
		if !in.Has(tt.first) || in.Has(tt.outside) || in.Has(in.To) || in.Len() != int(in.To-in.From) {
			t.Errorf("%q: has %d, or not %d", tt.text, tt.outside, tt.first)
		}
	}
	for _, text := range []string{"-", "1-", "-1", "3-2", "0-4194304", "4194304", "a-b", "0,1", " 1", "1 - 2", "+1", "0-1-2", "9999999"} {
		if got, err := lease.ParseSIDRange(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
