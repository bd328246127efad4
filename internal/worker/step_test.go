package worker_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker"
)

var errAway = errors.New("etcd is away")

// walk runs a call and asks what the store answers to each request, after which edit may change
// that. It returns the requests and the end.
func (e *env) walk(req worker.Request, edit func(n int, act worker.Action, a *worker.Answer)) ([]string, worker.Action) {
	e.t.Helper()
	c, a := worker.NewCall(e.cfg, req), worker.Answer{}
	var sent []string
	for n := 1; ; n++ {
		act := c.Step(e.clock.Now(), e.known(), a)
		switch act.(type) {
		case worker.Done, worker.Refused:
			return sent, act
		}
		sent = append(sent, strings.Fields(show(act))[0])
		a = ask(e.mem, act)
		edit(n, act, &a)
	}
}

func expect(t *testing.T, sent []string, want string) {
	t.Helper()
	if got := strings.Join(sent, " "); got != want {
		t.Errorf("sent %q, want %q", got, want)
	}
}

// TestLeasesThatEnd: after a lease is gone nothing is asked for on it again.
func TestLeasesThatEnd(t *testing.T) {
	e := newEnv(t, 1)
	gone := func(kind string) func(int, worker.Action, *worker.Answer) {
		first := true
		return func(_ int, act worker.Action, a *worker.Answer) {
			if first && strings.HasPrefix(show(act), kind) {
				first, a.Err = false, lease.ErrLeaseGone
			}
		}
	}
	e.mem.Put("window/16", lease.Encode(lease.Window{
		Era: 1, Term: 1, Instance: "x", Node: "x", Nonce: "x", State: lease.Released, Base: start, Since: start, Ceil: start,
	}))
	w := e.acquired("a")
	e.pass(25 * time.Second)
	v, _ := e.mem.Read(t.Context(), w.Handle.SID)
	before := v.SIDs[w.Handle.SID].Holder.Lease
	e.mem.Expire(before)
	sent, end := e.walk(worker.Extend{Handle: w.Handle}, func(int, worker.Action, *worker.Answer) {})
	if _, ok := end.(worker.Done); !ok {
		t.Fatal(show(end))
	}
	expect(t, sent, "read take rehold")
	e.pass(25 * time.Second)
	sent, _ = e.walk(worker.Extend{Handle: w.Handle}, gone("keep"))
	expect(t, sent, "read keep read extend")

	first := true
	sent, end = e.walk(acquire("b"), func(_ int, act worker.Action, a *worker.Answer) {
		if c, ok := act.(worker.TakeLease); ok && first && c.TTL > 0 {
			first = false
			e.mem.Expire(a.Lease) // before it is used
		}
	})
	if _, ok := end.(worker.Done); !ok {
		t.Fatal(show(end))
	}
	expect(t, sent, "list take acquire read take acquire")
}

// TestLeasesOfRefusals: a call that is refused gives its lease back, unless a write is unknown by which
// somebody may find the worker.
func TestLeasesOfRefusals(t *testing.T) {
	for _, tc := range []struct {
		name                    string
		given, extend, unknown  bool
		revokes                 bool
		sentBeforeItIsRefused   string
		afterWhichTheNodeCloses int
	}{
		{"drawn here", false, false, true, true, "list take acquire", 3},
		{"drawn here, known", false, false, false, true, "list take", 2},
		{"given", true, false, true, false, "list take acquire", 3},
		{"given, known", true, false, false, true, "list take", 2},
		{"extension", false, true, true, false, "read take rehold", 3},
		{"extension, known", false, true, false, true, "read take", 2},
	} {
		e := newEnv(t, 1)
		a := acquire("a")
		a.Given = tc.given
		var req worker.Request = a
		if tc.extend {
			w := e.acquired("a")
			e.pass(25 * time.Second)
			v, _ := e.mem.Read(t.Context(), w.Handle.SID)
			e.mem.Expire(v.SIDs[w.Handle.SID].Holder.Lease)
			req = worker.Extend{Handle: w.Handle}
		}
		taken := lease.LeaseID(0)
		sent, end := e.walk(req, func(n int, act worker.Action, a *worker.Answer) {
			if _, ok := act.(worker.TakeLease); ok {
				taken = a.Lease
			}
			if n >= tc.afterWhichTheNodeCloses {
				a.Err = errAway
				e.closed = &node.Refusal{Reason: node.Draining}
			}
			if _, ok := act.(worker.Read); ok && n > tc.afterWhichTheNodeCloses {
				a.View, a.Err = lease.View{}, errAway
			}
			if n == 2 && !tc.unknown {
				a.Err = nil
			}
		})
		r, ok := end.(worker.Refused)
		if !ok || !strings.HasPrefix(strings.Join(sent, " "), tc.sentBeforeItIsRefused) {
			t.Errorf("%s: %q, %s", tc.name, sent, show(end))
			continue
		}
		if want := taken; (r.Revoke == want) != tc.revokes || !tc.revokes && r.Revoke != 0 || taken == 0 {
			t.Errorf("%s: gives lease %d back, took %d", tc.name, r.Revoke, taken)
		}
	}
}

// rival has another worker take each sid before a call does.
func (e *env) rival(act worker.Action) {
	c, ok := act.(worker.Commit)
	if !ok || c.Txn.Op != lease.Acquire {
		return
	}
	w := c.Txn.Window
	w.Instance, w.Nonce, w.Node = "rival", "rival", "rival"
	sid := strings.TrimPrefix(strings.Fields(show(act))[1], "sid=")
	e.mem.Put("window/"+sid, lease.Encode(w))
	e.mem.Put("holder/"+sid, lease.Encode(lease.Holder{Instance: "rival", Node: "rival", Worker: true}))
}

// TestRaces: a sid that another worker takes meanwhile is not asked for again, after three the space
// is listed again, and in the end the call is told why.
func TestRaces(t *testing.T) {
	for _, tc := range []struct {
		sids int
		want string
		says string
	}{
		{3, "list take acquire acquire acquire list", "3 of 3 are held"},
		{4, "list take acquire acquire acquire list acquire", "4 of 4 are held"},
		{16, "list take acquire acquire acquire list acquire acquire acquire list acquire acquire acquire list " +
			"acquire acquire", "others took 11 sids"},
	} {
		e := newEnv(t, 1)
		e.cfg.SIDs = lease.SIDRange{From: 10, To: 10 + flake.SID(tc.sids)}
		c, a := worker.NewCall(e.cfg, acquire("a")), worker.Answer{}
		var sent, sids []string
		var end worker.Action
		for end == nil {
			act := c.Step(e.clock.Now(), e.known(), a)
			switch act.(type) {
			case worker.Done, worker.Refused:
				end = act
				continue
			}
			sent = append(sent, strings.Fields(show(act))[0])
			if _, ok := act.(worker.Commit); ok {
				sids = append(sids, strings.Fields(show(act))[1])
			}
			e.rival(act)
			a = ask(e.mem, act)
		}
		expect(t, sent, tc.want)
		r, ok := end.(worker.Refused)
		if !ok || r.Refusal.Reason != node.NoWorker || !strings.Contains(r.Refusal.Message, tc.says) || r.Revoke == 0 {
			t.Errorf("%d sids: %s", tc.sids, show(end))
		}
		seen := map[string]bool{}
		for _, sid := range sids {
			if seen[sid] {
				t.Errorf("%s was asked for again", sid)
			}
			seen[sid] = true
		}
	}
}

// TestLeaseAfterRaces: once others took what a call asked for, no write of it can be applied, so it
// gives its lease back.
func TestLeaseAfterRaces(t *testing.T) {
	e := newEnv(t, 1)
	a := acquire("a")
	a.Given = true
	lists := 0
	_, end := e.walk(a, func(_ int, act worker.Action, ans *worker.Answer) {
		switch act.(type) {
		case worker.Commit:
			e.rival(act)
			ans.Err = errAway
		case worker.List:
			if lists++; lists > 1 {
				ans.Err = errAway
			}
		}
	})
	if r, ok := end.(worker.Refused); !ok || lists != 2 || r.Revoke == 0 {
		t.Errorf("after %d lists: %s", lists, show(end))
	}
}

// TestTooManyAttempts: a call whose leases end at once gives up, and says that etcd did not confirm it.
func TestTooManyAttempts(t *testing.T) {
	e := newEnv(t, 1)
	sent, end := e.walk(acquire("a"), func(_ int, act worker.Action, a *worker.Answer) {
		if _, ok := act.(worker.TakeLease); ok {
			e.mem.Expire(a.Lease)
		}
	})
	if r, ok := end.(worker.Refused); !ok || r.Refusal.Reason != node.EtcdUnavailable || len(sent) != 16 {
		t.Errorf("%d requests: %s", len(sent), show(end))
	}
}

// TestSlowAnswers: what was asked for is enough, however long the answer took.
func TestSlowAnswers(t *testing.T) {
	e := newEnv(t, 1)
	slow := func(_ int, act worker.Action, _ *worker.Answer) {
		if _, ok := act.(worker.Commit); ok {
			e.pass(20 * time.Second)
		}
	}
	sent, end := e.walk(acquire("a"), slow)
	expect(t, sent, "list take acquire")
	w := end.(worker.Done).Worker
	e.pass(5 * time.Second)
	sent, end = e.walk(worker.Extend{Handle: w.Handle}, slow)
	expect(t, sent, "read keep extend")
	if got := end.(worker.Done).Worker; got.NotAfter != start+85_000 {
		t.Errorf("until %d", got.NotAfter-start)
	}
}

// TestEarlyExtensions: an extension writes something once a quarter of the window is over.
func TestEarlyExtensions(t *testing.T) {
	e := newEnv(t, 1)
	w := e.acquired("a")
	for _, tc := range []struct {
		after time.Duration
		want  string
	}{{window/4 - time.Millisecond, "read"}, {time.Millisecond, "read keep extend"}} {
		e.pass(tc.after)
		sent, _ := e.walk(worker.Extend{Handle: w.Handle}, func(int, worker.Action, *worker.Answer) {})
		expect(t, sent, tc.want)
	}
}

// TestGivenBesideOthers: a secret finds its own worker alone.
func TestGivenBesideOthers(t *testing.T) {
	e := newEnv(t, 1)
	a, b := acquire("a"), acquire("b")
	a.Given, b.Given = true, true
	first, second := e.done(a).Worker, e.done(b).Worker
	if first.Handle.SID == second.Handle.SID || e.done(a).Worker != first || e.done(b).Worker != second {
		t.Errorf("%v and %v", first.Handle.ID(), second.Handle.ID())
	}
}

// TestLeaseForNothing: a call that finds what another one with its secret acquired meanwhile gives its
// own lease back.
func TestLeaseForNothing(t *testing.T) {
	e := newEnv(t, 1)
	e.cfg.Random = func(int) int { return 0 }
	a := acquire("a")
	a.Given = true
	var other worker.Worker
	taken := lease.LeaseID(0)
	_, end := e.walk(a, func(_ int, act worker.Action, ans *worker.Answer) {
		if _, ok := act.(worker.TakeLease); ok {
			taken = ans.Lease
			other = e.done(a).Worker
		}
	})
	if d, ok := end.(worker.Done); !ok || d.Worker != other || d.Revoke != taken {
		t.Errorf("took lease %d: %s", taken, show(end))
	}
	if _, end = e.walk(acquire("b"), func(int, worker.Action, *worker.Answer) {}); end.(worker.Done).Revoke != 0 {
		t.Errorf("one in use is given back: %s", show(end))
	}
}

// TestHolderOfAnother: a worker whose window has the holder of somebody else, or one that cannot be
// read, is told to stop.
func TestHolderOfAnother(t *testing.T) {
	for holder, want := range map[string]node.Reason{
		lease.Encode(lease.Holder{Instance: "x", Node: "x"}): node.UnknownWorker,
		"damaged": node.UnknownWorker,
	} {
		e := newEnv(t, 1)
		w := e.acquired("a")
		e.pass(25 * time.Second)
		e.mem.Put("holder/16", holder)
		e.mem.Put("holder/17", holder)
		e.mem.Put("holder/18", holder)
		e.mem.Put("holder/19", holder)
		e.refused(worker.Extend{Handle: w.Handle}, want)
	}
}

// TestEarlyEra: where an era begins far ahead of the clock, as after an init under a wrong one, no worker uses a sid up.
func TestEarlyEra(t *testing.T) {
	e := newEnv(t, 1)
	e.mem.Put("era", lease.Encode(lease.Era{Number: 2, Floor: start + 60*24*3_600_000, Cluster: 7}))
	before := e.mem.Revision()
	e.refused(acquire("a"), node.Starting)
	if after := e.mem.Revision(); after != before {
		t.Errorf("something was written: revision %d to %d", before, after)
	}
}

// TestLaterEra: a node that has not read an operator's new era yet serves by it, whatever else the
// store has lost, but not in another space.
func TestLaterEra(t *testing.T) {
	for _, otherSpace := range []bool{false, true} {
		e := newEnv(t, 1)
		before := e.acquired("a")
		k := e.known()
		k.Status.Revision += 1000
		v, _ := e.mem.Load(t.Context())
		e.mem.Put("era", lease.Encode(lease.Era{Number: 2, Floor: start + 90_000, Cluster: v.Cluster}))
		want := node.UnknownWorker
		if otherSpace {
			k.Status.Space.Pool, want = "pool-2", node.HistoryRewound
		}
		c, a := worker.NewCall(e.cfg, worker.Extend{Handle: before.Handle}), worker.Answer{}
		act := c.Step(e.clock.Now(), k, a)
		act = c.Step(e.clock.Now(), k, ask(e.mem, act))
		if r, ok := act.(worker.Refused); !ok || r.Refusal.Reason != want {
			t.Errorf("another space %v: %s", otherSpace, show(act))
		}
	}
}
