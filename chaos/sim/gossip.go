package sim

import (
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
)

// network carries gossip.
type network struct {
	parts  [2]uint64     // hosts that hear each other, as bits of their number modulo 64
	parted time.Duration // until then
	oneWay bool          // only what the first part sends to the second is lost
}

// cutGossip splits the hosts in two for a while, perhaps one way only.
func (w *world) cutGossip() {
	w.net.parts = [2]uint64{}
	for i := range w.hosts {
		w.net.parts[w.rng.IntN(2)] |= 1 << (i % 64)
	}
	w.net.oneWay = w.rng.IntN(2) == 0
	w.net.parted = w.now + w.logTime(time.Second, 2*time.Minute)
	w.note(nil, "gossip is cut until %d", int64(w.net.parted))
}

// part returns which side of a cut the host is on.
func (w *world) part(h *host) int {
	i := slices.Index(w.hosts, h)
	if i < 0 {
		i = 0
	}
	return int(w.net.parts[1] >> (i % 64) & 1)
}

// send carries a message from one process to another, once, twice or not at all.
func (w *world) send(from, to *process, deliver func()) {
	if from.host.mute || to.host.mute {
		return
	}
	pl := &w.plan
	noisy := w.stage == trouble
	if noisy {
		if w.now < w.net.parted {
			a, b := w.part(from.host), w.part(to.host)
			if a != b && (!w.net.oneWay || a == 0) {
				return
			}
		}
		if w.chance(pl.gossipLost) {
			return
		}
	}
	times := 1
	if noisy && w.chance(pl.gossipTwice) {
		times = 2
	}
	for range times {
		d := pl.gossipLatency/2 + w.upTo(pl.gossipLatency)
		if noisy && w.chance(pl.gossipSlow) {
			d += w.logTime(time.Millisecond, 3*time.Second)
		}
		to.in(d, deliver)
	}
}

// startingEvery is how often a process looks for peers to ask until it knows them,
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
	w := p.w
	peer := w.find(instance)
	if peer == nil {
		return
	}
	p.nonce++
	nonce := p.nonce
	if len(p.offered) > 256 {
		clear(p.offered)
	}
	p.offered[nonce] = p.readings().Raw
	w.send(p, peer, func() {
		received := peer.readings().Raw
		peer.in(w.upTo(time.Millisecond), func() {
			a := peer.answer()
			a.hold = time.Duration(a.clocks.Raw - received)
			w.send(peer, p, func() { p.learn(peer, nonce, a) })
		})
	})
}

// find returns the live process of that instance.
func (w *world) find(instance string) *process {
	for i := len(w.processes) - 1; i >= 0; i-- {
		if p := w.processes[i]; p.name == instance {
			if p.gone {
				return nil
			}
			return p
		}
	}
	return nil
}

func (p *process) answer() answer {
	w := p.w
	a := answer{clocks: p.clockRead().Clocks, status: p.judge.machine.Status()}
	if w.plan.liar && p.host == w.hosts[0] && w.stage == trouble {
		lie := int64(w.logTime(time.Millisecond, time.Hour) * w.sign())
		a.clocks.Issuing += lie
		a.clocks.Wall += lie
		a.status.Revision += 1000
		a.lie, a.heldTooLong = lie, p.nonce%4 == 0
		w.points.hit(Lied)
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
	liar := p.w.plan.liar && peer.host == p.w.hosts[0]
	p.answered[peer.name] = heard{at: t4, sound: peer.host.sound && !liar}
	p.agree(agreement.Exchange{
		Node:   peer.host.node,
		Sample: clock.Sample{Instance: peer.name, T1: t1, T4: t4, Hold: a.hold, Peer: a.clocks},
		Status: a.status,
	})
	if nonce%8 == 0 || a.heldTooLong {
		p.checkEstimate(peer, a)
	}
}
