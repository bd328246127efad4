package nemesis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/real/netswitch"
	"github.com/flakelease/allocator/chaos/real/rig"
)

// wires says which wires a fault is about.
type wires func(s *Injection) []netswitch.Pair

// sides returns the hosts of the node that is hit, of the other nodes, and of
// etcd.
func sides(s *Injection) (node, others, etcd []*netswitch.Host) {
	var rest []string
	for _, n := range s.Nodes {
		if n != s.Node {
			rest = append(rest, n.Name)
		}
	}
	var members []string
	for _, p := range s.Etcds {
		members = append(members, p.Name)
	}
	if s.Node != nil {
		node = s.Net.Hosts(s.Node.Name)
	}
	return node, s.Net.Hosts(rest...), s.Net.Hosts(members...)
}

func networkFaults() []Fault {
	toEtcd := func(s *Injection) []netswitch.Pair { n, _, e := sides(s); return netswitch.From(n, e) }
	fromEtcd := func(s *Injection) []netswitch.Pair { n, _, e := sides(s); return netswitch.From(e, n) }
	toPeers := func(s *Injection) []netswitch.Pair { n, o, _ := sides(s); return netswitch.From(n, o) }
	fromPeers := func(s *Injection) []netswitch.Pair { n, o, _ := sides(s); return netswitch.From(o, n) }
	both := func(a, b wires) wires {
		return func(s *Injection) []netswitch.Pair { return slices.Concat(a(s), b(s)) }
	}
	pair := func(whole bool) wires {
		return func(s *Injection) []netswitch.Pair {
			n, o, _ := sides(s)
			other := o[s.random().IntN(len(o))]
			s.Seen = "between " + n[0].Name + " and " + other.Name
			if whole {
				return netswitch.Both(n[0], other)
			}
			return netswitch.From([]*netswitch.Host{other}, n)
		}
	}
	amongNodes := func(s *Injection) []netswitch.Pair { _, o, _ := sides(s); return netswitch.From(o, o) }
	everywhere := func(s *Injection) []netswitch.Pair {
		_, o, e := sides(s)
		all := slices.Concat(o, e)
		return netswitch.From(all, all)
	}
	leader := func(s *Injection) []netswitch.Pair {
		_, o, e := sides(s)
		hit := s.Net.Hosts(s.Etcds[s.Hit[0]].Name)
		return netswitch.Between(hit, slices.Concat(o, slices.DeleteFunc(e, func(h *netswitch.Host) bool { return h == hit[0] })))
	}
	gossip := netswitch.Match{Ports: []uint16{rig.GossipPort}}
	any := netswitch.Match{}
	beyond := func(t rig.Timing) (time.Duration, time.Duration) {
		return t.Window + 2*time.Second, t.Window + 2500*time.Millisecond
	}
	within := func(t rig.Timing) (time.Duration, time.Duration) {
		d := inHand(t) - election
		return d / 2, max(d*3/4, d/2)
	}
	several := between(6*time.Second, 7*time.Second)
	usedUp := func(t rig.Timing) Expect {
		return Expect{Must: exhausted, Within: t.Window + time.Second, May: []string{exhausted, noSID, starting}, Settle: 4 * time.Second,
			Word: "IDs to the last confirmed millisecond, then WINDOW_EXHAUSTED; back soon after"}
	}
	fault := func(name, about string, scope Scope, hold func(rig.Timing) (time.Duration, time.Duration), e netswitch.Effect,
		m netswitch.Match, w wires, expect func(rig.Timing) Expect) Fault {
		return Fault{Name: name, About: about, Class: Network, Scope: scope, Needs: OwnNetworks, Hold: hold, Expect: expect,
			Begin: apply(e, m, w), Fired: packetsHarmed, End: func(_ context.Context, s *Injection) error { return s.undo() }}
	}
	noise := netswitch.Effect{Drop: .02, Duplicate: .05, Reorder: .05, Corrupt: .02, Delay: 2 * time.Millisecond, Jitter: 2 * time.Millisecond}
	out := []Fault{
		fault("net-etcd-partition", "a node is cut off from etcd until its window is used up", OneNode, beyond, netswitch.Cut, any, both(toEtcd, fromEtcd), usedUp),
		fault("net-etcd-drop-inbound", "what etcd sends to a node is lost: writes are applied and nobody hears", OneNode, beyond, netswitch.Cut, any, fromEtcd, usedUp),
		fault("net-etcd-drop-outbound", "what a node sends to etcd is lost", OneNode, beyond, netswitch.Cut, any, toEtcd, usedUp),
		fault("net-etcd-short-partition", "a node is cut off from etcd for less than its window lasts", OneNode, within, netswitch.Cut, any, both(toEtcd, fromEtcd), unharmed(4*time.Second)),
		fault("net-leader-partition", "etcd's leader is cut off from everybody", Leader, between(2*time.Second, 3*time.Second), netswitch.Cut, any, leader, unharmed(3*time.Second)),
		fault("net-peers-partition", "a node is cut off from all other nodes", OneNode, several, netswitch.Cut, any, both(toPeers, fromPeers), unharmed(3*time.Second)),
		fault("net-peers-drop-inbound", "a node hears no other node", OneNode, several, netswitch.Cut, any, fromPeers, unharmed(3*time.Second)),
		fault("net-peers-drop-outbound", "no other node hears a node", OneNode, several, netswitch.Cut, any, toPeers, unharmed(3*time.Second)),
		fault("net-pair-partition", "a node and one other are cut off from one another", OneNode, several, netswitch.Cut, any, pair(true), unharmed(3*time.Second)),
		fault("net-pair-drop-inbound", "a node hears nothing of one other, which hears it", OneNode, several, netswitch.Cut, any, pair(false), unharmed(3*time.Second)),
		fault("net-gossip-block", "no gossip at all", Whole, several, netswitch.Cut, gossip, amongNodes, unharmed(3*time.Second)),
		fault("net-impairment", "2 % of all packets lost, 2 % damaged, 5 % doubled, 5 % out of order, all late", Whole, several, noise, any, everywhere, unharmed(3*time.Second)),
		fault("net-gossip-forged", "a third of gossip packets is changed, checksums repaired", Whole, several, netswitch.Effect{Forge: .3}, gossip, amongNodes, unharmed(3*time.Second)),
	}
	for i := range out {
		out[i].Smoke = out[i].Name == "net-etcd-partition"
	}
	return out
}

// harm keeps what a strike did to the network, to count it.
type harm struct{ fault *netswitch.Fault }

func apply(e netswitch.Effect, m netswitch.Match, w wires) func(context.Context, *Injection) error {
	return func(_ context.Context, s *Injection) error {
		f, err := s.Net.Apply(e, m, w(s)...)
		if err != nil {
			return err
		}
		s.harm = &harm{f}
		s.Undo = func() error {
			f.Lift()
			return nil
		}
		return nil
	}
}

// packetsHarmed waits until the switch has counted a few.
func packetsHarmed(_ context.Context, s *Injection) (string, error) {
	d := s.harm.fault.Done()
	var seen []string
	n := uint64(0)
	for _, c := range []struct {
		what  string
		count uint64
	}{{"lost", d.Dropped}, {"late", d.Delayed}, {"out of order", d.Reordered}, {"doubled", d.Duplicated}, {"damaged", d.Corrupted}, {"forged", d.Forged}} {
		if c.count > 0 {
			seen = append(seen, fmt.Sprintf("%d %s", c.count, c.what))
			n += c.count
		}
	}
	if n < 5 {
		return "", errNotYet
	}
	return strings.TrimSpace(fmt.Sprintf("the switch counted packets: %s %s", strings.Join(seen, ", "), s.Seen)), nil
}
