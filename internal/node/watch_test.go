package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// closed reports whether a channel of Watch is closed.
func closed(changed <-chan struct{}) bool {
	select {
	case <-changed:
		return true
	default:
		return false
	}
}

// TestWatchStates: whatever replaces the state closes the channel, and Watch then says what
// Ready says.
func TestWatchStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.Gen.Epoch = bubbleEpoch
		n := New(cfg, clock.NewSystem(nil), zeros{})
		now := n.clock.Now().Wall
		for _, c := range []struct {
			name string
			do   func()
			want Reason
		}{
			{"nothing is known", func() { n.Report(lease.Status{}) }, Starting},
			{"a grant", func() { n.Begin(grant(now, now+1000)) }, 0},
			{"its status", func() { n.Report(holding()) }, 0},
			{"a higher ceiling", func() { n.Raise(now + 2000) }, 0},
			{"another grant", func() { n.Begin(grant(now+3, now+3000)) }, 0},
			{"clocks that disagree", func() { n.SetVerdict(clock.Verdict{State: clock.Skewed}) }, ClockSkew},
			{"clocks that agree", func() { n.SetVerdict(clock.Verdict{}) }, 0},
			{"a drain", n.Drain, Draining},
			{"its end", n.Undrain, 0},
			{"another clock", n.Reconsider, 0},
			{"a shutdown", n.Leave, Draining},
			{"the end of the tenure", func() { n.Seal() }, NoSID},
		} {
			_, changed := n.Watch()
			_, also := n.Watch()
			if _, err := n.Next(t.Context(), 1, 0); closed(changed) || closed(also) {
				t.Errorf("before %s: a request closed a channel (%v)", c.name, err)
			}
			c.do()
			if !closed(changed) || !closed(also) {
				t.Errorf("%s: a channel is open", c.name)
			}
			r, changed := n.Watch()
			ready := n.Ready()
			if got := reasonOf(t, orNil(r)); got != c.want || got != reasonOf(t, orNil(ready)) || closed(changed) {
				t.Errorf("%s: %q, Ready says %q, want %q", c.name, got, reasonOf(t, orNil(ready)), c.want)
			}
		}
	})
}

// TestSkewSays: a node whose clock is right again does not say by how much it is wrong, and one whose clock is not does.
func TestSkewSays(t *testing.T) {
	for offset, want := range map[clock.Millis]string{
		0:     "the clock is right again; the node issues when a majority has agreed with it for some seconds",
		-1500: "this node's was -1.5s, at most 250ms is allowed",
	} {
		if got := disagreement(clock.Verdict{State: clock.Skewed, Offset: offset, Limit: 250}); !strings.Contains(got, want) {
			t.Errorf("%v: %s", offset, got)
		}
	}
}

// orNil returns a refusal as an error that is nil if there is none.
func orNil(r *Refusal) error {
	if r == nil {
		return nil
	}
	return r
}

// moment is when a watcher found another readiness.
type moment struct {
	after  time.Duration
	reason Reason
}

// watched follows a node for a time and returns the changes of its readiness, and how often
// the channel was closed.
func watched(t *testing.T, n *Node, during time.Duration) (seen []moment, closes int) {
	t.Helper()
	began, end := time.Now(), time.After(during)
	for last := Reason(-1); ; closes++ {
		r, changed := n.Watch()
		if got := reasonOf(t, orNil(r)); got != last {
			seen, last = append(seen, moment{time.Since(began), got}), got
		}
		select {
		case <-changed:
		case <-end:
			return seen, closes
		}
	}
}

// TestWatchTime: what time alone does to readiness closes the channel when it happens, and
// not before it.
func TestWatchTime(t *testing.T) {
	ms := func(m clock.Millis) time.Duration { return m.Duration() }
	for name, tc := range map[string]struct {
		base, ceil clock.Millis
		do         func(n *Node, start clock.Millis)
		want       []moment
		closes     int
	}{
		"a window ends": {0, 1000, nil, []moment{{0, 0}, {ms(1000), WindowExhausted}}, 1},
		"a window begins, and ends": {500, 1000, nil, // lead 3
			[]moment{{0, Starting}, {ms(497), 0}, {ms(1000), WindowExhausted}}, 2},
		"it is raised before its end": {0, 1000, func(n *Node, start clock.Millis) {
			time.AfterFunc(ms(900), func() { n.Raise(start + 1500) })
		}, []moment{{0, 0}, {ms(1500), WindowExhausted}}, 2},
		"it is raised after its end": {0, 1000, func(n *Node, start clock.Millis) {
			time.AfterFunc(ms(1200), func() { n.Raise(start + 1500) })
		}, []moment{{0, 0}, {ms(1000), WindowExhausted}, {ms(1200), 0}, {ms(1500), WindowExhausted}}, 3},
		"it ends in a drain": {0, 1000, func(n *Node, _ clock.Millis) {
			time.AfterFunc(ms(900), n.Drain)
			time.AfterFunc(ms(1200), n.Undrain)
		}, []moment{{0, 0}, {ms(900), Draining}, {ms(1200), WindowExhausted}}, 2},
		"another tenure, of a later window": {0, 1000, func(n *Node, start clock.Millis) {
			time.AfterFunc(ms(500), func() { n.Begin(grant(start+700, start+900)) })
		}, []moment{{0, 0}, {ms(500), Starting}, {ms(697), 0}, {ms(900), WindowExhausted}}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := testConfig()
				cfg.Gen.Epoch, cfg.Gen.MaxLead = bubbleEpoch, 3
				n := New(cfg, clock.NewSystem(nil), zeros{})
				start := n.clock.Now().Wall
				n.Report(holding())
				n.Begin(grant(start+tc.base, start+tc.ceil))
				if tc.do != nil {
					tc.do(n, start)
				}
				seen, closes := watched(t, n, 2*time.Second)
				if len(seen) != len(tc.want) || closes != tc.closes {
					t.Fatalf("%v, %d closes; want %v, %d", seen, closes, tc.want, tc.closes)
				}
				for i, want := range tc.want {
					if late := seen[i].after - want.after; seen[i].reason != want.reason || late < 0 || late >= time.Millisecond {
						t.Errorf("%v, want %v", seen, tc.want)
					}
				}
			})
		})
	}
}

// TestWatchClockStepped: the clock is set. Until somebody says so the watcher does not know
// it; then what it waits for is computed from the new time.
func TestWatchClockStepped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := &stepped{}
		cfg := testConfig()
		cfg.Gen.Epoch, cfg.Gen.MaxLead = bubbleEpoch, 3
		n := New(cfg, clk, zeros{})
		start := clk.Now().Wall
		n.Report(holding())
		n.Begin(grant(start, start+1000))
		if _, err := n.Next(t.Context(), 1, 0); err != nil {
			t.Fatal(err)
		}
		for after, by := range map[time.Duration]int64{100 * time.Millisecond: -300, 600 * time.Millisecond: +700} {
			time.AfterFunc(after, func() {
				clk.off.Add(by)
				n.Reconsider()
			})
		}
		seen, closes := watched(t, n, 2*time.Second)
		// The clock shows -200 at 100 ms, and the ID of 0 may lie 3 ms ahead; 1000 at 600 ms.
		want := []Reason{0, ClockRegression, 0, WindowExhausted}
		at := []time.Duration{0, 100, 297, 600}
		if len(seen) != len(want) || closes != 3 {
			t.Fatalf("%v, %d closes", seen, closes)
		}
		for i, m := range seen {
			if m.reason != want[i] || m.after.Truncate(time.Millisecond) != at[i]*time.Millisecond {
				t.Errorf("%v, want %v at %v ms", seen, want, at)
			}
		}
	})
}

// slow is a clock that runs at half the pace of timers.
type slow struct{ began time.Time }

func (s slow) Now() clock.Reading {
	passed := time.Since(s.began) / 2
	return clock.Reading{Wall: clock.Millis(s.began.UnixMilli()) + clock.MillisOf(passed), Mono: clock.Mono(passed)}
}

// TestWatchSlowClock: a timer that fires before the clock is there, as while time is given
// back, ends no window, and the end is noticed all the same.
func TestWatchSlowClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.Gen.Epoch = bubbleEpoch
		n := New(cfg, slow{time.Now()}, zeros{})
		start := n.clock.Now().Wall
		n.Report(holding())
		n.Begin(grant(start, start+1000))
		seen, closes := watched(t, n, 5*time.Second)
		if len(seen) != 2 || seen[1].reason != WindowExhausted || seen[1].after < 2*time.Second || seen[1].after > 2002*time.Millisecond || closes > 12 {
			t.Errorf("%v, %d closes", seen, closes)
		}
	})
}

// TestWatchMissesNoEnd: watchers that run beside changes end with the last of them.
func TestWatchMissesNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.Gen.Epoch = bubbleEpoch
		n := New(cfg, clock.NewSystem(nil), zeros{})
		now := n.clock.Now().Wall
		done := make(chan struct{})
		for range 4 {
			go func() {
				defer func() { done <- struct{}{} }()
				for {
					r, changed := n.Watch()
					if r != nil && r.Reason == Draining {
						return
					}
					<-changed
				}
			}()
		}
		for i := range 2000 {
			n.Begin(lease.Grant{SID: flake.SID(i % 32), Term: 1, Base: now, Ceil: now + clock.Millis(i)})
			n.Raise(now + 2*clock.Millis(i))
		}
		n.Drain()
		for range 4 {
			<-done
		}
	})
}
