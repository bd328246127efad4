package protocol_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/protocol"
)

// These tests are about liveness: no state may be one that a node never leaves,
// and none may be one of requests without a pause.

// drive lets d pass and ticks each process when it asks for it. With leases set,
// the store's leases expire; in etcd they do not while it has no leader.
func (s *scenario) drive(d time.Duration, leases bool, ps ...*process) (steps int) {
	const stride = 50 * time.Millisecond
	for range int(d / stride) {
		s.w.clock.Advance(stride)
		if leases {
			s.mem.Advance(stride)
		}
		for _, p := range ps {
			if p.machine.Wake() <= s.w.clock.Now().Mono && !p.ended {
				p.step(lease.Tick{})
				steps++
			}
		}
	}
	return steps
}

// do runs commands, as TestTranscripts lists them.
func (s *scenario) do(commands ...string) {
	for _, c := range commands {
		s.run(c)
	}
}

// TestOutages: while etcd has no quorum leases do not expire. However long that
// takes, every node issues within seconds of etcd's return, and so do new nodes.
func TestOutages(t *testing.T) {
	for _, outage := range []time.Duration{20 * time.Second, 3 * time.Minute, 3 * time.Hour} {
		s := newScenario(t)
		s.do("init", "start n1", "start n2")
		a, b := s.procs["a"], s.procs["b"]
		s.drive(20*time.Second, true, a, b)
		normal := s.w.fault
		s.w.fault = func(*process, lease.Action) outcome { return notApplied }
		s.drive(outage, false, a, b)
		s.w.fault = normal
		s.drive(2*time.Second, true, a, b)
		if !a.issue(1) || !b.issue(1) {
			t.Errorf("2 s after an outage of %v: %+v", outage, a.machine.Status())
		}
		s.do("start n3")
		c := s.procs["c"]
		s.drive(3*time.Second, true, a, b, c)
		if !c.issue(1) {
			t.Errorf("a new node after an outage of %v: %+v", outage, c.machine.Status())
		}
	}
}

// TestLoadFails: while lists of the space fail and small writes succeed, windows
// are extended.
func TestLoadFails(t *testing.T) {
	s := newScenario(t)
	s.do("init", "start n1")
	a := s.procs["a"]
	s.drive(4*time.Second, true, a)
	s.w.fault = func(_ *process, x lease.Action) outcome {
		if _, ok := x.(lease.Load); ok {
			return notApplied
		}
		return answered
	}
	a.log = nil
	s.drive(60*time.Second, true, a)
	extends := strings.Count(strings.Join(a.log, "\n"), "extend")
	if !a.issue(1) || extends < 10 {
		t.Errorf("%d extends in a minute of failing lists: %+v", extends, a.machine.Status())
	}
}

// TestRetriesSlowDown: lists that fail, and registrations of a node without a sid, are
// asked for again after pauses that grow to 8 s. A holder registers every second, since
// its window is used up meanwhile. Once etcd answers the pause is short again.
func TestRetriesSlowDown(t *testing.T) {
	for _, c := range []struct {
		what        string
		fails       func(lease.Action) bool
		before      []string
		least, most int // requests that fail in a minute
	}{
		{"load", isA[lease.Load], []string{"start n1"}, 10, 13},
		{"load", isA[lease.Load], []string{"start n1", "a tick", "a issue 1", "a changed"}, 8, 11},
		{"register", isA[lease.Register], []string{"start n1"}, 10, 13},
		{"register", isA[lease.Register], []string{"start n1", "a tick", "a issue 1", "expire a"}, 50, 62},
	} {
		s, failing, asked := newScenario(t), false, 0
		s.w.fault = func(_ *process, x lease.Action) outcome {
			if !failing || !c.fails(x) {
				return answered
			}
			asked++
			return notApplied
		}
		s.do("init")
		s.do(c.before...)
		a, name := s.procs["a"], fmt.Sprintf("%s; %s fails", strings.Join(c.before, ", "), c.what)
		failing = true
		s.drive(time.Minute, true, a)
		if asked < c.least || asked > c.most {
			t.Errorf("%s: asked %d times in a minute, want %d to %d", name, asked, c.least, c.most)
		}
		failing = false
		s.drive(9*time.Second, true, a)
		if !a.issue(1) {
			t.Errorf("%s: 9 s after etcd came back: %+v", name, a.machine.Status())
		}
		if c.what == "load" {
			failing, asked = true, 0
			s.do("a changed")
			s.drive(10*time.Second, true, a)
			if asked < 3 {
				t.Errorf("%s: the pauses of the next failures begin long: asked %d times in 10 s", name, asked)
			}
		}
	}
}

func isA[T lease.Action](a lease.Action) bool { _, ok := a.(T); return ok }

// TestNoHotLoop: a node that waits pauses between its requests, and lists the
// space again while the gate is closed.
func TestNoHotLoop(t *testing.T) {
	for name, commands := range map[string][]string{
		"gate closed while acquiring": {"start n1", "a fault notapplied acquire", "a tick", "a gate closed"},
		"gate closed while holding":   {"start n1", "a tick", "a gate closed"},
		"stopping, revoke hangs":      {"start n1", "a tick", "a fault hang revoke", "a stop"},
		"stopping, release hangs":     {"start n1", "a tick", "a fault hang release", "a stop"},
		"registering hangs":           {"start n1", "a fault hang register", "a tick"},
		"standby":                     {"occupy 0 31", "start n1", "a tick"},
		"no fault":                    {"start n1", "a tick"},
		"lost and used up in an old era": {"occupy 1 31", "start n1", "a tick", "quarantine 0",
			"era +1s", "pass 60s", "a tick", "a tick 3s"},
	} {
		s := newScenario(t)
		s.do("init")
		s.do(commands...)
		a := s.procs["a"]
		a.log = nil
		steps, began := 0, s.w.clock.Now().Mono
		for s.w.clock.Now().Mono.Sub(began) < 20*time.Second && !a.ended {
			// As the keeper waits: at least a millisecond, at most a second.
			wait := min(max(a.machine.Wake().Sub(s.w.clock.Now().Mono), time.Millisecond), time.Second)
			s.w.clock.Advance(wait)
			s.mem.Advance(wait)
			a.step(lease.Tick{})
			steps++
		}
		if steps > 20*10 {
			t.Errorf("%s: %d steps in 20 s", name, steps)
		}
		loads := strings.Count(strings.Join(a.log, "\n"), "load")
		if strings.HasPrefix(name, "gate") && loads == 0 {
			t.Errorf("%s: the space was not listed in 20 s", name)
		}
	}
}

// TestRandomOrders runs seeded schedules in which requests stay outstanding while
// hints, gates, eras, lost leases and stops arrive, and answers come late and out
// of order. No claim may break, and once the faults are over as many nodes must
// issue as there are sids for.
//
// Incident T25 (an event of an old term arrives in a new one), docs/INCIDENTS.md.
func TestRandomOrders(t *testing.T) {
	first, n := uint64(1), schedules(t)*3
	if *seed != 0 {
		first, n = *seed, 1
	}
	for i := first; i < first+n && !t.Failed(); i++ {
		s := newSchedule(t)
		s.disorder(rand.New(rand.NewPCG(i, 99)))
		for _, v := range s.w.hist.Check() {
			history.Violated(t, v.Claim, "seed %d: %s", i, v.Detail)
		}
		live, issuing := 0, 0
		for _, p := range s.procs {
			if p.ended {
				continue
			}
			live++
			if p.issue(1) {
				issuing++
			}
			if got := p.machine.Status(); got.Phase == lease.Releasing || got.Phase == lease.Rewound {
				t.Errorf("seed %d: %s is still %v: %s", i, p.name, got.Phase, got.Problem)
			}
		}
		if issuing < min(live, 2) { // two sids are free for them
			t.Errorf("seed %d: %d of %d nodes issue in the end", i, issuing, live)
			for _, p := range s.procs {
				if !p.ended {
					t.Logf("%s: %+v, last %q", p.name, p.machine.Status(), p.log[max(0, len(p.log)-4):])
				}
			}
		}
	}
	if t.Failed() {
		t.Log("replay with -run TestRandomOrders -seed N")
	}
}

func (s *schedule) disorder(r *rand.Rand) {
	faults, hang := r.Float64()*0.3, r.Float64()*0.5
	healed := false
	s.w.fault = func(*process, lease.Action) outcome {
		switch {
		case healed:
			return answered
		case r.Float64() < hang:
			return notAnswered
		case r.Float64() >= faults:
			return answered
		}
		return []outcome{notApplied, lostReply, late}[r.IntN(3)]
	}
	answer := func(p *process) {
		k := r.IntN(len(p.pending))
		a := p.pending[k]
		p.pending = append(p.pending[:k:k], p.pending[k+1:]...)
		f := answered
		if !healed && r.IntN(3) == 0 {
			f = []outcome{notApplied, lostReply, late}[r.IntN(3)]
		}
		p.step(p.carryOut(a, f))
	}
	for k := range 2 + r.IntN(2) {
		s.start([]string{"n1", "n2", "n3"}[k])
	}
	for range 250 {
		d := time.Duration(r.IntN(200)) * time.Millisecond
		s.w.clock.Advance(d)
		s.mem.Advance(d)
		if r.IntN(200) == 0 {
			v, err := s.mem.Load(context.Background())
			if err != nil {
				panic(err)
			}
			e := v.Era.Value
			e.Number++
			e.Floor = s.w.clock.Now().Wall + clock.Millis(r.IntN(8000))
			s.mem.Put("era", lease.Encode(e))
		}
		for _, p := range s.procs {
			if p.ended {
				if r.IntN(10) == 0 {
					p.deliver()
				}
				continue
			}
			switch r.IntN(40) {
			case 0:
				p.step(lease.Changed{})
			case 1:
				p.step(lease.Gate{Open: r.IntN(2) == 0})
			case 2:
				s.mem.Expire(p.machine.Status().Lease)
			case 3:
				if r.IntN(4) == 0 {
					p.step(lease.Stop{})
				}
			case 4:
				if r.IntN(3) == 0 {
					p.ended = true
					node, _, _ := strings.Cut(p.name, "-")
					s.start(node)
				}
			case 5:
				p.deliver()
			default:
				p.issue(1 + r.IntN(40))
				p.step(lease.Tick{})
				if len(p.pending) > 0 && r.IntN(3) == 0 {
					answer(p)
				}
				p.issue(1 + r.IntN(4))
			}
		}
	}
	healed = true
	for range 40 * 4 { // 40 s: until windows of crashed processes and floors have passed
		s.w.clock.Advance(250 * time.Millisecond)
		s.mem.Advance(250 * time.Millisecond)
		for _, p := range s.procs {
			p.deliver()
			for len(p.pending) > 0 && !p.ended {
				answer(p)
			}
			if !p.ended {
				p.step(lease.Gate{Open: true})
				p.step(lease.Tick{})
				p.issue(1)
			}
		}
	}
}

// TestStartTogether: nodes that start at one moment see the same list, so all ask
// for the same sid. Those that did not get it must not all ask for the same next
// one, or it would take as many rounds as there are nodes.
//
// Incident T18 (all that start on an empty registry find the first number free), docs/INCIDENTS.md.
func TestStartTogether(t *testing.T) {
	const nodes = 24
	s := newScenario(t)
	s.do("init")
	r := rand.New(rand.NewPCG(1, 2))
	var ps []*process
	for i := range nodes {
		p := s.w.start(fmt.Sprintf("n%d", i))
		cfg := s.w.config(fmt.Sprintf("n%d", i), p.name, func(maximum time.Duration) time.Duration { return time.Duration(r.Int64N(int64(maximum))) })
		p.machine = protocol.New(cfg)
		ps = append(ps, p)
	}
	s.w.fault = func(_ *process, a lease.Action) outcome {
		if c, ok := a.(lease.Commit); ok && c.Txn.Op == lease.Acquire {
			return notAnswered // until all have asked
		}
		return answered
	}
	rounds, asked := 0, 0
	for held := 0; held < nodes; rounds++ {
		if rounds > nodes {
			t.Fatalf("%d of %d nodes hold a sid after %d rounds", held, nodes, rounds)
		}
		s.drive(time.Second, true, ps...)
		held = 0
		for _, p := range ps {
			pending := p.pending
			p.pending = nil
			for _, a := range pending {
				asked++
				p.step(p.carryOut(a, answered))
			}
			if p.machine.Status().Held {
				held++
			}
		}
	}
	t.Logf("%d nodes, %d rounds, %d attempts", nodes, rounds, asked)
	if rounds > 8 || asked > 4*nodes {
		t.Errorf("%d nodes took %d rounds and %d attempts for a sid each", nodes, rounds, asked)
	}
	for _, p := range ps {
		s.issued(p, 10)
	}
	s.claims()
}

// TestListsWhileNodesComeAndGo: every change is a hint to list the space, at a random
// moment within a time that grows with the layout. However many changes follow, a
// holder lists no sooner than that moment.
func TestListsWhileNodesComeAndGo(t *testing.T) {
	const changesEach, loadsPerHour = 250 * time.Millisecond, 3600 / 20
	s := newScenario(t)
	_, _, err := s.mem.Init(t.Context(), lease.Space{Layout: flake.Fleet, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}, 0)
	s.check(err)
	r := rand.New(rand.NewPCG(7, 7))
	a := s.w.start("n1")
	cfg := s.w.config("n1", a.name, func(maximum time.Duration) time.Duration { return time.Duration(r.Int64N(int64(max(maximum, 1)))) })
	cfg.Format.Layout, cfg.ReloadEvery = flake.Fleet, 30*time.Second
	a.machine = protocol.New(cfg)
	s.drive(time.Minute, true, a)
	if !a.machine.Status().Held {
		t.Fatalf("status %+v", a.machine.Status())
	}
	a.log = nil
	for range time.Hour / changesEach {
		a.step(lease.Changed{})
		s.drive(changesEach, true, a)
	}
	loads := 0
	for _, l := range a.log {
		if l == "load" {
			loads++
		}
	}
	if loads < 3600/36 || loads > loadsPerHour {
		t.Errorf("%d lists in an hour with a change each %v, want at most %d", loads, changesEach, loadsPerHour)
	}
}

// TestStrayIsReleased: a late write leaves a node with a second sid. The node
// releases it, whatever the outcome of the first request, and goes on extending
// the sid that it holds.
func TestStrayIsReleased(t *testing.T) {
	for _, fault := range []string{"notapplied", "late", "lostreply"} {
		t.Run(fault, func(t *testing.T) {
			s := newScenario(t)
			s.do("init", "start n1", "a tick")
			a := s.procs["a"]
			now := s.w.clock.Now().Wall
			s.mem.Put("window/1", lease.Encode(lease.Window{Era: 1, Term: 1, Instance: lease.Instance(a.name), Node: "n1", Nonce: "late",
				Base: now, Ceil: now, State: lease.Active, Wall: now}))
			s.mem.Put("holder/1", lease.Encode(lease.Holder{Instance: lease.Instance(a.name), Node: "n1"}))
			s.do("a fault "+fault+" release", "a run 40s")
			if len(s.next) != 0 {
				t.Error("no release was asked for")
			}
			v, err := s.mem.Load(t.Context())
			s.check(err)
			if got := v.SIDs[1]; got.Holder.Exists() || got.Window.Value.State != lease.Released {
				t.Errorf("sid 1 is left as %+v", got)
			}
			if got := a.machine.Status(); got.Phase != lease.Holding || got.Grant.SID != 0 {
				t.Errorf("status %+v", got)
			}
			s.issued(a, 1)
			s.claims()
		})
	}
}

// TestGiveUpWithAnAttemptUnderWay: a node loses its sid, asks for another, gives up
// before it knows the outcome, and acquires a third. Then the late request is carried
// out, and the release of that sid gets no answer. The node keeps the sid that it has.
func TestGiveUpWithAnAttemptUnderWay(t *testing.T) {
	for _, fault := range []string{"notapplied", "late", "lostreply", "hang"} {
		t.Run(fault, func(t *testing.T) {
			s := newScenario(t)
			s.do("init", "start n1", "a tick", "quarantine 0", "a fault late acquire", "a tick 5s")
			a := s.procs["a"]
			if len(a.late) != 1 {
				t.Fatalf("no acquisition is under way: %v", a.log)
			}
			s.do("a fault hang read", "a tick 250ms", "a giveup")
			now := s.w.clock.Now().Wall
			s.mem.Put("window/2", lease.Encode(lease.Window{Era: 1, Term: 1, Instance: "i", Node: "n1", Nonce: "past",
				Base: now, Ceil: now, State: lease.Released, Wall: now}))
			s.do("a answer", "a tick 1s")
			if st := a.machine.Status(); !st.Held || st.Grant.SID != 2 {
				t.Fatalf("holds %+v, want sid 2: %v", st.Grant, a.log)
			}
			s.do("a deliver", "a fault "+fault+" release", "a run 12s")
			if len(s.next) != 0 {
				t.Fatal("no release was asked for")
			}
			s.do("a answer", "a run 40s")
			v, err := s.mem.Load(t.Context())
			s.check(err)
			if got := v.SIDs[1]; got.Holder.Exists() || got.Window.Value.State != lease.Released {
				t.Errorf("sid 1 is left as %+v", got)
			}
			if st := a.machine.Status(); st.Phase != lease.Holding || st.Grant.SID != 2 {
				t.Errorf("status %+v", st)
			}
			s.issued(a, 1)
			s.claims()
		})
	}
}

// TestRegisteredAfterTheList: a list that was asked for before the node was registered
// cannot have it, and is no reason to register again. Transcript
// 42-registration-deleted.txt has one that is.
func TestRegisteredAfterTheList(t *testing.T) {
	s := newScenario(t)
	s.do("init", "start n1", "a fault hang register", "a tick", "a fault hang load", "a tick 15s")
	a := s.procs["a"]
	if len(a.pending) != 2 {
		t.Fatalf("pending are %v", a.pending)
	}
	list := a.carryOut(a.pending[1], answered)
	a.step(a.carryOut(a.pending[0], answered))
	a.log = nil
	a.step(list)
	if slices.ContainsFunc(a.log, func(l string) bool { return strings.HasPrefix(l, "register") }) {
		t.Errorf("registers again: %v", a.log)
	}
	s.do("a changed", "a tick 1s")
	if st := a.machine.Status(); st.Phase != lease.Holding || len(st.Nodes) != 1 {
		t.Errorf("status %+v", st)
	}
}

// TestReheldAboveTheMark: the watermark passes the window of a node that was away for longer than
// the window. When the node comes back and takes up its holder key, it issues nothing below the
// mark, however late its own clock is; and the mark has not fallen.
func TestReheldAboveTheMark(t *testing.T) {
	s := newScenario(t)
	w := s.w
	w.marks = true
	s.do("init", "start n1", "start n2")
	b, a := s.procs["a"], s.procs["b"] // Of these b raises the mark: its sid is the lower one.
	for _, p := range []*process{b, a} {
		p.step(lease.Gate{Open: true, Confirmed: true, Agreed: true})
	}
	both := func(d time.Duration, awake ...*process) {
		t.Helper()
		s.drive(d, true, awake...)
	}
	both(8*time.Second, a, b)
	mark := func() clock.Millis { return b.machine.Status().Mark.At }
	if lag := w.clock.Now().Wall - mark(); lag > clock.MillisOf(w.window/6+w.window/24+time.Second/5) {
		t.Fatalf("with both there the mark is %d ms behind", lag)
	}
	at := mark()
	both(w.window-5*time.Second, b)
	if mark() > at+clock.MillisOf(w.window/6) {
		t.Fatalf("the mark went on to %d, and a's window has not passed", mark())
	}
	if held := b.machine.Status().Mark.Blocked; len(held) == 0 || held[0].Node != "n2" {
		t.Fatalf("nobody holds the mark back: %+v", held)
	}
	both(w.window, b)
	passed := mark()
	if lag := w.clock.Now().Wall - passed; lag > clock.MillisOf(w.window/3) {
		t.Fatalf("after a's window has passed the mark is %d ms behind: %+v", lag, b.machine.Status().Mark)
	}
	if got := b.machine.Status().Mark.Rests; got.Node != "n2" {
		t.Fatalf("the mark rests on %+v", got)
	}
	a.offset = -2 * w.window // A clock that was paused.
	both(3*time.Second, a, b)
	for _, p := range []*process{a, b} {
		if got := p.machine.Status().Mark.At; got < passed {
			t.Errorf("%s shows the mark %d, below %d", p.name, got, passed)
		}
	}
	if !slices.ContainsFunc(a.log, func(s string) bool { return strings.HasPrefix(s, "rehold") }) {
		t.Fatalf("a did not take up its key: %v", a.log)
	}
	for range 50 {
		a.issue(1)
		both(100*time.Millisecond, a, b)
	}
	w.hist.Hold(t)
}

// TestExpireByASoundClock: only a node that may write ceilings ends the hold of another. One whose clock is minutes
// ahead of every live holder's would else have no evidence left against its own.
func TestExpireByASoundClock(t *testing.T) {
	for before, want := range map[string]bool{
		"":                   true,
		"step 5m":            false,
		"b gate closed":      false,
		"undecided yes":      false,
		"a stop":             false, // The sid was released.
		"b stop":             false,
		"corrupt window/0":   false,
		"replace holder 0 x": false,
	} {
		t.Run(before, func(t *testing.T) {
			s, _ := oneSID(t)
			s.do("start n2", "b tick")
			if before != "" {
				s.do(before)
			}
			sent := false
			for range 8 {
				s.do("renew")
				sent = sent || strings.Contains(s.run("b run 10s"), "expire sid=0 ")
			}
			if sent != want {
				t.Errorf("it ended the hold: %v", sent)
			}
		})
	}
}

// TestGiveUpBeforeExpire: a node that gives its own sid up does that before it ends the hold of another.
func TestGiveUpBeforeExpire(t *testing.T) {
	s := newScenario(t)
	s.do("init", "start n1", "a tick", "start n2", "b tick")
	for range 6 {
		s.do("renew", "b run 10s")
	}
	s.do("b fault hang load", "renew", "b run 10s", "b giveup")
	if got := s.run("b answer"); !strings.HasPrefix(got, "SEAL\nrelease sid=1 ") {
		t.Errorf("once the list has arrived: %s", got)
	}
}

// TestStandbyBesideLiveHolders: a standby lists each half a minute, and says of no holder that extends its window
// meanwhile that it does not.
func TestStandbyBesideLiveHolders(t *testing.T) {
	s, a := oneSID(t)
	for sid := 1; sid < 32; sid++ {
		s.do(fmt.Sprintf("ceiling %d 1h", sid))
	}
	b := s.w.start("n2")
	cfg := s.w.config("n2", b.name, func(time.Duration) time.Duration { return 0 })
	cfg.ReloadEvery = s.w.window + s.w.window/5 // as jitter makes it
	b.machine = protocol.New(cfg)
	s.drive(time.Second, true, a, b)
	for range 120 {
		s.drive(time.Second, true, a, b)
		if p := b.machine.Status().Problem; !strings.HasPrefix(p, "no sid ") || strings.Contains(p, "has not extended") {
			t.Fatalf("after %v: %s", s.w.clock.Now().Wall-s.w.began, p)
		}
	}
}

// TestMarkOfAnOldNode: while a node that has held its sid for long is there, one that was restarted does
// not keep it from taking the mark along, although the restarted one has the lowest sid and writes the
// mark again whenever its text changes.
func TestMarkOfAnOldNode(t *testing.T) {
	s := newScenario(t)
	s.w.marks = true
	s.do("init", "occupy 5 5", "start n1", "start n2") // The holder of sid 5 tells no floor.
	a, b := s.procs["a"], s.procs["b"]
	gate := lease.Gate{Open: true, Confirmed: true, Agreed: true}
	a.step(gate)
	b.step(gate)
	for range 12 {
		s.do("ceiling 5 30s") // It lives.
		s.drive(time.Minute, true, a, b)
	}
	if m := b.machine.Status().Mark; m.At > s.w.began || m.Blocked[0].Why != lease.BlockedSilent {
		t.Fatalf("beside a holder that tells no floor: %+v", m)
	}
	s.do("a stop", "a run 2s", "start n1")
	c := s.procs["c"]
	c.step(gate)
	s.drive(2*time.Second, true, b, c)
	s.do("vacate 1")
	for sid := 6; sid < 30; sid++ { // The restarted node says of each new worker that it is not covered.
		s.do(fmt.Sprintf("worker %d w", sid))
		s.drive(5*time.Second, true, b, c)
	}
	if own, other := c.machine.Status().Grant.SID, b.machine.Status().Grant.SID; own >= other {
		t.Fatalf("the restarted node has sid %d, and the other one %d", own, other)
	}
	if m := b.machine.Status().Mark; s.w.clock.Now().Wall-m.At > clock.MillisOf(s.w.window/3) || len(m.Blocked) > 0 {
		t.Errorf("beside a node of fourteen minutes the mark is left at %d: %+v", m.At, m.Blocked)
	}
	s.checkClaims()
}

// TestMarkAfterDowntime: nodes that start long after the watermark was last raised may be under a
// wrong time source. The mark goes on once one of them has held its sid for the limit of steps,
// and not before; until then it is named why.
func TestMarkAfterDowntime(t *testing.T) {
	s := newScenario(t)
	s.w.marks = true
	s.do("init")
	s.w.clock.Advance(2 * time.Hour)
	s.do("start n1")
	a := s.procs["a"]
	a.step(lease.Gate{Open: true, Agreed: true})
	mark := func() lease.Mark { return a.machine.Status().Mark }
	s.drive(9*time.Minute, true, a)
	if m := mark(); m.At > s.w.began || len(m.Blocked) != 1 || m.Blocked[0].Why != lease.BlockedDowntime {
		t.Errorf("a node that holds its sid for nine minutes took the mark along: %+v", m)
	}
	s.drive(2*time.Minute, true, a)
	if m := mark(); s.w.clock.Now().Wall-m.At > clock.MillisOf(s.w.window/3) || len(m.Blocked) > 0 {
		t.Errorf("after eleven minutes the mark is at %d: %+v", m.At, m.Blocked)
	}
	s.checkClaims()
}
