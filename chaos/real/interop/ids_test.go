package interop

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	oklog "github.com/oklog/ulid/v2"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/ulid"
)

// Package ulid writes what oklog/ulid and google/uuid read, and the reverse, for any
// 128 bits.
func TestULIDCodec(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		var b [16]byte
		for i := range b {
			b[i] = byte(r.Uint32()) >> r.IntN(9) // small bytes and zeros too
		}
		id := ulid.FromArray(b)
		if got, err := oklog.ParseStrict(id.String()); err != nil || ulid.FromArray(got) != id {
			t.Fatalf("%s: oklog reads %s as %x, %v", id.Hex(), id, got[:], err)
		}
		if got := oklog.ULID(id.Bytes()); got.String() != id.String() || int64(got.Time()) != id.UnixMilli() {
			t.Fatalf("%s: oklog writes %s", id.Hex(), got)
		}
		if got, err := uuid.Parse(id.UUID()); err != nil || ulid.FromArray(got) != id {
			t.Fatalf("%s: google reads %s as %x, %v", id.Hex(), id.UUID(), got[:], err)
		}
		if got := uuid.UUID(id.Bytes()); got.String() != id.UUID() || id.IsV7() != (got.Version() == 7 && got.Variant() == uuid.RFC4122) {
			t.Fatalf("%s: google writes %s, version %d", id.Hex(), got, got.Version())
		}
	}
}

// The offline generator's IDs have the time, the entropy, the version and the variant
// that other libraries expect.
func TestULIDOffline(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	var seed [32]byte
	seed[0] = 5
	o := ulid.NewOffline(ulid.OfflineConfig{Entropy: rand.NewChaCha8(seed)})
	for range 2000 {
		ms := r.Int64N(ulid.MaxUnixMilli >> r.IntN(40))
		a, err1 := o.At(ms)
		b, err2 := o.NextAt(ms)
		fatal.If(t, errors.Join(err1, err2))
		for _, id := range []ulid.ID{a, b, a.ForceV7()} {
			theirs, err := oklog.ParseStrict(id.String())
			if err != nil || theirs != oklog.ULID(id.Bytes()) || theirs.Time() != uint64(id.UnixMilli()) || theirs.String() != id.String() {
				t.Fatalf("oklog reads %v as %v of %d, %v", id, theirs, theirs.Time(), err)
			}
			if r := id.Randomness(); !bytes.Equal(theirs.Entropy(), r[:]) {
				t.Fatalf("oklog's entropy of %v: %x", id, theirs.Entropy())
			}
			u, err := uuid.Parse(id.UUID())
			if err != nil || u != uuid.UUID(id.Bytes()) || u.String() != id.UUID() {
				t.Fatalf("google/uuid reads %v as %v, %v", id.UUID(), u, err)
			}
		}
		u := uuid.UUID(a.ForceV7().Bytes())
		if sec, nsec := u.Time().UnixTime(); u.Version() != 7 || u.Variant() != uuid.RFC4122 || sec*1000+nsec/1e6 != ms {
			t.Fatalf("google/uuid: %v has version %v, variant %v, time %d s %d ns", u, u.Version(), u.Variant(), sec, nsec)
		}
	}
}
