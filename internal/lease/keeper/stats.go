package keeper

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Op names a store call. The set is closed, so that it can be a metric's label:
// these, and the names of lease.Op.
type Op string

// The calls that are not transactions.
const (
	OpLoad      Op = "load"
	OpRead      Op = "read"
	OpMark      Op = "mark"
	OpRegister  Op = "register"
	OpKeepAlive Op = "keepalive"
	OpRevoke    Op = "revoke"
)

// Buckets are the upper bounds of the latency histogram, in seconds.
var Buckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}

// CallStats counts the calls of one kind. Seconds is the sum of their latencies, and
// Buckets has cumulative counts for the bounds in the variable of that name.
type CallStats struct {
	Calls, Errors uint64
	Seconds       float64
	Buckets       []uint64
}

// Stats is a copy of the keeper's counters and the latest status. Outage is zero while calls to
// etcd succeed.
type Stats struct {
	Calls  map[Op]CallStats
	Alarms map[lease.AlarmKind]uint64
	Lease  lease.Status
	Outage Outage
	Write  Write
}

// Write is the latest write of a record that etcd confirmed: how long it took, and when that
// was. The zero value: there was none.
type Write struct {
	Took time.Duration
	At   clock.Mono
}

type stats struct {
	mu     sync.Mutex // It guards all below.
	calls  map[Op]*CallStats
	alarms map[lease.AlarmKind]uint64
	write  Write
}

// wrote notes a confirmed write.
func (s *stats) wrote(w Write) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.At > s.write.At { // Calls overlap.
		s.write = w
	}
}

func (s *stats) observe(op Op, took time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[Op]*CallStats{}
	}
	c := s.calls[op]
	if c == nil {
		c = &CallStats{Buckets: make([]uint64, len(Buckets))}
		s.calls[op] = c
	}
	c.Calls++
	c.Seconds += took.Seconds()
	if err != nil && !errors.Is(err, lease.ErrLeaseGone) {
		c.Errors++
	}
	for i, bound := range Buckets {
		if took.Seconds() <= bound {
			c.Buckets[i]++
		}
	}
}

func (s *stats) alarm(kind lease.AlarmKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alarms == nil {
		s.alarms = map[lease.AlarmKind]uint64{}
	}
	s.alarms[kind]++
}

// Stats returns the keeper's counters and status.
func (k *Keeper) Stats() Stats {
	k.stats.mu.Lock()
	defer k.stats.mu.Unlock()
	out := Stats{
		Calls:  make(map[Op]CallStats, len(k.stats.calls)),
		Alarms: maps.Clone(k.stats.alarms),
		Lease:  k.Status(),
		Write:  k.stats.write,
	}
	for op, c := range k.stats.calls {
		copied := *c
		copied.Buckets = append([]uint64(nil), c.Buckets...)
		out.Calls[op] = copied
	}
	if how := k.outage.Load(); how != nil {
		out.Outage = *how
	}
	return out
}
