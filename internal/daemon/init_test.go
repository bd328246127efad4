package daemon

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// The floor is the first unit of time whose IDs are all above the given one, and never
// lower than without it.
func TestFloorAbove(t *testing.T) {
	now := clock.Millis(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC).UnixMilli())
	for _, layout := range []flake.Layout{flake.Scalable, flake.Twitter, flake.Instagram, flake.Sonyflake, flake.JS53} {
		f := flake.Format{Layout: layout, Epoch: layout.Epoch()}
		for _, ahead := range []time.Duration{-100 * 24 * time.Hour, -time.Second, 0, 3 * time.Second, 9 * time.Minute} {
			above, err := f.Max(int64(now) + ahead.Milliseconds())
			fatal.If(t, err)
			for _, fresh := range []bool{true, false} {
				floor, err := Beginning{Fresh: fresh, Above: above}.floor(f, now, 31_000, 10*time.Minute)
				fatal.If(t, err)
				without, err := Beginning{Fresh: fresh}.floor(f, now, 31_000, 10*time.Minute)
				if err != nil || floor < without {
					t.Errorf("%v, %v ahead: floor %d is below %d, %v", layout, ahead, floor, without, err)
				}
				if first, err := f.Min(int64(floor)); err != nil || first <= above {
					t.Errorf("%v, %v ahead: the first ID is %d, %v, not above %d", layout, ahead, first, err, above)
				}
				if floor > without && int64(floor) != f.UnixMilli(above)+layout.Unit() {
					t.Errorf("%v, %v ahead: floor %d is later than the end of the ID's unit", layout, ahead, floor)
				}
			}
		}
	}
}

// TestNamed: a space that others go on in, or stand beside, has no name by which clients refuse theirs.
func TestNamed(t *testing.T) {
	for b, want := range map[*Beginning]bool{
		{Fresh: true}: true, {}: false, {Fresh: true, Unnamed: true}: false,
		{Fresh: true, SIDs: lease.SIDRange{From: 4, To: 8}}: false,
	} {
		if got := b.named(); got != want {
			t.Errorf("%+v: named %v", *b, got)
		}
	}
}

func TestFloorRefused(t *testing.T) {
	now := clock.Millis(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC).UnixMilli())
	at := func(layout flake.Layout, ms int64) (flake.Format, flake.ID) {
		f := flake.Format{Layout: layout, Epoch: layout.Epoch()}
		id, err := f.Max(ms)
		fatal.If(t, err)
		return f, id
	}
	long, err := flake.ParseLayout("50/5/8")
	fatal.If(t, err)
	for name, c := range map[string]struct {
		layout flake.Layout
		ms     int64 // of the ID
		id     flake.ID
		want   string // "": It is waited for.
	}{
		"centuries beyond": {layout: long, ms: int64(now) + 400*365*24*3_600_000, want: "292 years ahead of the clock, and at most 10m0s"},
		"beyond the clock": {layout: flake.Twitter, ms: int64(now) + 2*3_600_000, want: "2h0m0s ahead of the clock, and at most 10m0s"},
		"as far as can be": {layout: flake.Twitter, ms: int64(now) + 600_000 - 1},
		"one ms beyond":    {layout: flake.Twitter, ms: int64(now) + 600_000, want: "ahead of the clock, and at most 10m0s"},
		"too many bits":    {layout: flake.JS53, id: 1 << 53, want: "more than the 53 bits"},
		"last time":        {layout: flake.JS53, id: 1<<53 - 1, want: "the last time"},
	} {
		t.Run(name, func(t *testing.T) {
			f, id := flake.Format{Layout: c.layout, Epoch: c.layout.Epoch()}, c.id
			if c.ms != 0 {
				f, id = at(c.layout, c.ms)
			}
			_, err := Beginning{Fresh: true, Above: id}.floor(f, now, 31_000, 10*time.Minute)
			if errors.Is(err, ErrAbove) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
