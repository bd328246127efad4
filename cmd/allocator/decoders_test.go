package main

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	oklog "github.com/oklog/ulid/v2"
)

// must runs a command and returns its lines.
func must(t *testing.T, args ...string) []string {
	t.Helper()
	code, out, errs := allocator(args...)
	if code != exitOK || errs != "" {
		t.Fatalf("%q: exit code %d, stderr %q", args, code, errs)
	}
	return strings.Fields(out)
}

// crockford reads Base32 as the definition has it: a number in base 32.
func crockford(t *testing.T, s string) *big.Int {
	t.Helper()
	v := new(big.Int)
	for _, c := range s {
		d := strings.IndexRune("0123456789ABCDEFGHJKMNPQRSTVWXYZ", c)
		if d < 0 {
			t.Fatalf("%q: %q is no letter", s, c)
		}
		v.Add(v.Lsh(v, 5), big.NewInt(int64(d)))
	}
	return v
}

// TestDecodersAgree: what other libraries read in all that is printed is what
// was meant: the same bytes, a legal version, and a time between before and
// after.
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
		made[name] = must(t, args...)
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
		code, out, _ := allocator(append([]string{"parse", "--format", "json"}, ids...)...)
		if code != exitOK {
			t.Fatalf("%s: exit code %d", name, code)
		}
		for line := range strings.Lines(out) {
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
		if got := must(t, "from-time", bound.flag, "1795192588444"); got[0] != want.String() {
			t.Errorf("%s: %s, want %s", bound.flag, got, want)
		}
		u := uuid.UUID(want)
		u[6], u[8] = u[6]&0x0f|0x70, u[8]&0x3f|0x80
		if got := must(t, "from-time", bound.flag, "1795192588444", "--kind", "uuid"); got[0] != u.String() {
			t.Errorf("%s: %s, want %s", bound.flag, got, u)
		}
	}
}

// TestThousandOfOneMillisecond: a thousand IDs of one millisecond, made in
// batches of separate runs, shuffled and sorted as text, are in the order in
// which they were made. The batches that follow a clock that went back, and one
// that stood, are above those before.
func TestThousandOfOneMillisecond(t *testing.T) {
	for _, kind := range [][]string{{}, {"--kind", "flake", "--entropy", "0"}, {"--kind", "flake", "--layout", "standalone"}, {"--as", "uuid"}} {
		var ids []string
		for batch := range 10 {
			at := "2026-11-20T16:36:28.444Z"
			if len(kind) < 2 || kind[0] == "--as" { // a ULID's series outlives a clock that goes back
				at = []string{at, "2026-11-20T16:36:28.443Z", "2026-11-19", at}[batch%4]
			}
			args := append([]string{"monotonic", "100", "--at", at}, kind...)
			if batch > 0 {
				args = append(args, "--after", ids[len(ids)-1])
			}
			if batch == 0 {
				// Begin in the first half, so that a thousand fit whatever is drawn.
				for ids = must(t, args...); !roomy(ids[0], kind); ids = must(t, args...) {
				}
				continue
			}
			ids = append(ids, must(t, args...)...)
		}
		shuffled := slices.Clone(ids)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		slices.Sort(shuffled)
		if !slices.Equal(shuffled, ids) || len(slices.Compact(shuffled)) != 1000 {
			t.Errorf("%v: not in order, or not different", kind)
		}
	}
}

// roomy reports whether a first ID, if a flake, has its entropy in the lower half.
func roomy(id string, kind []string) bool {
	return len(kind) == 0 || kind[0] == "--as" || id[9] < 'G' // the 20 low bits begin with the tenth letter
}
