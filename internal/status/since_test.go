package status

import (
	"maps"
	"testing"

	"github.com/flakelease/allocator/internal/node"
)

// TestSince: a state lasts since the first Glance that saw it, and what began after the latest since now. It was seen to
// begin if a Glance before saw the node in another one, or gone, and if the node started after a Glance.
func TestSince(t *testing.T) {
	is := func(name string, state State, refusing node.Reason) Node {
		return Node{Instance: name, State: state, Refusing: refusing}
	}
	at := func(now int64, nodes ...Node) Cluster { return Cluster{Self: Self{Now: now}, Nodes: nodes} }
	a, b := is("a", Serving, 0), is("b", Refusing, node.Draining)
	var r Reader
	for now, c := range []Cluster{at(0, a, is("b", Serving, 0)), at(0, a, b), at(0, a, b, is("c", Serving, 0))} {
		c.Self.Now = int64(now)
		r.note(c)
	}
	for name, tc := range map[string]struct {
		of           Cluster
		since, began map[string]int64
	}{
		"as noted":                 {at(9, a, b, is("c", Serving, 0)), map[string]int64{"a": 0, "b": 1, "c": 2}, map[string]int64{"b": 1}},
		"it refuses for another":   {at(9, is("b", Refusing, node.ClockSkew)), map[string]int64{"b": 9}, map[string]int64{}},
		"a node that nobody noted": {at(9, is("d", Serving, 0)), map[string]int64{"d": 9}, map[string]int64{}},
		"a cluster without a node": {at(9), map[string]int64{}, map[string]int64{}},
	} {
		if since, began := r.Since(tc.of), r.since(tc.of, true); !maps.Equal(since, tc.since) || !maps.Equal(began, tc.began) {
			t.Errorf("%s: since %v, seen to begin %v; want %v and %v", name, since, began, tc.since, tc.began)
		}
	}
	wrong := Node{Instance: "b", Clock: &PeerClock{Falseticker: true}}
	r.note(at(7, a, wrong))
	r.note(at(8, a, wrong))
	if got := r.FalseSince(); !maps.Equal(got, map[string]int64{"b": 7}) {
		t.Errorf("clocks are wrong since %v", got)
	}
	wrong.Clock.Falseticker = false
	if r.note(at(9, a, wrong)); len(r.FalseSince()) != 0 {
		t.Errorf("a clock that was set right is still wrong: %v", r.FalseSince())
	}

	late := is("late", Standby, 0)
	late.Started = 10
	r.note(at(10, a, late, is("unseen", Serving, 0)))
	if began := r.since(at(10, late, is("unseen", Serving, 0)), true); !maps.Equal(began, map[string]int64{"late": 10}) {
		t.Errorf("of two nodes that are new these were seen to begin: %v; only one has started since", began)
	}
	r.note(at(11, a, b))
	if began := r.since(at(11, b), true); !maps.Equal(began, map[string]int64{"b": 11}) {
		t.Errorf("a node that came back began at %v", began)
	}
	const missed = 12
	for _, tc := range []struct {
		after int64
		kept  bool
	}{{0, true}, {goneKept.Milliseconds() - 1, true}, {goneKept.Milliseconds(), false}} {
		r.note(at(missed+tc.after, a))
		if _, kept := r.doing["b"]; kept != tc.kept {
			t.Errorf("%d ms after it was first missed: kept is %v", tc.after, kept)
		}
	}
}
