package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Space is a Store with the calls of init, decode and accept-time.
type Space interface {
	Store
	Init(context.Context, lease.Space, clock.Millis, ...lease.Reservation) (bool, lease.View, error)
	Holder(context.Context, flake.SID, clock.Millis) (lease.LedgerLine, bool, error)
	AcceptTime(context.Context, lease.View, lease.AcceptedTime, ...lease.Act) error
	StartRegister(context.Context, lease.LeaseID, time.Duration, lease.Registration) (
		lease.LeaseID, func(context.Context) error, error)
}

// Harness is a Space that was never initialized, and functions that edit its
// records directly.
type Harness struct {
	Space   Space
	Put     func(key, raw string) // on no lease
	Delete  func(key string)
	Expire  func(lease.LeaseID)
	Compact func() // drop history
}

// Contract tests a Store against the documentation of keeper.Store, lease.Op and
// lease.View. fresh returns a new harness each time.
func Contract(t *testing.T, fresh func(*testing.T) Harness) {
	for _, tc := range []struct {
		name string
		run  func(*fixture)
		bare bool // leave the space uninitialized
	}{
		{"uninitialized", testUninitialized, true},
		{"init", testInit, true},
		{"init refuses remains", testInitRemains, true},
		{"init reserves", testInitReserves, true},
		{"life of a sid", testLife, false},
		{"compares", testCompares, false},
		{"refused transactions", testRefusedTxns, false},
		{"sent twice", testSentTwice, false},
		{"ledger", testLedger, false},
		{"leases", testLeases, false},
		{"registrations", testRegistrations, false},
		{"worker", testWorker, false},
		{"unreadable records", testUnreadable, false},
		{"strays", testStrays, false},
		{"accepted time", testAcceptedTime, false},
		{"mark", testMark, false},
		{"watch", testWatch, false},
		{"cancelled calls", testCancelled, false},
		{"lost and late calls", testFaults, false},
		{"expire", testExpire, false},
		{"race", testRace, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // etcd on a busy machine is slow
			defer cancel()
			f := &fixture{T: t, ctx: ctx, Harness: fresh(t)}
			if !tc.bare {
				f.init()
			}
			tc.run(f)
		})
	}
}

// ours is the fingerprint of the spaces tested, and floor their era's.
var ours = lease.Space{Layout: flake.Scalable, Epoch: 1_704_067_200_000, Pool: "0c9e0b8e-63a5-4f3b-8d2c-5a4c1b2f7e10"}

const floor clock.Millis = 1_800_000_000_000

// fixture is a harness with the test that it serves. Its methods fail the test.
type fixture struct {
	*testing.T
	ctx context.Context
	Harness
	attempts int // numbers nonces
	nodes    int // numbers instances
}

func (f *fixture) init() {
	f.Helper()
	created, _, err := f.Space.Init(f.ctx, ours, floor)
	if err != nil || !created {
		f.Fatalf("init of a new space: got %v, %v, want it created", created, err)
	}
}

// node is a process under a lease.
type node struct {
	lease.Holder
	lease lease.LeaseID
}

func (f *fixture) node() node {
	f.Helper()
	f.nodes++
	n := node{Holder: lease.Holder{
		Instance: lease.Instance(fmt.Sprintf("instance-%d", f.nodes)),
		Node:     fmt.Sprintf("node-%d", f.nodes),
	}}
	var err error
	n.lease, err = f.Space.Register(f.ctx, 0, time.Minute,
		lease.Registration{Instance: n.Instance, Node: n.Node, Version: "v1"})
	if err != nil || n.lease == 0 {
		f.Fatalf("register: got lease %d, %v", n.lease, err)
	}
	return n
}

func (f *fixture) read(sid flake.SID) lease.View {
	f.Helper()
	v, err := f.Space.Read(f.ctx, sid)
	if err != nil {
		f.Fatalf("read sid %d: %v", sid, err)
	}
	return v
}

func (f *fixture) load() lease.View {
	f.Helper()
	v, err := f.Space.Load(f.ctx)
	if err != nil {
		f.Fatalf("load: %v", err)
	}
	return v
}

// txn returns the transaction that n would send for op on sid, given v.
func (f *fixture) txn(op lease.Op, sid flake.SID, n node, v lease.View) lease.Txn {
	f.attempts++
	was := v.SIDs[sid].Window.Value
	w := lease.Window{
		Era: 1, Term: was.Term, Instance: n.Instance, Node: n.Node,
		Nonce: fmt.Sprintf("nonce-%d", f.attempts),
		Base:  max(was.Ceil, floor), State: lease.Active, Wall: floor,
	}
	w.Ceil = w.Base + 1000
	switch op {
	case lease.Acquire, lease.Reclaim:
		w.Term++
	case lease.Release:
		w.Base, w.Ceil, w.State = was.Base, was.Base+1, lease.Released
	}
	return lease.Txn{
		Op: op, SID: sid, Seen: v.SIDs[sid], Config: v.Config, Era: v.Era, Mark: v.Mark,
		Lease: n.lease, Holder: n.Holder, Window: w,
	}
}

// apply commits txn, which must be applied, and checks the whole answer.
func (f *fixture) apply(txn lease.Txn) lease.View {
	f.Helper()
	before := f.read(txn.SID)
	applied, now, err := f.Space.Commit(f.ctx, txn)
	if err != nil || !applied {
		f.Fatalf("%v sid %d: got %v, %v, want it applied\nseen  %+v\nfound %+v",
			txn.Op, txn.SID, applied, err, txn.Seen, now.SIDs[txn.SID])
	}
	f.sameView("view after the "+txn.Op.String(), now, f.read(txn.SID))
	got := now.SIDs[txn.SID]
	if got.Window.Raw != lease.Encode(txn.Window) || got.Window.Value != txn.Window || got.Window.Err != nil {
		f.Errorf("%v: window is %+v, want %+v", txn.Op, got.Window, txn.Window)
	}
	if got.Window.Rev != now.Revision || now.Revision <= before.Revision {
		f.Errorf("%v: window at revision %d of %d, and %d before",
			txn.Op, got.Window.Rev, now.Revision, before.Revision)
	}
	if got.Window.Lease != 0 {
		f.Errorf("%v: window is on lease %d, and would go with it", txn.Op, got.Window.Lease)
	}
	switch h := got.Holder; txn.Op {
	case lease.Release:
		if h.Exists() {
			f.Errorf("release left holder %+v", h)
		}
	case lease.Extend:
		if was := before.SIDs[txn.SID].Holder; !h.Same(was) || h.Lease != was.Lease {
			f.Errorf("extend changed holder %+v to %+v", was, h)
		}
	default:
		if h.Value != txn.Holder || h.Lease != txn.Lease || h.Rev != now.Revision || h.Err != nil {
			f.Errorf("%v: holder is %+v, want %+v on lease %d", txn.Op, h, txn.Holder, txn.Lease)
		}
	}
	if !got.Past {
		f.Errorf("%v: sid has no past", txn.Op)
	}
	return now
}

// refuse commits txn, which must not be applied, and returns what was found.
func (f *fixture) refuse(txn lease.Txn, why string) lease.View {
	f.Helper()
	before := f.read(txn.SID)
	applied, found, err := f.Space.Commit(f.ctx, txn)
	if err != nil || applied {
		f.Fatalf("%v with %s: got %v, %v, want it not applied", txn.Op, why, applied, err)
	}
	f.sameView(fmt.Sprintf("view of a %v refused for %s", txn.Op, why), found, before)
	f.sameView(fmt.Sprintf("records after a %v refused for %s", txn.Op, why), f.read(txn.SID), before)
	return found
}

// sameView compares views except their revision, which writes in other spaces change too.
func (f *fixture) sameView(what string, got, want lease.View) {
	f.Helper()
	got.Revision, want.Revision = 0, 0
	if !sameRecords(got, want) {
		f.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// sameRecords compares views, their errors by text.
func sameRecords(a, b lease.View) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

func testUninitialized(f *fixture) {
	f.node()
	for name, v := range map[string]lease.View{"load": f.load(), "read": f.read(7)} {
		if v.Config.Exists() || v.Era.Exists() || v.Config.Err != nil || v.Era.Err != nil {
			f.Errorf("%s: got config %+v and era %+v, want them absent", name, v.Config, v.Era)
		}
		if v.Cluster == 0 || v.Revision == 0 {
			f.Errorf("%s: got cluster %x at revision %d, want both known", name, v.Cluster, v.Revision)
		}
	}
	if v := f.load(); len(v.SIDs) != 0 || len(v.Nodes) != 1 {
		f.Errorf("load: got sids %v and nodes %v, want no sid and the node registered", v.SIDs, v.Nodes)
	}
	v := f.read(7)
	if s, ok := v.SIDs[7]; !ok || len(v.SIDs) != 1 || s.Holder.Exists() || s.Window.Exists() || s.Past {
		f.Errorf("read: got %+v, want sid 7 alone, absent", v.SIDs)
	}
}

func testInit(f *fixture) {
	var created sync.Map
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			mine := ours
			mine.Pool = fmt.Sprintf("pool-%d", i)
			ok, v, err := f.Space.Init(f.ctx, mine, floor+clock.Millis(i))
			if err != nil || !v.Config.Exists() || !v.Era.Exists() {
				f.Errorf("init %d: got %+v, %v", i, v, err)
			}
			if ok {
				created.Store(i, v)
			}
		})
	}
	group.Wait()
	winners, now := 0, f.load()
	created.Range(func(i, v any) bool {
		winners++
		n := i.(int)
		if now.Config.Value.Pool != fmt.Sprintf("pool-%d", n) || now.Era.Value.Floor != floor+clock.Millis(n) {
			f.Errorf("init %d reports that it created the space, but config is %+v and era %+v",
				n, now.Config.Value, now.Era.Value)
		}
		f.sameView("view of the init that made the space", v.(lease.View), now)
		return true
	})
	if winners != 1 {
		f.Errorf("%d of 8 inits made the space, want 1", winners)
	}
	if e := now.Era.Value; e.Number != 1 || e.Cluster != now.Cluster {
		f.Errorf("era is %+v on cluster %x", e, now.Cluster)
	}
	if now.Config.Value.Layout != ours.Layout || now.Config.Value.Epoch != ours.Epoch {
		f.Errorf("config is %+v, want %+v", now.Config.Value, ours)
	}
}

func testInitReserves(f *fixture) {
	wide := ours
	wide.Layout = flake.Fleet
	var reserved []lease.Reservation
	for sid := range flake.SID(lease.MaxSIDs) {
		reserved = append(reserved, lease.Reservation{SID: sid, Window: lease.Window{
			Era: 1, Term: 1, Instance: "op", Node: "operator", Nonce: fmt.Sprint("op-", sid), Base: floor, Ceil: floor,
			State: lease.Reserved, Reason: strings.Repeat("r", lease.MaxReason),
		}})
	}
	created, v, err := f.Space.Init(f.ctx, wide, floor, reserved...)
	if err != nil || !created || len(v.SIDs) != lease.MaxSIDs {
		f.Fatalf("init: %v with %d sids, %v", created, len(v.SIDs), err)
	}
	f.sameView("view of the init", v, f.load())
	for _, r := range reserved {
		got := f.read(r.SID).SIDs[r.SID]
		if got.Window.Value != r.Window || got.Window.Lease != 0 || !got.Past || got.Holder.Exists() {
			f.Fatalf("sid %d: %+v, want %+v and a line of the ledger", r.SID, got, r.Window)
		}
	}
}

func testInitRemains(f *fixture) {
	for _, key := range []string{"era", "window/3", "ledger/3/00000000000000000001"} {
		f.Put(key, "a1 whatever was left")
		created, v, err := f.Space.Init(f.ctx, ours, floor)
		if err == nil || created || v.Config.Exists() || f.load().Config.Exists() {
			f.Errorf("init beside %s: got %v, %+v, %v, want an error and nothing made", key, created, v.Config, err)
		}
		f.Delete(key)
	}
	f.init()
}

func testLife(f *fixture) {
	a, b := f.node(), f.node()
	const sid = 7
	v := f.apply(f.txn(lease.Acquire, sid, a, f.read(sid)))
	all := f.load()
	if got := all.SIDs[sid]; len(all.SIDs) != 1 || !got.Window.Same(v.SIDs[sid].Window) ||
		!got.Holder.Same(v.SIDs[sid].Holder) {
		f.Errorf("load has %+v, read %+v", all.SIDs, v.SIDs)
	}
	v = f.apply(f.txn(lease.Extend, sid, a, v))
	v = f.apply(f.txn(lease.Extend, sid, a, v))

	f.Expire(a.lease) // holder and registration are deleted with it, the window stays
	gone := f.read(sid).SIDs[sid]
	if gone.Holder.Exists() || !gone.Window.Same(v.SIDs[sid].Window) || !gone.Past {
		f.Errorf("after the lease ended: got %+v, want the window alone", gone)
	}
	again, err := f.Space.Register(f.ctx, 0, time.Minute, lease.Registration{Instance: a.Instance, Node: a.Node})
	fatal.If(f, err)
	a.lease = again
	v = f.apply(f.txn(lease.Rehold, sid, a, f.read(sid)))
	if term := v.SIDs[sid].Window.Value.Term; term != 1 {
		f.Errorf("rehold is of term %d, want 1", term)
	}
	v = f.apply(f.txn(lease.Extend, sid, a, v))
	v = f.apply(f.txn(lease.Reclaim, sid, b, v))
	f.refuse(f.txn(lease.Extend, sid, a, v), "the sid reclaimed by another")
	v = f.apply(f.txn(lease.Release, sid, b, v))
	v = f.apply(f.txn(lease.Acquire, sid, a, v))
	if term := v.SIDs[sid].Window.Value.Term; term != 3 {
		f.Errorf("term after acquire, reclaim and acquire: got %d, want 3", term)
	}

	nodes := f.registered()
	want := []lease.Registration{
		{Instance: a.Instance, Node: a.Node},
		{Instance: b.Instance, Node: b.Node, Version: "v1"},
	}
	if !reflect.DeepEqual(nodes, want) {
		f.Errorf("nodes: got %+v, want %+v", nodes, want)
	}
}

// registered returns who is registered, without the revisions of their records, which
// must be there.
func (f *fixture) registered() []lease.Registration {
	f.Helper()
	nodes := f.load().Nodes
	for i := range nodes {
		if nodes[i].Rev <= 0 {
			f.Errorf("registration of %s has revision %d", nodes[i].Instance, nodes[i].Rev)
		}
		nodes[i].Rev = 0
	}
	return nodes
}

func testRefusedTxns(f *fixture) {
	n := f.node()
	v := f.apply(f.txn(lease.Acquire, 1, n, f.read(1)))
	for _, op := range []lease.Op{lease.Acquire, lease.Reclaim, lease.Extend, lease.Rehold} {
		sid := flake.SID(2) // free
		if op == lease.Extend || op == lease.Reclaim {
			sid = 1
		}
		txn := f.txn(op, sid, n, f.read(sid))
		txn.Lease = 0
		if applied, _, err := f.Space.Commit(f.ctx, txn); applied || !errors.Is(err, lease.ErrTxn) {
			f.Errorf("%v without a lease: got %v, %v, want ErrTxn", op, applied, err)
		}
	}
	txn := f.txn(lease.Extend, 1, n, v)
	txn.Op = lease.Expire + 1
	if applied, _, err := f.Space.Commit(f.ctx, txn); applied || !errors.Is(err, lease.ErrTxn) {
		f.Errorf("unknown operation: got %v, %v, want ErrTxn", applied, err)
	}
	f.sameView("records after refused transactions", f.read(1), v)
	if f.read(2).SIDs[2].Window.Exists() {
		f.Error("a refused transaction wrote a window")
	}
}

// A client may send one request twice. The second time its own write fails the compare.
func testSentTwice(f *fixture) {
	n := f.node()
	v := f.read(1)
	for _, op := range []lease.Op{lease.Acquire, lease.Extend, lease.Release} {
		txn := f.txn(op, 1, n, v)
		v = f.apply(txn)
		found := f.refuse(txn, "its own write")
		if got := found.SIDs[1].Window.Value.Nonce; got != txn.Window.Nonce {
			f.Errorf("%v sent twice: found nonce %s, want its own, %s", op, got, txn.Window.Nonce)
		}
	}
}

func testLedger(f *fixture) {
	const sid, terms = 3, lease.LedgerKept + 6
	since := map[int64]clock.Millis{}
	v := f.read(sid)
	for term := int64(1); term <= terms; term++ {
		n := node{lease.Holder{Instance: lease.Instance(fmt.Sprintf("i%d", term)), Node: "n"}, 0}
		op := lease.Reclaim
		if term == 1 {
			op = lease.Acquire
		}
		n.lease = f.node().lease
		txn := f.txn(op, sid, n, v)
		since[term] = txn.Window.Base
		_, after, err := f.Space.Commit(f.ctx, txn)
		fatal.If(f, err)
		v = after
	}
	oldest := int64(terms - lease.LedgerKept + 1)
	for _, tc := range []struct {
		at   clock.Millis
		term int64 // 0: unknown
	}{
		{since[terms] + 1_000_000, terms},
		{since[terms], terms},
		{since[terms] - 1, terms - 1},
		{since[terms/2] + 1, terms / 2},
		{since[oldest], oldest},
		{since[oldest] - 1, 0},
		{0, 0},
	} {
		got, ok, err := f.Space.Holder(f.ctx, sid, tc.at)
		if err != nil || ok != (tc.term != 0) || got.Term != tc.term {
			f.Errorf("holder at %d: got %+v, %v, %v, want term %d", tc.at, got, ok, err, tc.term)
		}
		if ok && (got.Since != since[got.Term] || got.Instance != lease.Instance(fmt.Sprintf("i%d", got.Term)) ||
			got.Node != "n" || got.Era != 1) {
			f.Errorf("holder at %d: got %+v, want that of term %d", tc.at, got, tc.term)
		}
	}
	if got, ok, err := f.Space.Holder(f.ctx, 30, floor); ok || err != nil {
		f.Errorf("holder of a sid never used: got %+v, %v, %v", got, ok, err)
	}
	f.Put(fmt.Sprintf("ledger/%d/%020d", sid, terms), "a1 00000000 {}")
	if got, ok, err := f.Space.Holder(f.ctx, sid, since[terms]); ok || !errors.Is(err, lease.ErrChecksum) {
		f.Errorf("holder from an unreadable line: got %+v, %v, %v, want ErrChecksum", got, ok, err)
	}
}

func testLeases(f *fixture) {
	a, b := f.node(), f.node()
	v := f.apply(f.txn(lease.Acquire, 1, a, f.read(1)))
	if err := f.Space.KeepAlive(f.ctx, a.lease); err != nil {
		f.Errorf("keep alive: %v", err)
	}
	for range 2 {
		if err := f.Space.Revoke(f.ctx, a.lease); err != nil {
			f.Errorf("revoke: %v", err)
		}
	}
	if err := f.Space.KeepAlive(f.ctx, a.lease); !errors.Is(err, lease.ErrLeaseGone) {
		f.Errorf("keep alive of a lease that is gone: got %v, want ErrLeaseGone", err)
	}
	all := f.load()
	if got := all.SIDs[1]; got.Holder.Exists() || !got.Window.Same(v.SIDs[1].Window) {
		f.Errorf("after revoke: got %+v, want the window alone", got)
	}
	if len(all.Nodes) != 1 || all.Nodes[0].Instance != b.Instance {
		f.Errorf("nodes after revoke: got %+v, want %s alone", all.Nodes, b.Instance)
	}
	if err := f.Space.KeepAlive(f.ctx, b.lease); err != nil {
		f.Errorf("keep alive of the other lease: %v", err)
	}
	v = f.read(1)
	for _, op := range []lease.Op{lease.Acquire, lease.Reclaim, lease.Rehold} {
		applied, _, err := f.Space.Commit(f.ctx, f.txn(op, 1, a, v))
		if applied || !errors.Is(err, lease.ErrLeaseGone) {
			f.Errorf("%v on a lease that is gone: got %v, %v, want ErrLeaseGone", op, applied, err)
		}
		f.sameView("records after "+op.String()+" on a lease that is gone", f.read(1), v)
	}
}

// testWorker: a holder on a lease of its own, which has no registration.
func testWorker(f *fixture) {
	id, err := f.Space.Grant(f.ctx, time.Minute)
	if err != nil || id == 0 {
		f.Fatalf("grant: %v, %v", id, err)
	}
	if again, err := f.Space.Grant(f.ctx, time.Minute); err != nil || again == id {
		f.Fatalf("second grant: %v after %v, %v", again, id, err)
	}
	if err := f.Space.KeepAlive(f.ctx, id); err != nil {
		f.Errorf("keep alive: %v", err)
	}
	w := node{Holder: lease.Holder{Instance: "secret's hash", Node: "import-1", Worker: true, Owner: "shop"}, lease: id}
	txn := f.txn(lease.Acquire, 1, w, f.read(1))
	txn.Window.Worker, txn.Window.Owner, txn.Window.Since = true, "shop", txn.Window.Base
	v := f.apply(txn)
	if got := v.SIDs[1]; got.Holder.Value != w.Holder || got.Holder.Lease != id || got.Window.Value != txn.Window {
		f.Errorf("acquired: %+v", got)
	}
	if got := f.load(); len(got.Nodes) != 0 {
		f.Errorf("a worker registered: %+v", got.Nodes)
	}
	line, ok, err := f.Space.Holder(f.ctx, 1, txn.Window.Base)
	if err != nil || !ok || !line.Worker || line.Node != "import-1" {
		f.Errorf("ledger: %+v, %v, %v", line, ok, err)
	}
	f.Expire(id)
	v = f.read(1)
	if v.SIDs[1].Holder.Exists() || v.SIDs[1].Window.Value != txn.Window {
		f.Errorf("after its lease: %+v", v.SIDs[1])
	}
}

func testRegistrations(f *fixture) {
	a := f.node()
	reg := lease.Registration{Instance: a.Instance, Node: a.Node, Version: "v1"}
	is := func(when string, want ...lease.Registration) {
		f.Helper()
		if got := f.registered(); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
			f.Errorf("%s: registered are %+v, want %+v", when, got, want)
		}
	}

	// On a lease that it has, a node is put back without losing what else is on it.
	v := f.apply(f.txn(lease.Acquire, 1, a, f.read(1)))
	f.Delete("node/" + string(a.Instance))
	is("after the key was deleted")
	if id, err := f.Space.Register(f.ctx, a.lease, time.Minute, reg); err != nil || id != a.lease {
		f.Errorf("register on lease %x: got %x, %v", int64(a.lease), int64(id), err)
	}
	is("on the same lease", reg)
	if got := f.read(1); !got.SIDs[1].Holder.Same(v.SIDs[1].Holder) {
		f.Errorf("the holder is %+v, was %+v", got.SIDs[1].Holder, v.SIDs[1].Holder)
	}

	// A request of an earlier call, which is late, moves the node to no other lease.
	old, err := f.Space.Register(f.ctx, 0, time.Minute, lease.Registration{Instance: "old", Node: a.Node})
	fatal.If(f, err)
	start := func() (late func(context.Context) error) {
		f.Helper()
		_, late, err := f.Space.StartRegister(f.ctx, old, 0, reg)
		fatal.If(f, err)
		return late
	}
	late := start()
	if _, err := f.Space.Register(f.ctx, a.lease, time.Minute, reg); err != nil {
		f.Error(err)
	}
	if err := late(f.ctx); err == nil || errors.Is(err, lease.ErrLeaseGone) {
		f.Errorf("a late registration over a newer one: got %v, want an error", err)
	}
	late = start()
	f.Expire(old)
	is("after the other lease ended", reg)

	// Nothing is put on a lease that is gone.
	if err := late(f.ctx); !errors.Is(err, lease.ErrLeaseGone) {
		f.Errorf("a late registration on a lease that is gone: got %v, want ErrLeaseGone", err)
	}
	f.Expire(a.lease)
	if _, err := f.Space.Register(f.ctx, a.lease, time.Minute, reg); !errors.Is(err, lease.ErrLeaseGone) {
		f.Errorf("register on a lease that is gone: got %v, want ErrLeaseGone", err)
	}
	is("after the lease ended")
}

func testUnreadable(f *fixture) {
	n := f.node()
	f.apply(f.txn(lease.Acquire, 5, n, f.read(5)))
	readable := map[string]string{}
	v := f.read(5)
	readable["config"], readable["era"] = v.Config.Raw, v.Era.Raw
	readable["holder/5"], readable["window/5"] = v.SIDs[5].Holder.Raw, v.SIDs[5].Window.Raw
	for key, good := range readable {
		for _, tc := range []struct {
			raw  string
			want error
		}{
			{"", lease.ErrVersion},
			{"junk", lease.ErrVersion},
			{"a2" + good[2:], lease.ErrVersion},
			{good[:len(good)-1] + "\xff", lease.ErrChecksum},
			{strings.Replace(good, "{", `{"x":1,`, 1), lease.ErrChecksum},
			{lease.Encode([]int{1}), lease.ErrMalformed},
			{lease.Encode(struct{}{}), lease.ErrMalformed},
		} {
			f.Put(key, tc.raw)
			for call, v := range map[string]lease.View{"load": f.load(), "read": f.read(5)} {
				var rev int64
				var raw string
				var err error
				var zero bool
				switch e := v; key {
				case "config":
					rev, raw, err, zero = e.Config.Rev, e.Config.Raw, e.Config.Err, e.Config.Value == lease.Space{}
				case "era":
					rev, raw, err, zero = e.Era.Rev, e.Era.Raw, e.Era.Err, e.Era.Value == lease.Era{}
				case "holder/5":
					h := e.SIDs[5].Holder
					rev, raw, err, zero = h.Rev, h.Raw, h.Err, h.Value == lease.Holder{}
				case "window/5":
					w := e.SIDs[5].Window
					rev, raw, err, zero = w.Rev, w.Raw, w.Err, w.Value == lease.Window{}
				}
				if rev == 0 || raw != tc.raw || !zero || !errors.Is(err, tc.want) {
					f.Errorf("%s of %s = %q: got revision %d, %q, %v, want %v",
						call, key, tc.raw, rev, raw, err, tc.want)
				}
			}
		}
		f.Put(key, good)
	}
	f.Put("node/"+string(n.Instance), "junk")
	want := []lease.Registration{{Instance: n.Instance}}
	if got := f.registered(); !reflect.DeepEqual(got, want) {
		f.Errorf("nodes with an unreadable record: got %+v, want %+v", got, want)
	}
}

func testStrays(f *fixture) {
	n := f.node()
	f.apply(f.txn(lease.Acquire, 0, n, f.read(0)))
	v := f.load()
	for _, key := range []string{
		"", "configs", "erase", "stray", "holder", "holder/", "holder/x", "holder/01", "holder/+1", "holder/-1",
		"holder/4194304", "holder/1/2", "window/", "window/007", "window/1x", "window", "node/", "nodes", "ledger/9",
	} {
		f.Put(key, v.SIDs[0].Window.Raw)
	}
	f.sameView("space with strays", f.load(), v)
	if f.read(9).SIDs[9].Past {
		f.Error("a stray beside the ledger gave sid 9 a past")
	}
	f.apply(f.txn(lease.Acquire, 9, n, f.read(9)))
}

// accept accepts a time that is over floor by the given number of hours.
func (f *fixture) accept(seen lease.View, nonce string, hours clock.Millis) lease.AcceptedTime {
	f.Helper()
	a := lease.AcceptedTime{Era: 1, Until: floor + hours*3_600_000, Nonce: nonce, By: "ann@ops-1", At: floor}
	if err := f.Space.AcceptTime(f.ctx, seen, a); err != nil {
		f.Fatalf("accept a time: %v", err)
	}
	if got := f.load().Accepted; got.Value != a || got.Raw != lease.Encode(a) || got.Err != nil || got.Lease != 0 {
		f.Fatalf("accepted time: got %+v, want %+v", got, a)
	}
	return a
}

// testAcceptedTime: of two commands that saw the same, one writes, and none that saw
// another era or config.
func testAcceptedTime(f *fixture) {
	before := f.load()
	if before.Accepted.Exists() {
		f.Fatalf("a new space has accepted %+v", before.Accepted)
	}
	first := f.accept(before, "x1", 1)
	late := lease.AcceptedTime{Era: 1, Until: first.Until + 1, Nonce: "x2", By: "bob@ops-2", At: floor}
	after := f.load()
	refuse := func(why string, seen lease.View) {
		f.Helper()
		if err := f.Space.AcceptTime(f.ctx, seen, late); err == nil {
			f.Errorf("%s: another time was accepted", why)
		}
		if got := f.load().Accepted; got.Value != first {
			f.Errorf("%s: got %+v, want %+v", why, got.Value, first)
		}
	}
	refuse("another acceptance was first", before)
	restored := after
	restored.Accepted.Raw = lease.Encode(late)
	refuse("the value differs at the same revision", restored)
	f.Put("era", lease.Encode(lease.Era{Number: 2, Floor: floor, Cluster: after.Cluster}))
	refuse("another era began", after)
	now := f.load()
	f.Put("config", now.Config.Raw)
	refuse("the config was written", now)
	f.accept(f.load(), "x3", 2)
	f.Put("accepted-time", "junk")
	if got := f.load().Accepted; got.Value != (lease.AcceptedTime{}) || !errors.Is(got.Err, lease.ErrVersion) {
		f.Errorf("an unreadable record: got %+v", got)
	}
}

// putMark puts a mark over the present one.
func (f *fixture) putMark(m lease.Mark) lease.MarkTxn {
	f.Helper()
	v := f.load()
	txn := lease.MarkTxn{Config: v.Config, Era: v.Era, Seen: v.Mark, Mark: m}
	f.attempts++
	txn.Mark.Nonce = fmt.Sprintf("m%d", f.attempts)
	applied, now, err := f.Space.PutMark(f.ctx, txn)
	if err != nil || !applied || now.Raw != lease.Encode(txn.Mark) || !now.Same(f.load().Mark) {
		f.Fatalf("put a mark: %v, %+v, %v", applied, now, err)
	}
	return txn
}

// testMark: of two raises that saw the same, one writes; none writes that saw another era or
// config; and whoever takes a holder's key in between has the raise fail, so that the mark
// never passes a window that it did not count. What an extension or a release does, it counted.
func testMark(f *fixture) {
	if f.load().Mark.Exists() {
		f.Fatal("a new space has a mark")
	}
	first := f.putMark(lease.Mark{Era: 1, At: floor})
	refused := func(why string, txn lease.MarkTxn) {
		f.Helper()
		before := f.load().Mark
		if applied, now, err := f.Space.PutMark(f.ctx, txn); err != nil || applied || !now.Same(before) {
			f.Errorf("%s: %v, %+v, %v, want it refused", why, applied, now, err)
		}
	}
	refused("another raise was first", first)
	next := func() lease.MarkTxn {
		v := f.load()
		return lease.MarkTxn{Config: v.Config, Era: v.Era, Seen: v.Mark, Mark: lease.Mark{Era: 1, At: floor + 1}}
	}
	other := next()
	other.Seen.Raw = lease.Encode(lease.Mark{At: floor + 7})
	refused("another value at the same revision", other)
	for i, c := range opCases {
		txn := c.ready(f, flake.SID(i))
		raise := next()
		f.apply(txn)
		if c.op.TakesHolder() {
			refused(c.name+" came in between", raise)
		} else if applied, _, err := f.Space.PutMark(f.ctx, raise); err != nil || !applied {
			f.Errorf("%s in between has the raise fail: %v, %v", c.name, applied, err)
		}
	}
	raise := next()
	f.Put("era", lease.Encode(lease.Era{Number: 2, Floor: floor, Cluster: f.load().Cluster}))
	refused("another era began", raise)
	raise = next()
	f.Put("config", raise.Config.Raw)
	refused("the config was written", raise)
	f.Put("mark", "junk")
	if got := f.load().Mark; got.Err == nil || got.Raw != "junk" {
		f.Errorf("an unreadable mark: got %+v", got)
	}
	refused("the mark is unreadable", raise)
}

// testExpire: a holder that wrote, was replaced, or is of another era does not lose its key, and one that does
// keeps its record.
func testExpire(f *fixture) {
	for sid, tc := range []struct {
		name    string
		between func(sid flake.SID, a node, v lease.View)
		applied bool
	}{
		{"nothing", func(flake.SID, node, lease.View) {}, true},
		{"an extension", func(sid flake.SID, a node, v lease.View) { f.apply(f.txn(lease.Extend, sid, a, v)) }, false},
		{"another holder", func(sid flake.SID, _ node, v lease.View) {
			f.apply(f.txn(lease.Reclaim, sid, f.node(), v))
		}, false},
		{"the same key again", func(sid flake.SID, _ node, v lease.View) {
			f.Put(keys.Holder(sid), v.SIDs[sid].Holder.Raw)
		}, false},
		{"the end of the lease", func(_ flake.SID, a node, _ lease.View) { f.Expire(a.lease) }, false},
		{"an era", func(_ flake.SID, _ node, v lease.View) { f.Put("era", v.Era.Raw) }, false},
	} {
		sid, a := flake.SID(sid), f.node()
		v := f.apply(f.txn(lease.Acquire, sid, a, f.read(sid)))
		txn := lease.Txn{Op: lease.Expire, SID: sid, Seen: v.SIDs[sid], Config: v.Config, Era: v.Era}
		tc.between(sid, a, v)
		before := f.read(sid).SIDs[sid]
		applied, now, err := f.Space.Commit(f.ctx, txn)
		if err != nil || applied != tc.applied || !now.SIDs[sid].Window.Same(before.Window) {
			f.Errorf("after %s: applied %v, %v, with the record %+v", tc.name, applied, err, now.SIDs[sid].Window)
		}
		if got := now.SIDs[sid].Holder; applied && got.Exists() || !applied && !got.Same(before.Holder) {
			f.Errorf("after %s: the holder is %+v", tc.name, got)
		}
		if applied { // The holder lives: it extends no more, and takes its key up again.
			f.refuse(f.txn(lease.Extend, sid, a, now), "the key deleted")
			f.apply(f.txn(lease.Rehold, sid, a, now))
		}
	}
}
