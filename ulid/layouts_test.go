package ulid_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// TestLayouts: in every layout, built in or not, a wide ID is a UUIDv7 of its flake's
// time, gives the flake back whatever the random bits are, and sorts as flakes do (I8).
func TestLayouts(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 6))
	formats := []flake.Format{}
	for _, name := range flake.Layouts() {
		for _, epoch := range []string{"", ",epoch=1970-01-01", ",epoch=2026-02-03T04:05:06.789Z"} {
			f, err := flake.ParseFormat(name + epoch)
			fatal.If(t, err)
			formats = append(formats, f)
		}
	}
	for len(formats) < 300 {
		seq, sid := 1+r.IntN(24), r.IntN(23)
		second, third, order := sid, seq, "time-sid-seq"
		if r.IntN(2) == 0 {
			second, third, order = seq, sid, "time-seq-sid"
		}
		unit := []int{1, 2, 10, 100, 1000, 60_000}[r.IntN(6)]
		f, err := flake.ParseFormat(fmt.Sprintf("%d/%d/%d,order=%s,unit=%dms,epoch=%d", 20+r.IntN(25), second, third, order, unit, r.Int64N(2_000_000_000_000)))
		if err == nil {
			formats = append(formats, f)
		}
	}
	for _, f := range formats {
		l := f.Layout
		top := min(l.MaxTimestamp(), (ulid.MaxUnixMilli-f.Epoch)/l.Unit())
		var ids []flake.ID
		for range 60 {
			ts := []int64{0, 1, top - 1, top, r.Int64N(top + 1), top / 2, top/2 + 1}[r.IntN(7)]
			low := r.Int64N(1 << l.LowBits())
			switch r.IntN(4) {
			case 0:
				low = 0
			case 1:
				low = 1<<l.LowBits() - 1
			}
			ids = append(ids, flake.ID(ts<<l.LowBits()|low))
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		last := ""
		for _, id := range ids {
			random := r.Uint64()
			w, err := ulid.FromFlake(f, id, random)
			if err != nil {
				t.Fatalf("%v: %d: %v", f, id, err)
			}
			if back, err := w.Flake(f); err != nil || back != id || !w.IsV7() || w.UnixMilli() != f.UnixMilli(id) {
				t.Fatalf("%v: %d is %s, read back as %d, %v", f, id, w.UUID(), back, err)
			}
			other, err := ulid.FromFlake(f, id, random^(1<<ulid.RandomBits(l)-1))
			if back, err2 := other.Flake(f); err != nil || err2 != nil || back != id || other == w {
				t.Fatalf("%v: %d with other random bits is %s, read back as %d, %v, %v", f, id, other.UUID(), back, err, err2)
			}
			if same, err := ulid.FromFlake(f, id, random&(1<<ulid.RandomBits(l)-1)); err != nil || same != w {
				t.Fatalf("%v: %d has %d random bits, but others change it", f, id, ulid.RandomBits(l))
			}
			if least := min(w.String(), other.String()); last >= least {
				t.Fatalf("%v: I8: an ID below %d is up to %s, and this one from %s", f, id, last, least)
			}
			last = max(w.String(), other.String())
		}
	}
}
