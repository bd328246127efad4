package interop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	oklog "github.com/oklog/ulid/v2"

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
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
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

// fields returns what a command prints, split at white space.
func fields(t *testing.T, args ...string) []string {
	t.Helper()
	return strings.Fields(allocator(t, args...))
}

// crockford reads Base32 as the definition has it: a number in base 32.
func crockford(t *testing.T, s string) *big.Int {
	t.Helper()
	v := new(big.Int)
	for _, c := range s {
		d := strings.IndexRune("0123456789ABCDEFGHJKMNPQRSTVWXYZ", c)
		if d < 0 {
			t.Fatalf("%q: %q is not in the alphabet", s, c)
		}
		v.Add(v.Lsh(v, 5), big.NewInt(int64(d)))
	}
	return v
}

// Other libraries read the printed IDs as the allocator's own parse command does: the
// same bytes, a legal version, and a time between before and after.
func TestDecodersAgree(t *testing.T) {
	const n = 300
	N := fmt.Sprint(n)
	before := time.Now().UnixMilli()
	made := map[string][]string{}
	for name, args := range map[string][]string{
		"ulid new": {"new", N}, "ulid monotonic": {"monotonic", N}, "ulid from-time": {"from-time", "1795192588444", N},
		"uuid new": {"new", N, "--kind", "uuid"}, "uuid from-time": {"from-time", "1795192588444", N, "--kind", "uuid"},
		"flake new": {"new", N, "--kind", "flake", "--sid", "7"}, "flake monotonic": {"monotonic", N, "--kind", "flake", "--sid", "7"},
		"flake from-time": {"from-time", "1795192588444", N, "--kind", "flake", "--sid", "7"},
	} {
		made[name] = fields(t, args...)
		if len(made[name]) != n {
			t.Fatalf("%s: %d IDs", name, len(made[name]))
		}
	}
	after := time.Now().UnixMilli()
	for name, ids := range made {
		distinct := slices.Compact(slices.Sorted(slices.Values(ids)))
		if len(distinct) != n {
			t.Errorf("%s: %d of %d are different", name, len(distinct), n)
		}
		if strings.HasSuffix(name, "monotonic") && !slices.IsSorted(ids) {
			t.Errorf("%s: not in order", name)
		}
		var parsed []map[string]any
		for line := range strings.Lines(allocator(t, append([]string{"parse", "--format", "json"}, ids...)...)) {
			var o map[string]any
			if err := json.Unmarshal([]byte(line), &o); err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, o)
		}
		low, high := before, after
		if strings.HasSuffix(name, "from-time") {
			low, high = 1795192588444, 1795192588444
		}
		for i, id := range ids {
			p := parsed[i]
			ms := int64(p["unix_ms"].(float64))
			if ms < low || ms > high {
				t.Errorf("%s: %s is of %d, want %d to %d", name, id, ms, low, high)
			}
			switch {
			case strings.HasPrefix(name, "flake"):
				v := crockford(t, id)
				want := new(big.Int).Lsh(big.NewInt(ms-1704067200000), 20)
				if v.Text(10) != p["int"] || "0x"+strings.ToUpper(v.Text(16)) != p["hex"] || "0b"+v.Text(2) != p["bin"] ||
					new(big.Int).Rsh(new(big.Int).Xor(v, want), 20).Sign() != 0 || v.Bit(63) != 0 || p["sid"] != 7.0 || id[12] != '7' {
					t.Errorf("%s: %s is %v", name, id, p)
				}
			default:
				text := id
				if strings.HasPrefix(name, "uuid") {
					text = p["ulid"].(string)
				}
				o, err := oklog.ParseStrict(text)
				if err != nil || int64(o.Time()) != ms {
					t.Fatalf("%s: oklog reads %s as %v, %v", name, id, o, err)
				}
				u, err := uuid.Parse(p["uuid"].(string))
				if err != nil || [16]byte(u) != [16]byte(o) || crockford(t, text).Text(10) != p["u128"] || fmt.Sprintf("%x", o[:]) != p["bytes_hex"] ||
					fmt.Sprintf("%x", o.Entropy()) != p["randomness_hex"] {
					t.Errorf("%s: google reads %v as %v, %v", name, p["uuid"], u, err)
				}
				if strings.HasPrefix(name, "uuid") && (u.Version() != 7 || u.Variant() != uuid.RFC4122 || id != u.String()) {
					t.Errorf("%s: version %d, variant %v", id, u.Version(), u.Variant())
				}
			}
		}
	}
	// Bounds, as oklog would set them.
	for _, bound := range []struct {
		flag    string
		entropy byte
	}{{"--min", 0}, {"--max", 0xff}} {
		var want oklog.ULID
		if err := want.SetTime(1795192588444); err != nil {
			t.Fatal(err)
		}
		for i := 6; i < 16; i++ {
			want[i] = bound.entropy
		}
		if got := fields(t, "from-time", bound.flag, "1795192588444"); got[0] != want.String() {
			t.Errorf("%s: %s, want %s", bound.flag, got, want)
		}
		u := uuid.UUID(want)
		u[6], u[8] = u[6]&0x0f|0x70, u[8]&0x3f|0x80
		if got := fields(t, "from-time", bound.flag, "1795192588444", "--kind", "uuid"); got[0] != u.String() {
			t.Errorf("%s: %s, want %s", bound.flag, got, u)
		}
	}
}
