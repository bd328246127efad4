package clock

import "time"

// tick is one call of [Anchor.Tick] under way.
type tick struct {
	a      *Anchor
	r      Readings
	moved  time.Duration // by the wall clock since the last tick, suspends apart
	events []AnchorEvent
}

// held returns the wall clock minus anchored time.
func (t *tick) held() time.Duration { return t.r.Offset() - t.a.target }

func (t *tick) report(e AnchorEvent) {
	e.At = t.r.Mono
	t.events = append(t.events, e)
}

// sinceStep returns the age of the pending step.
func (t *tick) sinceStep() time.Duration { return t.r.Mono.Sub(t.a.stats.Since) }

// move moves anchored time by d, and returns how far issuing time jumps; what
// it does not jump it slews.
func (t *tick) move(d time.Duration) (jump time.Duration) {
	t.a.target += d
	t.a.line, jump = t.a.line.towards(t.r.Mono, int64(t.r.Mono)+int64(t.a.target), slewLimit)
	return jump
}

// count counts a change of the wall clock as a step.
func (t *tick) count(step time.Duration) {
	s := &t.a.stats
	s.LastStep = step
	if step > 0 {
		s.StepsForward++
	} else {
		s.StepsBack++
	}
}

// agree follows a wall clock that is near. What is counted is how far it moved
// and not how far it is: from a step that is held, a small one may lead back.
func (t *tick) agree(held time.Duration) {
	a, moved := t.a, t.moved.Abs()
	if a.stats.Pending {
		a.stats.Withdrawn++
		t.end(AnchorEvent{Kind: Withdrawn, Step: t.moved, Held: held, Lasted: t.sinceStep()})
		if moved > agreement {
			t.count(t.moved)
			moved = 0
		}
	}
	if moved >= nudge {
		t.nudged(held)
	}
	// A line back begins with a grace: were each small move followed at once, the
	// next would come within it and time would never be given back.
	if busy := a.line.ahead(t.r.Mono) > 0 && held.Abs() < nudge; held.Abs() > stillness && !busy {
		a.walked += held
		t.move(held)
	}
}

// nudged counts a small step.
func (t *tick) nudged(held time.Duration) {
	a := t.a
	if t.moved > 0 {
		a.stats.NudgesForward++
	} else {
		a.stats.NudgesBack++
	}
	a.unreported++
	if t.r.Mono.Sub(a.reportedAt) >= nudgeQuiet {
		t.report(AnchorEvent{Kind: Nudged, Step: t.moved, Held: held, Count: a.unreported})
		a.unreported, a.reportedAt = 0, t.r.Mono
	}
}

// step begins to hold. What peers answered up to now was about another wall clock;
// that there are none remains so.
func (t *tick) step(w PeerVote) {
	a, held := t.a, t.held()
	// Many small steps, each too small by itself, add up to held.
	step := held
	if t.moved.Abs() > agreement {
		step = t.moved
	}
	t.count(step)
	a.settle()
	a.stats.Pending, a.stats.Since = true, t.r.Mono
	a.alone, a.aloneAt = w.Vote == VoteAlone, t.r.Mono
	t.report(AnchorEvent{Kind: Stepped, Step: step, Held: held})
}

// arbitrate acts on a vote for one of the two clocks.
func (t *tick) arbitrate(w PeerVote) {
	a, held := t.a, t.held()
	if t.moved.Abs() >= nudge {
		t.nudged(held)
	}
	ofThis := (w.Held - held).Abs() <= agreement
	if w.Vote != VoteAlone {
		a.alone = false
	} else if !a.alone {
		a.alone, a.aloneAt = true, t.r.Mono
	}
	switch {
	case w.Vote == VoteIssued && ofThis:
		t.follow(ByPeers)
	case w.Vote == VoteNew && ofThis:
		t.followUpTo(w.Accepted, ByPeers)
	case w.Vote == VoteOld && ofThis && !a.refuted:
		a.refuted = true
		a.stats.Refuted++
		t.report(AnchorEvent{Kind: Refuted, Held: held, Lasted: t.sinceStep()})
	case a.alone && t.r.Mono.Sub(a.aloneAt) >= stepHold:
		t.followUpTo(w.Accepted, ByHold)
	}
}

// followUpTo follows a wall clock within the step limit, or one that an operator
// accepted.
func (t *tick) followUpTo(accepted Millis, by Confirmer) {
	a := t.a
	switch {
	case a.ref.Ahead(t.r.Wall, time.Duration(t.r.Boot)) <= StepLimit:
		t.follow(by)
	case t.r.WallMillis() < accepted:
		t.follow(ByOperator)
	case !a.stats.Blocked:
		a.stats.Blocked = true
		t.report(AnchorEvent{Kind: Blocked, Held: t.held(), Lasted: t.sinceStep()})
	}
}

// follow makes the wall clock's time anchored time.
func (t *tick) follow(by Confirmer) {
	a, held, lasted := t.a, t.held(), t.sinceStep()
	jump := t.move(held)
	a.stats.Followed++
	a.walked = 0 // the wall clock is confirmed as it is
	if boot := time.Duration(t.r.Boot); a.ref.Ahead(t.r.Wall, boot) > StepLimit {
		a.ref.Set(t.r.Wall, boot)
	}
	t.end(AnchorEvent{
		Kind: Followed, Held: held, Lasted: lasted, By: by,
		Jump: jump, Slew: a.line.ahead(t.r.Mono),
	})
}

// end ends the pending step.
func (t *tick) end(e AnchorEvent) {
	t.a.settle()
	t.report(e)
	t.a.stats.Ended = t.events[len(t.events)-1]
}

// settle ends what is pending.
func (a *Anchor) settle() {
	a.stats.Pending, a.stats.Blocked, a.stats.Since = false, false, 0
	a.alone, a.refuted = false, false
}
