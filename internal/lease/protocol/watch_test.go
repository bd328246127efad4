package protocol_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/protocol"
)

// watched is a process of layout fleet that holds a sid and keeps its list by a watch.
type watched struct {
	*scenario
	*process
	reached int64
	live    bool
	others  int
}

const reloadEvery = 30 * time.Second

func newWatched(t *testing.T) *watched {
	t.Helper()
	r := rand.New(rand.NewPCG(7, 7))
	w := &watched{scenario: newScenario(t)}
	_, _, err := w.mem.Init(t.Context(), lease.Space{Layout: flake.Fleet, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}, 0)
	w.check(err)
	w.process = w.scenario.w.start("n1")
	cfg := w.scenario.w.config("n1", w.process.name, func(maximum time.Duration) time.Duration { return time.Duration(r.Int64N(int64(max(maximum, 1)))) })
	cfg.Format.Layout, cfg.ReloadEvery = flake.Fleet, reloadEvery
	w.machine = protocol.New(cfg)
	w.pass(time.Minute)
	if !w.machine.Status().Held {
		t.Fatalf("status %+v", w.machine.Status())
	}
	w.log = nil
	return w
}

// pass lets time pass. A watch that is live reports each second.
func (w *watched) pass(d time.Duration) {
	for ; w.live && d > time.Second; d -= time.Second {
		w.drive(time.Second, true, w.process)
		w.show()
	}
	w.drive(d, true, w.process)
}

// open opens the watch, and lets the list that follows be read.
func (w *watched) open() {
	w.reached, w.live = w.revision(), true
	w.step(lease.Watched{Opened: true, Revision: w.reached})
	w.pass(2 * time.Minute)
	w.log = nil
}

// show has the watch report what it has not reported.
func (w *watched) show() {
	changes, reached := w.mem.Changes(w.reached)
	w.reached = reached
	w.step(lease.Watched{Revision: reached, Changes: changes})
}

func (w *watched) revision() int64 {
	v, err := w.mem.Read(w.t.Context(), 0)
	w.check(err)
	return v.Revision
}

// other starts another node, which takes a sid, and returns its lease.
func (w *watched) other(sid flake.SID) (id lease.LeaseID, instance lease.Instance) {
	w.others++
	instance = lease.Instance(fmt.Sprintf("other-%03d", w.others))
	id, err := w.mem.Register(w.t.Context(), 0, 24*time.Hour, lease.Registration{Instance: instance, Node: string(instance), Gossip: "g"})
	w.check(err)
	w.write(sid, id, instance, lease.Acquire)
	return id, instance
}

func (w *watched) write(sid flake.SID, id lease.LeaseID, instance lease.Instance, op lease.Op) {
	v, err := w.mem.Read(w.t.Context(), sid)
	w.check(err)
	put := v.SIDs[sid].Window.Value
	put.Era, put.Instance, put.Node, put.Nonce, put.State = 1, instance, string(instance), fmt.Sprint("other", v.Revision), lease.Active
	if op == lease.Acquire {
		put.Term++
		put.Base = max(put.Ceil, w.scenario.w.clock.Now().Wall)
		put.Ceil = put.Base + 30_000
	}
	if op == lease.Release {
		put.State = lease.Released
	}
	applied, _, err := w.mem.Commit(w.t.Context(), lease.Txn{Op: op, SID: sid, Seen: v.SIDs[sid], Config: v.Config, Era: v.Era, Lease: id,
		Holder: lease.Holder{Instance: instance, Node: string(instance)}, Window: put})
	w.check(err)
	if !applied {
		w.t.Fatalf("%v of sid %d was not applied", op, sid)
	}
}

func (w *watched) lists() int {
	return len(slices.DeleteFunc(slices.Clone(w.log), func(l string) bool { return l != "load" }))
}

// current fails the test if the machine does not know who is registered and how many
// sids are held.
func (w *watched) current(what string) {
	w.t.Helper()
	v, err := w.mem.Load(w.t.Context())
	w.check(err)
	st := w.machine.Status()
	if !slices.Equal(st.Nodes, v.Nodes) {
		w.t.Errorf("%s: the list has %d nodes %+v, want %d: %+v", what, len(st.Nodes), st.Nodes, len(v.Nodes), v.Nodes)
	}
	held := 0
	for _, s := range v.SIDs {
		if s.Holder.Exists() {
			held++
		}
	}
	if st.Pool.Held != held {
		w.t.Errorf("%s: %d sids are held, the list has %d", what, held, st.Pool.Held)
	}
}

// TestKeptByTheWatch: while nodes come and go, a holder knows all of them from its
// watch and lists nothing.
func TestKeptByTheWatch(t *testing.T) {
	w := newWatched(t)
	w.open()
	for range 40 {
		id, instance := w.other(flake.SID(7))
		w.show()
		w.current("after a start")
		w.pass(2 * time.Second)
		w.write(7, id, instance, lease.Release)
		w.check(w.mem.Revoke(t.Context(), id))
		w.show()
		w.current("after a stop")
		w.pass(2 * time.Second)
	}
	if n := w.lists(); n > 0 {
		t.Errorf("%d lists while a watch reported all changes", n)
	}
	w.pass(2 * time.Hour)
	if n := w.lists(); n < 8 || n > 16 {
		t.Errorf("%d lists within two hours, want one in about 20 times ReloadEvery", n)
	}
}

// TestEndedLeaseWaitsForAList: a node that disappears with its lease stays in the list
// until that is read again, with the window that it left active.
func TestEndedLeaseWaitsForAList(t *testing.T) {
	w := newWatched(t)
	id, _ := w.other(7)
	w.open()
	w.mem.Expire(id)
	w.show()
	if n := len(w.machine.Status().Nodes); n != 2 {
		t.Errorf("%d nodes right after a lease ended, want 2 until the list is read", n)
	}
	w.pass(65 * time.Second) // over which layout fleet spreads its lists
	w.current("after a lease ended")
	if n := w.lists(); n != 1 {
		t.Errorf("%d lists, want one", n)
	}
}

// TestChangesBesideAList: a change that is reported while a list is on its way, and
// that the list is too old to have, is not lost.
func TestChangesBesideAList(t *testing.T) {
	for _, also := range []string{"", "and another after the list"} {
		t.Run(also, func(t *testing.T) {
			w := newWatched(t)
			w.open()
			w.scenario.w.fault = func(_ *process, a lease.Action) outcome {
				if _, ok := a.(lease.Load); ok {
					return notAnswered
				}
				return answered
			}
			w.mem.Put("era", mustRaw(w, "era"))
			w.show() // has the space listed
			w.pass(65 * time.Second)
			if len(w.pending) != 1 {
				t.Fatalf("pending are %v", w.pending)
			}
			w.scenario.w.fault = nil
			list := w.carryOut(w.pending[0], answered)
			w.pending = nil
			w.other(7)
			w.show()
			w.step(list)
			if also != "" {
				w.other(8)
				w.show()
			}
			w.current("after the list")
		})
	}
}

func mustRaw(w *watched, key string) string {
	raw, ok := w.mem.Raw(key)
	if !ok {
		w.t.Fatalf("no %s", key)
	}
	return raw
}

// TestWatchOpenedAgain: what changed while no watch was open is in the list that
// follows, and until then changes are not taken for all there are.
func TestWatchOpenedAgain(t *testing.T) {
	w := newWatched(t)
	w.open()
	w.other(7)
	w.reached = w.revision()
	w.step(lease.Watched{Opened: true, Revision: w.reached})
	w.pass(65 * time.Second)
	w.current("after the watch was opened again")
	if n := w.lists(); n != 1 {
		t.Errorf("%d lists, want one", n)
	}
	w.other(8)
	w.show()
	w.current("after a change")
	if n := w.lists(); n != 1 {
		t.Errorf("%d lists, want one", n)
	}
}

// TestSilentWatch: a watch that does not reach what the node's own extensions show is
// opened again, and the space is listed as often as without a watch.
func TestSilentWatch(t *testing.T) {
	w := newWatched(t)
	w.open()
	w.show()
	w.live = false
	w.other(7) // nothing reports this
	for range 5 {
		w.pass(5 * time.Second)
		w.step(lease.Watched{Revision: w.reached}) // it answers, from a member that is cut off
	}
	if slices.Contains(w.log, "REWATCH") {
		t.Errorf("opened again after 25 s: %v", w.log)
	}
	w.pass(10 * time.Second)
	if n := len(slices.DeleteFunc(slices.Clone(w.log), func(l string) bool { return l != "REWATCH" })); n != 1 {
		t.Errorf("opened again %d times within 35 s, want once: %v", n, w.log)
	}
	w.step(lease.Watched{Revision: w.revision()}) // of the watch that was given up
	w.pass(65 * time.Second)
	w.current("after the watch was given up")
	for range 10 {
		w.pass(time.Minute)
	}
	if n := w.lists(); n < 10 {
		t.Errorf("%d lists in 11 minutes without a watch", n)
	}
}

// TestIdleWatch: progress alone keeps a watch.
func TestIdleWatch(t *testing.T) {
	w := newWatched(t)
	w.open()
	w.live = false
	for range 6 * 3 {
		w.pass(10 * time.Second)
		w.show()
	}
	if w.lists() > 0 || slices.Contains(w.log, "REWATCH") {
		t.Errorf("3 minutes with progress each 10 s: %v", w.log)
	}
}

// TestWatchAndOwnKeys: when its own registration is deleted the node registers again,
// and a sid that a late write acquired for it is given back, both at once.
func TestWatchAndOwnKeys(t *testing.T) {
	w := newWatched(t)
	w.open()
	w.mem.Delete("node/" + w.process.name)
	w.show()
	w.pass(100 * time.Millisecond)
	w.show()
	w.current("after the own registration was deleted")
	w.log = nil
	w.write(7, w.machine.Status().Lease, lease.Instance(w.process.name), lease.Acquire)
	w.show()
	w.pass(100 * time.Millisecond)
	if !slices.ContainsFunc(w.log, func(l string) bool { return strings.HasPrefix(l, "release sid=7") }) {
		t.Errorf("sid 7 is not given back: %v", w.log)
	}
	w.show()
	w.current("after a stray sid")
}

// TestTooManyChanges: the changes reported beside one list are bounded.
func TestTooManyChanges(t *testing.T) {
	w := newWatched(t)
	w.open()
	w.scenario.w.fault = func(_ *process, a lease.Action) outcome {
		if _, ok := a.(lease.Load); ok {
			return notAnswered
		}
		return answered
	}
	w.mem.Put("era", mustRaw(w, "era"))
	w.show()
	w.pass(65 * time.Second)
	w.scenario.w.fault = nil
	list := w.carryOut(w.pending[0], answered)
	w.pending = nil
	w.other(7)
	w.show()
	many := make([]lease.Change, 5000)
	for i := range many {
		many[i] = lease.Change{Revision: w.reached, Key: lease.ChangedNode, Instance: "none"}
	}
	w.step(lease.Watched{Revision: w.reached, Changes: many})
	w.step(list)
	w.step(lease.Watched{Revision: w.reached, Changes: many[:1]})
	w.pass(65 * time.Second)
	w.current("after a list that the changes since could not be kept for")
}
