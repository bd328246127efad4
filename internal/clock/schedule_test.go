package clock

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// schedule is a seeded life of one machine: clocks set, drifting, asleep, stalled.
// It knows the true time, and peers that know it too.
type schedule struct {
	*desk
	rnd    *rand.Rand
	lone   bool
	asleep time.Duration
	free   time.Duration // an account of what was followed without asking
}

func (s *schedule) chance(in int) bool { return s.rnd.IntN(in) == 0 }

// size returns a step of 3 ms to 12 days, small and large ones alike.
func (s *schedule) size() time.Duration {
	d := 3 * time.Millisecond << s.rnd.IntN(29)
	d += time.Duration(s.rnd.Int64N(int64(d)))
	if s.chance(2) {
		return -d
	}
	return d
}

// wrong returns the wall clock minus true time.
func (s *schedule) wrong() time.Duration { return s.clocks.Read().Offset() - began - s.asleep }

// vote returns what the peers report.
func (s *schedule) vote(sure bool) PeerVote {
	held := s.anchor.Stats().Held
	old := s.wrong() - held
	switch {
	case s.lone:
		return PeerVote{Vote: VoteAlone, Accepted: s.accept}
	case !sure && s.chance(3):
		return PeerVote{}
	case old.Abs() < s.wrong().Abs():
		return PeerVote{Vote: VoteOld, Held: held}
	case !sure && s.chance(2):
		return PeerVote{Vote: VoteNew, Held: held, Accepted: s.accept}
	default:
		return PeerVote{Vote: VoteIssued, Held: held}
	}
}

// check ticks, and holds the tick to what an anchor promises.
func (s *schedule) check(w PeerVote) {
	t, m := s.t, s.clocks.Read().Mono
	t.Helper()
	a := s.anchor
	old, target := a.line, a.target
	last, was := a.last.Mono, a.stats
	if got, least := old.unixNano(m)-old.unixNano(last), int64(m-last)*9/10-1; got < least {
		t.Fatalf("issuing time ran %d in %d ns, at least %d is promised", got, m-last, least)
	}
	events := a.Tick(s.clocks.Read(), s.clocks.Kernel(), w)

	var followed, slept, back bool
	for _, e := range events {
		switch e.Kind {
		case Followed:
			followed, back = true, e.Jump < 0
			if e.Jump < 0 && -e.Jump <= slewLimit {
				t.Fatalf("jumped back by too little: %+v", e)
			}
		case Suspended:
			slept = true
		}
		switch e.Kind {
		case Followed, Withdrawn:
			was.Ended = e
			if e.Kind == Withdrawn {
				was.Withdrawn++
			}
		case Stalled:
			was.Stalled += e.Lasted
		}
	}
	if st := a.stats; st.Withdrawn != was.Withdrawn || st.Stalled != was.Stalled || st.Ended != was.Ended {
		t.Fatalf("%v are counted as %+v", events, a.stats)
	}
	for d := range 10 {
		at := m.Add(time.Duration(d) * slewGrace / 10)
		if before, after := old.unixNano(at), a.line.unixNano(at); after < before && !back {
			t.Fatalf("whoever read the clock %v after the tick sees issuing time go back by %v: %v", at.Sub(m), time.Duration(before-after), events)
		} else if at == m && time.Duration(after-before) > agreement && !followed && !slept {
			t.Fatalf("issuing time went forward by %v unconfirmed: %v", time.Duration(after-before), events)
		}
	}
	if got := a.line.unixNano(m - 1); got < old.unixNano(m-1) && !back {
		t.Fatal("a reading from before the tick goes back")
	}
	s.free = towardsZero(s.free, m.Sub(last)/1000)
	switch moved := a.target - target; {
	case followed:
		s.free = 0
	case slept:
		for _, e := range events {
			if e.Kind == Suspended {
				moved -= e.Lasted
			}
		}
		fallthrough
	default:
		s.free += moved
	}
	if s.free.Abs() > agreement {
		t.Fatalf("walked %v unconfirmed", s.free)
	}
}

// live plays one interval.
func (s *schedule) live() {
	s.t.Helper()
	if s.chance(50) {
		s.clocks.Drift(s.rnd.Int64N(601) - 300)
	}
	if s.chance(50) {
		s.clocks.SetKernel(Kernel{Known: s.chance(2), Synchronized: s.chance(2)})
	}
	if s.lone && s.chance(300) {
		s.accept = s.clocks.Read().WallMillis() + 1000
	}
	gap := 50*time.Millisecond + time.Duration(s.rnd.Int64N(int64(50*time.Millisecond)))
	stalled := s.chance(200)
	if stalled {
		gap = time.Duration(s.rnd.Int64N(int64(20 * time.Second)))
	}
	s.clocks.Advance(gap)
	slept := s.chance(200)
	if slept {
		d := time.Duration(s.rnd.Int64N(int64(1000 * time.Second)))
		s.clocks.Suspend(d)
		s.asleep += d
	}
	var step time.Duration
	switch {
	case s.chance(100):
		step = s.size()
	case s.chance(100):
		step = -s.wrong()
	}
	s.clocks.Step(step)
	before := s.anchor.Stats()
	s.check(s.vote(false))
	if slept || stalled {
		return
	}
	after := s.anchor.Stats()
	steps := after.StepsForward - before.StepsForward + after.StepsBack - before.StepsBack
	nudges := after.NudgesForward - before.NudgesForward + after.NudgesBack - before.NudgesBack
	switch size := step.Abs(); {
	case size > agreement+time.Millisecond && steps != 1:
		s.t.Fatalf("a step of %v: %d were counted", step, steps)
	case size > nudge+time.Millisecond && steps+nudges == 0:
		s.t.Fatalf("a step of %v was not counted", step)
	case size == 0 && steps+nudges > 1:
		s.t.Fatalf("no step, and %d were counted", steps+nudges)
	}
}

func TestRandomSchedules(t *testing.T) {
	seeds := uint64(400)
	var total AnchorStats
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			s := &schedule{desk: newDesk(t, VoteNone), rnd: rand.New(rand.NewPCG(seed, 1)), lone: seed%2 == 0}
			for range 1000 {
				s.live()
			}
			// In the end somebody sets the clock right, and it stays so.
			s.clocks.Drift(0)
			s.clocks.Step(-s.wrong())
			for range 700 {
				s.clocks.Advance(every)
				s.check(s.vote(true))
				if s.anchor.Stats().Blocked {
					s.accept = s.clocks.Read().WallMillis() + 1000
				}
			}
			r := s.clocks.Read()
			if off := time.Duration(s.anchor.UnixNano(r.Mono) - r.Wall); off.Abs() > agreement {
				t.Errorf("in the end issuing time is %v off: %+v", off, s.anchor.Stats())
			}
			st := s.anchor.Stats()
			total.Followed += st.Followed
			total.Suspends += st.Suspends
			total.Stalls += st.Stalls
			total.Refuted += st.Refuted
		})
	}
	t.Logf("%d steps followed, %d refuted, %d suspends, %d stalls", total.Followed, total.Refuted, total.Suspends, total.Stalls)
	if min(total.Followed, total.Suspends, total.Stalls, total.Refuted) < int64(seeds)/4 {
		t.Error("the schedules are too quiet to show anything")
	}
}
