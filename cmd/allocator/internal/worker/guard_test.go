package worker

import "testing"

// An interval [100_000, 160_000), whose processes are asked to end at 145_000 and killed at
// 155_000.
func newGuard() *guard {
	g := &guard{margin: 5000, grace: 10_000}
	g.see(100_000, 0)
	return g
}

const from, to = 100_000, 160_000

func TestGuard(t *testing.T) {
	type step struct {
		wall, mono int64
		to         int64
		stop       string
		want       act
	}
	for name, steps := range map[string][]step{
		"extended": {{wall: 144_999, mono: 44_999, to: to, want: leave}, {wall: 150_000, mono: 50_000, to: 210_000, want: leave},
			{wall: 194_999, mono: 94_999, to: 210_000, want: leave}, {wall: 195_000, mono: 95_000, to: 210_000, want: terminate}},
		"not extended": {{wall: 145_000, mono: 45_000, to: to, want: terminate}, {wall: 145_100, mono: 45_100, to: to, want: leave},
			{wall: 154_999, mono: 54_999, to: to, want: leave}, {wall: 155_000, mono: 55_000, to: to, want: kill}, {wall: 155_001, mono: 55_001, to: to, want: kill}},
		"extended too late": {{wall: 145_000, mono: 45_000, to: to, want: terminate}, {wall: 150_000, mono: 50_000, to: 300_000, want: leave},
			{wall: 155_000, mono: 55_000, to: 300_000, want: kill}},
		"suspended":             {{wall: 500_000, mono: 1, to: to, want: kill}},
		"the clock set ahead":   {{wall: 155_000, mono: 10, to: to, want: kill}},
		"set ahead and back":    {{wall: 140_000, mono: 10, to: to, want: leave}, {wall: 100_020, mono: 20, to: to, want: leave}, {wall: 105_100, mono: 5_100, to: to, want: terminate}},
		"the clock set back":    {{wall: 99_999, mono: 10, to: to, want: kill}},
		"back within":           {{wall: 130_000, mono: 30_000, to: to, want: leave}, {wall: 101_000, mono: 30_001, to: to, want: leave}},
		"lost":                  {{wall: 110_000, mono: 10_000, to: to, stop: "lost", want: terminate}, {wall: 119_999, mono: 19_999, to: to, stop: "lost", want: leave}, {wall: 120_000, mono: 20_000, to: to, stop: "lost", want: kill}},
		"lost close to the end": {{wall: 144_000, mono: 44_000, to: to, stop: "lost", want: terminate}, {wall: 155_000, mono: 55_000, to: to, stop: "lost", want: kill}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuard()
			for _, s := range steps {
				g.see(s.wall, s.mono)
				if got := g.next(from, s.to, s.stop); got != s.want {
					t.Fatalf("at wall %d, monotonic %d: %d, want %d (%s)", s.wall, s.mono, got, s.want, g.why)
				}
				if (g.why == "") != (s.want == leave && !g.asked) {
					t.Errorf("why %q", g.why)
				}
			}
		})
	}
}

// What the wall clock has shown is what a generator may have counted on from.
func TestUsedUntil(t *testing.T) {
	g := newGuard()
	g.see(110_000, 10_000)
	if got := g.usedUntil(); got != 110_000+ahead {
		t.Errorf("used until %d", got)
	}
	g.see(130_000, 11_000) // set ahead by 19 s
	g.see(112_000, 12_000) // and back
	if got := g.usedUntil(); got != 131_000+ahead {
		t.Errorf("used until %d, after the clock was ahead by 19 s", got)
	}
}

func TestFits(t *testing.T) {
	g := newGuard()
	if !g.fits(60_000) || !g.fits(30_002) || g.fits(30_000) || g.fits(0) {
		t.Error("half of the interval has to be left beside margin and grace")
	}
}
