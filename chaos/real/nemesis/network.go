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

// links selects the links that a fault affects.
type links func(s *Injection) []netswitch.Pair

// sides returns the hosts of the targeted node, of the other nodes, and of etcd.
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
	both := func(a, b links) links {
		return func(s *Injection) []netswitch.Pair { return slices.Concat(a(s), b(s)) }
	}
	pair := func(whole bool) links {
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
		hit := s.Net.Hosts(s.Etcds[s.Members[0]].Name)
		return netswitch.Between(hit,
			slices.Concat(o, slices.DeleteFunc(e, func(h *netswitch.Host) bool { return h == hit[0] })))
	}
	gossip := netswitch.Match{Ports: []uint16{rig.GossipPort}}
	any := netswitch.Match{}
	beyond := after(window, 2*time.Second, 2500*time.Millisecond)
	within := func(t rig.Timing) (time.Duration, time.Duration) {
		d := windowLeft(t) - election(t)
		return d / 2, max(d*3/4, d/2)
	}
	several := between(6*time.Second, 7*time.Second)
	windowExhausted := func(t rig.Timing) Expect { return windowExhausted(t, 0, "") }
	fault := func(name, about string, scope Scope, hold func(rig.Timing) (time.Duration, time.Duration),
		e netswitch.Effect,
		m netswitch.Match, w links, expect func(rig.Timing) Expect) Fault {
		return Fault{
			Name:   name,
			About:  about,
			Scope:  scope,
			Needs:  OwnNetworks,
			Hold:   hold,
			Expect: expect,
			Begin:  apply(e, m, w),
			Fired:  packetsCounted,
			End:    func(_ context.Context, s *Injection) error { return s.undo() },
		}
	}
	impairment := netswitch.Effect{
		Drop:      .02,
		Duplicate: .05,
		Reorder:   .05,
		Corrupt:   .02,
		Delay:     2 * time.Millisecond,
		Jitter:    2 * time.Millisecond,
	}
	out := []Fault{
		fault("net-etcd-partition", "a node and etcd are partitioned until its window is exhausted", OneNode, beyond,
			netswitch.Cut, any, both(toEtcd, fromEtcd), windowExhausted),
		fault("net-etcd-drop-inbound", "packets from etcd to a node are lost: writes are applied, replies are lost",
			OneNode, beyond, netswitch.Cut, any, fromEtcd, windowExhausted),
		fault("net-etcd-drop-outbound", "packets from a node to etcd are lost", OneNode, beyond, netswitch.Cut, any,
			toEtcd, windowExhausted),
		fault("net-etcd-short-partition", "a node and etcd are partitioned for less than its window lasts", OneNode,
			within, netswitch.Cut, any, both(toEtcd, fromEtcd), unaffected(4*time.Second)),
		fault("net-leader-partition", "etcd's leader is partitioned from everything else", Leader,
			between(2*time.Second, 3*time.Second), netswitch.Cut, any, leader, unled(3*time.Second)),
		fault("net-peers-partition", "a node is partitioned from all other nodes", OneNode, several, netswitch.Cut, any,
			both(toPeers, fromPeers), unaffected(3*time.Second)),
		fault("net-peers-drop-inbound", "packets from other nodes to a node are lost", OneNode, several, netswitch.Cut,
			any, fromPeers, unaffected(3*time.Second)),
		fault("net-peers-drop-outbound", "packets from a node to other nodes are lost", OneNode, several, netswitch.Cut,
			any, toPeers, unaffected(3*time.Second)),
		fault("net-pair-partition", "two nodes are partitioned from each other", OneNode, several, netswitch.Cut, any,
			pair(true), unaffected(3*time.Second)),
		fault("net-pair-drop-inbound", "packets between two nodes are lost in one direction", OneNode, several,
			netswitch.Cut, any, pair(false), unaffected(3*time.Second)),
		fault("net-gossip-block", "all gossip is lost", Whole, several, netswitch.Cut, gossip, amongNodes,
			unaffected(3*time.Second)),
		fault("net-impairment", "2 % of all packets lost, 2 % corrupted, 5 % duplicated, 5 % reordered, all delayed",
			Whole, several, impairment, any, everywhere, unled(3*time.Second)),
		fault("net-gossip-forged", "a third of all gossip packets is modified, with valid checksums", Whole, several,
			netswitch.Effect{Forge: .3}, gossip, amongNodes, unaffected(3*time.Second)),
	}
	for i := range out {
		out[i].Smoke = out[i].Name == "net-etcd-partition"
	}
	return out
}

func apply(e netswitch.Effect, m netswitch.Match, w links) func(context.Context, *Injection) error {
	return func(_ context.Context, s *Injection) error {
		f, err := s.Net.Apply(e, m, w(s)...)
		if err != nil {
			return err
		}
		s.packets = f
		s.Undo = func() error {
			f.Lift()
			return nil
		}
		return nil
	}
}

// packetsCounted waits until the switch has counted a few affected packets.
func packetsCounted(_ context.Context, s *Injection) (string, error) {
	d := s.packets.Done()
	var seen []string
	n := uint64(0)
	for _, c := range []struct {
		what  string
		count uint64
	}{{"lost", d.Dropped}, {"delayed", d.Delayed}, {"reordered", d.Reordered}, {"duplicated", d.Duplicated},
		{"corrupted", d.Corrupted}, {"modified", d.Forged}} {
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
