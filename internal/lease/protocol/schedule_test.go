package protocol_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// schedule is a short life of a space with two free sids: two nodes start, issue
// and extend; one loses its lease and puts its key back; one is paused until its
// sid is taken; both stop; a third starts and takes a sid that was given back.
type schedule struct {
	w       *cluster
	mem     *storetest.Memory
	procs   []*process
	calls   int
	crashed *process // to be started again
}

func newSchedule(t *testing.T) *schedule {
	t.Helper()
	mem := storetest.NewMemory(1)
	start := clock.Millis(flake.DefaultEpoch + 1_000_000_000)
	s := &schedule{mem: mem, w: &cluster{store: mem, window: 6 * time.Second, clock: clocktest.NewManual(start), began: start}}
	s.w.hist.Format = flake.Default
	// No clock here is confirmed, so that the mark never passes the window of one that vanished,
	// and I9 holds whatever clocks do. The floor of the era is taken as passed.
	s.w.marks = true
	mem.Put("mark", lease.Encode(lease.Mark{Era: 1}))
	if _, _, err := mem.Init(context.Background(), lease.Space{
		Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p",
	}, start); err != nil {
		t.Fatal(err)
	}
	// Another process holds 30 of 32 sids, so that the nodes compete for two.
	v, err := mem.Load(context.Background())
	fatal.If(t, err)
	id, err := mem.Register(context.Background(), 0, 24*time.Hour, lease.Registration{Instance: "other", Node: "other"})
	fatal.If(t, err)
	for sid := flake.SID(2); sid < 32; sid++ {
		if applied, _, err := mem.Commit(context.Background(), lease.Txn{
			Op: lease.Acquire, SID: sid, Config: v.Config, Era: v.Era, Lease: id,
			Holder: lease.Holder{Instance: "other", Node: "other", Worker: true},
			Mark:   v.Mark,
			Window: lease.Window{Era: 1, Term: 1, Instance: "other", Node: "other", Nonce: "o", Worker: true,
				Base: start, Ceil: start + 30000, State: lease.Active, Wall: start},
		}); err != nil || !applied {
			t.Fatalf("occupy sid %d: %v, %v", sid, applied, err)
		}
	}
	return s
}

// pass lets d pass in small steps. Every process in awake ticks and is asked for
// IDs, whether it can issue or not.
func (s *schedule) pass(d time.Duration, awake ...int) {
	const stride = 250 * time.Millisecond
	for range int(d / stride) {
		s.w.clock.Advance(stride)
		s.mem.Advance(stride)
		if p := s.crashed; p != nil {
			s.crashed = nil
			node, _, _ := strings.Cut(p.name, "-")
			s.start(node)
		}
		for _, i := range awake {
			if p := s.procs[i]; !p.ended {
				p.issue(3)
				p.step(lease.Tick{})
				p.issue(2)
			}
		}
	}
}

func (s *schedule) start(node string) {
	p := s.w.start(node)
	s.procs = append(s.procs, p)
	p.step(lease.Tick{})
}

// run runs the schedule. A process that crashed is started again at once, with the
// same node name.
func (s *schedule) run() {
	s.start("n1")
	s.pass(2*time.Second, s.all()...)
	s.start("n2")
	s.pass(2*time.Second, s.all()...)
	s.mem.Expire(s.procs[0].machine.Status().Lease) // early, as a store may
	s.pass(2*time.Second, s.all()...)
	s.start("n3") // a standby, until n2 is paused beyond its lease
	var paused []int
	for i, p := range s.procs {
		if p.machine.Status().Phase == lease.Holding && p.name[:2] == "n2" {
			continue
		}
		paused = append(paused, i)
	}
	s.pass(8*time.Second, paused...)
	s.deliverLate()
	s.pass(3*time.Second, s.all()...)
	for _, p := range s.procs {
		if !p.ended {
			p.step(lease.Stop{})
		}
	}
	s.pass(time.Second, s.all()...)
	s.deliverLate()
	s.start("n1")
	s.pass(2*time.Second, s.all()...)
}

func (s *schedule) all() []int {
	out := make([]int, len(s.procs))
	for i := range out {
		out[i] = i
	}
	return out
}

func (s *schedule) deliverLate() {
	for _, p := range s.procs {
		p.deliver()
	}
}

// TestEveryCallFails runs the schedule once for each of its store calls, and makes
// that call fail: never applied, applied with the reply lost, and applied late.
// Each time the process goes on, or crashes at the call and starts again. No run
// may break a claim, and in every run the last node must issue in the end.
//
// Incidents T26 (saved, and reported as failed) and T28 (used before it was stored), docs/INCIDENTS.md.
func TestEveryCallFails(t *testing.T) {
	faultless := newSchedule(t)
	faultless.w.fault = func(*process, lease.Action) outcome { faultless.calls++; return answered }
	faultless.run()
	report(t, "no faults", faultless)
	if faultless.calls < 60 {
		t.Fatalf("the schedule makes %d calls: too few to mean anything", faultless.calls)
	}
	for _, f := range []outcome{notApplied, lostReply, late} {
		for _, crash := range []bool{false, true} {
			name := fmt.Sprintf("%s crash=%v", map[outcome]string{notApplied: "not applied", lostReply: "lost reply", late: "late"}[f], crash)
			t.Run(name, func(t *testing.T) {
				for k := range faultless.calls {
					s := newSchedule(t)
					s.w.fault = func(p *process, _ lease.Action) outcome {
						if p.ended {
							return notApplied
						}
						s.calls++
						if s.calls-1 != k {
							return answered
						}
						if crash {
							// The process ends before it gets the answer.
							p.ended, s.crashed = true, p
						}
						return f
					}
					s.run()
					report(t, fmt.Sprintf("call %d", k), s)
				}
			})
		}
	}
	t.Logf("%d calls in the run without faults", faultless.calls)
}

func report(t *testing.T, name string, s *schedule) {
	t.Helper()
	for _, v := range s.w.hist.Check() {
		history.Violated(t, v.Claim, "%s: %s", name, v.Detail)
	}
	last := s.procs[len(s.procs)-1]
	if !last.issue(1) {
		// The sid of a process that crashed can be used once its ceiling has passed.
		s.pass(10*time.Second, s.all()...)
	}
	if !last.issue(1) {
		t.Errorf("%s: the last node to start cannot issue: %+v", name, last.machine.Status())
	}
}

var (
	seeds = flag.Int("seeds", 0, "how many random schedules to run; 0: as many as the tier has time for")
	seed  = flag.Uint64("seed", 0, "run this schedule only")
)

// schedules returns how many random schedules to run.
func schedules(t *testing.T) uint64 {
	if *seeds != 0 {
		return uint64(*seeds)
	}
	return uint64(tier.Of(t, "random schedules", 30, 300, 3000))
}

// TestRandomSchedules runs seeded schedules: any call may fail in any way, leases
// expire early, processes pause and crash, and clocks jump. Claims I1 to I4 must
// hold in all of them, although no clock is checked.
func TestRandomSchedules(t *testing.T) {
	n := schedules(t)
	first := uint64(1)
	if *seed != 0 {
		first, n = *seed, 1
	}
	issued, bound, raised := 0, 0, 0
	for i := first; i < first+n; i++ {
		s := newSchedule(t)
		s.confine(rand.New(rand.NewPCG(i, 18)))
		s.random(rand.New(rand.NewPCG(i, 17)))
		issued += s.w.hist.IDs()
		for _, v := range s.w.hist.Check() {
			history.Violated(t, v.Claim, "seed %d: %s", i, v.Detail)
		}
		bound += s.confined(t)
		for i := 1; i < len(s.w.hist.Marks); i++ {
			if s.w.hist.Marks[i].Below > s.w.hist.Marks[i-1].Below {
				raised++
			}
		}
		if t.Failed() {
			t.Fatalf("replay with -run TestRandomSchedules -seed %d", i)
		}
	}
	if issued < int(n)*100 {
		t.Errorf("%d IDs in %d schedules: too few to mean anything", issued, n)
	}
	if raised < int(n)*5 {
		t.Errorf("the mark rose %d times in %d schedules: too few to mean anything", raised, n)
	}
	if bound < int(n)/2 {
		t.Errorf("%d sids taken by nodes with a range of their own: too few to mean anything", bound)
	}
	t.Logf("%d schedules, %d IDs, %d sids taken by nodes with a range", n, issued, bound)
}

// confine gives half of the nodes a range of their own: of the two free sids, of
// more, or only of sids that are held.
func (s *schedule) confine(r *rand.Rand) {
	s.w.sids = map[string]lease.SIDRange{}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		ranges := []lease.SIDRange{{From: 0, To: 1}, {From: 1, To: 2}, {From: 1, To: 9}, {From: 0, To: 2}, {From: 2, To: 32}}
		if r.IntN(2) == 0 {
			s.w.sids[name] = ranges[r.IntN(len(ranges))]
		}
	}
}

// confined checks that no process acquired a sid outside its range, and returns
// how many sids were acquired by processes that have a range.
func (s *schedule) confined(t *testing.T) (taken int) {
	t.Helper()
	for _, g := range s.w.hist.Grants {
		node, _, _ := strings.Cut(g.Process, "-")
		r := s.w.sids[node]
		if r.All() {
			continue
		}
		taken++
		if !r.Has(g.SID) {
			t.Errorf("%s holds sid %d, and its range is %v", g.Process, g.SID, r)
		}
	}
	return taken
}

func (s *schedule) random(r *rand.Rand) {
	faults := r.Float64() * 0.3
	s.w.fault = func(*process, lease.Action) outcome {
		if r.Float64() >= faults {
			return answered
		}
		return []outcome{notApplied, lostReply, late}[r.IntN(3)]
	}
	names := []string{"n1", "n2", "n3", "n4"}
	for i := range 2 + r.IntN(3) {
		s.start(names[i])
	}
	paused := map[*process]int{}
	for range 250 {
		d := time.Duration(r.IntN(800)) * time.Millisecond
		s.w.clock.Advance(d)
		s.mem.Advance(d)
		for _, p := range s.procs {
			if r.IntN(50) == 0 {
				p.offset = time.Duration(r.IntN(4000)-2000) * time.Millisecond
			}
			switch {
			case p.ended:
			case paused[p] > 0:
				paused[p]--
			case r.IntN(60) == 0:
				p.ended = true
				node, _, _ := strings.Cut(p.name, "-")
				s.start(node)
			case r.IntN(50) == 0:
				paused[p] = r.IntN(40)
			case r.IntN(60) == 0:
				s.mem.Expire(p.machine.Status().Lease)
			case r.IntN(80) == 0:
				p.step(lease.Stop{})
				if p.ended {
					node, _, _ := strings.Cut(p.name, "-")
					s.start(node)
					s.procs[len(s.procs)-1].offset = p.offset - time.Duration(r.IntN(1500))*time.Millisecond
				}
			default:
				p.issue(1 + r.IntN(40))
				p.step(lease.Tick{})
				p.issue(1 + r.IntN(4))
			}
			if r.IntN(10) == 0 {
				p.deliver() // also of processes that ended
			}
		}
	}
}
