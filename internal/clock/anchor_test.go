package clock

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const began = 1_769_904_000_000_000_000 // Unix ns of a test's beginning

const every = 100 * time.Millisecond // between two ticks

// desk is an anchor on scripted clocks, ticked as a System would.
type desk struct {
	t      *testing.T
	clocks *manualClocks
	anchor *Anchor
	says   Vote // of the step as it is then
	told   []AnchorEvent
	accept Millis // the operator's
}

func newDesk(t *testing.T, says Vote) *desk {
	t.Helper()
	c := newManualClocks(began)
	return &desk{t: t, clocks: c, anchor: NewAnchor(c.Read()), says: says}
}

func (d *desk) tick() []AnchorEvent {
	d.t.Helper()
	e := d.anchor.Tick(d.clocks.Read(), d.clocks.Kernel(), PeerVote{d.says, d.anchor.Stats().Held, d.accept})
	d.told = append(d.told, e...)
	return e
}

// run lets time pass with a tick at the end of each interval.
func (d *desk) run(how time.Duration) {
	d.t.Helper()
	for ; how > 0; how -= every {
		d.clocks.Advance(min(how, every))
		d.tick()
	}
}

// error returns issuing time minus what a clock that nobody set would show,
// which knows nothing of suspends.
func (d *desk) error() time.Duration {
	m := d.clocks.Read().Mono
	return time.Duration(d.anchor.UnixNano(m) - began - int64(m))
}

func (d *desk) kinds() string {
	var out []string
	for _, e := range d.told {
		out = append(out, e.Kind.String())
	}
	return strings.Join(out, " ")
}

func (d *desk) wantError(when string, want time.Duration) {
	d.t.Helper()
	if got := d.error(); got != want {
		d.t.Errorf("%s: issuing time is %v off, want %v", when, got, want)
	}
}

func (d *desk) wantKinds(want string) {
	d.t.Helper()
	if got := d.kinds(); got != want {
		d.t.Errorf("events %q, want %q", got, want)
	}
}

// TestStepMatrix sets the wall clock once and looks at issuing time.
func TestStepMatrix(t *testing.T) {
	const (
		ms, s, h = time.Millisecond, time.Second, time.Hour
		y10      = 87660 * time.Hour
	)
	all := []Vote{VoteNone, VoteAlone, VoteOld, VoteNew}
	only := func(s Vote) []Vote { return []Vote{s} }
	for _, tc := range []struct {
		step   time.Duration
		says   []Vote
		events string
		// Issuing time's error at the tick that sees the step, 200 ms, 9.9 s, 11 s and 60 s after.
		want [5]time.Duration
	}{
		{-h, only(VoteNone), "stepped", [5]time.Duration{}},
		{-h, only(VoteOld), "stepped refuted", [5]time.Duration{}},
		{-h, only(VoteNew), "stepped followed", [5]time.Duration{0, -h, -h, -h, -h}},
		{-h, only(VoteAlone), "stepped followed", [5]time.Duration{0, 0, 0, -h, -h}},

		{-s, only(VoteNone), "stepped", [5]time.Duration{}},
		{-s, only(VoteOld), "stepped refuted", [5]time.Duration{}},
		// 250 ms of grace, then a tenth.
		{-s, only(VoteNew), "stepped followed", [5]time.Duration{0, 0, -955 * ms, -s, -s}},
		{-s, only(VoteAlone), "stepped followed", [5]time.Duration{0, 0, 0, -75 * ms, -s}},

		{-10 * ms, all, "nudged", [5]time.Duration{0, 0, -10 * ms, -10 * ms, -10 * ms}},
		{10 * ms, all, "nudged", [5]time.Duration{10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms}},

		{s, only(VoteNone), "stepped", [5]time.Duration{}},
		{s, only(VoteOld), "stepped refuted", [5]time.Duration{}},
		{s, only(VoteNew), "stepped followed", [5]time.Duration{0, s, s, s, s}},
		{s, only(VoteAlone), "stepped followed", [5]time.Duration{0, 0, 0, s, s}},

		{h, only(VoteNone), "stepped", [5]time.Duration{}},
		{h, only(VoteOld), "stepped refuted", [5]time.Duration{}},
		{h, only(VoteNew), "stepped blocked", [5]time.Duration{}},
		{h, only(VoteIssued), "stepped followed", [5]time.Duration{0, h, h, h, h}},
		{h, only(VoteAlone), "stepped blocked", [5]time.Duration{}},

		{y10, only(VoteNone), "stepped", [5]time.Duration{}},
		{y10, only(VoteOld), "stepped refuted", [5]time.Duration{}},
		{y10, only(VoteNew), "stepped blocked", [5]time.Duration{}},
		{y10, only(VoteIssued), "stepped followed", [5]time.Duration{0, y10, y10, y10, y10}},
		{y10, only(VoteAlone), "stepped blocked", [5]time.Duration{}},
	} {
		for _, says := range tc.says {
			t.Run(fmt.Sprintf("%v/%d", tc.step, says), func(t *testing.T) {
				d := newDesk(t, says)
				d.run(5 * s)
				d.wantError("before", 0)
				d.clocks.Step(tc.step)
				d.run(every)
				d.wantError("at once", tc.want[0])
				d.run(200 * ms)
				d.wantError("after 200ms", tc.want[1])
				d.run(9700 * ms)
				d.wantError("after 9.9s", tc.want[2])
				d.run(1100 * ms)
				d.wantError("after 11s", tc.want[3])
				d.run(49 * s)
				d.wantError("after 60s", tc.want[4])
				d.wantKinds(tc.events)

				st, counted := d.anchor.Stats(), tc.step.Abs() > agreement
				steps := [2]int64{}
				nudges := [2]int64{}
				of := &nudges
				if counted {
					of = &steps
				}
				if tc.step > 0 {
					of[0] = 1
				} else {
					of[1] = 1
				}
				if got := [2]int64{st.StepsForward, st.StepsBack}; got != steps {
					t.Errorf("steps forward and back %v, want %v", got, steps)
				}
				if got := [2]int64{st.NudgesForward, st.NudgesBack}; got != nudges {
					t.Errorf("nudges forward and back %v, want %v", got, nudges)
				}
				held := time.Duration(0)
				if tc.want[4] == 0 {
					held = tc.step
				}
				if st.Held != held || st.Pending != (held != 0) || counted && st.LastStep != tc.step {
					t.Errorf("stats %+v, want held %v", st, held)
				}
			})
		}
	}
}

// TestUndecided: a step is undecided from the tick that sees it until a vote decides, or for 12 s
// without a vote.
func TestUndecided(t *testing.T) {
	for _, tc := range []struct {
		name string
		says Vote
		step time.Duration
		want time.Duration // It is undecided for this long.
	}{
		{"peers have the old time", VoteOld, -time.Hour, every},
		{"peers have the new time", VoteNew, -time.Hour, every},
		{"peers have the new time, beyond the limit", VoteNew, time.Hour, every},
		{"peers do not answer", VoteNone, -time.Hour, undecidedFor},
		{"alone", VoteAlone, -time.Hour, 10 * time.Second},
		{"what is followed at once", VoteNone, 10 * time.Millisecond, 0},
	} {
		d := newDesk(t, tc.says)
		d.run(every)
		d.clocks.Step(tc.step)
		got := time.Duration(0)
		for d.run(every); d.anchor.Undecided() && got < time.Minute; d.run(every) {
			got += every
		}
		if got != tc.want {
			t.Errorf("%s: undecided for %v, want %v", tc.name, got, tc.want)
		}
	}
	d := newDesk(t, VoteNone)
	d.clocks.Step(-time.Hour)
	d.run(time.Second)
	d.clocks.Step(time.Hour)
	if d.run(every); d.anchor.Undecided() {
		t.Error("a step that was undone is undecided")
	}
}

// Incident T07 (asleep), docs/INCIDENTS.md.
func TestSuspend(t *testing.T) {
	for _, says := range []Vote{VoteNone, VoteAlone, VoteOld, VoteNew} {
		d := newDesk(t, says)
		d.run(time.Second)
		d.clocks.Suspend(30 * time.Second)
		d.run(every)
		d.wantError("at once", 30*time.Second)
		d.run(time.Minute)
		d.wantError("later", 30*time.Second)
		d.wantKinds("suspended")
		if e := d.told[0]; e.Lasted != 30*time.Second || e.Jump != 30*time.Second {
			t.Errorf("event %+v, want 30s", e)
		}
		if st := d.anchor.Stats(); st.Suspends != 1 || st.Asleep != 30*time.Second || st.StepsForward != 0 || st.Stalls != 0 {
			t.Errorf("stats %+v, want one suspend", st)
		}
	}
}

// A wall clock that differs from what the suspend explains by more than 20 ms
// is a step, and one within it is the suspend and a nudge.
func TestSuspendWithStep(t *testing.T) {
	d := newDesk(t, VoteNone)
	d.run(time.Second)
	d.clocks.Suspend(30 * time.Second)
	d.clocks.Step(15 * time.Millisecond)
	d.run(every)
	d.wantError("near", 30*time.Second+15*time.Millisecond)
	d.wantKinds("suspended nudged")

	d = newDesk(t, VoteNone)
	d.run(time.Second)
	d.clocks.Suspend(30 * time.Second)
	d.clocks.Step(25 * time.Millisecond)
	d.run(every)
	d.wantError("far", 0)
	d.wantKinds("stepped")
}

// While a step is held a suspend moves both clocks, and the hold goes on.
func TestSuspendWhileHeld(t *testing.T) {
	d := newDesk(t, VoteAlone)
	d.run(time.Second)
	d.clocks.Step(time.Minute)
	d.run(5 * time.Second)
	d.clocks.Suspend(30 * time.Second)
	d.run(every)
	d.wantError("suspended", 30*time.Second)
	if st := d.anchor.Stats(); st.Held != time.Minute || !st.Pending {
		t.Errorf("stats %+v, want a minute held", st)
	}
	d.run(6 * time.Second)
	d.wantError("followed", 90*time.Second)
	d.wantKinds("stepped suspended followed")
}

// A suspend forward takes up what was still to be given back.
func TestSuspendWhileSlewing(t *testing.T) {
	d := newDesk(t, VoteNew)
	d.clocks.Step(-time.Second)
	d.run(300 * time.Millisecond)
	d.clocks.Suspend(400 * time.Millisecond)
	before := d.anchor.UnixNano(d.clocks.Read().Mono)
	d.tick()
	if now := d.anchor.UnixNano(d.clocks.Read().Mono); now != before {
		t.Errorf("issuing time moved by %v, want 0: it was ahead by more", time.Duration(now-before))
	}
	d.run(20 * time.Second)
	d.wantError("after", -600*time.Millisecond)
}

func TestStall(t *testing.T) {
	d := newDesk(t, VoteAlone)
	d.clocks.Advance(time.Minute) // before the first tick nobody was late
	d.tick()
	d.clocks.Advance(time.Second)
	d.tick()
	d.wantKinds("")
	d.clocks.Advance(time.Second + time.Millisecond)
	d.tick()
	d.wantKinds("stalled")
	if e := d.told[0]; e.Lasted != 1001*time.Millisecond {
		t.Errorf("event %+v, want 1.001s", e)
	}
	if st := d.anchor.Stats(); st.Stalls != 1 || st.TickDelay != 1001*time.Millisecond {
		t.Errorf("stats %+v, want one stall", st)
	}
}

func TestAgreementLimit(t *testing.T) {
	for _, tc := range []struct {
		step time.Duration
		want string
	}{
		{nudge - 1, ""}, {nudge, "nudged"},
		{-nudge + 1, ""}, {-nudge, "nudged"},
		{agreement, "nudged"}, {agreement + 1, "stepped"},
		{-agreement, "nudged"}, {-agreement - 1, "stepped"},
	} {
		d := newDesk(t, VoteNone)
		d.run(time.Second)
		d.clocks.Step(tc.step)
		d.run(every)
		if got := d.kinds(); got != tc.want {
			t.Errorf("step %v: events %q, want %q", tc.step, got, tc.want)
		}
	}
}

// TestDrift: what NTP does to the wall clock, in many small moves, is followed both ways and without a word.
// Backwards each move begins a line with a grace of its own: they must not put slewing off forever.
//
// Incident T10 (a leap second that is smeared), docs/INCIDENTS.md.
func TestDrift(t *testing.T) {
	for _, ppm := range []int64{900, 300, 20, -20, -300, -900} {
		d := newDesk(t, VoteNone)
		d.clocks.Drift(ppm)
		for range 20 * 600 {
			d.run(every)
			got := time.Duration(d.anchor.UnixNano(d.clocks.Read().Mono) - d.clocks.Read().Wall)
			if got.Abs() > time.Millisecond {
				t.Fatalf("%d ppm: issuing time is %v off the wall clock", ppm, got)
			}
		}
		d.wantKinds("")
		if st := d.anchor.Stats(); st.NudgesForward+st.NudgesBack != 0 {
			t.Errorf("%d ppm: stats %+v, want no nudge", ppm, st)
		}
	}
}

// Steps too small to be held must not add up unseen, be they counted or not.
func TestStrobe(t *testing.T) {
	for _, step := range []time.Duration{10 * time.Millisecond, time.Millisecond, -10 * time.Millisecond, -time.Millisecond} {
		d := newDesk(t, VoteOld)
		for range 600 {
			d.clocks.Step(step)
			d.run(every)
		}
		// A minute: 20 ms, and 1 ms a second.
		if got, most := d.error().Abs(), 81*time.Millisecond; got > most {
			t.Errorf("%v each tick: issuing time walked by %v, at most %v is allowed", step, got, most)
		}
		st := d.anchor.Stats()
		if st.StepsForward+st.StepsBack == 0 || !st.Pending {
			t.Errorf("%v each tick: stats %+v, want a step pending", step, st)
		}
		if step.Abs() >= nudge {
			// One of the 600 may open the step.
			if got := st.NudgesForward + st.NudgesBack + st.StepsForward + st.StepsBack; got < 600 {
				t.Errorf("%v each tick: %d were counted, want all 600", step, got)
			}
		}
	}
	// There and back is no walk, and each is counted.
	d := newDesk(t, VoteNone)
	for range 300 {
		d.clocks.Step(10 * time.Millisecond)
		d.run(every)
		d.clocks.Step(-10 * time.Millisecond)
		d.run(every)
	}
	if st := d.anchor.Stats(); st.NudgesForward != 300 || st.NudgesBack != 300 || st.Pending {
		t.Errorf("stats %+v, want 300 nudges each way", st)
	}
	var told int64
	for _, e := range d.told {
		told += e.Count
	}
	if n := len(d.told); n != 6 || told < 500 {
		t.Errorf("%d events that tell of %d nudges, want one in 10 s", n, told)
	}
}

func TestHold(t *testing.T) {
	const second = time.Second
	lone := func(t *testing.T, step time.Duration) *desk {
		d := newDesk(t, VoteAlone)
		d.run(second)
		d.clocks.Step(step)
		d.run(every)
		return d
	}
	t.Run("withdrawn", func(t *testing.T) {
		d := lone(t, time.Hour)
		d.run(5 * second)
		d.clocks.Step(-time.Hour + 5*time.Millisecond)
		d.run(every)
		d.wantKinds("stepped withdrawn")
		d.wantError("then", 5*time.Millisecond)
		if st := d.anchor.Stats(); st.StepsForward != 1 || st.StepsBack != 1 || st.Pending {
			t.Errorf("stats %+v, want a step each way", st)
		}
	})
	t.Run("withdrawn by a nudge", func(t *testing.T) { // which leaves next to nothing to follow, and counts
		d := lone(t, 25*time.Millisecond)
		d.clocks.Step(-15 * time.Millisecond)
		d.run(every)
		d.wantKinds("stepped withdrawn nudged")
		d.clocks.Step(-10 * time.Millisecond)
		d.run(every)
		d.clocks.Step(25 * time.Millisecond)
		d.run(every)
		d.clocks.Step(-10 * time.Millisecond)
		d.run(every)
		d.clocks.Step(-15 * time.Millisecond)
		d.run(every)
		if st := d.anchor.Stats(); st.StepsForward != 2 || st.StepsBack != 0 || st.NudgesBack != 4 || st.Pending {
			t.Errorf("stats %+v, want 2 steps forward and 4 nudges back", st)
		}
	})
	t.Run("set again", func(t *testing.T) {
		d := lone(t, second)
		d.run(8 * second)
		d.clocks.Step(second)
		d.run(10 * second)
		d.wantKinds("stepped stepped")
		d.wantError("in the second hold", 0)
		d.run(every)
		d.wantError("after it", 2*second)
		if e := d.told[1]; e.Step != second || e.Held != 2*second {
			t.Errorf("second step %+v, want 1s, 2s held", e)
		}
		if e := d.told[2]; e.By != ByHold || e.Lasted != 10*second || e.Jump != 2*second || e.Slew != 0 {
			t.Errorf("event %+v, want 2s followed after 10s", e)
		}
	})
	t.Run("company", func(t *testing.T) { // alone must last for the whole hold
		d := lone(t, second)
		d.run(9 * second)
		d.says = VoteNone
		d.run(every)
		d.says = VoteAlone
		d.run(10 * second)
		d.wantKinds("stepped")
		d.run(every)
		d.wantKinds("stepped followed")
	})
	t.Run("ten minutes", func(t *testing.T) {
		d := lone(t, 10*time.Minute)
		d.run(10 * second)
		d.wantKinds("stepped followed")
	})
	t.Run("more", func(t *testing.T) {
		d := lone(t, 10*time.Minute+1)
		d.clocks.SetKernel(Kernel{Known: true, Synchronized: true}) // with a source that may be wrong
		d.run(20 * second)
		d.wantKinds("stepped blocked")
		if !d.anchor.Stats().Blocked {
			t.Error("stats do not say so")
		}
	})
	t.Run("synchronized is no shortcut", func(t *testing.T) {
		d := lone(t, time.Minute)
		d.clocks.SetKernel(Kernel{Known: true, Synchronized: true})
		d.run(10*second - every)
		d.wantKinds("stepped")
		d.run(2 * every)
		d.wantKinds("stepped followed")
	})
}

// The limit is of all steps since the wall clock was trusted, of lone nodes and of
// clusters: a cluster that is set twice is not set further than one that is set once.
func TestStepLimit(t *testing.T) {
	const minute, hour = time.Minute, time.Hour
	for name, says := range map[string]Vote{"alone": VoteAlone, "with peers": VoteNew} {
		set := func(d *desk, by time.Duration) {
			d.clocks.Step(by)
			d.run(11 * time.Second)
		}
		t.Run(name+", by and by", func(t *testing.T) {
			d := newDesk(t, says)
			set(d, 6*minute)
			set(d, 3*minute)
			d.wantError("within the limit", 9*minute)
			set(d, 2*minute)
			d.wantError("beyond it", 9*minute)
			set(d, -2*minute)
			d.wantKinds("stepped followed stepped followed stepped blocked withdrawn")
		})
		t.Run(name+", back and forth", func(t *testing.T) {
			d := newDesk(t, says)
			set(d, -hour)
			set(d, hour)
			d.wantError("back where it was", 0)
			d.wantKinds("stepped followed stepped followed")
			set(d, -hour)
			set(d, hour+10*minute+time.Second)
			d.wantError("beyond", -hour)
		})
		t.Run(name+", asleep", func(t *testing.T) { // time that passes is no step
			d := newDesk(t, says)
			d.clocks.Suspend(48 * hour)
			d.clocks.Step(time.Second) // so that it is not simply added
			d.run(11 * time.Second)
			d.wantKinds("stepped followed")
			d.wantError("awake", 48*hour+time.Second)
		})
		t.Run(name+", forgotten", func(t *testing.T) { // by 1 ms a second: 600 s in a week
			d := newDesk(t, says)
			set(d, 10*minute)
			for range 7 * 24 * 60 {
				d.clocks.Advance(minute)
				d.tick()
			}
			set(d, 10*minute)
			d.wantError("a week later", 20*minute)
		})
		t.Run(name+", accepted", func(t *testing.T) {
			d := newDesk(t, says)
			set(d, 24*hour)
			d.wantError("before", 0)
			d.accept = Millis(began/1e6) + MillisOf(24*hour) // it is later already
			d.run(time.Second)
			d.wantKinds("stepped blocked")
			d.accept += MillisOf(hour)
			d.run(every)
			d.wantKinds("stepped blocked followed")
			d.wantError("after it", 24*hour)
			if e := d.told[2]; e.By != ByOperator {
				t.Errorf("followed by %q", e.By)
			}
			if st := d.anchor.Stats(); st.Blocked || st.Pending || st.Since != 0 {
				t.Errorf("stats %+v, want nothing pending", st)
			}
			set(d, 9*minute) // measured from the accepted time on
			d.wantError("within the limit", 24*hour+9*minute)
			set(d, 2*hour)
			d.wantError("beyond what was accepted", 24*hour+9*minute)
		})
	}
	d := newDesk(t, VoteIssued)
	d.clocks.Step(hour)
	d.run(time.Second)
	d.says = VoteNew
	d.clocks.Step(9 * minute)
	d.run(time.Second)
	d.wantError("measured from the time of the others", hour+9*minute)
	d.says, d.accept = VoteOld, Millis(began/1e6)+MillisOf(48*hour)
	d.clocks.Step(hour)
	d.run(time.Second)
	d.wantError("accepted, and the peers say otherwise", hour+9*minute)
}

func TestPeerVote(t *testing.T) {
	tick := func(d *desk, w PeerVote) {
		d.clocks.Advance(every)
		d.told = append(d.told, d.anchor.Tick(d.clocks.Read(), Kernel{}, w)...)
	}
	// What was said before the step was seen is not about it.
	d := newDesk(t, VoteNew)
	d.clocks.Step(8 * time.Minute)
	tick(d, PeerVote{Vote: VoteNew, Held: 0})
	tick(d, PeerVote{Vote: VoteNew, Held: 0})
	tick(d, PeerVote{Vote: VoteOld, Held: 0})
	tick(d, PeerVote{Vote: VoteNew, Held: 8*time.Minute + agreement + 1})
	d.wantKinds("stepped")
	tick(d, PeerVote{Vote: VoteOld, Held: 8 * time.Minute})
	tick(d, PeerVote{Vote: VoteOld, Held: 8 * time.Minute})
	d.wantKinds("stepped refuted")
	// Set again: nobody has judged that yet.
	d.clocks.Step(-4 * time.Minute)
	tick(d, PeerVote{Vote: VoteNew, Held: 4 * time.Minute})
	d.wantKinds("stepped refuted stepped")
	tick(d, PeerVote{Vote: VoteNew, Held: 8 * time.Minute})
	d.wantKinds("stepped refuted stepped")
	// A quorum may change its mind: it is then in the minority's place.
	tick(d, PeerVote{Vote: VoteOld, Held: 4 * time.Minute})
	tick(d, PeerVote{Vote: VoteNew, Held: 4*time.Minute - agreement})
	d.wantKinds("stepped refuted stepped refuted followed")
	if e := d.told[4]; e.By != ByPeers || e.Jump != 4*time.Minute {
		t.Errorf("followed %+v, want 4m by peers", e)
	}
	// A refuted step is not followed once everybody else is gone for less than the hold.
	d.clocks.Step(time.Second)
	tick(d, PeerVote{Vote: VoteOld, Held: 0})
	tick(d, PeerVote{Vote: VoteOld, Held: time.Second})
	d.says = VoteAlone
	d.run(10 * time.Second)
	d.wantError("still", 4*time.Minute)
}

// Slewing back is limited to 2 s in all; beyond, issuing time goes back at once.
func TestSlewLimit(t *testing.T) {
	for _, tc := range []struct{ step, jump, slew time.Duration }{
		{-slewLimit, 0, slewLimit},
		{-slewLimit - 1, -slewLimit - 1, 0},
	} {
		d := newDesk(t, VoteNew)
		d.clocks.Step(tc.step)
		d.run(2 * every)
		if e := d.told[1]; e.Jump != tc.jump || e.Slew != tc.slew {
			t.Errorf("step %v: %+v, want jump %v, slew %v", tc.step, e, tc.jump, tc.slew)
		}
		d.run(21 * time.Second)
		d.wantError("after 21s", tc.step)
	}
	d := newDesk(t, VoteNew)
	d.clocks.Step(-1500 * time.Millisecond)
	d.run(2 * every)
	d.clocks.Step(-time.Second)
	d.run(2 * every)
	d.wantError("both", -2500*time.Millisecond)

	// A step forward meanwhile takes up what is to be given back first.
	d = newDesk(t, VoteNew)
	d.clocks.Step(-time.Second)
	d.run(2 * every)
	d.clocks.Step(600 * time.Millisecond)
	d.run(2 * every)
	if e := d.told[3]; e.Jump != 0 || e.Slew < 395*time.Millisecond || e.Slew > 400*time.Millisecond {
		t.Errorf("%+v, want no jump and 400ms to slew", e)
	}
	d.run(5 * time.Second)
	d.wantError("in the end", -400*time.Millisecond)
}

// Following the wall clock meanwhile does not keep what is given back from
// being given back.
func TestSlewGoesOn(t *testing.T) {
	d := newDesk(t, VoteNew)
	d.clocks.Drift(-500)
	d.clocks.Step(-1900 * time.Millisecond)
	d.run(2 * every)
	if st := d.anchor.Stats(); st.Slewing != 1900100*time.Microsecond {
		t.Errorf("stats %+v, want 1.9s and the drift to slew", st)
	}
	// 19.25 s, what the drift adds, and the grace that the last 25 ms take.
	d.run(22 * time.Second)
	if st := d.anchor.Stats(); st.Slewing > time.Millisecond || st.Held.Abs() > time.Millisecond {
		t.Errorf("stats %+v, want it given back", st)
	}
}

// A line that follows one which gives back already goes on as slowly: a grace at each
// tick would keep it from giving back. Before it has begun to, the grace begins anew.
func TestNextLineGoesOn(t *testing.T) {
	l := &line{back: 10 * time.Second, slow: Mono(time.Second)}
	for m, slow := range map[Mono]Mono{
		Mono(time.Second) - 1: Mono(time.Second) - 1 + Mono(slewGrace), Mono(time.Second): Mono(time.Second), Mono(2 * time.Second): Mono(2 * time.Second),
		Mono(101 * time.Second): Mono(101*time.Second + slewGrace), // 0 s are left of the old debt
	} {
		next, _ := l.towards(m, l.unixNano(m)-int64(time.Second), time.Minute)
		if next.slow != slow {
			t.Errorf("at %v the next line is slow from %v on, want %v", time.Duration(m), time.Duration(next.slow), time.Duration(slow))
		}
	}
}

// A confirmed step ends the account of what was followed without asking.
func TestFollowForgets(t *testing.T) {
	d := newDesk(t, VoteNew)
	d.clocks.Step(15 * time.Millisecond)
	d.run(every)
	d.clocks.Step(time.Minute)
	d.run(2 * every)
	d.clocks.Step(15 * time.Millisecond)
	d.run(every)
	d.wantKinds("nudged stepped followed")
	d.wantError("all three", time.Minute+30*time.Millisecond)
}

func TestTickIgnoresThePast(t *testing.T) {
	d := newDesk(t, VoteAlone)
	old := d.clocks.Read()
	d.run(time.Second)
	was := *d.anchor
	if e := d.anchor.Tick(old, Kernel{Known: true}, PeerVote{}); e != nil || *d.anchor != was {
		t.Errorf("events %v, want none and no change", e)
	}
}

func TestAnchorEventKinds(t *testing.T) {
	if last, beyond := Stalled.String(), (Stalled + 1).String(); last != "stalled" || beyond != "unknown" {
		t.Errorf("the last kind is %q, and what follows it %q", last, beyond)
	}
}
