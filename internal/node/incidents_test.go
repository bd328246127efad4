package node

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
)

// The tests of this file replay how systems of others came to issue one ID twice,
// or to hang; docs/INCIDENTS.md has the whole list.

// stepped is the clock of a bubble, with a wall clock that can be set.
type stepped struct{ off atomic.Int64 } // ms

func (s *stepped) Now() clock.Reading {
	now := clock.NewSystem(nil).Now()
	now.Wall += clock.Millis(s.off.Load())
	return now
}

// T02: the clock is set back while a request waits for the next millisecond. One
// generator spun there for as long as the clock was behind, another slept it out
// with its lock held, and neither looked at what its caller could wait for.
func TestT02ClockBackWhileARequestWaits(t *testing.T) {
	for _, back := range []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second, time.Hour, 365 * 24 * time.Hour} {
		for _, deadline := range []time.Duration{0, 20 * time.Millisecond} {
			t.Run(fmt.Sprintf("T02 %v back, deadline %v", back, deadline), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					clk := &stepped{}
					cfg := testConfig()
					cfg.MaxWait, cfg.Gen.Epoch, cfg.Gen.MaxLead = 100*time.Millisecond, -2_000_000_000_000, 3
					if deadline > 0 {
						cfg.MaxWait = 2 * time.Second // the caller's patience is what ends it
					}
					n := New(cfg, clk, zeros{})
					now := clk.Now().Wall
					n.Report(holding())
					n.Begin(grant(now, now+1_000_000))
					var used gen.Block
					for _, count := range []int{3 << 15, 1 << 15} { // all that may lie ahead
						var err error
						if used, err = n.Next(t.Context(), count, 0); err != nil {
							t.Fatal(err)
						}
					}
					time.AfterFunc(500*time.Microsecond, func() { clk.off.Add(-back.Milliseconds()) })
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					most := cfg.MaxWait
					if deadline > 0 {
						ctx, cancel = context.WithTimeout(ctx, deadline)
						most = deadline
					}
					defer cancel()
					began := time.Now()
					b, err := n.Next(ctx, 1, 0)
					if took := time.Since(began); took >= most {
						t.Errorf("answered after %v, which is too late", took)
					}
					switch short := back <= 10*time.Millisecond; {
					case short && (err != nil || b.First <= used.Last()):
						t.Errorf("%v, %v: want an ID above %d", b, err, used.Last())
					case !short && reasonOf(t, err) != ClockRegression && reasonOf(t, err) != EntropyOverflow:
						// Demand had used up the lead before the clock went back: it is a tie.
						t.Errorf("%v, %v: want %s", b, err, ClockRegression)
					}
					// Others were not held up, and when time has caught up all goes on.
					if _, err := n.Try(clk.Now(), 1, 0); err == nil && back > 10*time.Millisecond {
						t.Error("issued on a clock that is back")
					}
					clk.off.Add(back.Milliseconds())
					time.Sleep(20 * time.Millisecond)
					if c, err := n.Next(t.Context(), 1, 0); err != nil || c.First <= max(b.First, used.Last()) {
						t.Errorf("afterwards: %v, %v", c, err)
					}
				})
			})
		}
	}
}

// T07: the machine was suspended: its monotonic clock stopped for ten minutes, and
// the wall clock did not; or the other way round. The window was of before.
func TestT07Asleep(t *testing.T) {
	for name, asleep := range map[string]func(*clocktest.Manual){
		"T07 monotonic clock stopped": func(m *clocktest.Manual) { m.Step(10 * time.Minute) },
		"T07 wall clock stopped":      func(m *clocktest.Manual) { m.Advance(10 * time.Minute); m.Step(-10 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			clk := clocktest.NewManual(start)
			n := New(testConfig(), clk, zeros{})
			n.Report(holding())
			n.Begin(grant(start, start+30_000))
			first, err := n.Next(t.Context(), 1000, 0)
			fatal.If(t, err)
			asleep(clk)
			b, err := n.Next(t.Context(), 1000, 0)
			switch {
			case clk.Now().Wall >= start+30_000 && reasonOf(t, err) != WindowExhausted:
				t.Errorf("woke up ten minutes later: %v, %v", b, err)
			case clk.Now().Wall < start+30_000 && (err != nil || b.First <= first.Last()):
				t.Errorf("woke up when it fell asleep: %v, %v", b, err)
			}
		})
	}
}

// T30: the number of a worker could not be read, or came back as 0, and 0 was taken
// for it by all of them. Here nothing is issued before a grant, and 0 is one sid
// among others.
func TestT30ZeroIsNoDefault(t *testing.T) {
	clk := clocktest.NewManual(start)
	n := New(testConfig(), clk, zeros{})
	for _, st := range []lease.Status{{}, {Phase: lease.Seeking, Lease: 1}, {Phase: lease.Holding, EverHeld: true, Grant: grant(start, start+1000)}} {
		n.Report(st)
		if b, err := n.Next(t.Context(), 1, 0); err == nil {
			t.Errorf("without a grant, %+v: issued %v", st, b)
		}
	}
	n.Raise(start + 1000)
	if b, err := n.Next(t.Context(), 1, 0); err == nil {
		t.Errorf("raised without a grant: issued %v", b)
	}
	var last flake.ID
	for _, sid := range []flake.SID{0, 31, 0} {
		n.Begin(lease.Grant{SID: sid, Term: 1, Base: start, Ceil: start + 1000})
		b, err := n.Next(t.Context(), 10, 0)
		if err != nil || b.SID != sid || flake.Default.SID(b.First) != sid || flake.Default.SID(b.Last()) != sid || b.First <= last {
			t.Errorf("sid %d: %+v, %v", sid, b, err)
		}
		last = b.Last()
	}
}
