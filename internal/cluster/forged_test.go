package cluster_test

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/forged"
	"github.com/flakelease/allocator/chaos/gossiptest"
	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
)

// bury tells each victim that n has left, and at once that it lives at another address.
func (s *scenario) bury(n *node, at string, victims []*node, incarnation uint32) {
	s.t.Helper()
	member := forged.MemberName(n.name, n.instance)
	packet, err := forged.Packet("allocator/test", nil, forged.Left(member, incarnation),
		forged.Alive(member, netip.MustParseAddrPort(at), "pool-1", n.instance, incarnation))
	fatal.If(s.t, err)
	for _, v := range victims {
		s.net.Inject(at, v.t.Addr(), slices.Clone(packet))
	}
}

// TestTakenInstances: a member of gossip with the key announces the instances of the others,
// under names of its own, or under theirs when it has said that they left, and answers for
// them. Everybody goes on exchanging clocks with the real ones, and with nobody else; and
// when it has gone all are members again.
func TestTakenInstances(t *testing.T) {
	for name, taken := range map[string]bool{"under other names": false, "under their own names": true} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, func(s *scenario) {
				s.net.SetLink(gossiptest.Link{Latency: time.Millisecond})
				s.startAll(3)
				time.Sleep(10 * time.Second)
				real := slices.Clone(s.nodes)
				s.alone = true
				began := time.Now()
				var evil []*node
				for _, victim := range real {
					e := s.start(func(c *cluster.Config) {
						c.Instance = victim.instance
						if taken {
							c.Node = victim.name
						}
					})
					e.local.setAhead(time.Hour)
					e.local.set(agreement.Status{Verdict: clock.Open, SID: -1, Era: 1 << 30, Revision: 1 << 40})
					e.SetPeers(registered(but(victim, real)...))
					evil = append(evil, e)
				}
				for range 60 {
					if taken {
						for i, victim := range real {
							s.bury(victim, evil[i].t.Addr(), but(victim, real), uint32(time.Since(s.begin)/time.Second))
						}
					}
					time.Sleep(time.Second)
				}
				s.even(real, began, 2010*time.Millisecond)
				for i, n := range real {
					for _, e := range n.since(s.begin) {
						if e.Status.Era != 0 {
							t.Fatalf("%s believes %+v", n.name, e)
						}
					}
					if got := evil[i].Observe(); got.Pongs != 0 {
						t.Errorf("%d questions for %s were sent to another", got.Pongs, n.name)
					}
					if n.Observe().Dropped["impostor"] == 0 {
						t.Errorf("%s noticed nothing: %+v", n.name, n.Observe())
					}
				}
				gone := time.Now()
				for _, e := range evil {
					e.stop()
				}
				time.Sleep(20 * time.Second)
				s.even(real, gone, 2010*time.Millisecond)
				for _, n := range real {
					if live, _ := n.Members(); live != 3 {
						t.Errorf("%s has %d members: %+v", n.name, live, n.Observe().Peers)
					}
				}
				s.nodes = real
				s.sound()
				s.nodes = append(s.nodes, evil...)
			})
		})
	}
}

// TestListedPeerComesBack: gossip has forgotten a peer, and nobody can be dialed. What the
// store lists is asked all the same, and what it does not list any more is not.
func TestListedPeerComesBack(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.net.SetLink(gossiptest.Link{Latency: time.Millisecond})
		s.alone = true
		s.startAll(2)
		a, b := s.nodes[0], s.nodes[1]
		time.Sleep(5 * time.Second)
		mark := time.Now()
		b.SetPeers(registered(a))
		a.SetPeers(registered(b))
		synctest.Wait()
		time.Sleep(time.Second)
		s.even(s.nodes, mark, time.Second)

		a.SetPeers(nil)
		time.Sleep(time.Second)
		mark = time.Now()
		time.Sleep(10 * time.Second)
		if got := a.since(mark); len(got) != 0 || len(a.Observe().Peers) != 0 {
			t.Errorf("%d exchanges with a peer that is not registered", len(got))
		}
		if got := b.since(mark); len(got) < 4 {
			t.Errorf("a peer that is a member is answered though it is not listed here: %d times", len(got))
		}
		a.SetPeers(registered(b))
		mark = time.Now()
		time.Sleep(time.Second)
		if len(a.since(mark)) == 0 {
			t.Error("a peer that is registered again is not asked")
		}
	})
}
