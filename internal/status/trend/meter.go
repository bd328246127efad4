// Package trend is the recent past of a node and of the cluster that it sees, for pages: what
// went on lately ([Meter]), and how that was over the last hour ([History]).
//
// Both are values that take time and what was counted as arguments, and are not safe for
// concurrent use. They read counters that exist anyway, so requests take no longer. Their
// memory is bounded.
package trend

import (
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

// Counters are what a process has counted since its start.
type Counters struct {
	Issued  int64 // IDs
	Refused [node.NumReasons]int64
	// Latency has how many requests for IDs took how long: one count for each of the bounds of a
	// Meter, without those of the bounds before, and one more for what took longer.
	Latency []uint64
}

// Meter tells what happened in the last status.WorkTime. Make one with NewMeter.
type Meter struct {
	bounds []float64
	taken  []reading // the oldest first
}

type reading struct {
	at clock.Mono
	Counters
}

// NewMeter returns a meter of latencies with these upper bounds, in seconds.
func NewMeter(bounds []float64) *Meter { return &Meter{bounds: bounds} }

// readEvery is the time between two readings that a Meter keeps at least, so that it has few.
const readEvery = time.Second

// Add takes the counters at a time, unless it did lately.
func (m *Meter) Add(at clock.Mono, counters func() Counters) {
	if len(m.taken) > 0 && at.Sub(m.taken[len(m.taken)-1].at) < readEvery {
		return
	}
	m.taken = append(m.taken, reading{at, counters()})
	// One that is old enough is what the latest is compared with; those before it are not needed.
	for len(m.taken) > 2 && at.Sub(m.taken[1].at) >= status.WorkTime {
		m.taken = slices.Delete(m.taken, 0, 1)
	}
}

// Work returns what happened in the time, without writes to etcd.
func (m *Meter) Work() (w status.Work) {
	if len(m.taken) < 2 {
		return w
	}
	from, to := m.taken[0], m.taken[len(m.taken)-1]
	for _, reason := range node.Reasons {
		if n := to.Refused[reason] - from.Refused[reason]; n > 0 {
			if w.Refused == nil {
				w.Refused = map[string]int64{}
			}
			w.Refused[reason.String()] = n
		}
	}
	counts := make([]uint64, len(to.Latency))
	for i := range counts {
		counts[i] = to.Latency[i] - from.Latency[i]
	}
	w.P50, w.P99 = m.quantile(counts, .50), m.quantile(counts, .99)
	return w
}

// Rate returns how many IDs a second were issued between the latest two readings.
func (m *Meter) Rate() int64 {
	if len(m.taken) < 2 {
		return 0
	}
	from, to := m.taken[len(m.taken)-2], m.taken[len(m.taken)-1]
	return int64(float64(to.Issued-from.Issued) / to.at.Sub(from.at).Seconds())
}

// quantile returns the time in µs, rounded up, in which a share of the requests ended, as far
// as counts tell: within its bounds they are taken to be spread evenly. 0: there were none.
func (m *Meter) quantile(counts []uint64, share float64) int64 {
	total := uint64(0)
	for _, n := range counts {
		total += n
	}
	if total == 0 {
		return 0
	}
	rank, below, lower := share*float64(total), 0.0, 0.0
	for i, bound := range m.bounds {
		if n := float64(counts[i]); below+n >= rank {
			return int64((lower+(bound-lower)*(rank-below)/n)*1e6) + 1
		}
		below, lower = below+float64(counts[i]), bound
	}
	return int64(lower*1e6) + 1 // longer than the longest bound
}
