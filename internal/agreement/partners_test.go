package agreement

import (
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestPartners: clocks are exchanged with all that registered gossip, up to 64 of them, and
// above that with the voters; all are known at the addresses that they registered. Nodes
// without gossip change nothing about it.
func TestPartners(t *testing.T) {
	for _, c := range []struct{ with, without, want int }{
		{0, 0, 0}, {1, 0, 0}, {3, 0, 2}, {3, 3, 2}, {3, 100, 2}, {1, 3, 0}, {1, 100, 0}, {64, 0, 63}, {64, 64, 63}, {65, 0, 31}, {65, 10, 31},
	} {
		m := New(Config{Name: "n0", Instance: "0", Gate: clock.GateConfig{MaxSkew: 250 * time.Millisecond}})
		list := func(with, without int) (peers []Peer, set bool) {
			status := lease.Status{Listed: true}
			for i := range with + without {
				r := lease.Registration{Node: fmt.Sprint("n", i), Instance: lease.Instance(fmt.Sprint(i))}
				if i < with {
					r.Gossip = fmt.Sprint("somewhere:", i)
				}
				status.Nodes = append(status.Nodes, r)
			}
			for _, a := range m.Step(Reading{}, LeaseChanged{status}) {
				if a, ok := a.(SetPeers); ok {
					peers, set = a.Peers, true
				}
			}
			return peers, set
		}
		peers, set := list(c.with, c.without)
		asked := 0
		for _, p := range peers {
			if p.Ask {
				asked++
			}
			if p.Instance == "0" || p.Node != "n"+p.Instance || p.Gossip != "somewhere:"+p.Instance {
				t.Errorf("%+v", p)
			}
		}
		if asked != c.want || len(peers) != max(0, c.with-1) || set != (len(peers) > 0) {
			t.Errorf("%d with gossip and %d without: exchanges with %d of %d, want %d", c.with, c.without, asked, len(peers), c.want)
		}
		if _, set := list(c.with, c.without); set {
			t.Error("set twice")
		}
	}
}

// TestOneOfAnAddressIsAsked: a node that restarted at its address is asked, and not the
// process before it, whose registration has not ended yet.
func TestOneOfAnAddressIsAsked(t *testing.T) {
	d := newDesk()
	s := lease.Status{Listed: true}
	for i, n := range []string{"z", "old", "new", "other"} {
		r := lease.Registration{Node: "n", Instance: lease.Instance(n), Gossip: "here", Rev: int64(i)}
		if n == "other" {
			r.Gossip = "there"
		}
		s.Nodes = append(s.Nodes, r)
	}
	got := of[SetPeers](d.m.Step(d.reading(), LeaseChanged{s}))
	asked := ""
	for _, p := range got[0].Peers {
		if p.Ask {
			asked += p.Instance + " "
		}
	}
	if len(got[0].Peers) != 3 || asked != "new other " {
		t.Errorf("%s of %+v", asked, got)
	}
}

// TestLapsedKeepAddress: a node that is cut off from the store, and whose registration ended,
// is asked where it had registered as long as it counts, and then forgotten. One that this
// process never saw registered has no address: it is silent.
func TestLapsedKeepAddress(t *testing.T) {
	d := newDesk()
	d.list(false, "me", alice)
	lapsed := func(names ...string) []Action {
		s := lease.Status{Listed: true, Nodes: []lease.Registration{{Node: "me", Instance: "z", Gossip: "here"}}}
		for _, n := range names {
			s.Lapsed = append(s.Lapsed, lease.Lapsed{Node: n, Instance: lease.Instance(n)})
		}
		return d.m.Step(d.reading(), LeaseChanged{s})
	}
	if got := of[SetPeers](lapsed(alice, bob)); got != nil {
		t.Errorf("%v: nothing changed", got)
	}
	if v := d.m.Voters(); len(v) != 2 {
		t.Errorf("voters %v, want both that lapsed", v)
	}
	if got := of[SetPeers](lapsed(bob)); len(got) != 1 || len(got[0].Peers) != 0 || len(d.m.records) != 1 {
		t.Errorf("%v, of %v", got, d.m.records)
	}
}
