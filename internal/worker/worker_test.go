package worker_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker"
)

func TestHandles(t *testing.T) {
	good := worker.Handle{SID: 17, Term: 4, Secret: "0123456789ABCDEFghij"}
	if got, err := worker.ParseHandle(good.String()); err != nil || got != good || good.ID() != "17-4" {
		t.Errorf("%v, %v, %q", got, err, good.ID())
	}
	long := strings.Repeat("a", worker.MaxSecret)
	for _, s := range []string{
		"w1.4194303.9223372036854775807." + long, "w1.0.1.0123456789012349", "w1.0.1.azbyAZBY90123456",
	} {
		if h, err := worker.ParseHandle(s); err != nil || h.String() != s {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, s := range []string{
		"", "w1", "w1.17.4", "w1.17.4.", "w1.17.4.short", "w2.17.4.0123456789ABCDEF", "w1.017.4.0123456789ABCDEF", "w1.17.+4.0123456789ABCDEF",
		"w1.17.0.0123456789ABCDEF", "w1.-1.4.0123456789ABCDEF", "w1.4194304.4.0123456789ABCDEF", "w1.17.9223372036854775808.0123456789ABCDEF",
		"w1.17.4.0123456789ABCDEF.x", "w1.17.4.0123456789ABCDE\n", "w1.17.4.0123456789ABCDÉF", "w1.17.4." + long + "a", " w1.17.4.0123456789ABCDEF",
		strings.Repeat("w1.", 1<<20),
	} {
		_, err := worker.ParseHandle(s)
		if !errors.Is(err, worker.ErrHandle) {
			t.Errorf("%.40q: %v", s, err)
		} else if len(s) > 8 && strings.Contains(err.Error(), s[8:]) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}

func FuzzParseHandle(f *testing.F) {
	f.Add("w1.17.4.0123456789ABCDEF")
	f.Add("w1.017.4.0123456789ABCDEF")
	f.Fuzz(func(t *testing.T, s string) {
		h, err := worker.ParseHandle(s)
		if err == nil && (h.String() != s || h.Term < 1 || worker.CheckSecret(h.Secret) != nil) {
			t.Errorf("%q was read as %+v", s, h)
		}
		if err != nil && h != (worker.Handle{}) {
			t.Errorf("%q: %v with %+v", s, err, h)
		}
	})
}

func TestNames(t *testing.T) {
	for _, s := range []string{"import-1", "Größe 2", strings.Repeat("n", worker.MaxName)} {
		if err := worker.CheckName(s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"", "a\nb", "\x1b[2J", "\xff", strings.Repeat("n", worker.MaxName+1), "\u202egnp.exe"} {
		if err := worker.CheckName(s); !errors.Is(err, worker.ErrName) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// TestRefusals: what the node or the space does not allow has written nothing (I7).
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(e *env, k *worker.Knowledge)
		want   node.Reason
		reads  int // requests before it is found out
		// acquires: an acquisition finds it out in the list, which is only compared with the space.
		acquires bool
	}{
		{"the node is closed", func(_ *env, k *worker.Knowledge) { k.Closed = &node.Refusal{Reason: node.ClockSkew} }, node.ClockSkew, 0, true},
		{"its clock is too far ahead", func(_ *env, k *worker.Knowledge) { k.Limit = lease.Limit{} }, node.ClockSkew, 0, true},
		{"etcd went back", func(_ *env, k *worker.Knowledge) { k.Status.Revision += 1000 }, node.HistoryRewound, 1, false},
		{"another cluster", func(_ *env, k *worker.Knowledge) { k.Status.Cluster++ }, node.HistoryRewound, 1, false},
		{"another pool", func(_ *env, k *worker.Knowledge) { k.Status.Space.Pool = "pool-2" }, node.HistoryRewound, 1, true},
		{"an era that is gone", func(_ *env, k *worker.Knowledge) { k.Status.Era.Number++ }, node.HistoryRewound, 1, false},
		{"an era that was rewritten", func(_ *env, k *worker.Knowledge) { k.Status.Era.Floor++ }, node.HistoryRewound, 1, false},
		{"an era of another cluster", func(e *env, k *worker.Knowledge) {
			e.mem.Put("era", lease.Encode(lease.Era{Number: 2, Floor: start, Cluster: 8}))
		}, node.HistoryRewound, 1, true},
		{"no config", func(e *env, _ *worker.Knowledge) { e.mem.Delete("config") }, node.HistoryRewound, 1, true},
		{"a damaged era", func(e *env, _ *worker.Knowledge) { e.mem.Put("era", "a1 x") }, node.Starting, 1, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEnv(t, 1)
			w := e.acquired("a")
			e.pass(25 * time.Second)
			k := e.known()
			tc.change(e, &k)
			before, _ := e.mem.Load(t.Context())
			requests := []worker.Request{worker.Extend{Handle: w.Handle}, worker.Release{Handle: w.Handle}}
			if tc.acquires {
				requests = append(requests, acquire("b"))
			}
			for _, req := range requests {
				c, sent := worker.NewCall(e.cfg, req), 0
				act := c.Step(e.clock.Now(), k, worker.Answer{})
				for {
					if _, ok := act.(worker.Refused); ok {
						break
					}
					if _, ok := act.(worker.Done); ok {
						t.Fatalf("%T was served: %s", req, show(act))
					}
					sent++
					act = c.Step(e.clock.Now(), k, ask(e.mem, act))
				}
				if r := act.(worker.Refused).Refusal; r.Reason != tc.want || sent != tc.reads {
					t.Errorf("%T: %v after %d requests, want %s after %d", req, r, sent, tc.want, tc.reads)
				}
			}
			if after, _ := e.mem.Load(t.Context()); after.Revision != before.Revision {
				t.Errorf("something was written: revision %d to %d", before.Revision, after.Revision)
			}
		})
	}
}

// TestUndecidedStep: a node whose clock was just set acquires for nobody, and extends what it held to before.
func TestUndecidedStep(t *testing.T) {
	e := newEnv(t, 1)
	w := e.acquired("a")
	e.pass(25 * time.Second)
	e.clock.SetUndecided(true)
	act := worker.NewCall(e.cfg, acquire("b")).Step(e.clock.Now(), e.known(), worker.Answer{})
	if r, ok := act.(worker.Refused); !ok || r.Refusal.Reason != node.ClockSkew {
		t.Errorf("an acquisition: %s", show(act))
	}
	act = worker.NewCall(e.cfg, worker.Extend{Handle: w.Handle}).Step(e.clock.Now(), e.known(), worker.Answer{})
	if _, refused := act.(worker.Refused); refused {
		t.Errorf("an extension: %s", show(act))
	}
}

// TestBarredMeanwhile: the node's gate, its drain and the guard against clocks ahead are looked at
// before each write, not at the beginning of a call alone. The guard of acquisitions is another one
// than that of extensions.
func TestBarredMeanwhile(t *testing.T) {
	for name, bar := range map[string]struct {
		change  func(*worker.Knowledge)
		extends bool // an extension is written all the same
	}{
		"closed":                    {func(k *worker.Knowledge) { k.Closed = &node.Refusal{Reason: node.Draining} }, false},
		"clock far ahead":           {func(k *worker.Knowledge) { k.Limit = lease.Limit{} }, false},
		"clock ahead of a holder's": {func(k *worker.Knowledge) { k.Limit.Acquire = 0 }, true},
	} {
		for kind := range 4 {
			for after := range 6 { // requests before the node is barred
				e := newEnv(t, 1)
				var req worker.Request = acquire("b")
				if kind > 0 {
					h := e.acquired("a").Handle
					e.pass(25 * time.Second)
					again := acquire("a") // The caller got no answer. The call finds its record, and extends it.
					again.Given = true
					req = []worker.Request{nil, worker.Extend{Handle: h}, worker.Release{Handle: h}, again}[kind]
				}
				extends := bar.extends && kind > 0 && !(kind == 3 && after == 0)
				c, a := worker.NewCall(e.cfg, req), worker.Answer{}
				for step := range 20 {
					k := e.known()
					if step >= after {
						bar.change(&k)
					}
					act := c.Step(e.clock.Now(), k, a)
					if r, ok := act.(worker.Refused); ok {
						if extends {
							t.Errorf("%s after %d requests of %T: %v", name, after, req, r.Refusal)
						}
						break
					}
					if _, ok := act.(worker.Done); ok {
						break
					}
					if _, ok := act.(worker.Commit); ok && step >= after && !extends {
						t.Errorf("%s after %d requests of %T: %s", name, after, req, show(act))
					}
					a = ask(e.mem, act)
				}
			}
		}
	}
}

// TestQuota: how many workers an owner holds is counted from the records of all.
func TestQuota(t *testing.T) {
	e := newEnv(t, 1)
	ask := func(name, owner string) worker.Acquire {
		a := acquire(name)
		a.Owner, a.Quota = owner, 2
		return a
	}
	first := e.done(ask("a", "shop")).Worker
	e.done(ask("b", "shop"))
	e.done(ask("c", "crm"))
	if r := e.refused(ask("d", "shop"), node.WorkerQuota); r.Metadata["held"] != "2" || r.Metadata["limit"] != "2" {
		t.Errorf("%+v", r)
	}
	e.done(worker.Release{Handle: first.Handle, UsedUntil: start})
	e.done(ask("d", "shop"))
}

// TestOwnSIDAgain: a worker gets the sid that its name had last, if its time has come.
func TestOwnSIDAgain(t *testing.T) {
	e := newEnv(t, 1)
	var had []worker.Worker
	for _, name := range []string{"a", "b", "c", "d"} {
		had = append(had, e.acquired(name))
	}
	for _, w := range had {
		e.done(worker.Release{Handle: w.Handle, UsedUntil: start + 1})
	}
	e.pass(time.Second)
	for i, name := range []string{"d", "b", "a", "c"} {
		again := e.acquired(name)
		before := had[slices.IndexFunc(had, func(w worker.Worker) bool { return w.Name == "w-"+name })]
		if again.Handle.SID != before.Handle.SID || again.Handle.Term != 2 {
			t.Errorf("acquisition %d: %s has %s, and had %s", i, name, again.Handle.ID(), before.Handle.ID())
		}
	}
}

// TestUnusable: sids whose records cannot be trusted are not taken.
func TestUnusable(t *testing.T) {
	e := newEnv(t, 1)
	record := lease.Window{Era: 1, Term: 3, Instance: "x", Node: "x", Nonce: "x", State: lease.Released, Base: start, Ceil: start}
	far := record
	far.Ceil = start + clock.MillisOf(window) + 751
	later := record
	later.Era = 2
	e.mem.Put("window/16", lease.Encode(far))
	e.mem.Put("window/17", lease.Encode(later))
	e.mem.Put("window/18", "a2 00000000 {}")
	e.mem.Put("window/20", "a2 00000000 {}")
	e.mem.Put("ledger/19/00000000000000000001", lease.Encode(lease.LedgerLine{Term: 1, Instance: "x"}))
	r := e.refused(acquire("a"), node.NoWorker)
	if !strings.Contains(r.Message, "0 of 4 are held, 4 quarantined") || r.RetryAfter != window/4 {
		t.Errorf("%v, again after %v", r, r.RetryAfter)
	}
	e.mem.Put("holder/18", lease.Encode(lease.Holder{Instance: "x", Node: "x"}))
	r = e.refused(acquire("a"), node.NoWorker)
	if !strings.Contains(r.Message, "1 of 4 are held by x, 3 quarantined") {
		t.Errorf("%v", r)
	}
	far.Ceil--
	e.mem.Put("window/16", lease.Encode(far))
	if w := e.acquired("a"); w.Handle.SID != 16 || w.NotBefore != far.Ceil || w.NotAfter != far.Ceil {
		t.Errorf("%+v", w)
	}
}

// TestEtcdIsAway: calls end in bounded steps, and take no lease with them.
func TestEtcdIsAway(t *testing.T) {
	e := newEnv(t, 1)
	w := e.acquired("a")
	e.pass(25 * time.Second)
	for _, kinds := range [][]string{nil, {"read", "load", "acquire", "extend", "release"}, {"acquire", "extend", "release"}, {"grant"}} {
		e.faulty.SetScript(func(k storeKind, _ int) storeOutcome {
			if kinds == nil || slices.Contains(kinds, string(k)) {
				return notApplied
			}
			return pass
		})
		for _, req := range []worker.Request{acquire("b"), worker.Extend{Handle: w.Handle}, worker.Release{Handle: w.Handle}} {
			if _, isAcquire := req.(worker.Acquire); !isAcquire && len(kinds) == 1 {
				continue
			}
			e.sent = nil
			r := e.refused(req, node.EtcdUnavailable)
			_, isAcquire := req.(worker.Acquire)
			most := map[int]int{0: 8, 1: 2, 3: 16, 5: 8}[len(kinds)]
			if isAcquire && (len(kinds) == 0 || len(kinds) == 5) {
				most = 1 // The list is not asked for again.
			}
			if len(e.sent) != most || r.RetryAfter == 0 {
				t.Errorf("%T with %v away: %d requests, want %d: %v", req, kinds, len(e.sent), most, r)
			}
		}
	}
	v, _ := e.mem.Load(t.Context())
	if len(v.SIDs) != 1 {
		t.Errorf("%d sids were touched", len(v.SIDs))
	}
	// What is applied after the call has ended finds its lease revoked.
	e.faulty.SetScript(func(k storeKind, _ int) storeOutcome {
		if k == "acquire" || k == "read" {
			return delayed
		}
		return pass
	})
	e.refused(acquire("c"), node.EtcdUnavailable)
	e.faulty.SetScript(nil)
	e.faulty.Deliver()
	if v, _ = e.mem.Load(t.Context()); len(v.SIDs) != 1 {
		t.Errorf("a late write acquired a sid for nobody: %+v", v.SIDs)
	}
}

// TestFloors: the record of a worker says below what it uses nothing, if it said at first that it tells
// that. Nothing that a late or another call says lowers it.
func TestFloors(t *testing.T) {
	e := newEnv(t, 1)
	e.mem.Put("mark", lease.Encode(lease.Mark{Era: 1, At: start + 500}))
	silent := e.acquired("a")
	req := acquire("b")
	req.TellsFloor = true
	w := e.done(req).Worker
	if silent.Floor != 0 || w.Floor != w.NotBefore || w.NotBefore != start+500 {
		t.Errorf("silent from %d, the other from %d of %d", silent.Floor, w.Floor-start, w.NotBefore-start)
	}
	record := func(w worker.Worker) lease.Window {
		v, _ := e.mem.Load(t.Context())
		return v.SIDs[w.Handle.SID].Window.Value
	}
	extend := func(name string, w worker.Worker, told, want clock.Millis) {
		t.Helper()
		got := e.done(worker.Extend{Handle: w.Handle, Floor: told}).Worker
		if got.Floor != want || record(w).Floor != want {
			t.Errorf("%s: answered %d, recorded %d, want %d", name, got.Floor-start, record(w).Floor-start, want-start)
		}
	}
	extend("too soon to be written", w, start+900, start+500)
	e.pass(25 * time.Second)
	extend("told", w, start+20_000, start+20_000)
	extend("of one that tells none", silent, start+20_000, 0)
	e.pass(25 * time.Second)
	extend("not said", w, 0, start+20_000)
	e.pass(25 * time.Second)
	r := e.refused(worker.Extend{Handle: w.Handle, Floor: e.clock.Now().Wall + clock.MillisOf(window) + 1}, node.InvalidFormat)
	if !strings.Contains(r.Message, "check the clock") {
		t.Errorf("%v", r)
	}
	extend("as far as it goes", w, e.clock.Now().Wall+clock.MillisOf(window), e.clock.Now().Wall+clock.MillisOf(window))
	e.done(worker.Release{Handle: w.Handle, UsedUntil: start + 70_000})
	if got := record(w); got.Floor != got.Ceil {
		t.Errorf("given back with floor %d and ceiling %d", got.Floor-start, got.Ceil-start)
	}
}

// TestFloorsAboveTheMark: a worker whose key was gone may have been passed by the mark. It keeps to the mark
// once it is held again; and as long as the mark cannot be read, it is not (I9).
func TestFloorsAboveTheMark(t *testing.T) {
	e := newEnv(t, 1)
	req := acquire("a")
	req.TellsFloor = true
	w := e.done(req).Worker
	e.pass(2 * window)
	mark := e.clock.Now().Wall - 9
	e.mem.Put("mark", "junk")
	e.refused(worker.Extend{Handle: w.Handle, NotAfter: w.NotAfter, Floor: start + 1}, node.Starting)
	e.refused(func() worker.Acquire { r := acquire("b"); r.TellsFloor = true; return r }(), node.Starting)
	e.mem.Put("mark", lease.Encode(lease.Mark{Era: 1, At: mark}))
	if w = e.done(worker.Extend{Handle: w.Handle, NotAfter: w.NotAfter, Floor: start + 1}).Worker; w.Floor != mark {
		t.Errorf("held again from %d, and the mark is %d", w.Floor-start, mark-start)
	}
}

// TestNoFloorsBelowTheMark: a worker that tells no floors may use all of its interval. So once its key is gone
// and the mark is above its first base and does not name it, it is not extended (I9).
func TestNoFloorsBelowTheMark(t *testing.T) {
	for name, tc := range map[string]struct {
		mark string
		want node.Reason // 0: it is extended
	}{
		"no mark":        {"", 0},
		"at its base":    {lease.Encode(lease.Mark{Era: 1, At: start}), 0},
		"above its base": {lease.Encode(lease.Mark{Era: 1, At: start + 1}), node.UnknownWorker},
		"named":          {lease.Encode(lease.Mark{Era: 1, At: start + 90_000, Uncovered: "3,16-19"}), 0},
		"another named":  {lease.Encode(lease.Mark{Era: 1, At: start + 90_000, Uncovered: "15,20"}), node.UnknownWorker},
		"unreadable":     {"junk", node.Starting},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, 1)
			w := e.acquired("a")
			e.pass(2 * window)
			if tc.mark != "" {
				e.mem.Put("mark", tc.mark)
			}
			req := worker.Extend{Handle: w.Handle, NotAfter: w.NotAfter}
			if tc.want == 0 {
				e.done(req)
				return
			}
			e.refused(req, tc.want)
			again, other := acquire("a"), acquire("b")
			if again.Given = true; tc.want == node.UnknownWorker {
				e.refused(again, node.InvalidFormat)
				e.done(other)
				return
			}
			e.refused(again, tc.want)
			e.refused(other, tc.want)
		})
	}
}

// TestTwoOfOneSecret: two calls with one secret, by two nodes at once, may each acquire a
// sid. Every later call finds the same one of them; the other ends with its interval.
func TestTwoOfOneSecret(t *testing.T) {
	e := newEnv(t, 1)
	again := acquire("a")
	again.Given = true
	record := lease.Window{
		Era: 1, Term: 1, Instance: worker.Instance(again.Secret), Node: again.Name, Nonce: "x", State: lease.Active, Worker: true,
		Base: start, Since: start, Ceil: start + clock.MillisOf(window),
	}
	for _, sid := range []string{"19", "17", "18"} {
		e.mem.Put("window/"+sid, lease.Encode(record))
		e.mem.Put("holder/"+sid, lease.Encode(lease.Holder{Instance: record.Instance, Node: again.Name, Worker: true, Owner: again.Owner}))
	}
	for range 20 {
		if w := e.done(again).Worker; w.Handle.SID != 17 {
			t.Fatalf("found %s", w.Handle.ID())
		}
	}
}
