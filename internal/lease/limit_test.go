package lease_test

import (
	"math"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestLimit: a limit moves with elapsed time, not with the wall clock, and that of an acquisition
// is a limit of its own.
func TestLimit(t *testing.T) {
	const wall, mono = clock.Millis(1_800_000_000_000), clock.Mono(time.Hour)
	at := func(ahead clock.Millis, passed time.Duration) clock.Reading {
		return clock.Reading{Wall: wall + ahead, Mono: mono.Add(passed)}
	}
	l := lease.Limit{At: mono, Extend: wall + 500, Acquire: wall + 100}
	end := lease.Limit{At: mono, Extend: math.MaxInt64, Acquire: math.MaxInt64}
	for _, c := range []struct {
		limit           lease.Limit
		now             clock.Reading
		extend, acquire bool
	}{
		{l, at(100, 0), true, true},
		{l, at(101, 0), true, false},
		{l, at(500, 0), true, false},
		{l, at(501, 0), false, false},
		{l, at(1100, time.Second), true, true},
		{l, at(1101, time.Second), true, false},
		{l, at(1501, time.Second), false, false},
		{end, at(1<<60, time.Second), true, true},
		{lease.Limit{}, at(0, 0), false, false},
	} {
		if e, a := c.limit.Permits(c.now, false), c.limit.Permits(c.now, true); e != c.extend || a != c.acquire {
			t.Errorf("%+v at %+v: extend %v, acquire %v", c.limit, c.now, e, a)
		}
	}
}
