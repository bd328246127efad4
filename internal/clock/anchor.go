package clock

import (
	"time"

	"github.com/flakelease/allocator/internal/text"
)

// StepLimit is how far the wall clock may be set ahead, in all, and be followed
// without an operator's acceptance. 10 min: time that was given out cannot be
// taken back, and no slip of NTP is that large.
const StepLimit = 10 * time.Minute

const (
	// stepHold is for how long a node alone keeps to its old time after a step.
	// 10 s: an operator's slip of the hand is often undone by then.
	stepHold = 10 * time.Second
	// agreement is how far the wall clock may be from anchored time and be
	// followed without asking. 20 ms: above what reading the clocks and NTP's
	// corrections amount to, and below what I5 would notice.
	agreement = 20 * time.Millisecond
	// stillness is what is not worth following: noise of reading the clocks.
	stillness = 100 * time.Microsecond
	// nudge is the change between two ticks from which on it is a small step,
	// and counted. Slewing by 500 ppm makes 0.05 ms of a tick of 100 ms.
	nudge = 2 * time.Millisecond
	// nudgeQuiet is how often nudges are reported at most; they are all counted.
	nudgeQuiet = 10 * time.Second
	// forgetting is 1/1000: by 1 ms a second, what was followed without asking
	// ceases to count towards agreement. It is twice the kernel's fastest slew.
	forgetting = 1000
	// slewLimit is the longest way back that is slewed, 20 s of it; further
	// back issuing time jumps, and the generator refuses until it has caught up.
	slewLimit = 2 * time.Second
	// undecidedFor is for how long after a step Undecided holds without a vote. The last answer of a peer
	// that is gone counts for Freshness, and until then there is none.
	undecidedFor = Freshness + 2*time.Second
	// stall is how much later than the last a tick may come.
	stall = time.Second
)

// Vote is which side of a step of our wall clock the other nodes agree with.
type Vote uint8

// The votes.
const (
	VoteNone   Vote = iota // no quorum answered, or it agrees with neither
	VoteAlone              // there are no other nodes
	VoteOld                // a quorum agrees with anchored time, not with the wall clock
	VoteNew                // a quorum agrees with the wall clock, not with anchored time
	VoteIssued             // and issues with that time: only our clock was wrong
)

// PeerVote is the peers' vote on a step.
type PeerVote struct {
	Vote Vote
	// Held is the wall clock minus anchored time as judged. A vote about
	// anything but the present step, within 20 ms, is not used.
	Held time.Duration
	// Accepted is up to which wall time an operator accepted clocks; 0: none.
	Accepted Millis
}

// AnchorEventKind is what happened.
type AnchorEventKind uint8

// The kinds of events.
const (
	Stepped   AnchorEventKind = iota // the wall clock was set: anchored time is kept
	Followed                         // the step was confirmed: anchored time is the wall clock's
	Refuted                          // a quorum has confirmed anchored time
	Withdrawn                        // the wall clock agrees with anchored time again
	Blocked                          // a step ahead beyond StepLimit is not followed, though it was confirmed
	Nudged                           // small steps were followed; reported at most every 10 s
	Suspended                        // the machine was suspended: followed at once
	Stalled                          // a tick came late: the process did not run
)

// String returns the kind in lower case.
func (k AnchorEventKind) String() string {
	return text.Name(k, "stepped", "followed", "refuted", "withdrawn", "blocked", "nudged", "suspended", "stalled")
}

// Confirmer is who confirmed a step that was followed.
type Confirmer string

// The confirmers.
const (
	ByPeers    Confirmer = "peers"
	ByHold     Confirmer = "hold"     // there are no other nodes, and the wall clock kept the step
	ByOperator Confirmer = "operator" // one of these, of a time beyond StepLimit that an operator accepted
)

// AnchorEvent is a change worth a line in the log.
type AnchorEvent struct {
	Kind AnchorEventKind
	At   Mono
	// Step is by how much the wall clock was set, forward if positive; of a
	// Nudged, the last one.
	Step time.Duration
	// Held is the wall clock minus anchored time before the event was acted on.
	Held time.Duration
	// Lasted is the length of a suspend or stall; of Followed, Refuted,
	// Withdrawn and Blocked the time since the step.
	Lasted time.Duration
	// Jump is how far issuing time moved at once: forward, or back and beyond
	// slewing. Slew is how much of it is to be given back slowly.
	Jump, Slew time.Duration
	By         Confirmer // Only Followed has it.
	Count      int64     // Only Nudged has it: the nudges since the last report.
}

// AnchorStats are measurements for metrics. Counters only rise.
type AnchorStats struct {
	StepsForward, StepsBack   int64 // These steps of the wall clock were of more than 20 ms.
	NudgesForward, NudgesBack int64 // These changes of the wall clock were of 2 to 20 ms.
	Followed, Withdrawn       int64 // steps that ended
	Refuted                   int64 // steps
	Suspends, Stalls          int64
	Asleep, Stalled           time.Duration // sums of all suspends, and of all stalls
	LastStep                  time.Duration // forward if positive; 0: there was none
	Ended                     AnchorEvent   // the end of the last step: Followed or Withdrawn; zero: none ended
	Pending                   bool          // a step is held
	Blocked                   bool          // and is further ahead than is followed
	Since                     Mono          // The pending step was noticed then; 0 without one.
	Held                      time.Duration // wall clock minus anchored time
	Slewing                   time.Duration // issuing time minus anchored time: still to be given back
	TickDelay                 time.Duration // from the tick before to the last one
	Kernel                    Kernel        // at the last tick
}

// Anchor keeps issuing time: a wall-clock reading plus the monotonic time since,
// corrected while the wall clock is plausible and kept when it is not. It is
// pure and has one owner, who calls Tick every 50 to 100 ms.
//
//  1. Issuing time never goes back, but when a step back of more than 2 s is
//     followed.
//  2. It leaves the monotonic clock's pace, unless a step is confirmed, by no
//     more than 20 ms and 1 ms a second.
//  3. A change of the wall clock by 2 ms or more within a tick is counted.
//
// At each tick, held being the wall clock minus anchored time:
//
//	state    the tick sees                    then
//	any      boot ran on, and wall with it    Suspended: forward by as much, and on with the rest
//	agreed   |held| ≤ 20 ms, within claim 2   follow, forward at once, back by slewing
//	agreed   else                             Stepped → pending
//	pending  |held| ≤ 20 ms, within claim 2   Withdrawn → agreed
//	pending  the wall clock set again         Stepped → pending, as of now
//	pending  VoteNew of this step             Followed → agreed, or Blocked, once; pending
//	pending  VoteAlone for stepHold           Followed → agreed, or Blocked, once; pending
//	pending  VoteIssued of this step          Followed → agreed
//	pending  VoteOld of this step             Refuted, once; pending
//	pending  else                             pending
//
// Blocked: the wall clock is more than StepLimit ahead of where it would be if nobody
// had set it (see [Reference]), and not accepted by an operator. So a whole cluster
// whose time source is wrong keeps its time, and a step back and forth is no step.
type Anchor struct {
	target time.Duration // anchored time minus Mono: what line ends in
	line   *line
	last   Readings
	ticked bool          // last is of a tick
	walked time.Duration // followed without asking, less what was forgotten
	stats  AnchorStats
	ref    Reference // It follows anchored time slowly, to show how far the wall clock was set in all.

	unreported int64 // nudges
	reportedAt Mono  // when a nudge was last reported; before the first: long ago

	// Of the pending step.
	alone   bool // the vote was so at each tick since aloneAt
	aloneAt Mono
	refuted bool // was reported
}

// NewAnchor returns an anchor that trusts the wall clock as r has it.
func NewAnchor(r Readings) *Anchor {
	a := &Anchor{
		target:     r.Offset(),
		last:       r,
		line:       &line{at: r.Mono, wall: r.Wall, slow: r.Mono, asleep: r.slept()},
		reportedAt: r.Mono.Add(-nudgeQuiet),
	}
	a.ref.Set(r.Wall, time.Duration(r.Boot))
	return a
}

// UnixNano returns issuing time at m in Unix ns. m is not before the last tick.
func (a *Anchor) UnixNano(m Mono) int64 { return a.line.unixNano(m) }

// Undecided reports, as of the last tick, that the wall clock was set lately, and that no vote has decided
// yet which side is right.
func (a *Anchor) Undecided() bool { return a.line.undecided }

// Stats returns the measurements as of the last tick.
func (a *Anchor) Stats() AnchorStats { return a.stats }

// Tick advances the anchor to r, given the kernel's status and the peers' vote
// on the step that was pending at the last tick, and returns what happened, in
// order. Readings from before the last tick are ignored.
func (a *Anchor) Tick(r Readings, k Kernel, w PeerVote) (events []AnchorEvent) {
	elapsed := r.Mono.Sub(a.last.Mono)
	if elapsed < 0 {
		return nil
	}
	t := tick{a: a, r: r, moved: r.Offset() - a.last.Offset()}
	slept := r.slept() - a.last.slept()
	a.walked = towardsZero(a.walked, elapsed/forgetting)
	a.stats.TickDelay, a.stats.Kernel = elapsed, k

	if a.ticked && elapsed > stall {
		a.stats.Stalls++
		a.stats.Stalled += elapsed
		t.report(AnchorEvent{Kind: Stalled, Lasted: elapsed})
	}
	if slept > agreement {
		next := *a.line
		next.asleep += slept
		a.line = &next
	}
	if slept > agreement && (t.moved-slept).Abs() <= agreement {
		a.stats.Suspends++
		a.stats.Asleep += slept
		t.moved -= slept
		t.report(AnchorEvent{Kind: Suspended, Lasted: slept, Jump: t.move(slept)})
	}
	switch held := t.held(); {
	case held.Abs() <= agreement && (a.walked+held).Abs() <= agreement:
		t.agree(held)
	case !a.stats.Pending || t.moved.Abs() > agreement:
		t.step(w)
	default:
		t.arbitrate(w)
	}
	a.last, a.ticked = r, true
	a.ref.Follow(int64(r.Mono)+int64(a.target), time.Duration(r.Boot))
	a.stats.Held, a.stats.Slewing = t.held(), a.line.ahead(r.Mono)
	s := &a.stats
	undecided := s.Pending && !s.Blocked && !a.refuted && t.sinceStep() < undecidedFor
	if undecided != a.line.undecided {
		next := *a.line
		next.undecided = undecided
		a.line = &next
	}
	return t.events
}

// towardsZero returns d less by, or 0 rather than beyond it.
func towardsZero(d, by time.Duration) time.Duration {
	if d < 0 {
		return min(d+by, 0)
	}
	return max(d-by, 0)
}
