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
	Read() Readings
	Kernel() Kernel
}

// System is the machine's clock. It gives anchored time, which follows the wall
// clock as far as [Anchor] trusts it while Run runs, and goes on with monotonic
// time alone while it does not. Its zero value is not usable; see [NewSystem].
// It is safe for concurrent use.
type System struct {
	elapsed func() Mono // clocks' Mono alone, for less
	clocks  Clocks
	line    atomic.Pointer[line] // the anchor's, for those who only want the time

	mu     sync.Mutex // guards anchor
	anchor *Anchor
}

// NewSystem returns a clock anchored at the machine's present wall time, with
// the default limits.
func NewSystem() *System { return NewSystemWith(AnchorConfig{}) }

// NewSystemWith is NewSystem with limits of the caller's.
func NewSystemWith(cfg AnchorConfig) *System {
	origin := time.Now()
	return newSystem(cfg, origin, machine{origin})
}

// NewSystemOn returns a clock on other clocks than the machine's, anchored at
// their present wall time: for whole nodes in simulated time. Now reads all of
// them where [NewSystem]'s makes do with the monotonic one.
func NewSystemOn(cfg AnchorConfig, clocks Clocks) *System {
	return startSystem(cfg, clocks, func() Mono { return clocks.Read().Mono })
}

// newSystem is for clocks whose Mono is the time since origin.
func newSystem(cfg AnchorConfig, origin time.Time, clocks Clocks) *System {
	return startSystem(cfg, clocks, func() Mono { return Mono(time.Since(origin)) })
}

func startSystem(cfg AnchorConfig, clocks Clocks, elapsed func() Mono) *System {
	s := &System{elapsed: elapsed, clocks: clocks, anchor: NewAnchor(cfg, clocks.Read())}
	s.line.Store(s.anchor.line)
	return s
}

// Now returns issuing time. It reads the monotonic clock once, the wall clock
// never, and waits for nobody.
func (s *System) Now() Reading {
	// In this order: what was read before a line is known may be of a time
	// before it, which the line allows for.
	elapsed := s.elapsed()
	return Reading{
		Wall: Millis(s.line.Load().unixNano(elapsed) / int64(time.Millisecond)),
		Mono: elapsed,
	}
}

// UnixNano returns issuing time at m in Unix ns. m is a monotonic time just
// read, as of [System.Read]: how time ran long before is not kept.
func (s *System) UnixNano(m Mono) int64 { return s.line.Load().unixNano(m) }

// Read reads all clocks of the machine as they stand, steps and all: for
// comparing with others, never for an ID.
func (s *System) Read() Readings { return s.clocks.Read() }

// Kernel asks the kernel what it knows about the wall clock.
func (s *System) Kernel() Kernel { return s.clocks.Kernel() }

// Raw reads the machine's wall clock as it stands. It is for comparing with
// issuing time, never for an ID.
func (s *System) Raw() Millis { return Millis(s.clocks.Read().Wall / int64(time.Millisecond)) }

// Stats returns the anchor's figures as of the last tick.
func (s *System) Stats() AnchorStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.anchor.Stats()
}

// Confirm is an operator's word that the wall clock is right; see
// [Anchor.Confirm].
func (s *System) Confirm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.anchor.Confirm()
}

// tickEvery is how old issuing time's view of the wall clock may be: within it
// a step is noticed. A tick costs about 5 µs.
const tickEvery = 50 * time.Millisecond

// Run keeps issuing time to the wall clock until ctx ends, and returns nil. It
// asks witness at each tick, and tells report what happened; neither is called
// concurrently with itself or the other. While one blocks, issuing time goes on
// with the monotonic clock. Run must not run twice at a time.
func (s *System) Run(ctx context.Context, witness func() Witness, report func(AnchorEvent)) error {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, e := range s.tick(witness()) {
			report(e)
		}
	}
}

// tick advances the anchor to the present and publishes its line.
func (s *System) tick(w Witness) []AnchorEvent {
	k := s.clocks.Kernel()
	s.mu.Lock()
	defer s.mu.Unlock()
	// Read last, and published at once: see slewGrace.
	events := s.anchor.Tick(s.clocks.Read(), k, w)
	s.line.Store(s.anchor.line)
	return events
}
