package member

import (
	"slices"
	"strings"
	"testing"
)

// A member of fixed name says what its volume holds, and is replaced without a question if its data is gone.
func TestDecideReplaces(t *testing.T) {
	const none, intent, has = HoldsNothing, HoldsIntent, HoldsData
	all := []Member{begun(1, "a"), begun(2, "b"), begun(3, "c")}
	two := all[:2]
	with := func(m Member) []Member { return append(slices.Clone(two), m) }
	for _, tc := range []struct {
		name  string
		holds Holds
		id    uint64
		a, b  Report   // without a name and a token; zero: it does not answer
		list  []Member // a majority has it
		want  Action
		of    uint64
		says  string
	}{
		{name: "first start, nobody answers yet", holds: none, want: Wait, says: "a to answer, b to answer"},
		{name: "one other answers", holds: none, a: Report{Holds: none}, want: Wait, says: "b to answer"},
		{name: "nobody has data", holds: none, a: Report{Holds: none}, b: Report{Holds: none}, want: Intend},
		{name: "the others intend already", holds: none, a: Report{Holds: intent}, b: Report{Holds: intent}, want: Intend},
		{name: "one reports nothing that is known", holds: intent, a: Report{Holds: "later"}, b: Report{Holds: intent}, want: Wait, says: "a to answer"},
		{name: "not all intend", holds: intent, a: Report{Holds: intent}, b: Report{Holds: none}, want: Wait, says: "b to see"},
		{name: "all intend", holds: intent, a: Report{Holds: intent}, b: Report{Holds: intent}, want: Begin},
		{name: "one is ahead", holds: intent, a: Report{Holds: has}, b: Report{Holds: intent}, want: Begin},
		{name: "all are ahead, without a quorum", holds: intent, a: Report{Holds: has}, b: Report{Holds: has}, want: Begin},
		{name: "one is ahead, and one is silent", holds: intent, a: Report{Holds: has}, want: Wait, says: "b to answer"},
		{name: "intended, but nobody answers", holds: intent, want: Wait, says: "a to answer, b to answer"},
		{name: "intended, and the others went on without it", holds: intent, list: all, want: Remove, of: 3},
		{name: "one restores a snapshot", holds: intent, a: Report{Holds: has, Snapshot: "s"}, b: Report{Holds: intent}, want: Wait,
			says: "a to answer (it begins with another snapshot (s, not none): stop all members"},
		{name: "one would restore a snapshot", holds: none, a: Report{Holds: none, Snapshot: "s"}, b: Report{Holds: none}, want: Wait, says: "another snapshot"},
		{name: "lost, of members that restored a snapshot", holds: none, a: Report{Holds: has, Snapshot: "s"}, want: Wait, says: "restore a snapshot"},
		{name: "one runs the cluster before", holds: none, a: Report{Holds: has, Token: "0"}, b: Report{Holds: none}, want: Wait,
			says: "a to answer (it runs another cluster (0, not 1): stop all members"},
		{name: "data", holds: has, want: Start},
		{name: "data, and no quorum", holds: has, id: 3, a: Report{Holds: has}, want: Start},
		{name: "data, and listed", holds: has, id: 3, list: all, want: Start},
		{name: "data of unknown ID", holds: has, list: two, want: Start},
		{name: "data, but removed", holds: has, id: 3, list: two, want: Discard, of: 3},
		{name: "data, but replaced", holds: has, id: 3, list: with(begun(4, "c")), want: Discard, of: 3},
		{name: "lost, and listed", holds: none, list: with(voter(3, "c")), want: Remove, of: 3, says: "lost"},
		{name: "lost, and listed at another address", holds: none, list: with(Member{ID: 3, Name: "c", Peers: []string{peer("old")}}), want: Remove, of: 3},
		{name: "lost, and removed", holds: none, list: two, want: Add},
		{name: "lost, and added", holds: none, list: with(learner(4, "c")), want: Join, of: 4},
		{name: "lost again as a learner", holds: none, list: with(Member{ID: 4, Name: "c", Peers: []string{peer("c")}, Learner: true}), want: Remove, of: 4},
		{name: "a voter that never started", holds: none, list: with(Member{ID: 4, Peers: []string{peer("c")}}), want: Remove, of: 4},
		{name: "two join at once", holds: none, list: []Member{begun(1, "a"), learner(5, "b")}, want: Wait, says: "one at a time"},
		{name: "lost, and the quorum too", holds: none, a: Report{Holds: has}, b: Report{Holds: none}, want: Wait, says: "restore a snapshot"},
		{name: "lost, and the others do not answer", holds: none, a: Report{Holds: has}, want: Wait, says: "no majority"},
		{name: "a third member is added to one", holds: none, list: all[:1], want: Add},
	} {
		own := Own{Host: "c", Node: "c", Process: "c", Join: []string{"a", "b", "c"}, Peer: peer("c"), Intends: tc.holds == intent, Replaces: true}
		seen := map[string]Answer{}
		for name, r := range map[string]Report{"a": tc.a, "b": tc.b} {
			if r.Name = name; r.Token == "" {
				r.Token = "1"
			}
			if r.Holds != "" {
				seen[name] = r.Answer(Report{Name: "c", Token: "1", Holds: tc.holds}, own.Join)
			}
		}
		if tc.list != nil {
			seen = map[string]Answer{"a majority": runs(7, tc.list...)}
		}
		var data *Data
		if tc.holds == has {
			data = &Data{Host: "c", Peer: own.Peer, ID: tc.id}
		}
		got, err := Decide(own, data, seen)
		if err != nil || got.Action != tc.want || got.ID != tc.of || !strings.Contains(got.Why, tc.says) {
			t.Errorf("%s: got %+v, %v; want %s of %d because of %q", tc.name, got, err, tc.want, tc.of, tc.says)
		}
	}
}

// Only members of this cluster that have data say who belongs to it.
func TestKnows(t *testing.T) {
	for r, knows := range map[Report]bool{
		{Token: "0", Holds: HoldsData}:                false,
		{Token: "1", Holds: HoldsIntent}:              false,
		{Token: "1", Holds: HoldsNothing}:             false,
		{Token: "1", Holds: HoldsData}:                true,
		{Token: "1", Holds: HoldsData, Snapshot: "s"}: true,
	} {
		if r.Knows("1") != knows {
			t.Errorf("%+v: %v", r, !knows)
		}
	}
}
