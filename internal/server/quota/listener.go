package quota

import (
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// ListenerConfig is what a Listener enforces.
type ListenerConfig struct {
	Connections int           // maximum; 0: none
	PerSource   int           // maximum of one source; 0: that of the Quota
	Grace       time.Duration // for which a new connection is not closed to make room
	CloseSilent bool          // close connections without a valid call
	// Prompt is for probes: a connection pays at once, and is refused if its source cannot.
	// Those from loopback are accepted all the same.
	Prompt  bool
	Refusal []byte // written to a connection that has no place, if it fits a new socket's buffer
}

// Listener is a listener whose connections are bounded. Accept returns *Conn.
type Listener struct {
	net.Listener
	quota *Quota
	cfg   ListenerConfig

	open    int // guarded by Quota.mu
	many    int // connections of sources beyond their first few; guarded by Quota.mu
	refused atomic.Int64
	slowed  atomic.Int64
	closed  [numCauses]atomic.Int64
}

// Cause is why a connection was closed. It is a label of metrics, so the set is closed.
type Cause uint8

// The causes.
const (
	Room    Cause = iota // a new connection needed the place, and this had no valid call, or was idle
	Silent               // no call had been valid for a minute
	Memory               // a limit of memory was exceeded, and this held unfinished calls or unread answers
	Stalled              // unfinished calls or unread answers, and no valid call or reader for 10 seconds
	numCauses
)

var causeNames = [numCauses]string{"room", "silent", "memory", "stalled"}

// String returns the cause's label.
func (c Cause) String() string { return causeNames[c] }

// Listen returns l with bounds.
func (q *Quota) Listen(l net.Listener, cfg ListenerConfig) *Listener {
	if cfg.PerSource == 0 {
		cfg.PerSource = q.cfg.PerSource
	}
	return &Listener{Listener: l, quota: q, cfg: cfg}
}

// Stats are counters of a listener.
type Stats struct {
	Open    int64 // connections now
	Refused int64 // closed when they were accepted
	Slowed  int64 // times that a connection had to wait for tokens
	Closed  map[string]int64
}

// Stats returns the counters.
func (l *Listener) Stats() Stats {
	s := Stats{Refused: l.refused.Load(), Slowed: l.slowed.Load(), Closed: map[string]int64{}}
	l.quota.mu.Lock()
	s.Open = int64(l.open)
	l.quota.mu.Unlock()
	for c := range numCauses {
		s.Closed[c.String()] = l.closed[c].Load()
	}
	return s
}

// Accept returns the next connection that has a place. Others are closed at once, so
// that the client can use another node; in a queue it might wait forever.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.Admit(nc); c != nil {
			return c, nil
		}
		if len(l.cfg.Refusal) > 0 {
			_, _ = nc.Write(l.cfg.Refusal)
		}
		_ = nc.Close()
		runtime.Gosched() // Connections that come faster than they are refused would keep a processor for 10 ms.
	}
}

// reserved is the part of the places and of the memory that is kept for sources with valid
// calls: one of reserved.
const reserved = 8

// few connections of a source at a listener are let in as long as there is room at all. What sources
// have beyond their first few fills no more than three quarters of the places, and of the memory,
// however much each of these may hold without being shed: so few addresses, which may have many
// connections each, keep nobody else from connecting.
const few = 16

// crowded reports whether one more connection beyond the first few of its source is too much for
// the places of l, and for the memory; q.mu is held.
func (l *Listener) crowded() (places, memory bool) {
	const most = connBytes + streamBytes + unfinished
	return l.cfg.Connections > 0 && l.many >= l.cfg.Connections/4*3,
		l.quota.cfg.Memory > 0 && int64(l.quota.many+1)*most > l.quota.cfg.Memory/4*3
}

// Refusal returns what a connection is sent that has no place.
func (l *Listener) Refusal() []byte { return l.cfg.Refusal }

// Admit counts nc, which its caller has accepted, and returns it with its bounds. It returns nil if there is no place
// for it; the caller then closes nc.
func (l *Listener) Admit(nc net.Conn) *Conn {
	q, now := l.quota, l.quota.cfg.Now()
	q.mu.Lock()
	s := q.sourceOf(nc.RemoteAddr())
	places, memory := l.cfg.Connections, q.cfg.Memory
	if !s.proven.Load() && !(l.cfg.Prompt && s.local) {
		places, memory = places-places/reserved, memory-memory/reserved
	}
	fullPlaces, fullMemory := false, false
	if s.conns[l] >= few {
		fullPlaces, fullMemory = l.crowded()
	}
	var victim *Conn
	crowded := true
	switch {
	case l.cfg.Prompt && !s.open(now) && !s.local:
	case l.cfg.PerSource > 0 && s.conns[l] >= l.cfg.PerSource:
		victim = q.spare(l, s, s, now)
	case fullPlaces && !l.cfg.Prompt:
		victim = q.spareOfCrowd(l, s, now)
	case l.cfg.Connections > 0 && l.open >= places:
		victim = q.spare(l, nil, s, now)
	case q.cfg.Memory > 0 && s.held.Load()+connBytes > q.share() && !l.cfg.Prompt:
		victim = q.spare(nil, s, s, now)
	case fullMemory && !l.cfg.Prompt:
		victim = q.spareOfCrowd(nil, s, now)
	case q.cfg.Memory > 0 && q.held.Load()+connBytes > memory && !l.cfg.Prompt:
		victim = q.spare(nil, nil, s, now)
	default:
		crowded = false
	}
	prepaid := false // an unknown source makes room only as often as it may connect
	if crowded {
		if prepaid = !l.cfg.Prompt && !s.proven.Load(); victim == nil || prepaid && !q.open(s, true, now) {
			q.mu.Unlock()
			l.refused.Add(1)
			return nil
		}
		q.leave(victim)
	}
	c := &Conn{Conn: nc, listener: l, source: s, opened: now, done: make(chan struct{})}
	c.held.Store(connBytes)
	if l.cfg.Prompt || prepaid {
		c.paid.Store(true)
		c.unknown.Store(prepaid)
		c.tokens.Store(firstTokens)
	} else {
		c.tokens.Store(-1) // until it is paid
	}
	if s.conns[l] >= few {
		l.many++
		q.many++
	}
	s.conns[l]++
	l.open++
	q.conns = append(q.conns, c)
	q.mu.Unlock()
	if victim != nil {
		victim.makeRoom()
		runtime.Gosched()
	}
	q.add(s, connBytes, false)
	return c
}

// spare returns the connection that makes room for one from a source, or nil: of a listener
// and of a source, unless these are nil. It is the oldest without a valid call; else one that
// is idle. A listener for probes looks at the source with most connections first: a probe that
// was just accepted has no valid call either. q.mu is held.
func (q *Quota) spare(l *Listener, of, forSource *source, now clock.Mono) *Conn {
	if l != nil && l.cfg.Prompt {
		c := q.idlest(l, of, forSource, 0, 0)
		if c != nil {
			of = c.source
		}
		if first := q.oldest(l, of, now); first != nil {
			return first
		}
		return c
	}
	if c := q.oldest(l, of, now); c != nil {
		return c
	}
	return q.idlest(l, of, forSource, idleSweeps, streamSweeps)
}

// spareOfCrowd returns the connection that makes room for one of source s beyond its first few, or nil: of listener l,
// unless that is nil. If another source has more than twice as many connections at a listener as s has at any, and a
// call of s was valid, it is the oldest of that source without a valid call, however new, or one without such a call
// for a second; else what spare returns of s. q.mu is held.
func (q *Quota) spareOfCrowd(l *Listener, s *source, now clock.Mono) *Conn {
	if !s.proven.Load() {
		return q.spare(l, s, s, now)
	}
	var most *source
	from, n := l, 0
	for port, has := range s.conns {
		if l == nil || port == l {
			n = max(n, 2*has)
		}
	}
	for _, c := range q.conns { // and not of sources, which have no bound
		if has := c.source.conns[c.listener]; !c.left && has > n && (l == nil || c.listener == l) {
			most, from, n = c.source, c.listener, has
		}
	}
	if most == nil {
		return q.spare(l, s, s, now)
	}
	for _, c := range q.conns {
		if !c.left && c.source == most && c.listener == from && c.calls.Load() == 0 {
			return c
		}
	}
	if c := q.idlest(from, most, s, crowdSweeps, streamSweeps); c != nil {
		return c
	}
	return q.spare(l, s, s, now)
}

// oldest returns the oldest connection on which no call was valid, or nil if it is within
// its grace; of one listener and one source, unless these are nil. q.mu is held.
func (q *Quota) oldest(l *Listener, s *source, now clock.Mono) *Conn {
	for _, c := range q.conns {
		if c.left || l != nil && c.listener != l || s != nil && c.source != s || c.calls.Load() > 0 {
			continue
		}
		if now.Sub(c.opened) < c.listener.cfg.Grace {
			return nil
		}
		return c
	}
	return nil
}

// idlest returns the connection with the longest time since a valid call, of the source that
// has most of what is scarce and has one: places of l, or if that is nil memory. Those within idle sweeps
// of a call are left alone, and with open streams those within streams sweeps. A source makes
// no room for one that has more than it has. q.mu is held.
func (q *Quota) idlest(l *Listener, of, forSource *source, idle, streams int) *Conn {
	has := func(s *source) int64 {
		if l != nil {
			return int64(s.conns[l])
		}
		return s.held.Load()
	}
	best := map[*source]*Conn{}
	for _, c := range q.conns {
		least := idle
		if c.streams.Load() > 0 {
			least = streams
		}
		if c.left || l != nil && c.listener != l || of != nil && c.source != of || c.still < least {
			continue
		}
		if b := best[c.source]; b == nil || c.still > b.still {
			best[c.source] = c
		}
	}
	var from *source
	for s := range best {
		if s != forSource && has(s) <= has(forSource) {
			continue
		}
		if from == nil || has(s) > has(from) {
			from = s
		}
	}
	return best[from]
}
