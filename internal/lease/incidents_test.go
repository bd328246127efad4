package lease_test

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

// The tests of this file replay how systems of others came to issue one ID twice;
// docs/INCIDENTS.md has the whole list. Most are told in the language of
// TestTranscripts, with one sid free, so that nodes meet on it.

// oneSID begins a space in which sid 0 alone is free, and node a holds it.
func oneSID(t *testing.T) (s *story, a *process) {
	s = newStory(t)
	s.tell("init", "occupy 1 31", "start n1", "a tick")
	return s, s.procs["a"]
}

// claims fails the test if the story breaks one.
func (s *story) claims() {
	s.t.Helper()
	for _, v := range s.w.hist.Check() {
		s.t.Errorf("the story breaks a claim: %v", v)
	}
	if s.w.hist.IDs() == 0 {
		s.t.Error("nothing was issued: the story shows nothing")
	}
}

// issued asks p for n IDs by its own clock; it must get them. It returns the
// milliseconds of the first and the last, from when the story began.
func (s *story) issued(p *process, n int) (first, last clock.Millis) {
	s.t.Helper()
	b, err := p.node.Try(p.Now(), n, 0)
	if err != nil {
		s.t.Fatalf("%s refuses: %v; %+v", p.name, err, p.machine.Status())
	}
	p.record(b)
	ms := func(id flake.ID) clock.Millis { return clock.Millis(flake.Default.UnixMilli(id)) - s.w.began }
	return ms(b.First), ms(b.Last())
}

// refused asks p for an ID, which it must refuse with the reason given.
func (s *story) refused(p *process, reason string) {
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
func (s *story) record() lease.Window {
	s.t.Helper()
	v, err := s.mem.Read(context.Background(), 0)
	s.check(err)
	return v.SIDs[0].Window.Value
}

// T03: what was stored is where the clock has been, three seconds ago. The clock
// goes back by less while the process restarts, and the check passes.
func TestT03RollbackSmallerThanTheReportLag(t *testing.T) {
	for _, lag := range []string{"100ms", "2s", "4900ms"} { // since the last write
		for _, back := range []string{"-50ms", "-1s", "-4s"} {
			s, a := oneSID(t)
			s.tell("a run 5s", "pass "+lag)
			_, last := s.issued(a, 100)
			s.tell("a crash", "step "+back, "start n1")
			b := s.procs["b"]
			s.drive(40*time.Second, true, b)
			if first, _ := s.issued(b, 1); first <= last {
				t.Errorf("%s after a write, %s: issued in ms %d after %d", lag, back, first, last)
			}
			s.claims()
		}
	}
}

// T05: the clock goes back exactly while the process is down, and the sid comes to
// its successor, or to another node, which both know nothing of it.
func TestT05RollbackWhileDown(t *testing.T) {
	for _, back := range []string{"-1ms", "-1s", "-20s", "-5m"} {
		for _, who := range []string{"n1", "n2"} {
			for _, end := range []string{"crash", "stop"} {
				t.Run(fmt.Sprintf("T05 %s, %s, taken by %s", end, back, who), func(t *testing.T) {
					s, a := oneSID(t)
					s.tell("a run 7s")
					_, last := s.issued(a, 1000)
					s.tell("a "+end, "expire a", "step "+back, "start "+who)
					b := s.procs["b"]
					first := clock.Millis(-1)
					for range 600 { // ten minutes, or what less it takes
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

// T12: a process is thawed after its sid is another's, and the first thing it does
// is to renew. A renewal that asks for nothing but the number extends the taker's
// lease, and the process believes that it holds on.
func TestT12ThawedRenewalFirst(t *testing.T) {
	for _, first := range []string{"keep alive", "extend"} {
		t.Run("T12 "+first, func(t *testing.T) {
			s, a := oneSID(t)
			s.issued(a, 5)
			s.tell("expire a", "start n2", "b tick 20s")
			taken := s.record()
			if first == "extend" { // the answer that would tell it does not come
				s.tell("a fault notapplied keep")
			}
			a.log = nil
			s.tell("a tick")
			for _, line := range a.log {
				if strings.HasPrefix(line, "RAISE") || strings.HasPrefix(line, "BEGIN") {
					t.Errorf("it was told %q", line)
				}
			}
			if got := s.record(); got != taken || got.Instance != "n2-2" {
				t.Errorf("the record is %+v, and the taker wrote %+v", got, taken)
			}
			s.issued(a, 5) // what was confirmed to it is its own, to the end …
			s.tell("pass 10s")
			b := s.procs["b"]
			s.drive(time.Second, true, a, b)
			s.refused(a, "NO_SID") // … and no further
			s.issued(b, 5)
			s.claims()
		})
	}
}

// T13: a process finds its lease valid, sleeps, and sends what it made up before.
// And: the lease is valid, but what this term has to do first is not done.
func TestT13PauseBetweenCheckAndReply(t *testing.T) {
	t.Run("T13 asleep in a request", func(t *testing.T) {
		s, a := oneSID(t)
		s.tell("pass 29900ms")
		now := a.Now() // the request's one look at the clock
		s.tell("expire a", "start n2", "b tick")
		taken, _ := s.issued(s.procs["b"], 500)
		blk, err := a.node.Try(now, 500, 0)
		if err != nil {
			t.Fatal(err)
		}
		a.record(blk)
		if got := clock.Millis(flake.Default.UnixMilli(blk.Last())) - s.w.began; got >= 30_000 || taken < 30_000 {
			t.Errorf("woke up and issued to ms %d; the taker began with %d, at a ceiling of 30000", got, taken)
		}
		s.claims()
	})
	t.Run("T13 lease without a claim", func(t *testing.T) {
		s := newStory(t)
		s.tell("init", "start n1", "a fault hang acquire", "a tick")
		a := s.procs["a"]
		if a.machine.Status().Lease == 0 {
			t.Fatal("there is no lease")
		}
		s.refused(a, "STARTING")
		s.tell("a answer")
		s.issued(a, 1)
		s.claims()
	})
}

// T14: the write of a higher ceiling is applied, and the process sleeps before it
// hears so. The taker begins above that ceiling; the process never gets to use it.
func TestT14PauseBetweenWriteAndAdoption(t *testing.T) {
	s, a := oneSID(t)
	s.tell("a fault lostreply extend", "a tick 5s")
	s.refusedAbove(a, 30_000)
	if got := s.record().Ceil - s.w.began; got != 35_000 {
		t.Fatalf("the record's ceiling is %d", got)
	}
	s.tell("expire a", "start n2", "b tick 20s", "pass 9800ms") // as far ahead as IDs may lie
	b := s.procs["b"]
	if first, _ := s.issued(b, 5); first < 35_000 {
		t.Errorf("the taker issues in ms %d, below a ceiling that its predecessor may have heard of", first)
	}
	s.refusedAbove(a, 30_000)
	s.tell("a tick")
	s.refused(a, "NO_SID")
	s.claims()
}

// refusedAbove asks p for IDs as if its clock were anywhere near a ceiling: none
// at or above it is issued.
func (s *story) refusedAbove(p *process, ceil clock.Millis) {
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
			s.t.Errorf("%s issues to ms %d, and %d is confirmed", p.name, got, ceil)
		}
	}
}

// T16: the channel of keep-alives is closed or falls silent, and nobody reads it;
// or the error of a renewal is swallowed. T17: the goroutine that renews does not
// get to run, and requests do. Meanwhile the sid goes to one that waits for it.
func TestT16RenewalStopsAndRequestsDoNot(t *testing.T) {
	for name, f := range map[string]func(*process, lease.Action) fate{
		"T16 every keep-alive fails": func(_ *process, x lease.Action) fate {
			if _, ok := x.(lease.KeepAlive); ok {
				return notApplied
			}
			return answered
		},
		"T16 keep-alives are not answered": func(_ *process, x lease.Action) fate {
			if _, ok := x.(lease.KeepAlive); ok {
				return notAnswered
			}
			return answered
		},
		"T17 the keeper is starved": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s, a := oneSID(t)
			s.tell("start n2", "b tick")
			b := s.procs["b"]
			if f != nil {
				s.w.fault = func(p *process, x lease.Action) fate {
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

// T18: many nodes start on an empty registry, and all find that the first number
// is free. T19: and all take it, since to look and to take are two steps.
func TestT18ColdStartRace(t *testing.T) {
	s := newStory(t)
	s.tell("init")
	const n = 8
	var ps []*process
	for i := range n { // each has chosen before any has written
		name := string(rune('a' + i))
		s.tell(fmt.Sprintf("start n%d", i), name+" fault hang acquire", name+" tick")
		p := s.procs[name]
		if len(p.pending) != 1 || p.pending[0].(lease.Commit).Txn.SID != 0 {
			t.Fatalf("%s asks for %+v, want sid 0", p.name, p.pending)
		}
		ps = append(ps, p)
	}
	for i := range n {
		s.tell(string(rune('a'+(i+3)%n)) + " answer")
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

// T21: a clock of the future writes a ceiling, is repaired, and everybody waits for
// the future. Here the sid is put aside, the others go on, and so does the node.
func TestT21FutureClockPoisonsACeiling(t *testing.T) {
	for _, ahead := range []string{"1h", "87660h"} {
		for _, end := range []string{"a crash", "a stop"} {
			t.Run("T21 "+ahead+", "+end, func(t *testing.T) {
				s := newStory(t)
				s.tell("init", "start n1", "a tick", "step "+ahead, "a tick 5s")
				a := s.procs["a"]
				s.issued(a, 1)
				s.tell(end, "expire a", "step -"+ahead, "start n1", "b tick 1s", "start n2", "c tick 1s")
				for _, name := range []string{"b", "c"} {
					p := s.procs[name]
					s.issued(p, 1)
					if st := p.machine.Status(); st.Grant.SID == 0 || st.Quarantined[0] == "" {
						t.Errorf("%s: %+v, want sid 0 put aside", name, st)
					}
				}
				s.claims()
			})
		}
	}
}

// T22: a process restarts and believes the file in which it keeps its number, and
// not the registry, where the number has become another's.
func TestT22NothingIsRememberedOverTheRegistry(t *testing.T) {
	s, a := oneSID(t)
	s.tell("a run 7s")
	s.issued(a, 5)
	s.tell("a crash", "expire a", "start n2", "b tick 31s")
	b := s.procs["b"]
	s.issued(b, 5)
	s.tell("start n1", "c tick 1s")
	c := s.procs["c"]
	s.refused(c, "NO_SID")
	s.drive(10*time.Second, true, b, c)
	s.refused(c, "NO_SID")
	s.issued(b, 5)
	s.claims()
}

// T24: A holds, B holds, and A again, with a memory that is of A's first time. Of
// all these stories it is the one that repeated most.
func TestT24LostAndRegained(t *testing.T) {
	for _, how := range []string{"b stop", "b crash"} {
		for _, knew := range []bool{true, false} { // of its loss
			t.Run(fmt.Sprintf("T24 %s, knew=%v", how, knew), func(t *testing.T) {
				s, a := oneSID(t)
				s.tell("a run 7s")
				s.issued(a, 1000)
				s.tell("expire a", "start n2", "b tick 31s")
				b := s.procs["b"]
				if knew {
					s.drive(15*time.Second, true, a, b)
				} else {
					s.drive(15*time.Second, true, b)
				}
				_, last := s.issued(b, 1000)
				s.tell(how, "expire b")
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

// T25, T27: a write of an old term, or the failure of one, arrives in the midst of
// a new term. Whose it was is told by the record it names and not by who sent it.
func TestT27LateWriteOfAnEarlierTerm(t *testing.T) {
	t.Run("T27 after the loss", func(t *testing.T) {
		s, a := oneSID(t)
		s.tell("a fault late extend", "a tick 5s", "expire a", "start n2", "b tick 30s")
		b := s.procs["b"]
		s.issued(b, 5)
		taken := s.record()
		s.tell("a deliver")
		if got := s.record(); got != taken {
			t.Errorf("the record is %+v, and was %+v", got, taken)
		}
		s.drive(10*time.Second, true, a, b)
		s.issued(b, 5)
		s.claims()
	})
	t.Run("T27 same owner, later term", func(t *testing.T) {
		s, a := oneSID(t)
		s.tell("a fault late extend", "a tick 5s", "expire a", "start n2", "b tick 30s")
		s.issued(s.procs["b"], 5)
		s.tell("b stop")
		s.drive(20*time.Second, true, a)
		_, last := s.issued(a, 5)
		again := s.record()
		if again.Term != 3 || again.Instance != "n1-1" {
			t.Fatalf("the record is %+v", again)
		}
		s.tell("a deliver")
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
		s.tell("a fault late extend", "a tick 5s", "a tick 250ms", "a giveup")
		s.drive(5*time.Second, true, a)
		_, last := s.issued(a, 5)
		again := s.record()
		if again.Term != 2 || again.Instance != "n1-1" {
			t.Fatalf("the record is %+v", again)
		}
		s.tell("a deliver")
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
		s.tell("a fault hang extend", "a tick 5s", "expire a", "start n2", "b tick 30s", "vacate 1")
		// The answer comes when all has changed, and says no more than that it
		// failed; the write itself is later still.
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
		s.tell("a deliver")
		s.drive(10*time.Second, true, a, s.procs["b"])
		if got := a.machine.Status(); got.Grant.Term != st.Grant.Term || got.Grant.Ceil <= st.Grant.Ceil {
			t.Errorf("a's new term became %+v, and was %+v", got, st)
		}
		s.issued(a, 5)
		s.issued(s.procs["b"], 5)
		s.claims()
	})
}

// T28: what is stored is the number in use instead of one ahead of it, or the error
// of storing it is ignored: after a crash the same numbers are handed out again.
func TestT28StoredBeforeUsed(t *testing.T) {
	s, a := oneSID(t)
	failing := false
	s.w.fault = func(_ *process, x lease.Action) fate {
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

// T34: an operator deletes everything. Who ran before refuses, and who starts does
// not take the place for a new one.
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
	s.tell("start n2")
	b := s.procs["b"]
	s.drive(20*time.Second, true, a, b)
	s.refused(b, "STARTING")
	if got := b.machine.Status().Phase; got != lease.Uninitialized {
		t.Errorf("a newcomer finds itself %v", got)
	}
	// The space is made anew at the same moment: what ran before does not join.
	s.tell("anew")
	s.drive(5*time.Second, true, a)
	s.refused(a, "HISTORY_REWOUND")
	s.claims()
}

// T35: the disk of etcd takes 4 s for each write. Windows are asked for early
// enough for nobody to notice; with 20 s they run out, and are not used any further.
func TestT35SlowWrites(t *testing.T) {
	for _, takes := range []time.Duration{4 * time.Second, 20 * time.Second} {
		t.Run("T35 "+takes.String(), func(t *testing.T) {
			s, a := oneSID(t)
			due := clock.Mono(0)
			s.w.fault = func(p *process, x lease.Action) fate {
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
					s.tell("a answer")
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

// T36: the ceiling is read from a member that lags behind, or before the claim. A
// claim names what it has read, so that a stale look makes no claim.
func TestT36StaleRead(t *testing.T) {
	s := newStory(t)
	s.tell("init", "occupy 1 31", "vacate 1", "start n1", "start n2", "b fault hang load", "b tick")
	a, b := s.procs["a"], s.procs["b"]
	old, err := s.mem.Load(context.Background())
	s.check(err)
	s.tell("a tick", "a run 7s")
	s.issued(a, 1000)
	s.tell("a stop") // sid 0 is free again, with another ceiling
	s.w.clock.Step(-5 * time.Second)
	b.pending = nil
	b.step(lease.Loaded{View: old})
	asked := strings.Join(b.log, "\n")
	if !strings.Contains(asked, "acquire sid=0 term=1") {
		t.Fatalf("b did not go by the stale look: %s", asked)
	}
	s.drive(10*time.Second, true, b)
	s.issued(b, 1000)
	if w := s.record(); w.Instance == "n2-2" && w.Term < 2 {
		t.Errorf("a stale claim was applied: %+v", w)
	}
	s.claims()
}

// T37: the memory of a live process is copied, and both go on. Nobody can keep the
// two apart within the window they both know of; above it only one goes on.
func TestT37Clone(t *testing.T) {
	s, a := oneSID(t)
	s.issued(a, 1)
	// The copy is made by telling a machine again what the first one heard.
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
	s.w.fault = func(*process, lease.Action) fate { return notAnswered }
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

// T44: a clock leaps forward and the lease is lost. The next holder begins at the
// ceiling, the first millisecond that could not be used, and at no earlier one.
func TestT44LeapThenLoss(t *testing.T) {
	s, a := oneSID(t)
	s.refusedAbove(a, 30_000) // it has leapt to the last millisecond, and beyond
	s.tell("expire a", "start n2", "b tick")
	b := s.procs["b"]
	if got := b.machine.Status().Grant.Base - s.w.began; got != 30_000 {
		t.Fatalf("b begins at %d, want the ceiling", got)
	}
	s.tell("pass 29749ms")
	s.refused(b, "STARTING")
	s.tell("pass 1ms", "b tick") // as far ahead as IDs may lie
	s.drive(time.Second, true, b)
	if first, _ := s.issued(b, 10); first < 30_000 {
		t.Errorf("b issues in ms %d", first)
	}
	s.claims()
}
