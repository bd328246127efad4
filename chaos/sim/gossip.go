package sim

import (
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
)

// network carries gossip.
type network struct {
	parts  [2]uint64     // hosts that reach each other, as bits of their number modulo 64
	parted time.Duration // until then
	oneWay bool          // only what the first part sends to the second is lost
}

// cutGossip splits the hosts in two for a while, perhaps one way only.
func (sim *simulation) cutGossip() {
	sim.net.parts = [2]uint64{}
	for i := range sim.hosts {
		sim.net.parts[sim.rng.IntN(2)] |= 1 << (i % 64)
	}
	sim.net.oneWay = sim.rng.IntN(2) == 0
	sim.net.parted = sim.now + sim.logTime(time.Second, 2*time.Minute)
	sim.note(nil, "gossip is cut until %d", int64(sim.net.parted))
}

// part returns which side of a cut the host is on.
func (sim *simulation) part(h *host) int {
	i := slices.Index(sim.hosts, h)
	if i < 0 {
		i = 0
	}
	return int(sim.net.parts[1] >> (i % 64) & 1)
}

// send carries a message from one process to another, once, twice or not at all.
func (sim *simulation) send(from, to *process, deliver func()) {
	if from.host.noGossip || to.host.noGossip {
		return
	}
	pl := &sim.plan
	noisy := sim.noisy()
	if noisy {
		if sim.now < max(from.host.alone, to.host.alone) {
			sim.sent(from, to, pl.gossipLatency, true, nil)
			return
		}
		if sim.now < sim.net.parted {
			a, b := sim.part(from.host), sim.part(to.host)
			if a != b && (!sim.net.oneWay || a == 0) {
				sim.sent(from, to, pl.gossipLatency, true, nil)
				return
			}
		}
		if sim.chance(pl.gossipLost) {
			return
		}
	}
	times := 1
	if noisy && sim.chance(pl.gossipTwice) {
		times = 2
	}
	for range times {
		d := pl.gossipLatency/2 + sim.upTo(pl.gossipLatency)
		if noisy && sim.chance(pl.gossipSlow) {
			d += sim.logTime(time.Millisecond, 3*time.Second)
		}
		sim.sent(from, to, d, false, nil)
		to.in(d, deliver)
	}
}

// startingEvery is how often a process checks for peers to ask until it knows them,
// in place of the gossip library's news of who joined.
const startingEvery = 20 * time.Millisecond

// askPeers asks everybody whom the clock is judged by.
func (p *process) askPeers() {
	voters := p.judge.machine.Voters()
	if !p.status.Listed {
		p.plan(startingEvery, echo)
		return
	}
	for _, m := range voters {
		p.ask(m.Instance)
	}
	p.plan(agreement.ExchangeEvery, echo)
}

// answer is a peer's answer to a question.
type answer struct {
	clocks clock.Snapshot
	hold   time.Duration
	status agreement.Status

	lie         int64 // ns added to the clocks; 0: it is true
	heldTooLong bool  // hold is to be longer than the exchange took
}

// ask sends a question to the process of that instance.
func (p *process) ask(instance string) {
	sim := p.sim
	peer := sim.find(instance)
	if peer == nil {
		return
	}
	p.nonce++
	nonce := p.nonce
	if len(p.offered) > 256 {
		clear(p.offered)
	}
	p.offered[nonce] = p.readings().Raw
	sim.send(p, peer, func() {
		received := peer.readings().Raw
		peer.in(sim.upTo(time.Millisecond), func() {
			a := peer.answer()
			a.hold = time.Duration(a.clocks.Raw - received)
			sim.send(peer, p, func() { p.learn(peer, nonce, a) })
		})
	})
}

// find returns the live process of that instance.
func (sim *simulation) find(instance string) *process {
	for i := len(sim.processes) - 1; i >= 0; i-- {
		if p := sim.processes[i]; p.name == instance {
			if p.gone {
				return nil
			}
			return p
		}
	}
	return nil
}

func (p *process) answer() answer {
	sim := p.sim
	a := answer{clocks: p.clockRead().Clocks, status: p.judge.machine.Status()}
	if sim.plan.falsePeer && p.host == sim.hosts[0] && sim.stage == trouble {
		lie := int64(sim.logTime(time.Millisecond, time.Hour) * sim.sign())
		a.clocks.Issuing += lie
		a.clocks.Wall += lie
		a.status.Revision += 1000
		a.lie, a.heldTooLong = lie, p.nonce%4 == 0
		sim.points.hit(FalsePeerAnswered)
	}
	return a
}

// learn takes a peer's answer.
func (p *process) learn(peer *process, nonce int64, a answer) {
	t1, ok := p.offered[nonce]
	if !ok {
		return // a second copy
	}
	delete(p.offered, nonce)
	t4 := p.readings().Raw
	if a.heldTooLong {
		a.hold = time.Duration(t4-t1) + time.Millisecond
	}
	falsePeer := p.sim.plan.falsePeer && peer.host == p.sim.hosts[0]
	before := p.answered[peer.name]
	newest, count := max(before.newest, a.clocks.Raw), 0
	if before.now > p.host.wrong {
		count = before.count
	}
	if time.Duration(t4-t1) <= clock.MaxRoundTrip { // else it is not taken
		count = min(count+1, 2)
	}
	p.answered[peer.name] = lastAnswer{
		at:     t4,
		now:    p.sim.now,
		count:  count,
		newest: newest,
		sound: peer.host.sound &&
			!falsePeer,
	}
	p.agree(agreement.Exchange{
		Node:   peer.host.node,
		Sample: clock.Sample{Instance: peer.name, T1: t1, T4: t4, Hold: a.hold, Peer: a.clocks},
		Status: a.status,
	})
	if overtaken := a.clocks.Raw < newest; !overtaken && nonce%8 == 0 || a.heldTooLong {
		p.checkEstimate(peer, a)
	}
}
