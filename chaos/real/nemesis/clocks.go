package nemesis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/flakelease/allocator/chaos/real/clockhook"
	"github.com/flakelease/allocator/chaos/real/rig"
)

// Times of the gate, from docs/DESIGN.md.
const (
	notice = 4 * time.Second  // longest time from a clock out of bounds to the refusal
	agreed = 10 * time.Second // clocks have to agree that long before a node that refused issues again
)

// backAfterSkew is how long a node may take to issue again once its clock is right:
// peers confirm the step, then clocks must agree for a while.
const backAfterSkew = notice + agreed + 2*time.Second

// clockReasons are what a node with a wrong clock may answer. Its window may be
// exhausted when it may issue again, since it extended none meanwhile.
var clockReasons = []string{skew, tooFar, regression, exhausted}

func clockFaults() []Fault {
	// What follows a paused machine, besides the clock.
	paused := append([]string{connection, timeout, noSID, exhausted, starting}, clockReasons...)
	faults := []Fault{
		{
			Name:   "clock-forward",
			Smoke:  true,
			About:  "set a node's wall clock forward by 5 min to 1 h",
			Hold:   between(2*time.Second, 3*time.Second),
			Amount: func(r *rand.Rand) int64 { return int64(logUniform(r, 5*time.Minute, time.Hour)) },
			Begin:  stepWall,
			Fired:  wallHeld,
			End:    wallBack,
			Expect: unaffected(2 * time.Second),
		},
		{
			Name:   "clock-back",
			About:  "set a node's wall clock back by 1 s to 1 h",
			Hold:   between(2*time.Second, 3*time.Second),
			Amount: func(r *rand.Rand) int64 { return -int64(logUniform(r, time.Second, time.Hour)) },
			Begin:  stepWall,
			Fired:  wallHeld,
			End:    wallBack,
			Expect: unaffected(2 * time.Second),
		},
		{
			Name:  "clock-small-step",
			About: "set a node's wall clock by 30 to 150 ms either way, below the limit",
			Hold:  between(2*time.Second, 3*time.Second),
			Amount: func(r *rand.Rand) int64 {
				d := int64(logUniform(r, 30*time.Millisecond, 150*time.Millisecond))
				if r.IntN(2) == 0 {
					return -d
				}
				return d
			},
			Begin:  stepWall,
			Fired:  stepCounted,
			End:    wallBack,
			Expect: unaffected(2 * time.Second),
		},
		{
			Name:   "clock-strobe",
			About:  "set a node's wall clock forward and back several times a second",
			Hold:   between(3*time.Second, 4*time.Second),
			Amount: func(r *rand.Rand) int64 { return int64(logUniform(r, time.Second, 10*time.Minute)) },
			Begin:  strobe,
			Fired:  stepCounted,
			End:    wallBack,
			Expect: unaffected(3 * time.Second),
		},
		{
			Name:   "clock-slow",
			About:  "a node's time daemon slows its clocks by 20 %, then corrects the wall clock",
			Hold:   between(9*time.Second, 10*time.Second),
			Amount: func(*rand.Rand) int64 { return -200_000 },
			Unit:   "ppm",
			Begin:  drift,
			Fired:  offsetSeen,
			End:    driftEnds,
			// 250 ms are lost within 1.25 s.
			Expect: mustSkew(1250*time.Millisecond+notice+time.Second, backAfterSkew),
		},
		{
			Name:   "clock-fast",
			About:  "a node's time daemon speeds its clocks up by 10 %, then corrects the wall clock",
			Hold:   between(9*time.Second, 10*time.Second),
			Amount: func(*rand.Rand) int64 { return 100_000 },
			Unit:   "ppm",
			Begin:  drift,
			Fired:  offsetSeen,
			End:    driftEnds,
			// 250 ms are gained within 2.5 s; a second too much is slewed away at a tenth.
			Expect: mustSkew(2500*time.Millisecond+notice+time.Second, backAfterSkew+10*time.Second),
		},
		{
			Name: "clock-oscillator",
			About: "a node's oscillator is 20 % too slow or fast: all its clocks, the raw one too; then the wall " +
				"clock is corrected",
			Hold:   between(9*time.Second, 10*time.Second),
			Amount: func(r *rand.Rand) int64 { return 200_000 - 400_000*r.Int64N(2) },
			Unit:   "ppm",
			Begin:  oscillate,
			Fired:  offsetSeen,
			End:    driftEnds,
			// 250 ms are lost within 1.25 s; up to 2 s too much are slewed away at a tenth.
			Expect: mustSkew(1250*time.Millisecond+notice+time.Second, backAfterSkew+20*time.Second),
		},
		{
			Name:   "vm-pause",
			Smoke:  true,
			About:  "a node's machine and all its clocks are paused for 2 to 3 s",
			Hold:   between(9*time.Second, 9500*time.Millisecond),
			Amount: func(r *rand.Rand) int64 { return int64(2*time.Second) + r.Int64N(int64(time.Second)) },
			Begin:  suspend(clockhook.Paused),
			Fired:  offsetSeen,
			End:    wallBack,
			Expect: func(t rig.Timing) Expect {
				e := mustSkew(3*time.Second+notice+time.Second, backAfterSkew)(t)
				e.May = paused
				return e
			},
		},
		{
			Name: "suspend",
			About: "a node's machine is suspended until its lease has expired: the wall and boot clocks go on, the " +
				"others stop",
			Hold:   after(leaseTTL, 3*time.Second, 4*time.Second),
			Amount: func(r *rand.Rand) int64 { return 0 },
			Begin:  suspend(clockhook.Asleep),
			Fired:  suspendCounted,
			End:    nothingToHeal,
			Expect: backWith(paused, backAfterSkew, "the suspend is detected; late IDs are inside its own window"),
		},
		{
			Name:   "clock-wrong-at-start",
			Server: true,
			About:  "start a node whose clock is 1 to 60 s behind",
			Hold:   between(9*time.Second, 10*time.Second),
			Amount: func(r *rand.Rand) int64 { return -int64(logUniform(r, time.Second, time.Minute)) },
			Begin:  restartLate,
			Fired:  offsetSeen,
			End:    wallBack,
			Expect: func(t rig.Timing) Expect {
				e := mustSkew(restartSettle+notice, backAfterSkew)(t)
				e.May = paused
				return e
			},
		},
	}
	for i := range faults {
		faults[i].Needs, faults[i].Unit = ClockHook, cmp.Or(faults[i].Unit, "ns")
	}
	return faults
}

func mustSkew(within, settle time.Duration) func(rig.Timing) Expect {
	return func(rig.Timing) Expect {
		return Expect{
			Must:   skew,
			Within: within,
			May:    clockReasons,
			Settle: settle,
			Text:   "refuses with CLOCK_SKEW in time; issues again once its clock is right",
		}
	}
}

// logUniform draws a duration whose logarithm is uniform.
func logUniform(r *rand.Rand, shortest, longest time.Duration) time.Duration {
	return time.Duration(float64(shortest) * math.Pow(float64(longest)/float64(shortest), r.Float64()))
}

var errNoHook = errors.New("the process has no clock hook")

func hookOf(s *Injection) (*clockhook.Hook, error) {
	h := s.Node.Hook()
	if h == nil {
		return nil, errNoHook
	}
	return h, nil
}

// byHook does something with the clock hook of the node.
func byHook(do func(*Injection, *clockhook.Hook) error) func(context.Context, *Injection) error {
	return func(_ context.Context, s *Injection) error {
		h, err := hookOf(s)
		if err != nil {
			return err
		}
		return do(s, h)
	}
}

var (
	stepWall = byHook(func(s *Injection, h *clockhook.Hook) error {
		return h.Step(clockhook.Offsets{Wall: s.amount()})
	})
	// drift is that of a wrong clock discipline: the raw clock, which it does not
	// change, stays correct.
	drift = byHook(func(s *Injection, h *clockhook.Hook) error {
		return h.Drift(clockhook.Slewed(float64(s.Amount)))
	})
	// oscillate is a wrong oscillator: the raw clock is wrong too.
	oscillate = byHook(func(s *Injection, h *clockhook.Hook) error {
		return h.Drift(clockhook.Crystal(float64(s.Amount)))
	})
	stopDrift = byHook(func(_ *Injection, h *clockhook.Hook) error { return h.Drift(clockhook.Rates{}) })
)

// wallBack corrects the wall clock in one step, as a time daemon does.
func wallBack(_ context.Context, s *Injection) error {
	if err := s.undo(); err != nil {
		return err
	}
	h, err := hookOf(s)
	if err != nil {
		return err
	}
	return h.Step(clockhook.Offsets{Wall: -h.Offsets().Wall})
}

// near reports whether a measured value is what was injected.
func near(got float64, want time.Duration) bool {
	slack := max(50*time.Millisecond, want.Abs()/20)
	return math.Abs(got-want.Seconds()) < slack.Seconds()
}

// wallHeld waits until the node reports by how much its wall clock differs from the
// time that it issues by.
func wallHeld(ctx context.Context, s *Injection) (string, error) {
	held := s.Node.Scrape(ctx).Value("clock_held_seconds")
	if !near(held, s.amount()) {
		return "", fmt.Errorf("%w: the node holds its time against %.3f s", errNotYet, held)
	}
	return fmt.Sprintf("the node reports that its wall clock is %+.3f s off and not followed", held), nil
}

// stepCounted waits until the node has counted a step.
func stepCounted(ctx context.Context, s *Injection) (string, error) {
	now := s.Node.Scrape(ctx)
	steps := now.Sum("clock_steps_total") - s.Before.Sum("clock_steps_total")
	if !now.Up || steps < 1 {
		return "", errNotYet
	}
	return fmt.Sprintf("the node counted %.0f steps of its wall clock", steps), nil
}

// offsetSeen waits until the node knows that the cluster's time is another.
func offsetSeen(ctx context.Context, s *Injection) (string, error) {
	now := s.Node.Scrape(ctx)
	offset := now.Value("clock_cluster_offset_seconds")
	if !now.Up || math.Abs(offset) < rig.MaxSkew.Seconds() {
		return "", fmt.Errorf("%w: the node sees the others at %+.3f s", errNotYet, offset)
	}
	return fmt.Sprintf("the node sees the others at %+.3f s (finding %s)", offset, now.Label("clock_finding")), nil
}

func suspendCounted(ctx context.Context, s *Injection) (string, error) {
	now := s.Node.Scrape(ctx)
	if !now.Up || now.Value("clock_suspends_total") <= s.Before.Value("clock_suspends_total") {
		return "", errNotYet
	}
	return "the node counted a suspend of its machine", nil
}

func strobe(ctx context.Context, s *Injection) error {
	h, err := hookOf(s)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), s.hold())
	done := make(chan error, 1)
	go func() {
		_, err := h.Strobe(ctx, clockhook.Offsets{Wall: s.amount()}, 120*time.Millisecond)
		done <- err
	}()
	s.Undo = func() error {
		stop()
		return <-done
	}
	return nil
}

func driftEnds(ctx context.Context, s *Injection) error {
	return errors.Join(stopDrift(ctx, s), wallBack(ctx, s))
}

// suspend stops the machine: for the amount, or if there is none, until 3 s before
// the action ends.
func suspend(clocks clockhook.Clocks) func(context.Context, *Injection) error {
	return func(ctx context.Context, s *Injection) error {
		h, err := hookOf(s)
		if err != nil {
			return err
		}
		d := s.amount()
		if d == 0 {
			d = s.hold() - 3*time.Second
		}
		_, err = h.Suspend(ctx, d, clocks)
		return err
	}
}

func restartLate(_ context.Context, s *Injection) error {
	if err := s.Node.Kill(); err != nil {
		return err
	}
	return s.Node.StartAt(clockhook.Offsets{Wall: s.amount()})
}
