package ulid_test

import (
	"bytes"
	"cmp"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// I8: whatever form two IDs are compared in, the answer is that of their
// flakes; and a wide ID holds its flake and nothing else but random bits.
func TestOneOrder(t *testing.T) {
	const seed = 20240101
	r := rand.New(rand.NewPCG(seed, 8))
	epochs := []int64{0, flake.DefaultEpoch, -1 << 40, ulid.MaxUnixMilli - (1<<43 - 1)}
	for range 50_000 {
		epoch := epochs[r.IntN(len(epochs))]
		a, b := pair(r, epoch)
		want := cmp.Compare(a, b)
		if got := a.Compare(b); got != want {
			t.Fatalf("%d and %d: Compare = %d", a, b, got)
		}
		wa, wb := wide(t, a, epoch, r.Uint64()), wide(t, b, epoch, r.Uint64())
		if want != 0 { // two wides of one flake differ in random bits alone
			for form, got := range map[string]int{
				"wide":  wa.Compare(wb),
				"ULID":  strings.Compare(wa.String(), wb.String()),
				"UUID":  strings.Compare(wa.UUID(), wb.UUID()),
				"hex":   strings.Compare(wa.Hex(), wb.Hex()),
				"bytes": bytes.Compare(bytesOf(wa), bytesOf(wb)),
			} {
				if got != want {
					t.Fatalf("%d and %d as %s: order %d, want %d", a, b, form, got, want)
				}
			}
		}
		ba, _ := a.MarshalBinary()
		bb, _ := b.MarshalBinary()
		for form, got := range map[string]int{
			"text":    strings.Compare(a.String(), b.String()),
			"bytes":   bytes.Compare(ba, bb),
			"hex16":   bytes.Compare(a.AppendHex16(nil), b.AppendHex16(nil)),
			"integer": cmp.Compare(a.Int64(), b.Int64()),
		} {
			if got != want {
				t.Fatalf("%d and %d as %s: order %d, want %d", a, b, form, got, want)
			}
		}
	}
}

// pair returns two flakes, often close to one another: alike but for one bit,
// next to each other, or equal.
func pair(r *rand.Rand, epoch int64) (a, b flake.ID) {
	valid := func(id flake.ID) bool { return id >= 0 && epoch+flake.Scalable.Timestamp(id) >= 0 }
	for {
		a = flake.ID(r.Int64())
		switch r.IntN(4) {
		case 0:
			b = flake.ID(r.Int64())
		case 1:
			b = a ^ 1<<r.IntN(63)
		case 2:
			b = a + 1
		default:
			b = a
		}
		if valid(a) && valid(b) {
			return a, b
		}
	}
}

func wide(t *testing.T, f flake.ID, epoch int64, random uint64) ulid.ID {
	t.Helper()
	id, err := ulid.FromFlake(flake.Format{Layout: flake.Scalable, Epoch: epoch}, f, random)
	if err != nil {
		t.Fatalf("FromFlake(%d, %d): %v", f, epoch, err)
	}
	if back, err := id.Flake(flake.Format{Layout: flake.Scalable, Epoch: epoch}); err != nil || back != f {
		t.Fatalf("%s: flake %d, %v, want %d", id.UUID(), back, err, f)
	}
	if !id.IsV7() || id.ForceV7() != id || id.UnixMilli() != epoch+flake.Scalable.Timestamp(f) {
		t.Fatalf("%s from %d: v7 %v, time %d", id.UUID(), f, id.IsV7(), id.UnixMilli())
	}
	return id
}

// In the specification's +1 order, too, numbers and texts agree.
func TestIncrementOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 10_000 {
		var random [10]byte
		for i := range random {
			random[i] = byte(r.Uint32()) | byte(-r.IntN(2)) // 0xFF half of the time: carries
		}
		id, err := ulid.Make(r.Int64N(ulid.MaxUnixMilli), random)
		fatal.If(t, err)
		next, err := id.Increment()
		if random == [10]byte(bytes.Repeat([]byte{0xFF}, 10)) {
			continue
		}
		if err != nil || id.Compare(next) >= 0 || id.String() >= next.String() || id.UUID() >= next.UUID() || id.UnixMilli() != next.UnixMilli() {
			t.Fatalf("%s then %s, %v", id, next, err)
		}
	}
}
