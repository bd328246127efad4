package protocol_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// readers is a space whose nodes watch etcd and raise the watermark.
type readers struct {
	*scenario
	nodes []*process
	// reached is the revision up to which each node's watch has reported.
	reached map[*process]int64
	// every has something done again and again, with a period.
	every  time.Duration
	again  func()
	passed time.Duration
	leases map[flake.SID]lease.LeaseID
}

// newReaders starts so many nodes of unconfirmed and then of confirmed clocks: sids rise in that order.
func newReaders(t *testing.T, unconfirmed, confirmed int) *readers {
	s := &readers{scenario: newScenario(t), reached: map[*process]int64{}, leases: map[flake.SID]lease.LeaseID{}}
	s.w.marks = true
	s.do("init")
	for i := range unconfirmed + confirmed {
		s.node(flake.SID(i), i >= unconfirmed)
	}
	return s
}

// node starts a node, which acquires the lowest free sid.
func (s *readers) node(sid flake.SID, agreed bool) {
	p := s.w.start(fmt.Sprintf("n%d", sid))
	p.step(lease.Gate{Open: true, Agreed: agreed})
	p.step(lease.Tick{})
	s.reached[p] = s.load().Revision
	p.step(lease.Watched{Opened: true, Revision: s.reached[p]})
	if st := p.machine.Status(); !st.Held || st.Grant.SID != sid {
		s.t.Fatalf("node %d: %+v", sid, st)
	}
	s.nodes = append(s.nodes, p)
}

// pass lets time pass for all nodes that have not ended.
func (s *readers) pass(d time.Duration) {
	const stride = 250 * time.Millisecond
	for range int(d / stride) {
		s.w.clock.Advance(stride)
		s.mem.Advance(stride)
		if s.passed += stride; s.every > 0 && s.passed%s.every == 0 {
			s.again()
		}
		for _, p := range s.nodes {
			if !p.ended && p.machine.Wake() <= s.w.clock.Now().Mono {
				p.step(lease.Tick{})
			}
		}
		for _, p := range s.nodes {
			if p.ended {
				continue
			}
			if changes, reached := s.mem.Changes(s.reached[p]); reached > s.reached[p] {
				s.reached[p] = reached
				p.step(lease.Watched{Revision: reached, Changes: changes})
			}
		}
	}
}

// worker writes the record of a worker's sid, as nodes do it for the worker.
func (s *readers) worker(op lease.Op, sid flake.SID, tells bool) {
	s.t.Helper()
	v, now := s.load(), s.w.clock.Now().Wall
	seen := v.SIDs[sid]
	put := seen.Window.Value
	switch op {
	case lease.Acquire:
		id, err := s.mem.Grant(s.t.Context(), time.Hour)
		s.check(err)
		s.leases[sid] = id
		put.Term, put.Base, put.Since, put.Prior = put.Term+1, max(now, put.Ceil, v.Mark.Value.At), now, put.Priors(v.Mark.Value)
		put.Ceil, put.State, put.Floor = put.Base+60_000, lease.Active, 0
	case lease.Extend:
		put.Base, put.Ceil = put.Ceil, now+60_000
	case lease.Release:
		put.Ceil, put.State = now, lease.Released
	}
	if tells {
		put.Floor = now
	}
	put.Era, put.Instance, put.Node, put.Worker, put.Wall, put.Nonce = 1, "w", "w", true, now, fmt.Sprint("w", v.Revision)
	applied, _, err := s.mem.Commit(s.t.Context(), lease.Txn{
		Op: op, SID: sid, Seen: seen, Config: v.Config, Era: v.Era, Mark: v.Mark, Lease: s.leases[sid],
		Holder: lease.Holder{Instance: "w", Node: "w", Worker: true}, Window: put,
	})
	if s.check(err); !applied {
		s.t.Fatalf("%v of sid %d was not applied", op, sid)
	}
}

func (s *readers) mark() lease.Mark { return s.load().Mark.Value }

// TestVanishedDelaysOnce: a node that is killed holds the watermark back until its window and the grace
// have passed, and not longer: however many nodes with lower sids have clocks that nobody confirms, so
// that they cannot pass it, and whatever workers change in what the watermark says meanwhile.
func TestVanishedDelaysOnce(t *testing.T) {
	churn := func(s *readers) func() {
		held := false
		return func() {
			op := lease.Acquire
			if held {
				op = lease.Release
			}
			held = !held
			s.worker(op, 30, false)
		}
	}
	for name, workers := range map[string]func(s *readers){
		"no workers": func(*readers) {},
		"a worker that tells floors": func(s *readers) {
			s.worker(lease.Acquire, 31, true)
			s.every, s.again = 20*time.Second, func() { s.worker(lease.Extend, 31, true) }
		},
		"workers each 5 s": func(s *readers) { s.every, s.again = 5*time.Second, churn(s) },
		"workers each 1 s": func(s *readers) { s.every, s.again = time.Second, churn(s) },
	} {
		for kills, killed := range map[string]func(unconfirmed int, nodes []*process) []*process{
			"the last":             func(_ int, all []*process) []*process { return all[len(all)-1:] },
			"the lowest":           func(_ int, all []*process) []*process { return all[:1] },
			"the unconfirmed half": func(n int, all []*process) []*process { return all[:n/2+1] },
			"all but one":          func(n int, all []*process) []*process { return append(all[:n:n], all[n+1:]...) },
		} {
			for _, unconfirmed := range []int{0, 1, 2, 4, 8, 12, 16, 20, 24} {
				s := newReaders(t, unconfirmed, 3)
				workers(s)
				s.pass(22 * time.Second)
				for _, p := range killed(unconfirmed, s.nodes) {
					p.ended = true
				}
				at := s.w.clock.Now().Wall
				took := time.Duration(0)
				for ; s.mark().At <= at && took < 10*time.Minute; took += time.Second {
					s.pass(time.Second)
				}
				const limit = 30*time.Second + time.Second + 2*1250*time.Millisecond // window, grace, two raises
				if took > limit {
					t.Errorf("%s, killed %s, %d unconfirmed: the mark passed it after %v: %+v",
						name, kills, unconfirmed, took, s.mark().Blocked)
				}
				s.checkClaims()
			}
		}
	}
}

// TestWorkersDelayNoRaise: a node waits for nodes with lower sids alone, since workers raise no mark.
func TestWorkersDelayNoRaise(t *testing.T) {
	s := newReaders(t, 0, 1)
	const workers = 8
	for sid := range flake.SID(workers) {
		s.worker(lease.Acquire, sid+1, false)
	}
	s.node(workers+1, true)
	s.nodes[0].ended = true
	s.pass(time.Minute) // The mark passes the first node.
	for range 120 {
		s.pass(time.Second)
		if behind := (s.w.clock.Now().Wall - s.mark().At).Duration(); behind > 10*time.Second {
			t.Fatalf("the mark is %v behind: %+v", behind, s.mark())
		}
	}
}

// TestMarkOfShortProcesses: where each process ends before it has held a sid for the limit of steps, the mark
// goes on all the same once they have had that time one after another. One whose clock differs from that of
// those before it does not take the mark along.
func TestMarkOfShortProcesses(t *testing.T) {
	for name, tc := range map[string]struct {
		offset time.Duration // The clocks of the last processes are ahead by this.
		minute int           // the first at which the mark has gone on
	}{
		"one time":         {0, 10},
		"a month ahead":    {30 * 24 * time.Hour, 15},
		"an hour behind":   {-time.Hour, 15},
		"25 minutes ahead": {25 * time.Minute, 15},
	} {
		s := newScenario(t)
		s.w.marks = true
		s.do("init")
		s.w.clock.Advance(2 * time.Hour)
		for i := range 18 {
			s.do("start n1")
			a := string(rune('a' + i))
			p := s.procs[a]
			if i >= 5 {
				p.offset = tc.offset
			}
			p.step(lease.Gate{Open: true, Confirmed: true, Agreed: true})
			s.drive(55*time.Second, true, p)
			m := s.load().Mark.Value
			if went := m.At > s.w.began; went != (i >= tc.minute) {
				t.Errorf("%s: in minute %d the mark is at %d: %+v", name, i, m.At-s.w.began, m.Blocked)
			}
			s.do(a+" stop", a+" run 5s")
		}
		s.checkClaims()
	}
}

// TestMarkBesideAcquisitions: sids are acquired all the time, and a raise fails if one is between its list and its
// write: e to the power of minus so many come in a round trip succeed. The mark is 6 s behind without any.
func TestMarkBesideAcquisitions(t *testing.T) {
	for inRoundTrip, limit := range map[float64]time.Duration{
		0.5: 8 * time.Second,  // 50 a second and 10 ms
		2.5: 20 * time.Second, // 50 a second and 50 ms
	} {
		s := newReaders(t, 0, 1)
		r := rand.New(rand.NewPCG(1, 2))
		s.w.fault = func(_ *process, a lease.Action) outcome {
			if _, raise := a.(lease.PutMark); raise && r.Float64() > math.Exp(-inRoundTrip) {
				sid := flake.SID(20 + r.IntN(12))
				s.worker(lease.Acquire, sid, true)
				s.worker(lease.Release, sid, true)
			}
			return answered
		}
		s.pass(20 * time.Second)
		for range 400 {
			s.pass(time.Second)
			if m := s.mark(); s.w.clock.Now().Wall-m.At > clock.MillisOf(limit) {
				t.Fatalf("%v acquisitions in a round trip: at %d the mark is %+v", inRoundTrip, s.w.clock.Now().Wall, m)
			}
		}
	}
}

// TestDowntimeEndsNoWindow: a node that starts under a time source which is a month ahead leaves the mark where it
// is. By that time it also counts no window as ended: the mark goes on naming a worker that may issue, and rests on
// no holder's clock.
func TestDowntimeEndsNoWindow(t *testing.T) {
	s := newReaders(t, 0, 1)
	s.worker(lease.Acquire, 30, false)
	s.pass(10 * time.Second)
	s.nodes[0].ended = true
	s.mem.Expire(s.nodes[0].machine.Status().Lease)
	s.mem.Expire(s.leases[30])
	p := s.w.start("n9")
	p.offset = 30 * 24 * time.Hour
	s.nodes, s.reached[p] = append(s.nodes, p), s.load().Revision
	p.step(lease.Gate{Open: true, Confirmed: true, Agreed: true})
	s.pass(20 * time.Second)
	m := s.mark()
	if b := m.Blocked; len(b) == 0 || b[0].Why != lease.BlockedDowntime || m.Uncovered != "30" || m.Rests.Ceil != 0 {
		t.Errorf("30 s after a worker acquired sid 30 for a minute: %+v", m)
	}
}

// TestMarkBesideASlowClock: the clock of a node without gossip is five minutes behind, which nobody notices. The mark
// stays below the node while it has its key, and passes it once the key is gone, since its window has ended by every
// other clock. What it issues below the mark then is below the window's end, which the mark names, and ends when
// it takes up its key again.
func TestMarkBesideASlowClock(t *testing.T) {
	s := newReaders(t, 0, 0)
	s.w.without = map[string]bool{"slow": true}
	start := func(node string, offset time.Duration, gate lease.Gate) *process {
		p := s.w.start(node)
		p.offset = offset
		s.nodes, s.reached[p] = append(s.nodes, p), s.load().Revision
		p.step(gate)
		p.step(lease.Watched{Opened: true, Revision: s.reached[p]})
		return p
	}
	s.w.clock.Advance(6 * time.Minute) // The floor of the era has passed by its clock too.
	s.mem.Advance(6 * time.Minute)
	at := func() clock.Millis { return s.mark().At - s.w.began }
	slow := start("slow", -5*time.Minute, lease.Gate{Open: true})
	s.pass(5 * time.Second)
	start("n1", 0, lease.Gate{Open: true, Confirmed: true, Agreed: true})
	s.pass(20 * time.Second)
	if first, _ := s.issued(slow, 1); at() > first {
		t.Fatalf("the mark %+v has passed a holder, which issues at %d", s.mark(), first)
	}
	s.w.fault = func(p *process, _ lease.Action) outcome {
		if p == slow {
			return notApplied
		}
		return answered
	}
	s.mem.Expire(slow.machine.Status().Lease)
	s.pass(10 * time.Second)
	_, last := s.issued(slow, 1)
	if m := s.mark(); at() <= last || m.Rests.Node != "slow" || m.Rests.Ceil <= last+s.w.began {
		t.Errorf("a holder that lost its key issues at %d, and the mark is %+v", last, m)
	}
	s.w.fault = nil
	s.pass(5 * time.Second)
	for range 330 {
		s.pass(time.Second)
		if b, err := slow.node.Try(slow.Now(), 1, 0); err == nil && clock.Millis(flake.Default.UnixMilli(b.First)) < s.mark().At {
			t.Fatalf("with its key again it issues %v, below the mark %+v", b.First, s.mark())
		}
	}
	s.issued(slow, 1)
}

// TestMarkIsPutBack: a watermark whose record was deleted goes on where nodes had read it, and not at 0, from
// where it would rise to the lowest floor: a node may have one that is far behind.
func TestMarkIsPutBack(t *testing.T) {
	s := newReaders(t, 0, 2)
	s.pass(20 * time.Second)
	before := s.mark().At
	if before <= s.w.began {
		t.Fatalf("the mark has not risen: %+v", s.mark())
	}
	s.mem.Delete("mark")
	s.nodes[0].ended = true // It wrote the mark; the other one has read it.
	for range 40 {
		s.pass(time.Second)
		if m := s.load().Mark; m.Exists() {
			if m.Value.At < before {
				t.Errorf("the mark is put back at %d, and was %d", m.Value.At-s.w.began, before-s.w.began)
			}
			return
		}
	}
	t.Error("nobody puts the mark back")
}

// TestMarkOfAWrongEra: a space began under a clock two months ahead, and its watermark got there too. An
// operator begins an era with an earlier floor: nodes issue from that floor on, and the watermark follows.
func TestMarkOfAWrongEra(t *testing.T) {
	s := newScenario(t)
	s.w.marks = true
	gate := lease.Gate{Open: true, Confirmed: true, Agreed: true}
	start := func(node, name string) *process {
		s.do("start " + node)
		s.procs[name].step(gate)
		return s.procs[name]
	}
	s.do("step 1400h", "init")
	a := start("n1", "a")
	s.drive(time.Minute, true, a)
	wrong := s.load().Mark.Value
	if wrong.At <= s.w.began+clock.MillisOf(1400*time.Hour) {
		t.Fatalf("the mark is at %d", wrong.At-s.w.began)
	}
	s.do("a stop", "a run 5s", "step -1400h")
	b := start("n2", "b")
	s.drive(time.Minute, true, b)
	if len(s.load().SIDs) != 1 {
		t.Fatalf("a sid is used up: %+v", s.load().SIDs)
	}
	v, now := s.load(), s.w.clock.Now().Wall
	era, err := repair.NextEra(v, nil, now+61_000, lease.Bounds{Window: time.Minute, MaxSkew: 250 * time.Millisecond}, now)
	s.check(err)
	stale := v
	stale.Mark.Rev--
	if err := s.mem.BeginEra(t.Context(), stale, era.Era); !errors.Is(err, repair.ErrChanged) {
		t.Errorf("over a mark that was raised meanwhile: %v", err)
	}
	s.check(s.mem.BeginEra(t.Context(), v, era.Era))
	c := start("n3", "c")
	s.drive(2*time.Minute, true, b, c)
	for _, p := range []*process{b, c} {
		s.issued(p, 1)
		if m := p.machine.Status().Mark; m.Era != era.Era.Number || s.w.clock.Now().Wall-m.At > 10_000 || m.At > s.w.clock.Now().Wall {
			t.Errorf("%s shows the mark of era %d at %d, and its clock reads %d", p.name, m.Era, m.At-s.w.began, s.w.clock.Now().Wall-s.w.began)
		}
	}
}
