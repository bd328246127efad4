package protocol_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// These tests replay how other systems came to issue an ID twice; docs/INCIDENTS.md
// has the whole list. Most use the commands of TestTranscripts, with one sid free,
// so that nodes compete for it.

// oneSID makes a space in which only sid 0 is free, and node a holds it.
func oneSID(t *testing.T) (s *scenario, a *process) {
	s = newScenario(t)
	s.do("init", "occupy 1 31", "start n1", "a tick")
	return s, s.procs["a"]
}

// claims fails the test if the scenario breaks a claim.
func (s *scenario) claims() {
	s.t.Helper()
	s.w.hist.Hold(s.t)
	if s.w.hist.IDs() == 0 {
		s.t.Error("nothing was issued: the scenario checks nothing")
	}
}

// issued asks p for n IDs by its own clock, which must succeed. It returns the
// milliseconds of the first and the last, since the scenario began.
func (s *scenario) issued(p *process, n int) (first, last clock.Millis) {
	s.t.Helper()
	b, err := p.node.Try(p.Now(), n, 0)
	if err != nil {
		s.t.Fatalf("%s refuses: %v; %+v", p.name, err, p.machine.Status())
	}
	p.record(b)
	ms := func(id flake.ID) clock.Millis { return clock.Millis(flake.Default.UnixMilli(id)) - s.w.began }
	return ms(b.First), ms(b.Last())
}

// refused asks p for an ID, which it must refuse with the given reason.
func (s *scenario) refused(p *process, reason string) {
	s.t.Helper()
	b, err := p.node.Try(p.Now(), 1, 0)
	if err == nil {
		p.record(b)
		s.t.Errorf("%s issues in ms %d, want %s", p.name, clock.Millis(flake.Default.UnixMilli(b.First))-s.w.began, reason)
	} else if !strings.HasPrefix(err.Error(), reason) {
		s.t.Errorf("%s refuses with %v, want %s", p.name, err, reason)
	}
}

// T13: a process finds its lease valid, is paused, and sends a reply afterwards.
// And: the lease is valid, but the first step of this term is not done.
func TestT13PauseBetweenCheckAndReply(t *testing.T) {
	t.Run("T13 asleep in a request", func(t *testing.T) {
		s, a := oneSID(t)
		s.do("pass 29900ms")
		now := a.Now() // the request's only clock read
		s.do("expire a", "start n2", "b tick")
		taken, _ := s.issued(s.procs["b"], 500)
		blk, err := a.node.Try(now, 500, 0)
		if err != nil {
			t.Fatal(err)
		}
		a.record(blk)
		if got := clock.Millis(flake.Default.UnixMilli(blk.Last())) - s.w.began; got >= 30_000 || taken < 30_000 {
			t.Errorf("resumed and issued to ms %d; the new holder began with %d, at a ceiling of 30000", got, taken)
		}
		s.claims()
	})
	t.Run("T13 lease without a claim", func(t *testing.T) {
		s := newScenario(t)
		s.do("init", "start n1", "a fault hang acquire", "a tick")
		a := s.procs["a"]
		if a.machine.Status().Lease == 0 {
			t.Fatal("there is no lease")
		}
		s.refused(a, "STARTING")
		s.do("a answer")
		s.issued(a, 1)
		s.claims()
	})
}

// T35: etcd's disk takes 4 s for each write. Windows are extended early enough that
// no request is refused. With 20 s they are used up, and requests are refused.
func TestT35SlowWrites(t *testing.T) {
	for _, takes := range []time.Duration{4 * time.Second, 20 * time.Second} {
		t.Run("T35 "+takes.String(), func(t *testing.T) {
			s, a := oneSID(t)
			due := clock.Mono(0)
			s.w.fault = func(p *process, x lease.Action) outcome {
				if _, ok := x.(lease.Commit); !ok {
					return answered
				}
				due = s.w.clock.Now().Mono.Add(takes)
				return notAnswered
			}
			served, refused := 0, 0
			for range 4 * 180 {
				s.drive(250*time.Millisecond, true, a)
				if len(a.pending) > 0 && s.w.clock.Now().Mono >= due {
					s.do("a answer")
				}
				if a.issue(100) {
					served++
				} else {
					refused++
				}
			}
			if served < 4*60 || (refused > 0) != (takes > 10*time.Second) {
				t.Errorf("served %d requests and refused %d", served, refused)
			}
			s.claims()
		})
	}
}

// T37: the memory of a live process is copied, and both go on. Nothing can separate
// the two within the window that both know; above it only one goes on.
func TestT37Clone(t *testing.T) {
	s, a := oneSID(t)
	s.issued(a, 1)
	// The copy is a machine that gets the events of the first one.
	nonces, view := s.w.nonce, func() lease.View {
		v, err := s.mem.Load(context.Background())
		s.check(err)
		return v
	}
	s.w.procs--
	clone := s.w.start("n1")
	if clone.name != a.name {
		t.Fatalf("the clone is %s, and not %s", clone.name, a.name)
	}
	s.w.nonce = 0
	v := view()
	empty := v
	empty.Revision, empty.SIDs = v.Revision-3, maps.Clone(v.SIDs)
	delete(empty.SIDs, 0)
	s.w.fault = func(*process, lease.Action) outcome { return notAnswered }
	clone.step(lease.Tick{})
	clone.step(lease.Loaded{View: empty})
	clone.step(lease.Registered{Lease: a.machine.Status().Lease})
	clone.step(lease.Committed{Applied: true, View: v})
	s.w.fault, s.w.nonce, clone.pending = nil, nonces, nil
	if got, want := clone.machine.Status().Grant, a.machine.Status().Grant; got != want {
		t.Fatalf("the clone has %v, and the original %v", got, want)
	}

	above := map[string][]clock.Millis{}
	for range 4 * 60 {
		s.drive(250*time.Millisecond, true, clone, a)
		for who, p := range map[string]*process{"original": a, "clone": clone} {
			b, err := p.node.Try(p.Now(), 10, 0)
			if err != nil {
				continue
			}
			if ms := clock.Millis(flake.Default.UnixMilli(b.Last())) - s.w.began; ms >= 30_000 {
				above[who] = append(above[who], ms)
			}
		}
	}
	if len(above) != 1 {
		t.Errorf("above the window that both knew: %v", slices.Sorted(maps.Keys(above)))
	}
	for who, ms := range above {
		if len(ms) < 100 {
			t.Errorf("the %s issued %d times above it: it does not go on", who, len(ms))
		}
	}
}
