package access

import (
	"hash/maphash"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/flakelease/allocator/internal/clock"
)

// Bounds of the clients that are remembered: 16,384 in all, about 3 MB.
const (
	numShards  = 64
	shardLimit = 256
)

// limiter has a token bucket for each client.
type limiter struct {
	limit  rate.Limit
	burst  int
	now    func() clock.Mono
	seed   maphash.Seed
	shards [numShards]shard
}

// shard is a part of the clients.
type shard struct {
	mu      sync.RWMutex // guards clients, not what they point to
	clients map[client]*rate.Limiter
}

func newLimiter(perSecond, burst int, now func() clock.Mono) *limiter {
	return &limiter{limit: rate.Limit(perSecond), burst: burst, now: now, seed: maphash.MakeSeed()}
}

// take returns 0 if a call of c is within its rate, and counts it; else how long c has
// to wait.
func (l *limiter) take(c client) time.Duration {
	now := time.Unix(0, int64(l.now())) // only differences count
	bucket := l.bucket(c, now)
	if bucket.AllowN(now, 1) {
		return 0
	}
	missing := 1 - bucket.TokensAt(now)
	return max(time.Duration(math.Ceil(missing/float64(l.limit)*1e9)), 1)
}

// bucket returns the bucket of c, with a full one for a client that is not remembered.
func (l *limiter) bucket(c client, now time.Time) *rate.Limiter {
	s := &l.shards[maphash.Comparable(l.seed, c)%numShards]
	s.mu.RLock()
	b := s.clients[c]
	s.mu.RUnlock()
	if b != nil {
		return b
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.clients[c]; b != nil {
		return b
	}
	if len(s.clients) >= shardLimit {
		s.forget(now)
	}
	if s.clients == nil {
		s.clients = map[client]*rate.Limiter{}
	}
	b = rate.NewLimiter(l.limit, l.burst)
	s.clients[c] = b
	return b
}

// forget makes room. A client with a full bucket is no different from one that was never
// seen, and goes. Without one, the client with the fullest bucket goes: a flood of
// addresses must not lock out the others, and that client gains at most a burst.
func (s *shard) forget(now time.Time) {
	var fullest client
	most := math.Inf(-1)
	for c, b := range s.clients {
		tokens := b.TokensAt(now)
		if tokens >= float64(b.Burst()) {
			delete(s.clients, c)
		}
		if tokens > most {
			most, fullest = tokens, c
		}
	}
	delete(s.clients, fullest)
}

// Places bounds how many clients may have something at once. It is safe for concurrent use.
type Places[K comparable] struct {
	Each, All int // So many may one client have, and all together; All 0: any number.

	mu    sync.Mutex // guards the rest
	taken int
	of    map[K]int // taken by a client
}

// Take takes a place of a client, and reports whether there was one.
func (p *Places[K]) Take(client K) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.All > 0 && p.taken >= p.All || p.of[client] >= p.Each {
		return false
	}
	if p.of == nil {
		p.of = map[K]int{}
	}
	p.taken++
	p.of[client]++
	return true
}

// Give gives back a place that was taken.
func (p *Places[K]) Give(client K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[client] == 0 {
		return
	}
	p.taken--
	if p.of[client]--; p.of[client] == 0 {
		delete(p.of, client)
	}
}
