package member

import (
	"slices"
	"strings"
	"testing"
)

const self = "https://c:2380"

func reports(a, b Holds) map[string]Report {
	out := map[string]Report{}
	for name, d := range map[string]Holds{"a": a, "b": b} {
		if d != "" {
			out[name] = Report{Name: name, Token: "1", Holds: d}
		}
	}
	return out
}

// restores are reports of members that begin with snapshots; "": without one.
func restores(a, b Holds, ofA, ofB string) map[string]Report {
	out := reports(a, b)
	for name, snapshot := range map[string]string{"a": ofA, "b": ofB} {
		r := out[name]
		r.Snapshot = snapshot
		out[name] = r
	}
	return out
}

func TestDecideFixed(t *testing.T) {
	all := []Member{begun(1, "a"), begun(2, "b"), begun(3, "c")}
	two := all[:2]
	for _, tc := range []struct {
		name string
		seen Fixed
		want Action
		id   uint64
		why  string
	}{
		{"first start, nobody answers yet", Fixed{Holds: HoldsNothing}, Wait, 0, "do not answer: a, b"},
		{"one other answers", Fixed{Holds: HoldsNothing, Reports: reports(HoldsNothing, "")}, Wait, 0, "do not answer: b"},
		{"nobody has data", Fixed{Holds: HoldsNothing, Reports: reports(HoldsNothing, HoldsNothing)}, Intend, 0, ""},
		{"the others intend already", Fixed{Holds: HoldsNothing, Reports: reports(HoldsIntent, HoldsIntent)}, Intend, 0, ""},
		{"one reports nothing that is known", Fixed{Holds: HoldsIntent, Reports: reports("later", HoldsIntent)}, Wait, 0, "do not answer: a"},
		{"not all intend", Fixed{Holds: HoldsIntent, Reports: reports(HoldsIntent, HoldsNothing)}, Wait, 0, "not yet seen"},
		{"all intend", Fixed{Holds: HoldsIntent, Reports: reports(HoldsIntent, HoldsIntent)}, Begin, 0, ""},
		{"one is ahead", Fixed{Holds: HoldsIntent, Reports: reports(HoldsData, HoldsIntent)}, Begin, 0, ""},
		{"all are ahead, without a quorum", Fixed{Holds: HoldsIntent, Reports: reports(HoldsData, "")}, Begin, 0, ""},
		{"intended, but nobody answers", Fixed{Holds: HoldsIntent}, Wait, 0, "do not answer: a, b"},
		{"intended, and the others went on without it", Fixed{Holds: HoldsIntent, Members: all}, Remove, 3, ""},
		{"all intend, with a snapshot", Fixed{Holds: HoldsIntent, Reports: restores(HoldsIntent, HoldsIntent, "s", "s"), Snapshot: "s"}, Restore, 0, ""},
		{"one has restored the snapshot", Fixed{Holds: HoldsIntent, Reports: restores(HoldsData, HoldsIntent, "s", "s"), Snapshot: "s"}, Restore, 0, ""},
		{"one has restored another snapshot", Fixed{Holds: HoldsIntent, Reports: restores(HoldsData, HoldsIntent, "s1", "s2"), Snapshot: "s2"},
			Wait, 0, "another snapshot than s2: a (s1); stop all members"},
		{"one has begun without the snapshot", Fixed{Holds: HoldsIntent, Reports: restores(HoldsIntent, HoldsData, "s", ""), Snapshot: "s"},
			Wait, 0, "another snapshot than s: b (none)"},
		{"one has restored a snapshot, and this has none", Fixed{Holds: HoldsIntent, Reports: restores(HoldsData, HoldsIntent, "s", "")},
			Wait, 0, "another snapshot than none: a (s)"},
		{"lost while the others have a quorum, with a snapshot", Fixed{Holds: HoldsNothing, Members: all, Snapshot: "s"}, Remove, 3, ""},
		{"another runs the cluster before", Fixed{Holds: HoldsNothing, Reports: map[string]Report{"a": {Name: "a", Token: "0", Holds: HoldsData}, "b": {Name: "b", Token: "1", Holds: HoldsNothing}}},
			Wait, 0, "a (0); stop all members"},

		{"a member of its own", Fixed{Name: "c", Others: []string{}, Holds: HoldsNothing}, Intend, 0, ""},
		{"a member of its own, intended", Fixed{Name: "c", Others: []string{}, Holds: HoldsIntent}, Begin, 0, ""},

		{"data", Fixed{Holds: HoldsData}, Start, 0, ""},
		{"data, and no quorum", Fixed{Holds: HoldsData, ID: 3}, Start, 0, ""},
		{"data, and listed", Fixed{Holds: HoldsData, ID: 3, Members: all}, Start, 0, ""},
		{"data of unknown ID", Fixed{Holds: HoldsData, Members: two}, Start, 0, ""},
		{"data, but removed", Fixed{Holds: HoldsData, ID: 3, Members: two}, Discard, 3, ""},
		{"data, but replaced", Fixed{Holds: HoldsData, ID: 3, Members: append(slices.Clone(two), begun(4, "c"))}, Discard, 3, ""},

		{"lost, and listed", Fixed{Holds: HoldsNothing, Members: all}, Remove, 3, "lost"},
		{"lost, and removed", Fixed{Holds: HoldsNothing, Members: two}, Add, 0, ""},
		{"lost, and added", Fixed{Holds: HoldsNothing, Members: append(slices.Clone(two), Member{ID: 4, Peers: []string{self}, Learner: true})}, Join, 4, ""},
		{"lost again as a learner", Fixed{Holds: HoldsNothing, Members: append(slices.Clone(two), Member{ID: 4, Name: "c", Peers: []string{self}, Learner: true})}, Remove, 4, ""},
		{"a voter that never started", Fixed{Holds: HoldsNothing, Members: append(slices.Clone(two), Member{ID: 4, Peers: []string{self}})}, Remove, 4, ""},
		{"two join at once", Fixed{Holds: HoldsNothing, Members: []Member{begun(1, "a"), {ID: 5, Name: "b", Peers: []string{"https://b:2380"}, Learner: true}}}, Wait, 0, "one at a time"},
		{"lost, and the quorum too", Fixed{Holds: HoldsNothing, Reports: reports(HoldsData, HoldsNothing)}, Wait, 0, "restore a snapshot"},
		{"lost, and the others do not answer", Fixed{Holds: HoldsNothing, Reports: reports(HoldsData, "")}, Wait, 0, "do not answer: b"},
		{"a third member is added to one", Fixed{Holds: HoldsNothing, Members: all[:1]}, Add, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.seen
			s.Name, s.Peer, s.Token = "c", self, "1"
			if s.Others == nil {
				s.Others = []string{"a", "b"}
			}
			got := s.Decide()
			if got.Action != tc.want || got.ID != tc.id || !strings.Contains(got.Why, tc.why) || got.Why == "" {
				t.Errorf("got %+v, want %s of %d because of %q", got, tc.want, tc.id, tc.why)
			}
		})
	}
}
