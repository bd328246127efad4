package quota

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// Costs in tokens, and what a source has.
const (
	// CostFrame is of each 512 bytes of a frame of HTTP/2, and of a Redis command and its
	// answer.
	CostFrame = 1
	// CostFailure is of a login that failed.
	CostFailure = 20
	// CostWrite is of a call for which etcd is written. A valid one pays for half of it.
	CostWrite = 16
	// CostScrape is of a request that takes milliseconds to answer.
	CostScrape = 100

	firstTokens = 16  // A new connection has these for its first call.
	worthCall   = 8   // what a valid call pays for
	maxTokens   = 256 // A valid call adds nothing to a connection with this many.
	partTokens  = 64  // A large debt is paid in such parts, so that small ones get a turn.

	sourceRate  = 1_000 // tokens a second
	sourceBurst = 2_000

	// Connections are paid from a bucket of their own: frames of some must not keep a
	// caller at the same address from connecting. The first valid call gives it back.
	connRate  = 50 // connections a second
	connBurst = 100
	costShed  = 20 // connections, for one that was closed for what it held

	// Sources without a valid call have a bucket together besides, so that a thousand of
	// them cost no more handshakes than a few. The first valid call gives it back here too:
	// of callers, as many as can get through connect.
	unknownRate  = 300 // connections a second
	unknownBurst = 100
)

// unprovenRead is how much is read at a time of a connection without a valid call, in
// bytes: what it costs is known afterwards.
const unprovenRead = 512

// Memory in bytes.
const (
	// connBytes is what a connection without a call holds: buffers, goroutines, TLS.
	connBytes = 48 << 10
	// streamBytes is what a stream was measured to hold besides what frames count: 23 kB together, since its
	// handler and what sends for it have a goroutine each.
	streamBytes = 16 << 10
	// unfinished is the minimum that calls of a connection hold to be shed for.
	unfinished = 16 << 10
	// step is the change of the bytes of its calls that a connection notices.
	step = 8 << 10
)

// shares is how many sources fill the memory: one source may hold one part, on all ports
// together.
const shares = 4

// Times, in sweeps of a second.
const (
	sweepEvery   = time.Second
	silentSweeps = 60 // until a connection without a valid call is closed
	stallSweeps  = 10 // until one with unfinished calls and no valid one is closed
	sourceSweeps = 60 // until a source without connections is forgotten
	idleSweeps   = 10 // until a connection without a valid call may make room
	crowdSweeps  = 1  // until one may for a source that has less than half as many
	streamSweeps = 60 // until such a one with open streams may
)

// How often a connection without tokens asks its source: less and less often, so that
// those that have just begun to wait come first, and a thousand of them cost little. Each pause is shorter by a random
// part, at most half: if a thousand that came together asked together, they would be served together too.
const (
	firstPoll = 10 * time.Millisecond
	lastPoll  = 320 * time.Millisecond
)

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
	held atomic.Int64 // bytes of all connections
	bare atomic.Bool  // No connection could be shed since the last sweep.

	mu      sync.Mutex // guards all below, and the places of connections
	sources map[origin]*source
	conns   []*Conn // in the order in which they were opened
	gone    int     // This many of conns are closed already.
	many    int     // connections of sources beyond their first few, at all listeners
	leaving []*Conn // They were asked to leave since the last sweep.
	asked   []*Conn // They were asked before that.

	unknownMu sync.Mutex // guards the next one; locked before that of a source
	unknown   bucket     // connections of sources without a valid call
}

// New returns a Quota.
func New(cfg Config) *Quota {
	return &Quota{
		cfg:     cfg,
		sources: map[origin]*source{},
		unknown: bucket{unknownRate, unknownBurst, unknownBurst, cfg.Now()},
	}
}

// Held returns the bytes that connections hold, and the limit; 0: none.
func (q *Quota) Held() (held, limit int64) { return q.held.Load(), q.cfg.Memory }

// Caller is a source of connections, and what they hold at all listeners.
type Caller struct {
	Source      string `json:"source"` // an address, a network of IPv6, or uid:N at a Unix socket
	Connections int64  `json:"connections"`
	Streams     int64  `json:"streams"`
	Waiting     int64  `json:"waiting_calls"` // They wait for something other than their caller.
	Bytes       int64  `json:"bytes"`
}

// KiB returns Bytes in KiB.
func (c Caller) KiB() int64 { return c.Bytes >> 10 }

// Callers returns the sources with connections, at most n, first those that hold most bytes.
func (q *Quota) Callers(n int) []Caller {
	q.mu.Lock()
	by := map[*source]*Caller{}
	for key, s := range q.sources {
		if len(s.conns) > 0 {
			by[s] = &Caller{Source: key.String(), Bytes: s.held.Load()}
		}
	}
	for _, c := range q.conns {
		if h := by[c.source]; h != nil && !c.left {
			h.Connections++
			h.Streams += c.streams.Load()
			h.Waiting += c.resting.Load()
		}
	}
	q.mu.Unlock()
	list := make([]Caller, 0, len(by))
	for _, h := range by {
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b Caller) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Source, b.Source))
	})
	return list[:min(len(list), n)]
}

// origin is what tells sources apart. Exactly one of its fields is set, or neither.
type origin struct {
	network netip.Prefix
	user    string // A connection at a Unix socket has this one.
}

// String returns the origin as people read it.
func (o origin) String() string {
	switch {
	case o.user != "":
		return o.user
	case o.network.IsSingleIP():
		return o.network.Addr().String()
	case o.network.IsValid():
		return o.network.String()
	}
	return "unknown"
}

// source is where connections come from.
type source struct {
	conns  map[*Listener]int // open; guarded by Quota.mu
	idle   int               // sweeps without a connection; guarded by Quota.mu
	held   atomic.Int64      // bytes of all its connections
	bare   atomic.Bool       // None of its connections could be shed since the last sweep.
	local  bool              // on this machine
	proven atomic.Bool       // a call was valid

	mu      sync.Mutex // guards the rest
	tokens  bucket
	opening bucket // connections
}

// bucket is a token bucket. It takes tokens back, and has debts: rate.Limiter does neither.
type bucket struct {
	rate, burst, level float64
	at                 clock.Mono // when level was counted
}

// take takes n and returns true, or nothing.
func (b *bucket) take(n float64, now clock.Mono) bool {
	b.level = min(b.level+now.Sub(b.at).Seconds()*b.rate, b.burst)
	b.at = now
	if b.level < n {
		return false
	}
	b.level -= n
	return true
}

// give gives n back, or takes it, into debt too.
func (b *bucket) give(n float64) { b.level = max(min(b.level+n, b.burst), -b.burst) }

// pay takes tokens and returns true, or none.
func (s *source) pay(tokens int64, now clock.Mono) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens.take(float64(tokens), now)
}

// open reports whether the source may open a connection now.
func (s *source) open(now clock.Mono) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opening.take(1, now)
}

// allow gives the source connections, or takes them.
func (s *source) allow(conns float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening.give(conns)
}

// open reports whether a source may open a connection now, and counts it if so. unknown
// says that no call of the source was valid.
func (q *Quota) open(s *source, unknown bool, now clock.Mono) bool {
	if !unknown {
		return s.open(now)
	}
	q.unknownMu.Lock()
	defer q.unknownMu.Unlock()
	if !q.unknown.take(1, now) {
		return false
	}
	if !s.open(now) {
		q.unknown.give(1)
		return false
	}
	return true
}

// proved gives back what open took for a connection of an unknown source.
func (q *Quota) proved() {
	q.unknownMu.Lock()
	defer q.unknownMu.Unlock()
	q.unknown.give(1)
}

// sourceOf returns the source of an address; q.mu is held.
func (q *Quota) sourceOf(a net.Addr) *source {
	key := origin{user: unixsocket.User(a.String())}
	if ap, err := netip.ParseAddrPort(a.String()); err == nil {
		key.network = access.Network(ap.Addr())
	}
	s := q.sources[key]
	if s == nil {
		s = &source{
			conns:   map[*Listener]int{},
			local:   key.user != "" || key.network.IsValid() && key.network.Addr().IsLoopback(),
			tokens:  bucket{sourceRate, sourceBurst, sourceBurst, q.cfg.Now()},
			opening: bucket{connRate, connBurst, connBurst, q.cfg.Now()},
		}
		q.sources[key] = s
	}
	return s
}

// share returns the bytes that one source may hold.
func (q *Quota) share() int64 { return q.cfg.Memory / shares }

// add adds to the bytes that a source holds, and sheds connections above the limits. large says that the connection
// that got them may be shed itself: else it does not look at all connections again if none could be shed just now.
func (q *Quota) add(s *source, n int64, large bool) {
	if large {
		s.bare.Store(false)
		q.bare.Store(false)
	}
	own, all := s.held.Add(n) > q.share(), q.held.Add(n) > q.cfg.Memory
	if n > 0 && q.cfg.Memory > 0 && (own && !s.bare.Load() || all && !q.bare.Load()) {
		q.shed(s)
	}
}

// shed closes connections with unfinished calls or unread answers, those that hold most
// first: of s while it holds more than its share, and of the source that holds most while
// all hold more than the limit.
func (q *Quota) shed(s *source) {
	var closing []*Conn
	q.mu.Lock()
	own, all := s.held.Load()-q.share(), q.held.Load()-q.cfg.Memory
	s.bare.Store(true) // before it looks: a connection that gets large meanwhile takes it back
	q.bare.Store(true)
	bareSource, bare := false, false
	held, large := q.large()
	for own > 0 || all > 0 {
		from := s
		if own <= 0 {
			for other, of := range large {
				if len(of) > 0 && (held[other] > held[from] || len(large[from]) == 0) {
					from = other
				}
			}
		}
		if len(large[from]) == 0 {
			if bare = own <= 0; bare {
				break
			}
			bareSource, own = true, 0
			continue
		}
		c := large[from][0]
		large[from] = large[from][1:]
		n := c.held.Load()
		held[from], all = held[from]-n, all-n
		if from == s {
			own -= n
		}
		q.leave(c)
		closing = append(closing, c)
	}
	s.bare.CompareAndSwap(true, bareSource)
	q.bare.CompareAndSwap(true, bare)
	q.mu.Unlock()
	for _, c := range closing {
		c.end(Memory)
	}
}

// large returns what each source holds, and its connections with unfinished calls or unread
// answers, those that hold most first; q.mu is held.
func (q *Quota) large() (held map[*source]int64, conns map[*source][]*Conn) {
	held, conns = map[*source]int64{}, map[*source][]*Conn{}
	size := map[*Conn]int64{} // sorted by what does not change meanwhile
	for _, c := range q.conns {
		if n := c.held.Load(); !c.left && c.large(n) {
			size[c], conns[c.source] = n, append(conns[c.source], c)
		}
	}
	for s, of := range conns {
		held[s] = s.held.Load()
		slices.SortFunc(of, func(a, b *Conn) int { return cmp.Compare(size[b], size[a]) })
	}
	return held, conns
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
	asked := q.asked
	q.asked, q.leaving = q.leaving, nil
	for _, c := range q.conns {
		if c.left {
			continue
		}
		c.still++
		c.stuck++
		if taken := c.taken.Load(); taken != c.read {
			c.read, c.stuck = taken, 0
		}
		if calls := c.calls.Load(); calls != c.seen || c.resting.Load() > 0 {
			c.seen, c.still, c.stuck = calls, 0, 0
		}
		switch {
		case c.stuck > stallSweeps && c.held.Load()-streamBytes*c.streams.Load() >= connBytes+unfinished:
			stalled = append(stalled, c)
		case c.still > silentSweeps && c.seen == 0 && c.listener.cfg.CloseSilent:
			silent = append(silent, c)
		}
	}
	q.bare.Store(false)
	for key, s := range q.sources {
		s.bare.Store(false)
		if s.idle++; len(s.conns) > 0 {
			s.idle = 0
		} else if s.idle > sourceSweeps {
			delete(q.sources, key)
		}
	}
	q.mu.Unlock()
	for _, c := range asked {
		_ = c.Close()
	}
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
	if c.source.conns[c.listener] > few {
		c.listener.many--
		q.many--
	}
	if c.source.conns[c.listener]--; c.source.conns[c.listener] == 0 {
		delete(c.source.conns, c.listener)
	}
	c.listener.open--
	if q.gone++; q.gone > 64 && q.gone > len(q.conns)/2 {
		q.conns = slices.DeleteFunc(q.conns, func(c *Conn) bool { return c.left })
		q.gone = 0
	}
}
