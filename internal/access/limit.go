package access

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Bounds of the clients that are remembered: 16,384 in all, about 2 MB.
const (
	numShards  = 64
	shardLimit = 256
)

// limiter holds the rate of each client. A client costs one number: the time at
// which it would have nothing left to answer for (the generic cell rate
// algorithm). A call moves that time on by an interval, and is turned away where
// it would come to lie more than a burst ahead of now.
type limiter struct {
	interval time.Duration // of one call at the full rate
	burst    time.Duration // of all calls that may come at once
	now      func() clock.Mono
	seed     maphash.Seed
	shards   [numShards]shard
}

// shard is a part of the clients.
type shard struct {
	mu      sync.RWMutex // guards clients, not what they point to
	clients map[client]*atomic.Int64
}

func newLimiter(rate, burst int, now func() clock.Mono) *limiter {
	if burst == 0 {
		burst = rate
	}
	l := &limiter{interval: max(time.Second/time.Duration(rate), 1), now: now, seed: maphash.MakeSeed()}
	l.burst = time.Duration(burst) * l.interval
	return l
}

// take returns 0 if a call of c is within its rate, and counts it, else how long
// c has to wait.
func (l *limiter) take(c client) time.Duration {
	now := int64(l.now())
	free := l.of(c, now)
	for {
		old := free.Load()
		next := max(old, now) + int64(l.interval)
		if wait := next - now - int64(l.burst); wait > 0 {
			return time.Duration(wait)
		}
		if free.CompareAndSwap(old, next) {
			return 0
		}
	}
}

// of returns the time from which c is free of what it has asked for.
func (l *limiter) of(c client, now int64) *atomic.Int64 {
	s := &l.shards[maphash.Comparable(l.seed, c)%numShards]
	s.mu.RLock()
	free := s.clients[c]
	s.mu.RUnlock()
	if free != nil {
		return free
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if free := s.clients[c]; free != nil {
		return free
	}
	if len(s.clients) >= shardLimit {
		s.forget(now)
	}
	if s.clients == nil {
		s.clients = map[client]*atomic.Int64{}
	}
	free = new(atomic.Int64)
	free.Store(now)
	s.clients[c] = free
	return free
}

// forget makes room. Whoever has asked for nothing of late is no different from
// a client never seen, and goes. If there is none, the one with the least to
// answer for goes: a flood of addresses must not lock the others out, and they
// gain by it at most a burst.
func (s *shard) forget(now int64) {
	var least client
	first, lowest := true, int64(0)
	for c, free := range s.clients {
		at := free.Load()
		if at <= now {
			delete(s.clients, c)
		}
		if first || at < lowest {
			first, least, lowest = false, c, at
		}
	}
	delete(s.clients, least)
}
