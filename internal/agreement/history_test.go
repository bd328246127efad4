package agreement

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

const (
	alice = "alice"
	bob   = "bob"
)

var idle = Status{SID: -1}

func holds(sid int, term int64) Status { return Status{SID: sid, Term: term, Era: 1} }

// desk is a machine whose clocks a test moves by hand. It is not listed, so it
// evaluates nothing.
type desk struct {
	m   *Machine
	now time.Duration
}

func newDesk() *desk {
	return &desk{m: New(Config{Name: "me", Instance: "z", Gate: clock.GateConfig{MaxSkew: 250 * time.Millisecond}})}
}

// acquainted returns a desk that has listed two peers before, and has no list now.
func acquainted() *desk {
	d := newDesk()
	d.list(false, "me", alice, bob)
	d.m.Step(d.reading(), LeaseChanged{})
	return d
}

func (d *desk) reading() Reading {
	return Reading{Mono: clock.Mono(d.now), Clocks: clock.Snapshot{Raw: int64(d.now)}}
}

// is makes s what this node has read just now, and holds.
func (d *desk) is(s Status) { d.read(s, d.now) }

// read makes s what this node read at a time, and holds.
func (d *desk) read(s Status, at time.Duration) {
	l := lease.Status{Cluster: s.Cluster, Revision: s.Revision, ReadAt: clock.Mono(at), Ceiling: s.Ceiling}
	l.Era.Number = s.Era
	if s.SID >= 0 {
		l.Held, l.Phase, l.Grant = true, lease.Holding, lease.Grant{SID: flake.SID(s.SID), Term: s.Term}
	}
	d.m.Step(d.reading(), LeaseChanged{l})
}

// hear takes a peer's answer, in no time at all. The peer's instance is its name.
func (d *desk) hear(node string, s Status) []Action {
	raw := int64(d.now)
	return d.m.Step(d.reading(), Exchange{
		Node: node, Status: s,
		Sample: clock.Sample{Instance: node, T1: raw, T4: raw, Peer: clock.Snapshot{Raw: raw}},
	})
}

// of returns the actions of one type.
func of[A Action](actions []Action) (out []A) {
	for _, a := range actions {
		if a, ok := a.(A); ok {
			out = append(out, a)
		}
	}
	return out
}

func TestDuplicates(t *testing.T) {
	ab := Duplicate{SID: 3, Term: 7,
		A: Claim{Node: alice, Instance: alice, Era: 1}, B: Claim{Node: bob, Instance: bob, Era: 1}}
	withSelf := Duplicate{SID: 3, Term: 7,
		A: Claim{Node: bob, Instance: bob, Era: 1}, B: Claim{Node: "me", Instance: "z", Era: 1, Self: true}}
	type report struct {
		at   time.Duration
		from string
		what Status
		want []Duplicate
	}
	const second = time.Second
	for name, tc := range map[string]struct {
		self    Status
		reports []report
	}{
		"two peers":          {idle, []report{{0, alice, holds(3, 7), nil}, {second, bob, holds(3, 7), []Duplicate{ab}}}},
		"in the other order": {idle, []report{{0, bob, holds(3, 7), nil}, {second, alice, holds(3, 7), []Duplicate{ab}}}},
		"a peer and we":      {holds(3, 7), []report{{0, bob, holds(3, 7), []Duplicate{withSelf}}}},
		"other terms":        {holds(3, 6), []report{{0, alice, holds(3, 7), nil}, {second, bob, holds(3, 8), nil}}},
		"other sids":         {holds(2, 7), []report{{0, alice, holds(3, 7), nil}, {second, bob, holds(4, 7), nil}}},
		"no sid":             {idle, []report{{0, alice, idle, nil}, {second, bob, idle, nil}}},
		"the first is gone":  {idle, []report{{0, alice, holds(3, 7), nil}, {claimFresh + 1, bob, holds(3, 7), nil}}},
		"still just in time": {idle, []report{{0, alice, holds(3, 7), nil}, {claimFresh, bob, holds(3, 7), []Duplicate{ab}}}},
		"the first moved on": {idle, []report{{0, alice, holds(3, 7), nil}, {second, alice, holds(4, 1), nil}, {2 * second, bob, holds(3, 7), nil}}},
		"sid 0": {holds(0, 7), []report{{0, alice, holds(0, 7), []Duplicate{{SID: 0, Term: 7,
			A: Claim{Node: alice, Instance: alice, Era: 1}, B: Claim{Node: "me", Instance: "z", Era: 1, Self: true}}}}}},
		"another era meanwhile": {idle, []report{{0, alice, holds(3, 7), nil}, {second, bob, holds(3, 7), []Duplicate{ab}},
			{2 * second, alice, Status{SID: 3, Term: 7, Era: 2}, nil}}},
		"repeated at the end": {idle, []report{{0, alice, holds(3, 7), nil}, {second, bob, holds(3, 7), []Duplicate{ab}},
			{6 * second, alice, holds(3, 7), nil}, {11 * second, bob, holds(3, 7), nil}}},
		"repeated in a while": {idle, []report{{0, alice, holds(3, 7), nil}, {second, bob, holds(3, 7), []Duplicate{ab}}, {2 * second, alice, holds(3, 7), nil}, {10 * second, alice, holds(3, 7), nil}, {11*second + 1, bob, holds(3, 7), []Duplicate{ab}}}},
	} {
		d := acquainted()
		self := tc.self
		self.Era = 1
		d.is(self)
		for i, r := range tc.reports {
			d.now = r.at
			actions := d.hear(r.from, r.what)
			got := of[Duplicate](actions)
			if diff := cmp.Diff(r.want, got); diff != "" {
				t.Errorf("%s, report %d:\n%s", name, i, diff)
			}
			// Only whoever is concerned reads the record.
			read := 0
			for _, n := range of[Notify](actions) {
				if n.Event == (lease.Changed{}) {
					read++
				}
			}
			concerned := 0
			for _, d := range got {
				if d.A.Self || d.B.Self {
					concerned++
				}
			}
			if read != concerned {
				t.Errorf("%s, report %d: the keeper reads %d times, want %d", name, i, read, concerned)
			}
		}
	}
}

func TestHistoryReports(t *testing.T) {
	at := func(revision, era int64, cluster uint64) Status {
		return Status{SID: -1, Revision: revision, Era: era, Cluster: cluster}
	}
	type report struct {
		at   time.Duration
		self Status
		what Status
		want []HistoryKind
	}
	const second = time.Second
	kinds := func(k ...HistoryKind) []HistoryKind { return k }
	for name, reports := range map[string][]report{
		"all the same": {{0, at(5, 1, 9), at(5, 1, 9), nil}, {20 * second, at(5, 1, 9), at(5, 1, 9), nil}},
		"we keep up": {{0, at(5, 1, 9), at(8, 1, 9), nil}, {5 * second, at(9, 1, 9), at(12, 1, 9), nil},
			{10 * second, at(13, 1, 9), at(16, 1, 9), nil}, {15 * second, at(17, 1, 9), at(20, 1, 9), nil}},
		"we never get there": {{0, at(5, 1, 9), at(8, 1, 9), nil}, {9 * second, at(6, 1, 9), at(12, 1, 9), nil},
			{10 * second, at(7, 1, 9), at(12, 1, 9), kinds(LaterRevision)},
			{12 * second, at(7, 1, 9), at(12, 1, 9), nil},
			{20 * second, at(7, 1, 9), at(12, 1, 9), kinds(LaterRevision)},
			{31 * second, at(8, 1, 9), at(12, 1, 9), nil}},
		"we got there once": {{0, at(5, 1, 9), at(8, 1, 9), nil}, {5 * second, at(9, 1, 9), at(12, 1, 9), nil},
			{15 * second, at(9, 1, 9), at(12, 1, 9), kinds(LaterRevision)}},
		"another cluster meanwhile": {{0, at(5, 1, 9), at(8, 1, 9), nil},
			{5 * second, at(5, 1, 9), at(8, 1, 10), kinds(OtherCluster)}, {11 * second, at(5, 1, 9), at(8, 1, 9), nil},
			{21 * second, at(5, 1, 9), at(8, 1, 9), kinds(LaterRevision)}},
		"later era":          {{0, at(5, 1, 9), at(5, 2, 9), kinds(LaterEra)}, {second, at(5, 1, 9), at(5, 2, 9), nil}},
		"earlier era":        {{0, at(5, 2, 9), at(5, 1, 9), nil}},
		"another cluster":    {{0, at(5, 1, 9), at(500, 2, 10), kinds(OtherCluster)}, {11 * second, at(5, 1, 9), at(500, 2, 10), kinds(OtherCluster)}},
		"we know nothing":    {{0, at(0, 0, 0), at(500, 2, 10), nil}, {20 * second, at(0, 0, 0), at(500, 2, 10), nil}},
		"peer knows nothing": {{0, at(5, 1, 9), at(0, 0, 0), nil}, {20 * second, at(5, 1, 9), at(0, 0, 0), nil}},
	} {
		d := acquainted()
		for i, r := range reports {
			d.now = r.at
			d.is(r.self)
			var got []HistoryKind
			for _, h := range of[HistoryReport](d.hear(alice, r.what)) {
				if h.Node != alice || h.Instance != alice || h.Revision != r.what.Revision || h.Era != r.what.Era || h.Cluster != r.what.Cluster {
					t.Errorf("%s, report %d: %+v", name, i, h)
				}
				got = append(got, h.Kind)
			}
			if diff := cmp.Diff(r.want, got); diff != "" {
				t.Errorf("%s, report %d:\n%s", name, i, diff)
			}
			if d.m.peers[alice].claims != (len(got) > 0 && got[0] != OtherCluster || i > 0 && d.m.peers[alice].claims) {
				t.Errorf("%s, report %d: counts as a claim: %v", name, i, d.m.peers[alice].claims)
			}
		}
	}
}

// TestNoReportWhileEtcdIsAway: a node that etcd does not answer cannot know what peers
// have read, however long that lasts. Its first read afterwards decides.
func TestNoReportWhileEtcdIsAway(t *testing.T) {
	for _, tc := range []struct {
		name     string
		revision int64 // that it reads then
		want     int   // reports
	}{{"nothing is lost", 8, 0}, {"what the peer had read is lost", 6, 1}} {
		d := acquainted()
		away := Status{SID: 3, Term: 1, Revision: 5, Era: 1, Cluster: 9}
		later := Status{SID: -1, Revision: 8, Era: 1, Cluster: 9}
		for d.now = 0; d.now < time.Minute; d.now += time.Second {
			d.read(away, 0)
			if got := of[HistoryReport](d.hear(alice, later)); len(got) > 0 {
				t.Fatalf("%s: %v after the last answer of etcd: %+v", tc.name, d.now, got)
			}
		}
		away.Revision = tc.revision
		d.is(away)
		if got := of[HistoryReport](d.hear(alice, later)); len(got) != tc.want {
			t.Errorf("%s: %+v, want %d reports", tc.name, got, tc.want)
		}
	}
}

// TestPeersAreForgotten: who is not registered any more leaves nothing behind, and is not
// listened to.
func TestPeersAreForgotten(t *testing.T) {
	d := acquainted()
	d.hear(alice, holds(3, 7))
	d.hear(bob, holds(3, 7))
	d.now = repeatAfter + 1
	d.list(false, alice)
	d.m.Step(d.reading(), Tick{})
	d.hear(bob, holds(3, 7))
	if len(d.m.peers) != 1 || d.m.peers[alice] == nil || len(d.m.duplicates) != 0 {
		t.Errorf("%d peers, %d duplicates are kept", len(d.m.peers), len(d.m.duplicates))
	}
}

// TestClaimsEnd: a quorum is of peers that claim a later history now. One that claimed it and has
// been silent since does not count.
func TestClaimsEnd(t *testing.T) {
	later := Status{SID: -1, Revision: 8, Era: 2, Cluster: 9}
	for between, want := range map[time.Duration]int{claimFor - 1: 1, claimFor: 0} {
		d := newDesk()
		s := lease.Status{Listed: true, Cluster: 9, Revision: 5, Era: lease.Era{Number: 1}}
		for _, n := range []string{"me", alice, bob} {
			s.Nodes = append(s.Nodes, lease.Registration{Node: n, Instance: lease.Instance(n), Gossip: n})
		}
		d.m.Step(d.reading(), LeaseChanged{s})
		got := d.hear(alice, later)
		d.now = between
		got = append(got, d.hear(bob, later)...)
		reported := 0
		for _, n := range of[Notify](append(got, d.tick(0)...)) {
			if n.Event == (lease.ReportedRevision{Era: 2, Revision: 8}) {
				reported++
			}
		}
		if min(reported, 1) != want {
			t.Errorf("claims %v apart are reported %d times, want %d", between, reported, want)
		}
	}
}

// TestUnregisteredClaimNothing: an answer of a process that is not registered, or is under
// another name, is no claim of anything.
func TestUnregisteredClaimNothing(t *testing.T) {
	for name, e := range map[string]Exchange{
		"not registered":     {Node: "mallory", Sample: clock.Sample{Instance: "mallory"}},
		"under another name": {Node: "mallory", Sample: clock.Sample{Instance: alice}},
		"a name taken":       {Node: alice, Sample: clock.Sample{Instance: "mallory"}},
	} {
		d := acquainted()
		d.is(Status{SID: 3, Term: 7, Era: 1, Revision: 5, Cluster: 9})
		e.Status = Status{SID: 3, Term: 7, Era: 1 << 30, Revision: 1 << 40, Cluster: 9}
		if got := d.m.Step(d.reading(), e); got != nil || len(d.m.peers) != 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}
