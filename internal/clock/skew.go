package clock

import (
	"errors"
	"time"

	"github.com/flakelease/allocator/internal/text"
)

// Times and limits of the estimator.
const (
	// MaxRoundTrip is the longest exchange taken for a sample. A longer one
	// bounds little, and its reply may have been delayed on purpose.
	MaxRoundTrip = time.Second

	// Freshness is how long after the last exchange a peer's estimate counts:
	// five exchanges of 2 s, all lost only where something is wrong.
	Freshness = 10 * time.Second

	// perDrift is 1 over the rate at which two machines' raw clocks may drift
	// apart: 200 ppm, two oscillators of ±100 ppm.
	perDrift = 5000
)

// drift returns how far two raw clocks may drift apart in age nanoseconds,
// rounded up; an age below 0 counts by its size.
func drift(age int64) int64 {
	if age < 0 {
		age = minus(0, age)
	}
	return age/perDrift + 1
}

// Sync is what a machine's kernel reports about its clock. It is no proof: chrony
// without rtcsync leaves a good clock unsynchronized.
type Sync uint8

// The answers of a kernel.
const (
	SyncUnknown    Sync = iota // it does not say
	Synchronized               // something disciplines the clock
	Unsynchronized             // nothing does, or the clock was set by hand
)

// SyncOf returns what k reports.
func SyncOf(k Kernel) Sync {
	switch {
	case !k.Known:
		return SyncUnknown
	case k.Synchronized:
		return Synchronized
	}
	return Unsynchronized
}

// String returns the answer in lower case.
func (s Sync) String() string { return text.Name(s, "unknown", "synchronized", "unsynchronized") }

// Snapshot is the clocks of one machine, read together. The raw clock is one that
// no daemon slews and no one sets (CLOCK_MONOTONIC_RAW), in ns from any origin;
// the others are given by what is added to it, so that a step shows as a change
// of one figure and disturbs no estimate.
//
// A pause between the readings shows as an error of the offsets that no round
// trip bounds: whoever reads them reads raw on both sides and tries again if
// the two are far apart.
type Snapshot struct {
	Raw     int64 // ns
	Issuing int64 // issuing clock (Unix ns) minus Raw
	Wall    int64 // wall clock (Unix ns) minus Raw
	Kernel  Sync
}

// Sample is one exchange with a peer: our question, and its answer.
type Sample struct {
	// Instance is the process that answered; another one has other clocks.
	Instance string

	// T1 and T4 are our raw clock when the question was sent and when its answer
	// came, ns. Both are ours: a T1 the peer echoes is not to be believed.
	T1, T4 int64

	// Hold is how long the peer had the question, by its own raw clock, up to
	// the reading of Peer.
	Hold time.Duration

	// Peer is the peer's clocks, read just before it answered.
	Peer Snapshot
}

// Errors of [Peer.Add]. The sample is then dropped and the estimate is as before.
var (
	ErrSampleOrder = errors.New("clock: the answer came before the question was sent")
	ErrSampleSlow  = errors.New("clock: the exchange took longer than a second")
	ErrSampleHold  = errors.New("clock: the peer held the question for less than no time or longer than the " +
		"exchange took")
)

// Change is what a sample shows besides an estimate.
type Change uint8

// The changes.
const (
	Steady Change = iota // it fits what was known
	// Met is the first sample of this peer, or of its new process: what was known of the old one is gone.
	Met
	// Discontinuity contradicts what was known: one of the two machines was paused, migrated or resumed.
	Discontinuity
)

// String returns the change in lower case.
func (c Change) String() string { return text.Name(c, "steady", "met", "discontinuity") }

// Peer is what is known of one peer's clocks. The zero value knows nothing. It
// is not safe for concurrent use.
//
//  1. The interval of (peer's raw clock − ours) holds the truth as long as the
//     peer answers with its true readings and neither raw clock errs by more
//     than 100 ppm or jumps. An exchange bounds the reading by when the question
//     left and the answer came, age widens it, and both at once hold: so the
//     narrowest of what all samples allow is kept.
//  2. Delays, queues and asymmetric paths widen an interval; they never move
//     one off the truth.
//  3. A peer is believed about its own clocks and nothing else.
type Peer struct {
	known    bool // the fields below are set
	instance string
	delta    Interval // The peer's raw clock minus ours was within it at our raw time at.
	at       int64
	latest   Snapshot // No sample has a later Raw; an older answer may arrive after it.
	asked    int64    // our raw time when that sample's question was sent
	doubts   int      // This many of the latest samples, in a row, contradicted the one before each.
	stats    PeerStats
}

// PeerStats counts what came from a peer.
type PeerStats struct {
	Samples         uint64 // taken
	Rejected        uint64 // dropped with an error
	Discontinuities uint64
}

// Add takes one exchange. Samples are best added in the order of T4.
//
// A sample from another instance than the last begins anew. One that cannot be
// true together with those before is a [Discontinuity]: it replaces them, and
// the peer counts as silent until the next one, since a sample that a pause cut
// in two is false by the length of the pause. A second contradiction in a row is
// no pause. Either the peer is false, and is one among many, or one of
// the two raw clocks runs at a rate that no crystal has; if it is ours, every
// peer contradicts itself all the time, and to count none of them would be to
// serve as if they were unreachable. So the newest reading then counts by itself.
//
// It returns ErrSampleOrder, ErrSampleSlow or ErrSampleHold for what no
// exchange can be.
func (p *Peer) Add(s Sample) (Change, error) {
	trip := minus(s.T4, s.T1)
	if err := plausible(trip, int64(s.Hold)); err != nil {
		p.stats.Rejected++
		return Steady, err
	}
	p.stats.Samples++

	// The peer read its clock in [T1+Hold, T4]; both bounds are carried to T4.
	// The latest possible reading is of T4 itself; the earliest drifted since,
	// and so may the clock that measured Hold have.
	seen := Interval{minus(s.Peer.Raw, s.T4), minus(s.Peer.Raw, plus(s.T1, int64(s.Hold)))}
	seen.Hi = plus(seen.Hi, drift(trip))

	if !p.known || p.instance != s.Instance {
		p.known, p.instance, p.doubts = true, s.Instance, 0
		p.replace(seen, s)
		return Met, nil
	}
	at := max(p.at, s.T4)
	known, aged := p.delta.Widen(drift(minus(at, p.at))), seen.Widen(drift(minus(at, s.T4)))
	if !known.Meets(aged) {
		p.stats.Discontinuities++
		p.doubts++
		p.replace(seen, s)
		return Discontinuity, nil
	}
	p.doubts = 0
	p.delta = Interval{max(known.Lo, aged.Lo), min(known.Hi, aged.Hi)}
	p.at = at
	if s.Peer.Raw > p.latest.Raw { // an old answer, come late or replayed, is no news
		p.latest, p.asked = s.Peer, s.T1
	}
	return Steady, nil
}

// plausible checks the durations of an exchange, in ns.
func plausible(trip, hold int64) error {
	switch {
	case trip < 0:
		return ErrSampleOrder
	case trip > int64(MaxRoundTrip):
		return ErrSampleSlow
	case hold < 0 || hold > trip:
		return ErrSampleHold
	}
	return nil
}

func (p *Peer) replace(seen Interval, s Sample) {
	p.delta, p.at, p.latest, p.asked = seen, s.T4, s.Peer, s.T1
}

// Estimate is where a peer's clocks are, relative to our issuing clock. The zero
// value is that of a peer that never answered.
type Estimate struct {
	// Fresh says that the peer answered within [Freshness] and did not just contradict itself; else the rest
	// counts for nothing.
	Fresh   bool
	Issuing Interval      // the peer's issuing clock − our issuing clock, ns
	Wall    Interval      // the peer's wall clock − our issuing clock, ns
	Kernel  Sync          // what the peer's kernel reported
	Age     time.Duration // since the question was sent whose answer is the newest
}

// Estimate returns what p knows when our raw clock reads raw and our issuing
// clock raw + issuing, both in ns. What the peer did to its issuing or wall
// clock since its last answer cannot be in it; what we did to ours is.
func (p *Peer) Estimate(raw, issuing int64) Estimate {
	if !p.known {
		return Estimate{}
	}
	raws := p.delta.Widen(drift(minus(raw, p.at))).Shift(minus(0, issuing))
	age := minus(raw, p.asked)
	return Estimate{
		// If the question was sent in the future, our own raw clock went back.
		Fresh:   p.doubts != 1 && age <= int64(Freshness) && age >= -int64(MaxRoundTrip),
		Issuing: raws.Shift(p.latest.Issuing),
		Wall:    raws.Shift(p.latest.Wall),
		Kernel:  p.latest.Kernel,
		Age:     time.Duration(age),
	}
}

// Stats returns what was counted.
func (p *Peer) Stats() PeerStats { return p.stats }

// Peers is what is known of all peers, by instance. The zero value knows none.
// It is not safe for concurrent use.
type Peers struct {
	of map[string]*Peer
}

// Add takes one exchange, as [Peer.Add] does.
func (ps *Peers) Add(s Sample) (Change, error) {
	p := ps.of[s.Instance]
	if p == nil {
		p = new(Peer)
	}
	change, err := p.Add(s)
	if err == nil && ps.of[s.Instance] == nil {
		if ps.of == nil {
			ps.of = make(map[string]*Peer)
		}
		ps.of[s.Instance] = p
	}
	return change, err
}

// Opinions returns what to judge by: an entry for each of the members, in their
// order, zero for those that never answered. raw and issuing are as for [Peer.Estimate].
func (ps *Peers) Opinions(members []Member, raw, issuing int64) []Opinion {
	out := make([]Opinion, len(members))
	for i, m := range members {
		out[i].Name = m.Name
		if p := ps.of[m.Instance]; p != nil {
			out[i].Estimate = p.Estimate(raw, issuing)
		}
	}
	return out
}

// Retain drops what is known of all but the members.
func (ps *Peers) Retain(members []Member) {
	kept := make(map[string]*Peer, len(members))
	for _, m := range members {
		if p := ps.of[m.Instance]; p != nil {
			kept[m.Instance] = p
		}
	}
	ps.of = kept
}

// Forget makes every peer one that never answered, but for its counts. Call it when
// our own raw clock is known to have stopped or jumped while the issuing clock did not, as after a
// suspend: until its next answer each peer would seem to be off by that much, and a good clock
// would refuse itself.
func (ps *Peers) Forget() {
	for _, p := range ps.of {
		*p = Peer{stats: p.stats}
	}
}

// Stats returns what was counted for an instance.
func (ps *Peers) Stats(instance string) PeerStats {
	if p := ps.of[instance]; p != nil {
		return p.stats
	}
	return PeerStats{}
}
