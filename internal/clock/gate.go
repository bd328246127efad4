package clock

import (
	"cmp"
	"time"

	"github.com/flakelease/allocator/internal/text"
)

// Times and limits of the gate.
const (
	firstRound = time.Second      // a round of echoes; a start without a quorum by then is unverified
	secondLook = time.Second      // between the two findings that shut the gate: one may be an outlier
	lapse      = Freshness        // after the first, without a second, it is forgotten
	calmFor    = 10 * time.Second // Agreement at half of max_skew opens the gate again after this time.
	// The gate opens again without a majority after this time without enough dissent to shut it.
	quietFor  = 30 * time.Second
	maxGap    = 3 * time.Second       // between evaluations, or the time in between does not count as calm
	releaseIn = 60 * time.Second      // The sid is given to a standby after this time of refusing.
	warnAt    = 50 * time.Millisecond // offset to warn at
	warnOff   = 25 * time.Millisecond // offset at which the warning ends

	// timesyncd lets a clock be off by 0.2 s; smeared and unsmeared leaps differ by 0.5 s.
	defaultMaxSkew = 250 * time.Millisecond
	defaultGrace   = 60 * time.Second // good clocks drift by 12 ms apart in it
)

// GateConfig sets when a [Gate] shuts. No time in it is negative.
type GateConfig struct {
	// MaxSkew is the T that the judgements are made with; 0 means 250 ms.
	MaxSkew time.Duration
	// Grace is how long an unconfirmed clock may issue under either policy; 0
	// means 60 s.
	Grace time.Duration
	// Strict refuses an unconfirmed clock once the grace is over; the default is
	// to issue on, unconfirmed.
	Strict bool
}

// Phase is the state of a gate.
type Phase uint8

// The phases.
const (
	Starting  Phase = iota // the first round of echoes is not over: refuses as Unverified
	Confirmed              // a majority confirms this clock: open
	Grace                  // none does, but not for long: open
	Unproven               // none does, the grace is over, and policy is to issue on: open
	Strict                 // none does, the grace is over, and policy is to refuse: Unverified
	Shut                   // the clocks disagree: Skewed
)

// String returns the phase's name in lower case.
func (p Phase) String() string {
	return text.Name(p, "starting", "confirmed", "grace", "unproven", "strict", "shut")
}

// State returns what a gate in phase p allows.
func (p Phase) State() State {
	switch p {
	case Confirmed, Grace, Unproven:
		return Open
	case Shut:
		return Skewed
	}
	return Unverified
}

// Gate turns the judgements of one moment into a verdict that does not flap. It
// is a value plus steps: no clock, no goroutine. One goroutine owns it.
//
// Evaluate once a second. The phases, by what is found (· is no change):
//
//		          Agreed              Unconfirmed                    SelfFalse, ClusterSplit
//		Starting  Confirmed           Grace after 1 s                Shut at the second look
//		Confirmed ·                   Grace                          Shut at the second look
//		Grace     Confirmed           Unproven or Strict after 60 s  Shut at the second look
//		Unproven  Confirmed           ·                              Shut at the second look
//		Strict    Confirmed           ·                              Shut at the second look
//		Shut      Confirmed if calm   Unproven or Strict             ·
//		          or unopposed        if unopposed
//
//	 1. The second look is a finding of disagreement 1 to 10 s after one, with no
//	    Agreed in between. Silence neither proves nor clears it.
//	 2. Calm is agreement at half of max_skew in every evaluation of 10 s. Agreement
//	    without calm, as over slow links, opens the gate once it is unopposed.
//	 3. Unopposed is 30 s in which fewer dissent than it takes to shut the gate. Who
//	    falls silent still dissents, until it leaves the registry: only then is
//	    nobody left to say whether this clock was set right.
//	 4. What a gate does keeps no two IDs apart (I1); it upholds I5.
type Gate struct {
	cfg    GateConfig
	phase  Phase
	began  Mono // The first step was made then.
	last   Mono // The latest step was made then.
	since  Mono // when phase was entered
	refuse Mono // when the gate began to refuse, if it does

	suspect   bool // disagreement was found, and no agreement since
	suspectAt Mono
	calm      bool // every evaluation since calmAt was
	calmAt    Mono
	unopposed bool // in every evaluation since quietAt
	quietAt   Mono
	warned    bool
	due       bool // the release was reported

	verdict Verdict
	latest  Judgement
	stats   GateStats
}

// GateStats are a gate's measurements for metrics.
type GateStats struct {
	Verdict     Verdict
	Judgement   Judgement // the latest; its slices are shared, and never written again
	Evaluations uint64
	Shuts       uint64        // times the gate shut
	Unverified  time.Duration // time spent open without a majority, in all
}

// NewGate returns a gate in phase Starting.
func NewGate(cfg GateConfig) *Gate {
	cfg.MaxSkew, cfg.Grace = cmp.Or(cfg.MaxSkew, defaultMaxSkew), cmp.Or(cfg.Grace, defaultGrace)
	g := &Gate{cfg: cfg}
	g.verdict = Verdict{State: Starting.State(), Limit: MillisOf(cfg.MaxSkew)}
	g.stats.Verdict = g.verdict
	return g
}

// TransitionKind is what changed at a gate.
type TransitionKind uint8

// The transitions. Only the first changes the phase.
const (
	PhaseChanged TransitionKind = iota
	Suspected                   // disagreement was found once; ceilings wait for the second look
	Cleared                     // there was agreement after all, or no second look for 10 s
	Warned                      // the cluster's time is known to be more than 50 ms from ours
	Contented                   // it is within 25 ms again
	ReleaseDue                  // the gate has refused for 60 s: the sid is due for release
)

// String returns the kind's name in lower case.
func (k TransitionKind) String() string {
	return text.Name(k, "phase", "suspected", "cleared", "warned", "contented", "release_due")
}

// Transition is something to be logged once.
type Transition struct {
	Kind      TransitionKind
	From, To  Phase // alike unless Kind is PhaseChanged
	Judgement Judgement
}

// Step evaluates j at monotonic time now, and returns the verdict from here on
// and what changed. Times must not go back.
func (g *Gate) Step(now Mono, j Judgement) (Verdict, []Transition) {
	if g.stats.Evaluations == 0 {
		g.began, g.last, g.since, g.refuse = now, now, now, now
	}
	if g.verdict.State == Open && g.phase != Confirmed {
		g.stats.Unverified += now.Sub(g.last)
	}
	var out []Transition
	report := func(k TransitionKind) { out = append(out, Transition{k, g.phase, g.phase, j}) }
	absolve := func() {
		if g.suspect && g.phase != Shut {
			report(Cleared)
		}
		g.suspect = false
	}
	if now.Sub(g.last) > maxGap {
		g.calm, g.unopposed = false, false
	}
	if opposed := j.Finding != Agreed && j.Dissent > j.Registered-j.Quorum; opposed {
		g.unopposed = false
	} else if !g.unopposed {
		g.unopposed, g.quietAt = true, now
	}
	quiet := g.unopposed && now.Sub(g.quietAt) >= quietFor

	next := g.phase
	switch j.Finding {
	case Agreed:
		absolve()
		if !j.Calm {
			g.calm = false
		} else if !g.calm {
			g.calm, g.calmAt = true, now
		}
		if g.phase != Shut || quiet || g.calm && now.Sub(g.calmAt) >= calmFor {
			next = Confirmed
		}
	case SelfFalse, ClusterSplit:
		g.calm = false
		if !g.suspect || now.Sub(g.suspectAt) > lapse {
			g.suspect, g.suspectAt = true, now
			if g.phase != Shut {
				report(Suspected)
			}
		} else if now.Sub(g.suspectAt) >= secondLook {
			next = Shut
		}
	default:
		g.calm = false
		if g.suspect && now.Sub(g.suspectAt) > lapse { // or ceilings would wait as long as the silence lasts
			absolve()
		}
		switch {
		case g.phase == Confirmed, g.phase == Starting && now.Sub(g.began) >= firstRound:
			next = Grace
		case g.phase == Grace && now.Sub(g.since) >= g.cfg.Grace, g.phase == Shut && quiet:
			next = Unproven
			if g.cfg.Strict {
				next = Strict
			}
		}
	}

	if next != g.phase {
		out = append(out, Transition{PhaseChanged, g.phase, next, j})
		g.enter(next, now)
	}
	g.verdict = g.answer(j)
	// Only a quorum's time starts or ends a warning: a false peer's alone does neither.
	switch off := (Interval{int64(j.Offset), int64(j.Offset)}).Bound(); {
	case !j.Known:
	case !g.warned && off > warnAt:
		g.warned = true
		report(Warned)
	case g.warned && off < warnOff:
		g.warned = false
		report(Contented)
	}
	g.last, g.latest = now, j
	if g.ReleaseDue() && !g.due {
		g.due = true
		report(ReleaseDue)
	}
	g.stats.Evaluations++
	return g.verdict, out
}

// enter takes up phase p. Refusing is counted from where it began, also across
// two phases that refuse: but not from Starting, which holds nothing to release.
func (g *Gate) enter(p Phase, now Mono) {
	if g.phase != Shut && g.phase != Strict {
		g.refuse, g.due = now, false
	}
	if p == Shut {
		g.stats.Shuts++
	}
	g.phase, g.since = p, now
}

// answer returns the verdict of the present phase after j.
func (g *Gate) answer(j Judgement) Verdict {
	v := g.verdict
	v.State, v.Phase, v.Finding = g.phase.State(), g.phase, j.Finding
	if g.phase != Shut || j.Finding != Unconfirmed { // a gate shut and gone silent shows what shut it
		v.Offset = MillisOf(j.Offset)
		v.Uncertainty = MillisOf(j.Uncertainty)
		if v.Uncertainty.Duration() < j.Uncertainty {
			v.Uncertainty++
		}
	}
	return v
}

// Verdict returns the verdict of the latest step: unverified before the first.
func (g *Gate) Verdict() Verdict { return g.verdict }

// MayReserve reports whether ceilings may be written: only while the gate is
// open and no disagreement waits for its second look, since a ceiling written
// by a bad clock stays.
func (g *Gate) MayReserve() bool { return g.verdict.State == Open && !g.suspect }

// ReleaseDue reports that the gate has refused for 60 s without a break as of
// the latest step, in the phases Shut and Strict: a standby may do better.
func (g *Gate) ReleaseDue() bool {
	return (g.phase == Shut || g.phase == Strict) && g.last.Sub(g.refuse) >= releaseIn
}

// Stats returns the measurements as of the latest step.
func (g *Gate) Stats() GateStats {
	s := g.stats
	s.Verdict, s.Judgement = g.verdict, g.latest
	return s
}
