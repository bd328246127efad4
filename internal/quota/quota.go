package quota

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
)

// Costs in tokens, and what a source has.
const (
	// CostFrame is of a frame of HTTP/2, and of a request that is answered from memory.
	CostFrame = 1
	// CostFailure is of a login that failed.
	CostFailure = 20
	// CostScrape is of a request that takes milliseconds to answer.
	CostScrape = 50

	costConn    = 8   // of a connection; given back by its first valid call
	worthCall   = 8   // what a valid call pays for
	maxTokens   = 256 // of a connection
	extraTokens = 64  // taken from the source at a time, if it has them

	sourceRate  = 2_000 // tokens a second
	sourceBurst = 4_000
)

// Memory in bytes.
const (
	// connBytes is what a connection without a call holds: buffers, goroutines, TLS.
	connBytes = 48 << 10
	// unfinished is the minimum that calls of a connection hold to be shed for.
	unfinished = 16 << 10
	// step is the change of a connection's bytes that reaches the sum.
	step = 8 << 10
)

// Times, in sweeps of a second.
const (
	sweepEvery   = time.Second
	silentSweeps = 60 // until a connection without a valid call is closed
	stallSweeps  = 10 // until one with unfinished calls and no valid one is closed
	sourceSweeps = 60 // until a source without connections is forgotten
)

// poll is how often a connection without tokens asks its source.
const poll = 20 * time.Millisecond

// Config is what a Quota enforces. Now is required.
type Config struct {
	Now       func() clock.Mono
	Memory    int64 // bytes that connections may hold together; 0: no limit
	PerSource int   // connections of one source at one listener; 0: no limit
}

// Quota has the connections of all listeners of a node. Its methods are safe for
// concurrent use.
type Quota struct {
	cfg  Config
	held atomic.Int64 // bytes of all connections, within step of each

	mu      sync.Mutex // guards all below, and the places of connections
	sources map[netip.Prefix]*source
	conns   []*Conn // in the order in which they were opened
	gone    int     // of conns, closed already
}

// New returns a Quota.
func New(cfg Config) *Quota {
	return &Quota{cfg: cfg, sources: map[netip.Prefix]*source{}}
}

// Held returns the bytes that connections hold, and the limit; 0: none.
func (q *Quota) Held() (held, limit int64) { return q.held.Load(), q.cfg.Memory }

// source is where connections come from.
type source struct {
	conns  map[*Listener]int // open; guarded by Quota.mu
	idle   int               // sweeps without a connection; guarded by Quota.mu
	local  bool              // loopback
	proven atomic.Bool       // a call was valid

	mu     sync.Mutex // guards tokens and at
	tokens float64
	at     clock.Mono // when tokens were counted
}

// take takes n tokens and returns true, or none.
func (s *source) take(n int64, now clock.Mono) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = min(s.tokens+now.Sub(s.at).Seconds()*sourceRate, sourceBurst)
	s.at = now
	if s.tokens < float64(n) {
		return false
	}
	s.tokens -= float64(n)
	return true
}

// give gives tokens back.
func (s *source) give(n float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = min(s.tokens+n, sourceBurst)
}

// sourceOf returns the source of an address; q.mu is held.
func (q *Quota) sourceOf(a net.Addr) *source {
	var key netip.Prefix
	if ap, err := netip.ParseAddrPort(a.String()); err == nil {
		key = access.Network(ap.Addr())
	}
	s := q.sources[key]
	if s == nil {
		s = &source{conns: map[*Listener]int{}, local: key.IsValid() && key.Addr().IsLoopback(), tokens: sourceBurst, at: q.cfg.Now()}
		q.sources[key] = s
	}
	return s
}

// add adds to the bytes held, and sheds connections above the limit.
func (q *Quota) add(n int64) {
	if sum := q.held.Add(n); n > 0 && q.cfg.Memory > 0 && sum > q.cfg.Memory {
		q.shed(0)
	}
}

// shed closes the newest connections that hold unfinished calls until there is room for n
// bytes. It reports whether there is.
func (q *Quota) shed(n int64) bool {
	over := q.held.Load() + n - q.cfg.Memory
	if over <= 0 {
		return true
	}
	var closing []*Conn
	q.mu.Lock()
	for _, c := range slices.Backward(q.conns) {
		if over <= 0 {
			break
		}
		if n := c.held.Load(); !c.left && n >= connBytes+unfinished {
			over -= n
			closing = append(closing, c)
		}
	}
	q.mu.Unlock()
	for _, c := range closing {
		c.end(Memory)
	}
	return over <= 0
}

// Run closes connections that are silent or stalled, until ctx ends, and returns nil
// then.
func (q *Quota) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			q.sweep()
		case <-ctx.Done():
			return nil
		}
	}
}

// sweep is one sweep of Run.
func (q *Quota) sweep() {
	var silent, stalled []*Conn
	q.mu.Lock()
	for _, c := range q.conns {
		if c.left {
			continue
		}
		if calls := c.calls.Load(); calls != c.seen {
			c.seen, c.still = calls, 0
			continue
		}
		c.still++
		switch {
		case c.still > stallSweeps && c.held.Load() >= connBytes+unfinished:
			stalled = append(stalled, c)
		case c.still > silentSweeps && c.seen == 0 && c.listener.cfg.CloseSilent:
			silent = append(silent, c)
		}
	}
	for key, s := range q.sources {
		if s.idle++; len(s.conns) > 0 {
			s.idle = 0
		} else if s.idle > sourceSweeps {
			delete(q.sources, key)
		}
	}
	q.mu.Unlock()
	for _, c := range silent {
		c.end(Silent)
	}
	for _, c := range stalled {
		c.end(Stalled)
	}
}

// leave removes a connection; q.mu is held.
func (q *Quota) leave(c *Conn) {
	if c.left {
		return
	}
	c.left = true
	if c.source.conns[c.listener]--; c.source.conns[c.listener] == 0 {
		delete(c.source.conns, c.listener)
	}
	c.listener.open--
	if q.gone++; q.gone > 64 && q.gone > len(q.conns)/2 {
		q.conns = slices.DeleteFunc(q.conns, func(c *Conn) bool { return c.left })
		q.gone = 0
	}
}
