package status

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// TestUse: each sid counts once, those for workers do not count as free, and the sum is the
// size of the space.
func TestUse(t *testing.T) {
	now := int64(1000)
	c := Cluster{PoolSize: 32, WorkerSIDs: "16-31", Self: Self{Now: now}, SIDs: []SID{
		{SID: 0, State: Held, Ceil: now + 9},
		{SID: 1, State: Held, Ceil: now - 1}, // Its window has ended, and it is held.
		{SID: 2, State: Waiting, Ceil: now + 1},
		{SID: 3, State: Waiting, Ceil: now}, // It can be used now.
		{SID: 4, State: Free},
		{SID: 5, State: Quarantined},
		{SID: 6, State: Reserved},
		{SID: 7, State: Held, Worker: true},
		{SID: 16, State: Held, Worker: true},
		{SID: 17, State: Waiting, Worker: true, Ceil: now + 1},
		{SID: 18, State: Free, Worker: true},
		{SID: 19, State: Quarantined, Worker: true},
		{SID: 20, State: Held}, // A node took it before the range was set aside.
	}}
	want := SIDUse{Nodes: 3, Workers: 15, Waiting: 1, Quarantined: 2, Reserved: 1, Free: 10}
	if got := c.Use(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	c.WorkerSIDs = ""
	want = SIDUse{Nodes: 3, Workers: 2, Waiting: 2, Quarantined: 2, Reserved: 1, Free: 22}
	if got := c.Use(); got != want {
		t.Errorf("without a range: %+v, want %+v", got, want)
	}
}

// TestTotal: rates and refusals are added, and latencies are those of the slowest node.
func TestTotal(t *testing.T) {
	c := Cluster{Nodes: []Node{
		{Report: &Report{Rate: 10, Work: Work{P50: 5, P99: 70, Write: 1, Refused: map[string]int64{"NO_SID": 2}}}},
		{},
		{Report: &Report{Rate: 5, Work: Work{P50: 6, P99: 60, Write: 9, Refused: map[string]int64{"NO_SID": 1, "CLOCK_SKEW": 4}}}},
	}}
	got := c.Total()
	if got.Rate != 15 || got.Work.P50 != 6 || got.Work.P99 != 70 || got.Work.Write != 9 ||
		!maps.Equal(got.Work.Refused, map[string]int64{"NO_SID": 3, "CLOCK_SKEW": 4}) {
		t.Errorf("%+v", got)
	}
}

// nobody is a directory that must not be read.
type nobody struct{ t *testing.T }

func (n nobody) Load(context.Context) (lease.View, error) {
	n.t.Error("etcd was read")
	return lease.View{}, nil
}

func (n nobody) Holder(context.Context, flake.SID, clock.Millis) (lease.LedgerLine, bool, error) {
	n.t.Error("the ledger was read")
	return lease.LedgerLine{}, false, nil
}

// TestGlance: a glance knows the nodes that were last listed, with sids and reports as old as
// it is told to take, and asks nobody.
func TestGlance(t *testing.T) {
	n := node.New(node.Config{Name: "a", Instance: "a-1"}, clocktest.NewManual(1_795_000_000_000), rand.NewPCG(1, 2))
	n.Report(lease.Status{
		Nodes:   []lease.Registration{{Instance: "a-1", Node: "a"}, {Instance: "b-1", Node: "b"}, {Instance: "c-1", Node: "c"}},
		Holders: []lease.Held{{SID: 7, Instance: "b-1", Node: "b"}},
	})
	r := New(Config{Node: n, Directory: nobody{t}, Space: "test", Logger: slog.New(slog.DiscardHandler),
		Members: func(context.Context) Etcd { t.Error("etcd was asked"); return Etcd{} },
		Clocks: func() clock.Report {
			return clock.Report{Peers: []clock.PeerReport{{Name: "b", Instance: "b-1", SID: 7}, {Name: "d", Instance: "d-1", SID: -1}, {Name: "c", Instance: "c-1", SID: 9, Term: 4}}}
		},
		Reports: func(look bool) map[string]Heard {
			if look {
				t.Error("nodes are asked from now on")
			}
			return map[string]Heard{
				"b-1": {Report: &Report{Rate: 5, Ceil: 1_795_000_009_000, Age: 20_000}},
				"c-1": {Report: &Report{Rate: 6, Age: 20_001}},
			}
		}})
	got := r.Glance(20 * time.Second)
	if len(got.Nodes) != 3 || got.Nodes[1].SID != 7 || got.Nodes[1].State != Serving || got.Nodes[1].Report.Rate != 5 {
		t.Errorf("%+v", got.Nodes)
	}
	if got.Nodes[2].Report != nil || got.Nodes[2].State != Unknown {
		t.Errorf("an older report counts: %+v", got.Nodes[2])
	}
	if len(got.SIDs) != 2 || got.SIDs[1] != (SID{SID: 9, State: Held, Term: 4, Node: "c", Instance: "c-1"}) {
		t.Errorf("what nodes report to hold: %+v", got.SIDs)
	}
}

// TestClusterAsksMembers: the first answer about the cluster has what etcd's members say.
func TestClusterAsksMembers(t *testing.T) {
	src := clocktest.NewManual(1_795_000_000_000)
	asked := make(chan struct{})
	r := New(Config{Node: node.New(node.Config{Name: "a", Instance: "a-1"}, src, rand.NewPCG(1, 2)), Directory: empty{}, Space: "test",
		Members: func(context.Context) Etcd { <-asked; return Etcd{Endpoints: 3, Answer: 3} }})
	time.AfterFunc(10*time.Millisecond, func() { close(asked) })
	if c, err := r.Cluster(t.Context()); err != nil || c.Etcd == nil || c.Etcd.Answer != 3 {
		t.Errorf("%+v, %v", c.Etcd, err)
	}
}

// TestEnd: End ends the reads of etcd that go on without their callers, waits for them, and lets none begin.
func TestEnd(t *testing.T) {
	src := clocktest.NewManual(1_795_000_000_000)
	began := make(chan struct{}, 2)
	var ended atomic.Int64
	wait := func(ctx context.Context) {
		began <- struct{}{}
		<-ctx.Done()
		ended.Add(1)
	}
	r := New(Config{Node: node.New(node.Config{Name: "a", Instance: "a-1"}, src, rand.NewPCG(1, 2)), Directory: waiting(wait), Space: "test",
		Members: func(ctx context.Context) Etcd { wait(ctx); return Etcd{} }})
	r.Snapshot(t.Context())
	<-began
	<-began
	r.End()
	if n := ended.Load(); n != 2 {
		t.Errorf("%d reads have ended, want 2", n)
	}
	src.Advance(time.Minute)
	r.Snapshot(t.Context())
	if len(began) > 0 {
		t.Error("a read began")
	}
}

// waiting is a directory whose reads wait.
type waiting func(context.Context)

func (w waiting) Load(ctx context.Context) (lease.View, error) {
	w(ctx)
	return lease.View{}, ctx.Err()
}

func (waiting) Holder(context.Context, flake.SID, clock.Millis) (lease.LedgerLine, bool, error) {
	return lease.LedgerLine{}, false, nil
}

// empty is a directory without records.
type empty struct{}

func (empty) Load(context.Context) (lease.View, error) { return lease.View{}, nil }

func (empty) Holder(context.Context, flake.SID, clock.Millis) (lease.LedgerLine, bool, error) {
	return lease.LedgerLine{}, false, nil
}

// TestMembersAreNotWaitedFor: etcd's members are asked once in five seconds, and a picture
// shows what they answered before.
func TestMembersAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := clocktest.NewManual(1_795_000_000_000)
		var asked atomic.Int64
		answer := make(chan Etcd)
		r := New(Config{Node: node.New(node.Config{Name: "a", Instance: "a-1"}, src, rand.NewPCG(1, 2)), Directory: nobody{t}, Space: "test",
			Members: func(context.Context) Etcd { asked.Add(1); return <-answer }})
		for range 3 {
			if c := r.picture(reading{}, ""); c.Etcd != nil {
				t.Errorf("nobody answered: %+v", c.Etcd)
			}
		}
		answer <- Etcd{Endpoints: 3, Answer: 2, Leader: "one"}
		synctest.Wait()
		if c := r.picture(reading{}, ""); asked.Load() != 1 || c.Etcd == nil || c.Etcd.Leader != "one" {
			t.Errorf("asked %d times: %+v", asked.Load(), c.Etcd)
		}
		src.Advance(membersFresh)
		r.picture(reading{}, "")
		synctest.Wait()
		if asked.Load() != 2 {
			t.Errorf("after five seconds they were asked %d times", asked.Load())
		}
		// What they said long ago says nothing.
		src.Advance(membersKept)
		if c := r.picture(reading{}, ""); c.Etcd != nil {
			t.Errorf("they said so %v ago: %+v", membersKept, c.Etcd)
		}
		close(answer)
	})
}
