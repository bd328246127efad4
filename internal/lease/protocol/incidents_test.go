package protocol_test

import (
	"context"
	"fmt"
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

// record returns the window record of sid 0, as the store has it.
func (s *scenario) record() lease.Window {
	s.t.Helper()
	v, err := s.mem.Read(context.Background(), 0)
	s.check(err)
	return v.SIDs[0].Window.Value
}

// T03: the stored time is what the clock read three seconds ago. The clock goes
// back by less during a restart, and the check passes.
func TestT03RollbackSmallerThanTheReportLag(t *testing.T) {
	for _, lag := range []string{"100ms", "2s", "4900ms"} { // since the last write
		for _, back := range []string{"-50ms", "-1s", "-4s"} {
			s, a := oneSID(t)
			s.do("a run 5s", "pass "+lag)
			_, last := s.issued(a, 100)
			s.do("a crash", "step "+back, "start n1")
			b := s.procs["b"]
			s.drive(40*time.Second, true, b)
			if first, _ := s.issued(b, 1); first <= last {
				t.Errorf("%s after a write, %s: issued in ms %d after %d", lag, back, first, last)
			}
			s.claims()
		}
	}
}

// T05: the clock goes back exactly while the process is down, and the sid goes to
// its successor, or to another node, neither of which knows of the step.
func TestT05RollbackWhileDown(t *testing.T) {
	for _, back := range []string{"-1ms", "-1s", "-20s", "-5m"} {
		for _, who := range []string{"n1", "n2"} {
			for _, end := range []string{"crash", "stop"} {
				t.Run(fmt.Sprintf("T05 %s, %s, taken by %s", end, back, who), func(t *testing.T) {
					s, a := oneSID(t)
					s.do("a run 7s")
					_, last := s.issued(a, 1000)
					s.do("a "+end, "expire a", "step "+back, "start "+who)
					b := s.procs["b"]
					first := clock.Millis(-1)
					for range 600 { // at most ten minutes
						s.drive(time.Second, true, b)
						if blk, err := b.node.Try(b.Now(), 5, 0); err == nil {
							b.record(blk)
							first = clock.Millis(flake.Default.UnixMilli(blk.First)) - s.w.began
							break
						}
					}
					if first <= last {
						t.Errorf("issued in ms %d, after %d", first, last)
					}
					s.claims()
				})
			}
		}
	}
}

// T12: a process resumes after another has taken its sid, and its first action is a
// renewal. A renewal that names only the number extends the other's lease, and the
// process assumes that it still holds the number.
func TestT12ThawedRenewalFirst(t *testing.T) {
	for _, first := range []string{"keep alive", "extend"} {
		t.Run("T12 "+first, func(t *testing.T) {
			s, a := oneSID(t)
			s.issued(a, 5)
			s.do("expire a", "start n2", "b tick 20s")
			taken := s.record()
			if first == "extend" { // the answer to the renewal is lost
				s.do("a fault notapplied keep")
			}
			a.log = nil
			s.do("a tick")
			for _, line := range a.log {
				if strings.HasPrefix(line, "RAISE") || strings.HasPrefix(line, "BEGIN") {
					t.Errorf("it got %q", line)
				}
			}
			if got := s.record(); got != taken || got.Instance != "n2-2" {
				t.Errorf("the record is %+v, and the new holder wrote %+v", got, taken)
			}
			s.issued(a, 5) // it may use its confirmed window to the end …
			s.do("pass 10s")
			b := s.procs["b"]
			s.drive(time.Second, true, a, b)
			s.refused(a, "NO_SID") // … and no further
			s.issued(b, 5)
			s.claims()
		})
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

// T14: the write of a higher ceiling is applied, and the process is paused before
// the answer. The next holder begins above that ceiling; the process never uses it.
func TestT14PauseBetweenWriteAndAdoption(t *testing.T) {
	s, a := oneSID(t)
	s.do("a fault lostreply extend", "a tick 5s")
	s.refusedAbove(a, 30_000)
	if got := s.record().Ceil - s.w.began; got != 35_000 {
		t.Fatalf("the record's ceiling is %d", got)
	}
	s.do("expire a", "start n2", "b tick 20s", "pass 9800ms") // within the maximum lead
	b := s.procs["b"]
	if first, _ := s.issued(b, 5); first < 35_000 {
		t.Errorf("the next holder issues in ms %d, below a ceiling that may be confirmed to the one before", first)
	}
	s.refusedAbove(a, 30_000)
	s.do("a tick")
	s.refused(a, "NO_SID")
	s.claims()
}

// refusedAbove asks p for IDs with clocks around a ceiling: none at or above it may
// be issued.
func (s *scenario) refusedAbove(p *process, ceil clock.Millis) {
	s.t.Helper()
	now := p.Now()
	for _, at := range []clock.Millis{ceil - 1, ceil, ceil + 1, ceil + 4999} {
		now.Wall = s.w.began + at
		b, err := p.node.Try(now, 10, 0)
		if err != nil {
			continue
		}
		p.record(b)
		if got := clock.Millis(flake.Default.UnixMilli(b.Last())) - s.w.began; got >= ceil {
			s.t.Errorf("%s issues to ms %d, and the confirmed ceiling is %d", p.name, got, ceil)
		}
	}
}

// T16: the channel of keepalives is closed or gets no messages, and nothing reads
// it; or the error of a renewal is ignored. T17: the goroutine that renews does not
// run, and requests do. Meanwhile a standby takes the sid.
func TestT16RenewalStopsAndRequestsDoNot(t *testing.T) {
	for name, f := range map[string]func(*process, lease.Action) outcome{
		"T16 every keep-alive fails": func(_ *process, x lease.Action) outcome {
			if _, ok := x.(lease.KeepAlive); ok {
				return notApplied
			}
			return answered
		},
		"T16 keep-alives are not answered": func(_ *process, x lease.Action) outcome {
			if _, ok := x.(lease.KeepAlive); ok {
				return notAnswered
			}
			return answered
		},
		"T17 the keeper is starved": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s, a := oneSID(t)
			s.do("start n2", "b tick")
			b := s.procs["b"]
			if f != nil {
				s.w.fault = func(p *process, x lease.Action) outcome {
					if p == a {
						return f(p, x)
					}
					return answered
				}
			}
			served := map[*process]int{}
			for range 4 * 90 {
				if f == nil {
					s.drive(250*time.Millisecond, true, b)
				} else {
					s.drive(250*time.Millisecond, true, a, b)
				}
				for _, p := range []*process{a, b} {
					if p.issue(100) {
						served[p]++
					}
				}
			}
			if served[a] < 40 || served[b] < 40 && f == nil {
				t.Errorf("a served %d requests and b %d", served[a], served[b])
			}
			s.claims()
		})
	}
}

// T18: many nodes start on an empty registry, and all find the first number free.
// T19: and all take it, since reading and taking are two requests.
func TestT18ColdStartRace(t *testing.T) {
	s := newScenario(t)
	s.do("init")
	const n = 8
	var ps []*process
	for i := range n { // each has chosen before any has written
		name := string(rune('a' + i))
		s.do(fmt.Sprintf("start n%d", i), name+" fault hang acquire", name+" tick")
		p := s.procs[name]
		if len(p.pending) != 1 || p.pending[0].(lease.Commit).Txn.SID != 0 {
			t.Fatalf("%s asks for %+v, want sid 0", p.name, p.pending)
		}
		ps = append(ps, p)
	}
	for i := range n {
		s.do(string(rune('a'+(i+3)%n)) + " answer")
	}
	s.drive(5*time.Second, true, ps...)
	sids := map[flake.SID]string{}
	for _, p := range ps {
		s.issued(p, 10)
		sids[p.machine.Status().Grant.SID] = p.name
	}
	if len(sids) != n {
		t.Errorf("%d nodes hold %d sids: %v", n, len(sids), sids)
	}
	s.claims()
}

// T21: a clock far ahead writes a ceiling and is corrected, and all nodes wait for
// that time. Here a running node writes none. One that starts in a new space does if
// the space may have waited for so long: the sid is quarantined, and this node and the
// others go on.
func TestT21FutureClockPoisonsACeiling(t *testing.T) {
	for _, ahead := range []string{"1h", "1400h", "87660h"} {
		t.Run("T21 "+ahead+", while it runs", func(t *testing.T) {
			s := newScenario(t)
			s.do("init", "start n1", "a tick", "step "+ahead, "a tick 5s")
			a := s.procs["a"]
			s.refused(a, "WINDOW_EXHAUSTED")
			s.do("step -"+ahead, "a tick 1s")
			s.issued(a, 1)
			if st := a.machine.Status(); st.Grant.SID != 0 || st.Grant.Term != 1 || len(st.Quarantined) != 0 {
				t.Errorf("%+v, want sid 0 as before", st)
			}
			s.claims()
		})
		for _, end := range []string{"a crash", "a stop"} {
			t.Run("T21 "+ahead+", "+end, func(t *testing.T) {
				s := newScenario(t)
				s.do("init", "step "+ahead, "start n1", "a tick 5s")
				a := s.procs["a"]
				if ahead == "87660h" {
					s.refused(a, "STARTING")
					s.do("step -"+ahead, "a tick 40s")
					s.issued(a, 1)
					return
				}
				s.issued(a, 1)
				s.do(end, "expire a", "step -"+ahead, "start n1", "b tick 1s", "start n2", "c tick 1s")
				for _, name := range []string{"b", "c"} {
					p := s.procs[name]
					s.issued(p, 1)
					if st := p.machine.Status(); st.Grant.SID == 0 || st.Quarantined[0] == "" {
						t.Errorf("%s: %+v, want sid 0 quarantined", name, st)
					}
				}
				s.claims()
			})
		}
	}
}

// T22: a process restarts and trusts the file with its number, not the registry,
// which has given the number to another.
func TestT22NothingIsRememberedOverTheRegistry(t *testing.T) {
	s, a := oneSID(t)
	s.do("a run 7s")
	s.issued(a, 5)
	s.do("a crash", "expire a", "start n2", "b tick 31s")
	b := s.procs["b"]
	s.issued(b, 5)
	s.do("start n1", "c tick 1s")
	c := s.procs["c"]
	s.refused(c, "NO_SID")
	s.drive(10*time.Second, true, b, c)
	s.refused(c, "NO_SID")
	s.issued(b, 5)
	s.claims()
}

// T24: A holds, B holds, and A again, with memory from A's first time. Of all these
// incidents it is the most frequent.
func TestT24LostAndRegained(t *testing.T) {
	for _, how := range []string{"b stop", "b crash"} {
		for _, knew := range []bool{true, false} { // of its loss
			t.Run(fmt.Sprintf("T24 %s, knew=%v", how, knew), func(t *testing.T) {
				s, a := oneSID(t)
				s.do("a run 7s")
				s.issued(a, 1000)
				s.do("expire a", "start n2", "b tick 31s")
				b := s.procs["b"]
				if knew {
					s.drive(15*time.Second, true, a, b)
				} else {
					s.drive(15*time.Second, true, b)
				}
				_, last := s.issued(b, 1000)
				s.do(how, "expire b")
				s.drive(45*time.Second, true, a)
				first, _ := s.issued(a, 1000)
				if got := a.machine.Status(); first <= last || got.Grant.Term < 3 || got.Grant.SID != 0 {
					t.Errorf("issued in ms %d, and the other to %d: %+v", first, last, got)
				}
				s.claims()
			})
		}
	}
}

// T25, T27: a write of an old term, or its failure, arrives during a new term. What
// counts is the record that the write compares, not its sender.
func TestT27LateWriteOfAnEarlierTerm(t *testing.T) {
	t.Run("T27 after the loss", func(t *testing.T) {
		s, a := oneSID(t)
		s.do("a fault late extend", "a tick 5s", "expire a", "start n2", "b tick 30s")
		b := s.procs["b"]
		s.issued(b, 5)
		taken := s.record()
		s.do("a deliver")
		if got := s.record(); got != taken {
			t.Errorf("the record is %+v, and was %+v", got, taken)
		}
		s.drive(10*time.Second, true, a, b)
		s.issued(b, 5)
		s.claims()
	})
	t.Run("T27 same owner, later term", func(t *testing.T) {
		s, a := oneSID(t)
		s.do("a fault late extend", "a tick 5s", "expire a", "start n2", "b tick 30s")
		s.issued(s.procs["b"], 5)
		s.do("b stop")
		s.drive(20*time.Second, true, a)
		_, last := s.issued(a, 5)
		again := s.record()
		if again.Term != 3 || again.Instance != "n1-1" {
			t.Fatalf("the record is %+v", again)
		}
		s.do("a deliver")
		if got := s.record(); got != again {
			t.Errorf("a write of term 1 changed %+v to %+v", again, got)
		}
		s.drive(10*time.Second, true, a)
		if first, _ := s.issued(a, 5); first <= last {
			t.Errorf("issued in ms %d after %d", first, last)
		}
		s.claims()
	})
	t.Run("T27 same owner, later term, same lease", func(t *testing.T) {
		s, a := oneSID(t)
		s.do("a fault late extend", "a tick 5s", "a tick 250ms", "a giveup")
		s.drive(5*time.Second, true, a)
		_, last := s.issued(a, 5)
		again := s.record()
		if again.Term != 2 || again.Instance != "n1-1" {
			t.Fatalf("the record is %+v", again)
		}
		s.do("a deliver")
		if got := s.record(); got != again {
			t.Errorf("a write of term 1 changed %+v to %+v", again, got)
		}
		s.drive(5*time.Second, true, a)
		if first, _ := s.issued(a, 5); first <= last {
			t.Errorf("issued in ms %d after %d", first, last)
		}
		s.claims()
	})
	t.Run("T25 the failure of an old term", func(t *testing.T) {
		s, a := oneSID(t)
		s.do("a fault hang extend", "a tick 5s", "expire a", "start n2", "b tick 30s", "vacate 1")
		// The answer arrives after all that, and reports only that the write failed;
		// the write itself is applied even later.
		pending := a.pending
		a.pending = nil
		for _, x := range pending {
			a.step(a.carryOut(x, late))
		}
		s.drive(40*time.Second, true, a, s.procs["b"])
		st := a.machine.Status()
		if st.Phase != lease.Holding || st.Grant.SID != 1 {
			t.Fatalf("a has %+v, want sid 1", st)
		}
		s.do("a deliver")
		s.drive(10*time.Second, true, a, s.procs["b"])
		if got := a.machine.Status(); got.Grant.Term != st.Grant.Term || got.Grant.Ceil <= st.Grant.Ceil {
			t.Errorf("a's new term is %+v, and was %+v", got, st)
		}
		s.issued(a, 5)
		s.issued(s.procs["b"], 5)
		s.claims()
	})
}

// T28: the stored number is the one in use, not one ahead of it, or the error of
// storing is ignored: after a crash the same numbers are issued again.
func TestT28StoredBeforeUsed(t *testing.T) {
	s, a := oneSID(t)
	failing := false
	s.w.fault = func(_ *process, x lease.Action) outcome {
		if c, ok := x.(lease.Commit); ok && failing && c.Txn.Op == lease.Extend {
			return notApplied
		}
		return answered
	}
	served := 0
	for k := range 20 * 70 {
		failing = k > 20*20 // from 20 s on
		s.drive(50*time.Millisecond, true, a)
		b, err := a.node.Try(a.Now(), 1+k%200, 0)
		if err != nil {
			if !failing {
				t.Fatal(err)
			}
			continue
		}
		served++
		a.record(b)
		if last, rec := clock.Millis(flake.Default.UnixMilli(b.Last())), s.record(); last >= rec.Ceil {
			t.Fatalf("issued in ms %d, and a ceiling of %d is stored", last-s.w.began, rec.Ceil-s.w.began)
		}
	}
	s.refused(a, "WINDOW_EXHAUSTED")
	if served < 20*40 {
		t.Errorf("served %d requests only", served)
	}
	s.claims()
}

// T34: an operator deletes all keys. A node that ran before refuses, and a node that
// starts does not take the space for a new one.
func TestT34PrefixDeleted(t *testing.T) {
	s, a := oneSID(t)
	s.issued(a, 5)
	for _, key := range []string{"config", "era"} {
		s.mem.Delete(key)
	}
	for sid := range 32 {
		s.mem.Delete(fmt.Sprintf("holder/%d", sid), fmt.Sprintf("window/%d", sid), fmt.Sprintf("ledger/%d/%020d", sid, 1))
	}
	s.drive(6*time.Second, true, a)
	s.refused(a, "HISTORY_REWOUND")
	s.do("start n2")
	b := s.procs["b"]
	s.drive(20*time.Second, true, a, b)
	s.refused(b, "STARTING")
	if got := b.machine.Status().Phase; got != lease.Uninitialized {
		t.Errorf("a new node is %v", got)
	}
	// The space is created again: a node that ran before does not join it.
	s.do("recreate")
	s.drive(5*time.Second, true, a)
	s.refused(a, "HISTORY_REWOUND")
	s.claims()
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

// T36: the ceiling is read from a member that lags behind, or before acquiring. The
// transaction compares what was read, so that a stale read acquires nothing.
func TestT36StaleRead(t *testing.T) {
	s := newScenario(t)
	s.do("init", "occupy 1 31", "vacate 1", "start n1", "start n2", "b fault hang load", "b tick")
	a, b := s.procs["a"], s.procs["b"]
	old, err := s.mem.Load(context.Background())
	s.check(err)
	s.do("a tick", "a run 7s")
	s.issued(a, 1000)
	s.do("a stop") // sid 0 is free again, with another ceiling
	s.w.clock.Step(-5 * time.Second)
	b.pending = nil
	b.step(lease.Loaded{View: old})
	asked := strings.Join(b.log, "\n")
	if !strings.Contains(asked, "acquire sid=0 term=1") {
		t.Fatalf("b did not use the stale read: %s", asked)
	}
	s.drive(10*time.Second, true, b)
	s.issued(b, 1000)
	if w := s.record(); w.Instance == "n2-2" && w.Term < 2 {
		t.Errorf("a stale write was applied: %+v", w)
	}
	s.claims()
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

// T44: a clock jumps forward and the lease is lost. The next holder begins at the
// ceiling, the first millisecond that could not be used, and no earlier.
func TestT44LeapThenLoss(t *testing.T) {
	s, a := oneSID(t)
	s.refusedAbove(a, 30_000) // the clock reads the last millisecond, and beyond
	s.do("expire a", "start n2", "b tick")
	b := s.procs["b"]
	if got := b.machine.Status().Grant.Base - s.w.began; got != 30_000 {
		t.Fatalf("b begins at %d, want the ceiling", got)
	}
	s.do("pass 29749ms")
	s.refused(b, "STARTING")
	s.do("pass 1ms", "b tick") // within the maximum lead
	s.drive(time.Second, true, b)
	if first, _ := s.issued(b, 10); first < 30_000 {
		t.Errorf("b issues in ms %d", first)
	}
	s.claims()
}
