package sim

import (
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Point is a situation that a run must have been in to mean anything.
type Point uint8

// The points.
const (
	TookOver              Point = iota // a sid was acquired whose last holder had not given it back
	AdoptedUnknown                     // a write without an answer was read back, and was ours
	Reheld                             // a holder key was put again under a new lease
	Reclaimed                          // a successor took its predecessor's sid from under it
	Released                           // a sid was given back
	OnStandby                          // no sid was free
	LostSID                            // a sid was another's, and the confirmed window served on
	TwoHeldOneSID                      // two processes held grants of one sid at one moment
	IssuedAfterLongPause               // a process slept beyond its lease and issued before it was notified of anything
	Interleaved                        // a window changed in the middle of a request
	CrashedMidStep                     // between two actions
	AppliedForDeadProcess              // a request was carried out whose process was gone
	SentTwice                          // a request was carried out twice
	RefusedByCompare                   // a write was not applied
	LeaderChanged
	ExpiredEarly
	ExpiredAlive // a holder that wrote nothing for long lost its key, though its lease lived
	EraBegan
	OperatorQuarantined // an operator quarantined a sid, or gave one back
	Reserved            // an operator reserved one for a generator outside of the cluster
	Unreserved          // and gave it back
	IssuedOutside       // its generator issued
	TwoOfOneName        // two live processes bore one name
	RefusedToStart
	KeptByWatch       // a list was brought up to date by a watch
	WatchGivenUp      // a watch did not show what transactions did
	HeldInFleet       // a sid of layout fleet was acquired
	HeldSIDFirst      // one of a layout with the sid above the sequence
	HeldWithinAUnit   // its window begins within a unit of time
	HeldInRange       // a sid of a range that not all nodes may take was
	HeldInPart        // one of a space that has a part of the sids
	FalsePeerAnswered // a peer lied about its clock
	MostWithoutGossip // a majority confirmed a clock, and at least half of the hosts have no gossip
	// A process started while the wall clocks of all hosts were further ahead than is followed.
	StartedUnderWrongSource
	// So many did that the others were no majority any more.
	OutnumberedUnderWrongSource
	StartedBesidePoison // all processes started beside the record of a clock that was a year ahead

	WorkerAcquired        // a generator of another system got a number
	WorkerExtended        // and a longer interval
	WorkerAdopted         // one that a call wrote of which it had no answer
	WorkerReheld          // its lease had ended, and nobody else had its number
	WorkerReleased        // it gave its number back
	WorkerLost            // it was told that the number is another's
	WorkerOutside         // it made an ID outside of its interval, and did not use it
	WorkerAsksTwice       // two of its calls were on their way
	WorkerUsedAfterLoss   // it used an ID of its interval while the number was another's
	WorkerClosedMeanwhile // its number was given back while it asked whether to use an ID
	WorkerAnswerDied      // a node ended between a transaction for it and the answer

	MarkRaised             // the watermark rose
	MarkRefused            // a raise was not applied, since a holder came
	MarkPassedVanished     // it passed a window whose holder had vanished, or the floor of an era
	MarkAfterRestore       // it was raised in an era after a history was lost
	MarkWorkerAfterRestore // a worker that the mark covers was permitted a time in that era
	MarkRestedOnClock      // and that holder issued below it, by a clock that was paused

	WindowExhausted // from here on: refusals of that name
	ClockSkew
	ClockUnverified
	ClockRegression
	EntropyOverflow
	AfterTooFar
	HistoryRewound
	NoSID
	Draining

	FollowedStep // the issuing clock followed a step of the wall clock
	RefutedStep  // a majority voted that the step was wrong
	SleptThrough // the machine was suspended
	Shut         // a gate shut
	Reopened     // and opened again
	Unopposed    // or left that phase without a majority, since nobody disagreed any more
	GraceOver    // a clock was unconfirmed for longer than the grace
	GaveUp       // a sid was given back because the clock is wrong
	PoisonGuard  // a clock was too far ahead to acquire anything
	Discontinuous
	LaterRevisionReported // a quorum of peers claimed a later history
	Duplicated            // two processes found out that they claim one sid and term
	HeldAgainstTruth      // an ID was compared with the truth for I5
	WrongAndFound         // a clock was wrong, and sound peers had answered
	Quarantined           // a node found a sid that it must not use

	Tampering // records were changed
	Latched   // a process believed that history went back
	Recovered // and served again after an operator's new era

	numPoints
)

var pointNames = [numPoints]string{
	"took over", "adopted unknown", "reheld", "reclaimed", "released", "on standby", "lost sid", "two held one sid",
	"issued after long pause", "interleaved", "crashed mid step", "applied for dead process", "sent twice",
	"refused by compare",
	"leader changed", "expired early", "expired alive", "era began", "operator quarantined", "reserved", "unreserved",
	"issued outside", "two of one name", "refused to start",
	"kept by watch", "watch given up", "held in fleet", "held sid first", "held within a unit", "held in range",
	"held in part", "false peer answered", "most without gossip", "started under wrong source",
	"outnumbered under wrong source",
	"started beside poison",
	"worker acquired", "worker extended", "worker adopted", "worker reheld", "worker released", "worker lost",
	"worker outside",
	"worker asks twice", "worker used after loss", "worker closed meanwhile", "worker answer died",
	"mark raised", "mark refused", "mark passed vanished", "mark after restore", "mark of worker after restore",
	"mark rested on clock",
	"WINDOW_EXHAUSTED", "CLOCK_SKEW", "CLOCK_UNVERIFIED", "CLOCK_REGRESSION", "ENTROPY_OVERFLOW", "AFTER_TOO_FAR",
	"HISTORY_REWOUND", "NO_SID", "DRAINING",
	"followed step", "refuted step", "slept through", "shut", "reopened", "unopposed", "grace over", "gave up",
	"poison guard",
	"discontinuous", "later revision reported", "duplicated", "held against truth", "wrong and found", "quarantined",
	"tampering", "latched", "recovered",
}

// String returns the point in words.
func (p Point) String() string { return pointNames[p] }

// Points counts how often each was reached.
type Points [numPoints]int

func (p *Points) hit(x Point) { p[x]++ }

// Add adds what another seed reached.
func (p *Points) Add(o Points) {
	for i, n := range o {
		p[i] += n
	}
}

// Missing returns the points never reached that runs of the mode can reach.
func (p *Points) Missing(m Mode) (out []Point) {
	for x := range numPoints {
		if p[x] == 0 && x.of(m) {
			out = append(out, x)
		}
	}
	return out
}

// of reports whether runs of the mode reach the point.
func (p Point) of(m Mode) bool {
	switch p {
	case Duplicated: // no history of the store allows it, but where that was rewound
		return false
	case Tampering, Latched, Recovered, HistoryRewound, MarkAfterRestore, MarkWorkerAfterRestore:
		return m == Tampered
	case MarkPassedVanished, ExpiredAlive: // Both need clocks of which a holder's records show the time.
		return m != Unclocked
	case MarkRestedOnClock:
		return false // Few seeds do.
	case FalsePeerAnswered, MostWithoutGossip, StartedUnderWrongSource,
		OutnumberedUnderWrongSource, StartedBesidePoison, ClockSkew,
		ClockUnverified, RefutedStep, Shut, Reopened, Unopposed, GraceOver, GaveUp, PoisonGuard, Discontinuous,
		LaterRevisionReported, HeldAgainstTruth, WrongAndFound, RefusedToStart:
		return m == Everything
	case FollowedStep, SleptThrough, EraBegan, OperatorQuarantined, Reserved, Unreserved, IssuedOutside,
		TwoOfOneName, ClockRegression, Quarantined,
		Reclaimed, OnStandby, LostSID, TwoHeldOneSID:
		return m != Tampered
	}
	return true
}

// Rare reports that only long runs can be expected to reach the point.
func (p Point) Rare() bool {
	switch p {
	case MarkRefused, MarkWorkerAfterRestore, OutnumberedUnderWrongSource,
		Unopposed, GraceOver, GaveUp, WrongAndFound, PoisonGuard, EntropyOverflow, IssuedAfterLongPause,
		RefutedStep, LaterRevisionReported, FalsePeerAnswered, MostWithoutGossip, RefusedToStart,
		FollowedStep, EraBegan, SleptThrough, TwoHeldOneSID, ExpiredEarly, ExpiredAlive, Reserved, Unreserved,
		IssuedOutside, WorkerAdopted, WorkerReheld, WorkerLost, WorkerUsedAfterLoss, WorkerClosedMeanwhile,
		WorkerAnswerDied:
		return true
	}
	return false
}

// op counts a write that etcd applied over the record old.
func (p *Points) op(t lease.Txn, old lease.Entry[lease.Window]) {
	switch t.Op {
	case lease.Acquire:
		if old.Exists() && old.Value.State == lease.Active {
			p.hit(TookOver)
		}
	case lease.Reclaim:
		p.hit(Reclaimed)
	case lease.Rehold:
		p.hit(Reheld)
	case lease.Release:
		p.hit(Released)
	}
}

func (p *Points) alarm(k lease.AlarmKind) {
	if k == lease.AlarmClock {
		p.hit(PoisonGuard)
	}
}

func (p *Points) anchor(e clock.AnchorEvent) {
	switch e.Kind {
	case clock.Followed:
		p.hit(FollowedStep)
	case clock.Refuted:
		p.hit(RefutedStep)
	case clock.Suspended:
		p.hit(SleptThrough)
	}
}

func (p *Points) gate(t clock.Transition) {
	switch {
	case t.Kind != clock.PhaseChanged:
	case t.To == clock.Shut:
		p.hit(Shut)
	case t.From == clock.Shut:
		p.hit(Reopened)
	case t.From == clock.Grace && t.To != clock.Confirmed:
		p.hit(GraceOver)
	}
}
