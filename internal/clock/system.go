package clock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Clocks are what a [System] reads: the machine's clocks, or a test's. They are
// safe for concurrent use.
type Clocks interface {
	// Read reads all clocks, and asks the kernel for some of them.
	Read() Readings
	// Elapsed reads the Mono of Readings alone, as each request does.
	Elapsed() Mono
	Kernel() Kernel
}

// System is the machine's clock. It gives anchored time, which follows the wall
// clock as far as [Anchor] trusts it while Run runs, and continues with monotonic
// time alone while it does not. Make one with [NewSystem]. It is safe for
// concurrent use.
type System struct {
	clocks Clocks
	line   atomic.Pointer[line] // the anchor's, for those who only want the time

	mu     sync.Mutex // guards anchor
	anchor *Anchor
}

// NewSystem returns a clock anchored at the present wall time. It reads clocks in place of the machine's;
// nil: the machine's own.
func NewSystem(clocks Clocks) *System {
	if clocks == nil {
		clocks = machine{time.Now()}
	}
	s := &System{clocks: clocks, anchor: NewAnchor(clocks.Read())}
	s.line.Store(s.anchor.line)
	return s
}

// Elapsed returns the time since the clocks were made.
func (m machine) Elapsed() Mono { return Mono(time.Since(m.origin)) }

// Now returns issuing time. It reads the monotonic clock once, the wall clock
// never, and waits for nobody.
func (s *System) Now() Reading {
	// In this order: what was read before a line is known may be of a time
	// before it, which the line allows for.
	elapsed := s.clocks.Elapsed()
	l := s.line.Load()
	return Reading{
		Wall:      Millis(l.unixNano(elapsed) / int64(time.Millisecond)),
		Mono:      elapsed,
		Asleep:    l.asleep,
		Undecided: l.undecided,
	}
}

// UnixNano returns issuing time at m in Unix ns. m is a monotonic time just
// read, as of [System.Read]: how time ran long before is not kept.
func (s *System) UnixNano(m Mono) int64 { return s.line.Load().unixNano(m) }

// Read reads all clocks of the machine as they are, steps included: for comparing
// with others, never for an ID.
func (s *System) Read() Readings { return s.clocks.Read() }

// Elapsed reads the monotonic clock alone.
func (s *System) Elapsed() Mono { return s.clocks.Elapsed() }

// Kernel asks the kernel what it knows about the wall clock.
func (s *System) Kernel() Kernel { return s.clocks.Kernel() }

// Bounds of Snapshot. Two reads take about 2 µs.
const (
	closeTogether    = 50 * time.Microsecond
	snapshotAttempts = 4
)

// Snapshot reads the clocks that peers compare, and the monotonic clock of the
// same moment. Kernel is as of the last tick.
//
// The clocks are read one after the other, and a pause in between would show as an
// error of one against the other that no round trip bounds. So the raw clock is
// read on both sides, and again if the two reads are far apart.
func (s *System) Snapshot() (Snapshot, Mono) {
	kernel := s.Stats().Kernel
	for attempt := 1; ; attempt++ {
		r := s.Read()
		issuing := s.UnixNano(r.Mono)
		if s.Read().Raw-r.Raw < int64(closeTogether) || attempt == snapshotAttempts {
			return Snapshot{Raw: r.Raw, Issuing: issuing - r.Raw, Wall: r.Wall - r.Raw, Kernel: SyncOf(kernel)}, r.Mono
		}
	}
}

// Stats returns the anchor's measurements as of the last tick.
func (s *System) Stats() AnchorStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.anchor.Stats()
}

// tickEvery is how old issuing time's view of the wall clock may be: within it
// a step is noticed. A tick costs about 5 µs.
const tickEvery = 50 * time.Millisecond

// Run keeps issuing time to the wall clock until ctx ends, and returns nil. It
// calls vote at each tick, and report with what happened; neither is called
// concurrently with itself or the other. While one blocks, issuing time goes on
// with the monotonic clock. Run must not run twice at a time.
func (s *System) Run(ctx context.Context, vote func() PeerVote, report func(AnchorEvent)) error {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, e := range s.tick(vote()) {
			report(e)
		}
	}
}

// tick advances the anchor to the present and publishes its line.
func (s *System) tick(w PeerVote) []AnchorEvent {
	k := s.clocks.Kernel()
	s.mu.Lock()
	defer s.mu.Unlock()
	// Read last, and published at once: see slewGrace.
	events := s.anchor.Tick(s.Read(), k, w)
	s.line.Store(s.anchor.line)
	return events
}
