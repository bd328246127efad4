package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	alice = Member{Node: "alice", Instance: "a"}
	bob   = Member{Node: "bob", Instance: "b"}
	idle  = Status{SID: -1}
)

func holds(sid int, term int64) Status { return Status{SID: sid, Term: term, Era: 1} }

func TestDuplicates(t *testing.T) {
	ab := Duplicate{SID: 3, Term: 7,
		A: Claim{Node: "alice", Instance: "a", Era: 1}, B: Claim{Node: "bob", Instance: "b", Era: 1}}
	withSelf := Duplicate{SID: 3, Term: 7,
		A: Claim{Node: "bob", Instance: "b", Era: 1}, B: Claim{Node: "me", Instance: "z", Era: 1, Self: true}}
	type said struct {
		at   int64
		from Member
		what Status
		want []Duplicate
	}
	for name, tc := range map[string]struct {
		self  Status
		story []said
	}{
		"two peers":         {idle, []said{{0, alice, holds(3, 7), nil}, {second, bob, holds(3, 7), []Duplicate{ab}}}},
		"told in any order": {idle, []said{{0, bob, holds(3, 7), nil}, {second, alice, holds(3, 7), []Duplicate{ab}}}},
		"a peer and we":     {holds(3, 7), []said{{0, bob, holds(3, 7), []Duplicate{withSelf}}}},
		"other terms":       {holds(3, 6), []said{{0, alice, holds(3, 7), nil}, {second, bob, holds(3, 8), nil}}},
		"other sids":        {holds(2, 7), []said{{0, alice, holds(3, 7), nil}, {second, bob, holds(4, 7), nil}}},
		"no sid":            {idle, []said{{0, alice, idle, nil}, {second, bob, idle, nil}}},
		"the first is gone": {idle, []said{{0, alice, holds(3, 7), nil}, {claimFresh + 1, bob, holds(3, 7), nil}}},
		"just not gone":     {idle, []said{{0, alice, holds(3, 7), nil}, {claimFresh, bob, holds(3, 7), []Duplicate{ab}}}},
		"the first moved on": {idle, []said{{0, alice, holds(3, 7), nil}, {second, alice, holds(4, 1), nil},
			{2 * second, bob, holds(3, 7), nil}}},
		"told again after a while": {idle, []said{{0, alice, holds(3, 7), nil}, {second, bob, holds(3, 7), []Duplicate{ab}},
			{2 * second, alice, holds(3, 7), nil}, {10 * second, alice, holds(3, 7), nil},
			{11*second + 1, bob, holds(3, 7), []Duplicate{ab}}}},
	} {
		r := newReports("me", "z")
		self := tc.self
		self.Era = 1
		for i, s := range tc.story {
			got, _ := r.observe(s.at, self, s.from, s.what)
			if diff := cmp.Diff(s.want, got); diff != "" {
				t.Errorf("%s, report %d:\n%s", name, i, diff)
			}
		}
	}
}

func TestWitnesses(t *testing.T) {
	at := func(revision, era int64, cluster uint64) Status {
		return Status{SID: -1, Revision: revision, Era: era, Cluster: cluster}
	}
	type said struct {
		at   int64
		self Status
		what Status
		want []WitnessKind
	}
	kinds := func(k ...WitnessKind) []WitnessKind { return k }
	for name, story := range map[string][]said{
		"all the same": {{0, at(5, 1, 9), at(5, 1, 9), nil}, {20 * second, at(5, 1, 9), at(5, 1, 9), nil}},
		"we keep up": {{0, at(5, 1, 9), at(8, 1, 9), nil}, {5 * second, at(9, 1, 9), at(12, 1, 9), nil},
			{10 * second, at(13, 1, 9), at(16, 1, 9), nil}, {15 * second, at(17, 1, 9), at(20, 1, 9), nil}},
		"we never get there": {{0, at(5, 1, 9), at(8, 1, 9), nil}, {9 * second, at(6, 1, 9), at(12, 1, 9), nil},
			{10 * second, at(7, 1, 9), at(12, 1, 9), kinds(WitnessRevision)},
			{12 * second, at(7, 1, 9), at(12, 1, 9), nil},
			{20 * second, at(7, 1, 9), at(12, 1, 9), kinds(WitnessRevision)},
			{31 * second, at(8, 1, 9), at(12, 1, 9), nil}},
		"later era":          {{0, at(5, 1, 9), at(5, 2, 9), kinds(WitnessEra)}, {second, at(5, 1, 9), at(5, 2, 9), nil}},
		"earlier era":        {{0, at(5, 2, 9), at(5, 1, 9), nil}},
		"another cluster":    {{0, at(5, 1, 9), at(500, 2, 10), kinds(WitnessCluster)}, {11 * second, at(5, 1, 9), at(500, 2, 10), kinds(WitnessCluster)}},
		"we know nothing":    {{0, at(0, 0, 0), at(500, 2, 10), nil}, {20 * second, at(0, 0, 0), at(500, 2, 10), nil}},
		"peer knows nothing": {{0, at(5, 1, 9), at(0, 0, 0), nil}, {20 * second, at(5, 1, 9), at(0, 0, 0), nil}},
	} {
		r := newReports("me", "z")
		for i, s := range story {
			_, hints := r.observe(s.at, s.self, alice, s.what)
			var got []WitnessKind
			for _, h := range hints {
				if h.Peer != alice || h.Revision != s.what.Revision || h.Era != s.what.Era || h.Cluster != s.what.Cluster {
					t.Errorf("%s, report %d: %+v", name, i, h)
				}
				got = append(got, h.Kind)
			}
			if diff := cmp.Diff(s.want, got); diff != "" {
				t.Errorf("%s, report %d:\n%s", name, i, diff)
			}
		}
	}
}

func TestReportsAreForgotten(t *testing.T) {
	r := newReports("me", "z")
	r.observe(0, idle, alice, holds(3, 7))
	r.observe(second, idle, bob, holds(3, 7))
	r.observe(forgetAfter+second+1, idle, Member{Instance: "c"}, idle)
	if len(r.by) != 1 || len(r.told) != 0 {
		t.Errorf("%d reports, %d findings are kept", len(r.by), len(r.told))
	}
}
