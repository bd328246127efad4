package cluster

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
)

// delegate is what memberlist calls. All but NotifyMsg, NodeMeta and the state
// calls run under the library's own lock: they must not call it back.
type delegate struct{ c *Cluster }

// NodeMeta is announced with our name.
func (d delegate) NodeMeta(int) []byte { return d.c.announce }

// GetBroadcasts, LocalState and MergeRemoteState: we gossip nothing ourselves.
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}

// NotifyAlive keeps out every node that is not of our pool.
func (d delegate) NotifyAlive(n *memberlist.Node) error { return d.c.check(n) }

// NotifyMerge refuses a join that would bring in such a node. One under a wrong name is only
// left out: somebody put it into the list of a peer that did not know better.
func (d delegate) NotifyMerge(nodes []*memberlist.Node) error {
	for _, n := range nodes {
		if n.State != memberlist.StateAlive {
			continue
		}
		if err := d.c.check(n); err != nil && !errors.Is(err, errImpostor) {
			return err
		}
	}
	return nil
}

// NotifyConflict is of two addresses under one name, which the library logs.
func (delegate) NotifyConflict(*memberlist.Node, *memberlist.Node) {}

func (c *Cluster) check(n *memberlist.Node) error {
	id, err := c.admit(n)
	switch {
	case errors.Is(err, ErrOtherPool):
		c.n.refusedPool.Add(1)
	case errors.Is(err, errImpostor):
		c.drop(impostor)
		c.lines.impostor(n.Name, n.Address(), id.String())
	}
	return err
}

// NotifyJoin has a peer asked at once that gossip knows now.
func (d delegate) NotifyJoin(n *memberlist.Node) {
	if d.joined(n) {
		d.c.n.joined.Add(1)
	}
}

// NotifyUpdate takes a member's new address or announcement.
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.joined(n) }

// joined notes that gossip has a member, and reports whether it is another node's.
func (d delegate) joined(n *memberlist.Node) bool {
	c := d.c
	id, err := c.admit(n)
	if err != nil || n.Name == c.name {
		return false // NotifyAlive let nobody else in
	}
	node := *n // a copy that the library does not change
	node.Addr, node.Meta = slices.Clone(n.Addr), slices.Clone(n.Meta)
	now := c.cfg.Local.Clocks().Raw
	c.mu.Lock()
	c.table.join(id, &node, now)
	c.requeue()
	c.mu.Unlock()
	wake(c.wake)
	c.log.Info("gossip member joined", "name", n.Name, "addr", n.Address())
	return true
}

// NotifyLeave forgets a member that left or died.
func (d delegate) NotifyLeave(n *memberlist.Node) {
	c := d.c
	a, err := decodeAnnouncement(n.Meta)
	if err != nil || n.Name == c.name {
		return
	}
	c.mu.Lock()
	c.table.leave(a.Instance, n.Name)
	c.mu.Unlock()
	c.n.left.Add(1)
	c.log.Info("gossip member left", "name", n.Name, "addr", n.Address())
}

// reply is a ping that waits to be answered.
type reply struct {
	ping ping
	t2   int64 // our raw clock when it came, ns

	kind byte // kindPing or kindAsk: what it asks for
}

// NotifyMsg takes a message. The clocks are read before anything else, since
// what passes before that counts as travel time; it must not block, since every
// other message waits for it.
func (d delegate) NotifyMsg(b []byte) {
	c := d.c
	came := c.cfg.Local.Clocks().Raw
	msg, err := decode(b)
	switch m := msg.(type) {
	case ping:
		c.queue(reply{m, came, kindPing})
	case ask:
		if c.cfg.Report != nil {
			c.queue(reply{ping(m), came, kindAsk})
		}
	case report:
		c.keep(func(t *table) fault { return t.takeReport(m, came) })
	case pong:
		c.settle(m, came)
	default:
		if errors.Is(err, errVersion) {
			c.drop(version)
		} else {
			c.drop(malformed)
		}
	}
}

func (c *Cluster) queue(r reply) {
	select {
	case c.replies <- r:
	default:
		c.drop(queueFull)
	}
}

// requeue has pings answered whose senders may be known by now: those of a node that starts overtake the news of it,
// since the library answers a join before it notes who joined. mu is held.
func (c *Cluster) requeue() {
	for _, r := range c.table.early {
		c.queue(r)
	}
	c.table.early = c.table.early[:0]
}

func (c *Cluster) drop(f fault) { c.n.dropped[f].Add(1) }

// keep has an answer taken that is no exchange, and counts it if it is refused.
func (c *Cluster) keep(take func(*table) fault) {
	c.mu.Lock()
	fault := take(c.table)
	c.mu.Unlock()
	if fault != none {
		c.drop(fault)
	}
}

// settle turns a reply into an exchange.
func (c *Cluster) settle(p pong, t4 int64) {
	c.mu.Lock()
	from, fault := c.table.receive(p, t4)
	var e agreement.Exchange
	if fault == none {
		e = agreement.Exchange{
			Node:   from.Node,
			Sample: clock.Sample{Instance: from.Instance, T1: p.T1, T4: t4, Hold: p.Hold, Peer: p.Clocks},
			Status: p.Status,
		}
		c.table.answered(from, &e)
	}
	c.mu.Unlock()
	if fault != none {
		c.drop(fault)
		return
	}
	c.n.exchanges.Add(1)
	select {
	case c.exchanges <- e:
	default:
		c.drop(queueFull)
	}
}

// ask sends pings as they come due.
func (c *Cluster) ask(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.wake:
		}
		now := c.cfg.Local.Clocks().Raw
		c.mu.Lock()
		targets, wait := c.table.due(now)
		c.mu.Unlock()
		for _, t := range targets {
			c.ping(t)
		}
		timer.Reset(max(wait, time.Millisecond))
	}
}

func (c *Cluster) ping(to target) {
	t1 := c.cfg.Local.Clocks().Raw
	c.mu.Lock()
	nonce := c.table.send(to.id, t1)
	c.mu.Unlock()
	c.send(to.node, appendPing(make([]byte, 0, pingSize), ping{From: c.instance, Nonce: nonce, T1: t1}))
}

// send sends a message, if gossip has started: pages ask for reports of listed peers before.
func (c *Cluster) send(to *memberlist.Node, msg []byte) {
	list := c.list.Load()
	if list == nil || list.SendBestEffort(to, msg) != nil {
		c.n.sendFailures.Add(1) // counted only: it may go on for as long as a network is away
	}
}

// answer replies to pings. One goroutine does, so that pings are never answered
// by more of them than the machine runs; the hold in each reply is how long
// its ping waited here.
func (c *Cluster) answer(ctx context.Context) {
	failing := false // our last reply could not be written: say so once, not to each ping
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-c.replies:
			err := c.pong(r)
			if err != nil && !failing {
				c.log.Error("clock or status message cannot be sent: peers count this node as silent", "error", err)
			}
			failing = err != nil
		}
	}
}

// pong answers one ping. It returns an error if our own clocks or status are
// nothing that a peer would take.
func (c *Cluster) pong(r reply) error {
	c.mu.Lock()
	node := c.table.address(r.ping.From)
	if node == nil && r.kind == kindPing && c.cfg.Local.Clocks().Raw-r.t2 <= int64(maxRoundTrip) {
		early := c.table.early
		c.table.early = append(early[max(0, len(early)-replyQueue/2+1):], r)
	}
	c.mu.Unlock()
	if node == nil {
		c.drop(notMember)
		return nil
	}
	if r.kind == kindAsk {
		c.send(node, appendReport(nil, report{Instance: c.instance, Nonce: r.ping.Nonce, Said: c.cfg.Report()}))
		return nil
	}
	p := pong{
		Instance: c.instance, Node: c.cfg.Node, Nonce: r.ping.Nonce, T1: r.ping.T1,
		Status: c.cfg.Local.Status(),
		Clocks: c.cfg.Local.Clocks(), // last: the peer takes them to be read just before sending
	}
	p.Hold = time.Duration(p.Clocks.Raw - r.t2)
	if p.Hold > maxRoundTrip {
		c.drop(stale)
		return nil
	}
	p.Hold -= p.Hold / 5000 // The clock of the asker may be 200 ppm slower, and no hold is longer than the exchange.
	msg, err := appendPong(make([]byte, 0, pongMinimum+len(p.Node)), p)
	if err != nil {
		c.n.sendFailures.Add(1)
		return err
	}
	c.n.pongs.Add(1)
	c.send(node, msg)
	return nil
}

// deliver makes the calls of Config.
func (c *Cluster) deliver(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-c.exchanges:
			c.cfg.OnExchange(e)
		}
	}
}
