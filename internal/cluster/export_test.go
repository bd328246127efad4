package cluster

import (
	"cmp"
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/agreement"
)

// Observed is what tests read of a cluster.
type Observed struct {
	Stats
	Addr  string // as peers know it; empty until Run listens
	Peers []Peer // registered nodes but this one, by name

	SendFailures        uint64
	Joins, JoinFailures uint64 // addresses dialled
	Joined, Left        uint64 // members of gossip that came, and that went or died
	RefusedPool         uint64 // announcements of another pool

	Keys       int    // on the keyring; 0: not encrypted
	PrimaryKey string // 8 hex digits that identify the key
}

// Peer is another node that is registered.
type Peer struct {
	agreement.Peer
	Live     bool          // It is a live member of gossip.
	Measured bool          // it has answered: the rest is of its last reply
	Age      time.Duration // since then
	RTT      time.Duration
	Last     agreement.Exchange
}

// Observe returns what the cluster counted and knows now.
func (c *Cluster) Observe() Observed {
	now := c.cfg.Local.Clocks().Raw
	s := Observed{
		Stats:        c.Stats(),
		SendFailures: c.n.sendFailures.Load(),
		Joins:        c.n.joins.Load(),
		JoinFailures: c.n.joinFailures.Load(),
		Joined:       c.n.joined.Load(),
		Left:         c.n.left.Load(),
		RefusedPool:  c.n.refusedPool.Load(),
	}
	if addr := c.addr.Load(); addr != nil {
		s.Addr = *addr
	}
	if c.ring != nil {
		keys := c.ring.GetKeys()
		s.Keys, s.PrimaryKey = len(keys), keyID(keys[0])
	}
	c.mu.Lock()
	for id, p := range c.table.peers {
		q := Peer{Peer: p.Peer, Live: c.table.live(id)}
		if e := p.last; e != nil {
			q.Measured, q.Age, q.RTT, q.Last = true, time.Duration(now-e.Sample.T4), e.RTT(), *e
		}
		s.Peers = append(s.Peers, q)
	}
	c.mu.Unlock()
	slices.SortFunc(s.Peers, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Instance, b.Instance))
	})
	return s
}
