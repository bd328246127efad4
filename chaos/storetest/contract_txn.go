package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/records"
)

// keys are those below a space.
const keys records.Keys = ""

// opCase is an operation ready to be applied.
type opCase struct {
	name string
	op   lease.Op
	// ready brings sid to where the operation can be applied, and returns it.
	ready func(f *fixture, sid flake.SID) lease.Txn
}

var opCases = []opCase{
	{"first acquire", lease.Acquire, func(f *fixture, sid flake.SID) lease.Txn {
		return f.txn(lease.Acquire, sid, f.node(), f.read(sid))
	}},
	{"acquire", lease.Acquire, func(f *fixture, sid flake.SID) lease.Txn {
		a := f.node()
		v := f.apply(f.txn(lease.Acquire, sid, a, f.read(sid)))
		v = f.apply(f.txn(lease.Release, sid, a, v))
		return f.txn(lease.Acquire, sid, f.node(), v)
	}},
	{"reclaim", lease.Reclaim, func(f *fixture, sid flake.SID) lease.Txn {
		v := f.apply(f.txn(lease.Acquire, sid, f.node(), f.read(sid)))
		return f.txn(lease.Reclaim, sid, f.node(), v)
	}},
	{"extend", lease.Extend, func(f *fixture, sid flake.SID) lease.Txn {
		a := f.node()
		return f.txn(lease.Extend, sid, a, f.apply(f.txn(lease.Acquire, sid, a, f.read(sid))))
	}},
	{"rehold", lease.Rehold, func(f *fixture, sid flake.SID) lease.Txn {
		a := f.node()
		f.apply(f.txn(lease.Acquire, sid, a, f.read(sid)))
		f.Expire(a.lease)
		a.lease = f.node().lease
		return f.txn(lease.Rehold, sid, a, f.read(sid))
	}},
	{"release", lease.Release, func(f *fixture, sid flake.SID) lease.Txn {
		a := f.node()
		return f.txn(lease.Release, sid, a, f.apply(f.txn(lease.Acquire, sid, a, f.read(sid))))
	}},
}

// breakage makes one compare of a transaction fail, and no other.
type breakage struct {
	name string
	of   func(c opCase) bool // the cases whose compare must fail; the others must not
	skip func(c opCase) bool // the cases that it cannot be applied to
	do   func(f *fixture, txn *lease.Txn)
}

func all(opCase) bool           { return true }
func none(opCase) bool          { return false }
func first(c opCase) bool       { return c.name == "first acquire" }
func takesHolder(c opCase) bool { return c.op.TakesHolder() }
func notRelease(c opCase) bool  { return c.op != lease.Release }

func ops(list ...lease.Op) func(opCase) bool {
	return func(c opCase) bool { return slices.Contains(list, c.op) }
}

var breakages = []breakage{
	{"nothing changed", none, none, func(*fixture, *lease.Txn) {}},

	{"another window written", all, none, func(f *fixture, txn *lease.Txn) {
		w := txn.Window
		w.Nonce = "another"
		f.Put(keys.Window(txn.SID), lease.Encode(w))
	}},
	{"the same window written again", all, first, func(f *fixture, txn *lease.Txn) {
		f.Put(keys.Window(txn.SID), txn.Seen.Window.Raw)
	}},
	{"another window at the same revision", all, first, func(f *fixture, txn *lease.Txn) {
		w := txn.Seen.Window.Value
		w.Nonce = "of a history since lost"
		txn.Seen.Window = lease.NewEntry[lease.Window](txn.Seen.Window.Rev, 0, lease.Encode(w))
	}},
	{"an unreadable window", all, none, func(f *fixture, txn *lease.Txn) {
		f.Put(keys.Window(txn.SID), "junk")
	}},
	{"the window deleted", all, first, func(f *fixture, txn *lease.Txn) {
		f.Delete(keys.Window(txn.SID))
	}},
	{"the window deleted before it was read", all, first, func(f *fixture, txn *lease.Txn) {
		f.Delete(keys.Window(txn.SID)) // the ledger still has a line
		txn.Seen = f.read(txn.SID).SIDs[txn.SID]
	}},
	{"a ledger line", first, none, func(f *fixture, txn *lease.Txn) {
		f.Put(keys.Ledger(txn.SID, 12), lease.Encode(lease.LedgerLine{Term: 12}))
	}},
	{"a ledger line of the next sid", none, none, func(f *fixture, txn *lease.Txn) {
		f.Put(fmt.Sprintf("ledger/%d99/%020d", txn.SID, 1), lease.Encode(lease.LedgerLine{Term: 1}))
	}},

	{"a mark that was not seen", takesHolder, none, func(f *fixture, txn *lease.Txn) {
		txn.Mark = lease.Entry[lease.Mark]{}
	}},
	{"no mark, and none seen", none, none, func(f *fixture, txn *lease.Txn) {
		txn.Mark = lease.Entry[lease.Mark]{}
		f.Delete("mark")
	}},
	{"another mark", takesHolder, none, func(f *fixture, txn *lease.Txn) { f.putMark(lease.Mark{At: floor + 5}) }},
	{"the mark deleted", takesHolder, none, func(f *fixture, _ *lease.Txn) { f.Delete("mark") }},
	{"the same mark put again by another holder", none, none, func(f *fixture, txn *lease.Txn) {
		f.Put("mark", txn.Mark.Raw)
	}},

	{"another config", notRelease, none, func(f *fixture, txn *lease.Txn) {
		space := ours
		space.Pool = "another"
		f.Put("config", lease.Encode(space))
	}},
	{"the same config written again", notRelease, none, func(f *fixture, txn *lease.Txn) {
		f.Put("config", txn.Config.Raw)
	}},
	{"another config at the same revision", notRelease, none, func(f *fixture, txn *lease.Txn) {
		txn.Config.Raw += " "
	}},
	{"the config deleted", notRelease, none, func(f *fixture, txn *lease.Txn) { f.Delete("config") }},

	{"the next era", notRelease, none, func(f *fixture, txn *lease.Txn) {
		era := txn.Era.Value
		era.Number++
		f.Put("era", lease.Encode(era))
	}},
	{"the same era written again", notRelease, none, func(f *fixture, txn *lease.Txn) {
		f.Put("era", txn.Era.Raw)
	}},
	{"another era at the same revision", notRelease, none, func(f *fixture, txn *lease.Txn) {
		txn.Era.Raw += " "
	}},
	{"the era deleted", notRelease, none, func(f *fixture, txn *lease.Txn) { f.Delete("era") }},

	{"a holder on no lease", notRelease, none, func(f *fixture, txn *lease.Txn) {
		f.Put(keys.Holder(txn.SID), lease.Encode(lease.Holder{Instance: "another"}))
	}},
	{"the same holder written again", ops(lease.Reclaim, lease.Extend), ops(lease.Acquire, lease.Rehold),
		func(f *fixture, txn *lease.Txn) {
			f.Put(keys.Holder(txn.SID), txn.Seen.Holder.Raw) // for Extend: off its lease
		}},
	{"another holder at the same revision", ops(lease.Reclaim), none, func(f *fixture, txn *lease.Txn) {
		txn.Seen.Holder.Raw += " "
	}},
	{"the holder gone with its lease", ops(lease.Reclaim, lease.Extend), ops(lease.Acquire, lease.Rehold),
		func(f *fixture, txn *lease.Txn) {
			f.Expire(txn.Seen.Holder.Lease)
		}},
	{"another lease", ops(lease.Extend), none, func(f *fixture, txn *lease.Txn) {
		txn.Lease = f.node().lease
	}},
}

// testCompares makes each compare of each operation fail on its own.
func testCompares(f *fixture) {
	sid := flake.SID(0)
	for _, c := range opCases {
		for _, b := range breakages {
			if b.skip(c) {
				continue
			}
			f.putMark(lease.Mark{Era: 1, At: floor})
			v := f.read(sid)
			txn := c.ready(f, sid)
			b.do(f, &txn)
			if b.of(c) {
				f.refuse(txn, b.name)
			} else {
				f.apply(txn)
			}
			if f.Failed() {
				f.Fatalf("%s with %s", c.name, b.name)
			}
			f.Put("config", v.Config.Raw)
			f.Put("era", v.Era.Raw)
			sid++
		}
	}
}

func testFaults(f *fixture) {
	faulty := NewFaulty(f.Space, nil)
	sid := flake.SID(0)
	for _, c := range opCases {
		kind := KindOf(c.op)
		commit := func(txn lease.Txn, o Outcome) {
			f.Helper()
			faulty.SetScript(At(kind, faulty.Calls(kind)+1, o))
			applied, _, err := faulty.Commit(f.ctx, txn)
			if applied || !errors.Is(err, ErrInjected) {
				f.Errorf("%s with outcome %d: got %v, %v, want ErrInjected", c.name, o, applied, err)
			}
		}
		nonce := func() string { f.Helper(); return f.read(sid).SIDs[sid].Window.Value.Nonce }

		sid++ // not applied: nothing changed, and the same compares still hold
		txn := c.ready(f, sid)
		before := f.read(sid)
		commit(txn, NotApplied)
		f.sameView(c.name+" not applied", f.read(sid), before)
		f.apply(txn)

		sid++ // applied, and the reply lost: the nonce shows it
		txn = c.ready(f, sid)
		commit(txn, Applied)
		if nonce() != txn.Window.Nonce {
			f.Errorf("%s whose reply was lost: found nonce %s, want %s", c.name, nonce(), txn.Window.Nonce)
		}
		f.refuse(txn, "its own write")

		sid++ // late, and nothing was written in between
		txn = c.ready(f, sid)
		before = f.read(sid)
		commit(txn, Delayed)
		f.sameView(c.name+" delayed", f.read(sid), before)
		if n := faulty.Deliver(); n != 1 || nonce() != txn.Window.Nonce {
			f.Errorf("%s delivered late: %d delivered, found nonce %s, want %s", c.name, n, nonce(), txn.Window.Nonce)
		}

		sid++ // late, and another attempt was first
		txn = c.ready(f, sid)
		commit(txn, Delayed)
		retry := txn
		retry.Window.Nonce = "retry of " + txn.Window.Nonce
		now := f.apply(retry)
		faulty.Deliver()
		f.sameView(c.name+" delivered too late", f.read(sid), now)
	}

	n := f.node()
	faulty.SetScript(Every(NotApplied))
	errs := map[Kind]error{}
	_, errs[Load] = faulty.Load(f.ctx)
	_, errs[Read] = faulty.Read(f.ctx, 1)
	_, errs[Register] = faulty.Register(f.ctx, 0, time.Minute, lease.Registration{Instance: "late"})
	errs[KeepAlive] = faulty.KeepAlive(f.ctx, n.lease)
	errs[Revoke] = faulty.Revoke(f.ctx, n.lease)
	for kind, err := range errs {
		if !errors.Is(err, ErrInjected) || faulty.Calls(kind) != 1 {
			f.Errorf("%s: got %v after %d calls, want ErrInjected after 1", kind, err, faulty.Calls(kind))
		}
	}
	if err := f.Space.KeepAlive(f.ctx, n.lease); err != nil {
		f.Errorf("a revoke that was lost ended the lease: %v", err)
	}
	faulty.SetScript(Every(Delayed, Register))
	_, _ = faulty.Register(f.ctx, 0, time.Minute, lease.Registration{Instance: "late"})
	before := len(f.load().Nodes)
	faulty.Deliver()
	if after := len(f.load().Nodes); after != before+1 {
		f.Errorf("nodes after a late registration: got %d, want one more than %d", after, before)
	}
}

// testRace: eight nodes write one record at once. I4 depends on this.
func testRace(f *fixture) {
	const sid, racers = 4, 8
	var nodes [racers]node
	for i := range nodes {
		nodes[i] = f.node()
	}
	v := f.read(sid)
	for round := range 10 {
		op := lease.Reclaim
		if round == 0 {
			op = lease.Acquire
		}
		var txns [racers]lease.Txn
		for i, n := range nodes {
			txns[i] = f.txn(op, sid, n, v)
		}
		var won atomic.Int32
		var found [racers]lease.View
		var winner int
		var group sync.WaitGroup
		for i, txn := range txns {
			group.Go(func() {
				applied, now, err := f.Space.Commit(f.ctx, txn)
				if err != nil {
					f.Errorf("racer %d: %v", i, err)
				}
				if applied {
					won.Add(1)
					winner = i
				}
				found[i] = now
			})
		}
		group.Wait()
		if won.Load() != 1 {
			f.Fatalf("%v: %d of %d were applied, want 1", op, won.Load(), racers)
		}
		for i, now := range found {
			if got := now.SIDs[sid].Window.Value; got != txns[winner].Window {
				f.Errorf("%v: racer %d sees %+v, but %+v was written", op, i, got, txns[winner].Window)
			}
		}
		v = f.read(sid)
	}
}

// testWatch checks what a watch reports: that it was opened, each change whole and in
// order, nothing of windows, and the revision that it reached where nothing changes.
func testWatch(f *fixture) {
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	reports, ended := make(chan lease.Watched, 1000), make(chan error, 1)
	go func() {
		ended <- f.Space.Watch(ctx, 100*time.Millisecond, func(w lease.Watched) { reports <- w })
	}()
	next := func(what string) lease.Watched {
		f.Helper()
		select {
		case w := <-reports:
			return w
		case <-time.After(15 * time.Second):
			f.Fatalf("nothing was reported after %s", what)
		}
		panic("unreachable")
	}
	before := f.load()
	opened := next("the watch was opened")
	if !opened.Opened || len(opened.Changes) > 0 || opened.Revision > before.Revision {
		f.Fatalf("the first report is %+v, at revision %d", opened, before.Revision)
	}
	reached := opened.Revision
	expect := func(what string, want ...lease.Change) {
		f.Helper()
		w := lease.Watched{}
		for len(w.Changes) == 0 { // else it tells how far it is
			if w = next(what); w.Opened || w.Revision < reached {
				f.Fatalf("%s: reported %+v after revision %d", what, w, reached)
			}
			reached = w.Revision
		}
		for i := range want {
			want[i].Revision = reached
		}
		if !reflect.DeepEqual(w.Changes, want) {
			f.Errorf("%s: reported %+v, want %+v", what, w.Changes, want)
		}
	}

	a := f.node()
	registered := f.load().Nodes[0]
	expect("a node was registered", lease.Change{
		Key:      lease.ChangedNode,
		Instance: registered.Instance,
		Node:     registered,
	})
	v := f.apply(f.txn(lease.Acquire, 2, a, f.read(2)))
	expect("a holder was put", lease.Change{Key: lease.ChangedHolder, SID: 2, Holder: v.SIDs[2].Holder})
	v = f.apply(f.txn(lease.Extend, 2, a, f.read(2)))
	f.Put("era", v.Era.Raw)
	expect("a window was extended, and era was put", lease.Change{})
	f.Compact()
	f.Put("config", v.Config.Raw)
	expect("config was put, history compacted", lease.Change{})
	f.accept(f.load(), "x1", 1)
	expect("a time was accepted", lease.Change{})
	f.apply(f.txn(lease.Release, 2, a, f.read(2)))
	expect("a sid was released", lease.Change{Key: lease.ChangedHolder, SID: 2})
	f.apply(f.txn(lease.Acquire, 2, a, f.read(2)))
	now := f.read(2)
	expect("a holder was put again", lease.Change{Key: lease.ChangedHolder, SID: 2, Holder: now.SIDs[2].Holder})
	f.Expire(a.lease)
	expect("a lease ended", lease.Change{Key: lease.ChangedHolder, SID: 2},
		lease.Change{Key: lease.ChangedNode, Instance: registered.Instance})
	if v = f.load(); reached != v.Revision {
		f.Errorf("the watch has reached revision %d of %d", reached, v.Revision)
	}
	f.Put("window/9", "x")
	for reached < v.Revision+1 {
		w := next("a write that no watch reports")
		if w.Opened || len(w.Changes) > 0 {
			f.Errorf("reported %+v for a window", w)
		}
		reached = w.Revision
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		f.Errorf("watch ended with %v", err)
	}
}

// testCancelled makes every call with a context that has ended.
func testCancelled(f *fixture) {
	n := f.node()
	v := f.apply(f.txn(lease.Acquire, 1, n, f.read(1)))
	before := f.load()
	over, cancel := context.WithCancel(f.ctx)
	cancel()
	errs := map[string]error{}
	_, errs["load"] = f.Space.Load(over)
	_, errs["read"] = f.Space.Read(over, 1)
	_, _, errs["commit"] = f.Space.Commit(over, f.txn(lease.Extend, 1, n, v))
	_, errs["register"] = f.Space.Register(over, 0, time.Minute, lease.Registration{Instance: "x"})
	errs["keep alive"] = f.Space.KeepAlive(over, n.lease)
	errs["revoke"] = f.Space.Revoke(over, n.lease)
	errs["watch"] = f.Space.Watch(over, time.Second, func(w lease.Watched) { f.Errorf("%+v was reported", w) })
	_, _, errs["init"] = f.Space.Init(over, ours, floor)
	_, _, errs["holder"] = f.Space.Holder(over, 1, floor)
	for call, err := range errs {
		if !errors.Is(err, context.Canceled) {
			f.Errorf("%s: got %v, want context.Canceled", call, err)
		}
	}
	f.sameView("space after cancelled calls", f.load(), before)
	if err := f.Space.KeepAlive(f.ctx, n.lease); err != nil {
		f.Errorf("lease after a cancelled revoke: %v", err)
	}
}
