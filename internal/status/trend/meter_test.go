package trend

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

// TestMeter: work is that of the last five seconds, whatever was before, and latencies are
// within the bounds that counted them.
func TestMeter(t *testing.T) {
	m := NewMeter([]float64{0.001, 0.002, 0.010})
	c := Counters{Latency: make([]uint64, 4)}
	read := func(second int) status.Work {
		now := clock.Mono(second) * clock.Mono(time.Second)
		m.Add(now, func() Counters { return Counters{Refused: c.Refused, Latency: slices.Clone(c.Latency)} })
		return m.Work()
	}
	c.Refused[node.ClockSkew], c.Latency[3] = 1000, 1000 // before the first reading
	if w := read(0); w.P50 != 0 || len(w.Refused) != 0 {
		t.Errorf("from one reading: %+v", w)
	}
	c.Refused[node.ClockSkew] += 3
	c.Refused[node.NoSID]++
	c.Latency[0] += 98
	c.Latency[2] += 2
	w := read(1)
	if want := map[string]int64{"CLOCK_SKEW": 3, "NO_SID": 1}; !maps.Equal(w.Refused, want) {
		t.Errorf("refused %v, want %v", w.Refused, want)
	}
	if w.P50 < 1 || w.P50 > 1001 || w.P99 < 2000 || w.P99 > 10_001 {
		t.Errorf("p50 %d µs of at most 1 ms, p99 %d µs of 2 to 10 ms", w.P50, w.P99)
	}
	for second := 2; second <= 5; second++ {
		if w = read(second); w.Refused["NO_SID"] != 1 {
			t.Fatalf("after %d s it is forgotten: %+v", second, w)
		}
	}
	if w = read(6); len(w.Refused) != 0 || w.P99 != 0 {
		t.Errorf("after six seconds: %+v", w)
	}
	c.Latency[3]++
	if w = read(7); w.P50 != 10_001 {
		t.Errorf("longer than the longest bound: %d µs", w.P50)
	}
	for i := range 10_000 {
		m.Add(clock.Mono(8*time.Second)+clock.Mono(i)*clock.Mono(time.Millisecond), func() Counters { return c })
	}
	if len(m.taken) > 7 {
		t.Errorf("%d readings are kept of ten thousand", len(m.taken))
	}
}

// TestRate: the rate is that of the latest second, or of the time between two readings.
func TestRate(t *testing.T) {
	m := NewMeter(nil)
	mono, issued := clock.Mono(0), int64(0)
	for i, st := range []struct {
		times int
		after time.Duration
		ids   int64
		want  int64
	}{
		{1, 0, 0, 0},
		{3, time.Second / 4, 100, 0},
		{1, time.Second / 4, 100, 400},
		{3, time.Second / 4, 500, 400},
		{1, time.Second / 4, 500, 2000},
		{1, 4 * time.Second, 400, 100},
		{1, time.Second, 0, 0},
	} {
		for range st.times {
			mono, issued = mono.Add(st.after), issued+st.ids
			m.Add(mono, func() Counters { return Counters{Issued: issued} })
			if got := m.Rate(); got != st.want {
				t.Errorf("step %d: %d a second, want %d", i, got, st.want)
			}
		}
	}
}
