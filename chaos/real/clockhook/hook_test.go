package clockhook

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// The rounding of drift is that of the stubs: a product of 128 bits, shifted.
func TestScaled(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		ns := r.Int64N(int64(26*24*time.Hour)) >> r.IntN(50)
		s := slope((r.Float64()*2 - 1) * 1e6)
		if r.IntN(2) == 0 {
			ns = -ns
		}
		want := new(big.Int).Mul(big.NewInt(ns), big.NewInt(s))
		want.Rsh(want, 32)
		if got := scaled(ns, s); got != want.Int64() {
			t.Fatalf("scaled(%d, %d) = %d, want %d", ns, s, got, want)
		}
	}
	for ppm, want := range map[float64]int64{0: 0, 1e6: 3_600_000_000_000, 50: 180_000_000, -200: -720_000_000} {
		if got := scaled(int64(time.Hour), slope(ppm)); got < want-1000 || got > want+1000 {
			t.Errorf("an hour at %v ppm gains %d ns, want %d", ppm, got, want)
		}
	}
}

// Whatever is done, drift that was gained stays, and clocks do not jump when
// their rate changes.
func TestOffsetsKeepDrift(t *testing.T) {
	h := &Hook{offsets: Offsets{Wall: time.Second}, rates: Rates{Wall: 100, Mono: -100}}
	at := readings{wall: int64(1000 * time.Second), mono: int64(1000 * time.Second)}
	got := h.now(at)
	if want := (Offsets{Wall: 1100 * time.Millisecond, Mono: -100 * time.Millisecond}); (got.Wall-want.Wall).Abs() > time.Microsecond || (got.Mono-want.Mono).Abs() > time.Microsecond || got.Raw != 0 || got.Boot != 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
