package cluster

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/internal/agreement"
)

// peer is another node that is registered.
type peer struct {
	agreement.Peer
	node  *memberlist.Node    // The address that it registered, to send to.
	due   int64               // raw ns: when to ask next
	again bool                // ask now, besides what is due
	asked int                 // pings sent since it was listed or joined
	last  *agreement.Exchange // the newest; nil: it has not answered yet

	asks       query  // requests for reports
	reportOwed int64  // raw ns when the first request was sent that is not answered; 0: none is
	said       []byte // by the newest report; nil: there is none
	saidAt     int64  // when it came
}

// query is the latest request for something besides clocks.
type query struct {
	nonce uint64 // 0: it was answered, or there is none
	at    int64  // raw ns when it was sent
}

func (q *query) ask(random uint64, now int64) { q.nonce, q.at = random|1, now }

// answered settles an answer, which counts once and in time.
func (q *query) answered(nonce uint64, came int64) fault {
	switch {
	case q.nonce == 0 || q.nonce != nonce:
		return unknown
	case came-q.at > int64(maxRoundTrip):
		return stale
	}
	q.nonce = 0
	return none
}

const (
	// firstRetry is how soon a peer that never answered is asked again, doubling
	// up to the usual interval: a node that starts wants its round of echoes within a second.
	firstRetry = int64(200 * time.Millisecond)

	// nonceKept is how long a nonce is remembered, in raw ns: long enough to tell
	// a late reply and a replayed one from one that was never asked for.
	nonceKept = 3 * int64(maxRoundTrip)
	// maxNonces bounds those remembered: three seconds of 1,000 peers.
	maxNonces = 2048
)

// table is what a Cluster knows of its peers and of the pings on their way. It
// is not safe for concurrent use; the Cluster's lock guards it. Times are the
// local raw clock, in ns.
//
// Its peers are those that are registered in the store, at the addresses that they
// registered. Members are what gossip says, and a hint: whoever has the key can announce
// and bury anybody. They say which peers need no dial, and where to answer one that is not
// listed here yet.
type table struct {
	every   int64
	rand    *rand.Rand
	peers   map[uuid.UUID]*peer
	members map[uuid.UUID]*memberlist.Node // our copies, by the instance that they announce
	early   []reply                        // Pings whose senders are not known yet.
	nonces  map[uint64]*asked
	order   []uint64 // nonces as they were sent
	expired uint64   // pings that nobody answered in time
}

// asked is a ping that was sent.
type asked struct {
	of       uuid.UUID
	t1       int64
	answered bool
}

func newTable(every time.Duration, source rand.Source) *table {
	return &table{
		every: int64(every), rand: rand.New(source),
		peers: map[uuid.UUID]*peer{}, members: map[uuid.UUID]*memberlist.Node{}, nonces: map[uint64]*asked{},
	}
}

// list takes the registered peers, and reports whether one of them is new. New ones are asked
// at once. One whose address is no ip:port cannot be asked, and is left out.
func (t *table) list(peers []agreement.Peer, now int64) (fresh bool) {
	listed := make(map[uuid.UUID]*peer, len(peers))
	for _, r := range peers {
		id, err := uuid.Parse(r.Instance)
		addr, err2 := netip.ParseAddrPort(r.Gossip)
		if err != nil || err2 != nil {
			continue
		}
		p := t.peers[id]
		if p == nil || p.Node != r.Node || p.Gossip != r.Gossip {
			fresh = true
			p = &peer{
				due: now,
				node: &memberlist.Node{
					Name: memberName(r.Node, id),
					Addr: addr.Addr().AsSlice(),
					Port: addr.Port(),
					PMax: memberlist.ProtocolVersionMax,
				},
			}
		}
		p.Peer = r
		listed[id] = p
	}
	t.peers = listed
	return fresh
}

// join notes that gossip has a member. A peer that has not answered yet is asked at once.
func (t *table) join(id uuid.UUID, n *memberlist.Node, now int64) {
	if len(t.members) < maxMembers || t.members[id] != nil {
		t.members[id] = n
	}
	if p := t.peers[id]; p != nil && p.last == nil && t.live(id) {
		p.due, p.asked = now, 0
	}
}

// leave forgets a member of that name.
func (t *table) leave(id uuid.UUID, name string) {
	if n := t.members[id]; n != nil && n.Name == name {
		delete(t.members, id)
	}
}

// live reports whether a peer is a live member of gossip where it registered.
func (t *table) live(id uuid.UUID) bool {
	p, n := t.peers[id], t.members[id]
	return p != nil && n != nil && sameNode(n, p.node)
}

// impostor reports whether a member of gossip that announces an instance is not the node
// that registered it.
func (t *table) impostor(id uuid.UUID, n *memberlist.Node) bool {
	p := t.peers[id]
	return p != nil && !sameNode(n, p.node)
}

// sameNode reports whether a and b have one name and one address.
func sameNode(a, b *memberlist.Node) bool {
	return a.Name == b.Name && a.Port == b.Port && a.Addr.Equal(b.Addr)
}

// address returns where to answer an instance: where it registered, and if it is not listed
// here yet, where gossip has it. It is nil if nobody knows. To answer a wrong one does no harm.
func (t *table) address(id uuid.UUID) *memberlist.Node {
	if p := t.peers[id]; p != nil {
		return p.node
	}
	return t.members[id]
}

// target is a peer to be asked now.
type target struct {
	id   uuid.UUID
	node *memberlist.Node
}

// due returns whom to ask at time now, and how long to wait for the next.
func (t *table) due(now int64) (targets []target, wait time.Duration) {
	t.expire(now)
	next := now + t.every
	for id, p := range t.peers {
		if !p.Ask {
			continue
		}
		if p.due <= now || p.again {
			targets = append(targets, target{id, p.node})
			if p.due <= now {
				p.due = t.after(p, now)
			}
			p.again = false
			p.asked++
		}
		// The raw clock never steps; should it stop or go back all the same,
		// the peer is asked after the interval as counted from here.
		p.due = min(p.due, now+t.every)
		next = min(next, p.due)
	}
	return targets, time.Duration(next - now)
}

// after returns when to ask p again. The interval is kept to, whatever was late;
// once, at the first reply, a random part of it is left out: each peer gets a
// phase of its own, so that a fleet that starts together does not ask together.
func (t *table) after(p *peer, now int64) int64 {
	switch {
	case p.last == nil:
		return now + min(firstRetry<<min(p.asked, 16), t.every)
	case now-p.due > t.every/2:
		return now + t.every
	}
	return p.due + t.every
}

// send notes that a ping to a peer leaves at time t1, and returns its nonce.
func (t *table) send(to uuid.UUID, t1 int64) uint64 {
	if len(t.order) >= maxNonces {
		t.forget()
	}
	nonce := t.rand.Uint64()
	for t.nonces[nonce] != nil {
		nonce = t.rand.Uint64()
	}
	t.nonces[nonce] = &asked{of: to, t1: t1}
	t.order = append(t.order, nonce)
	return nonce
}

// expire forgets nonces that are too old to matter.
func (t *table) expire(now int64) {
	for len(t.order) > 0 && now-t.nonces[t.order[0]].t1 > nonceKept {
		t.forget()
	}
}

// forget drops the oldest nonce.
func (t *table) forget() {
	if !t.nonces[t.order[0]].answered {
		t.expired++
	}
	delete(t.nonces, t.order[0])
	t.order = t.order[1:]
}

// fault is why a message was dropped. It is a closed set, so that it can be a
// metric's label.
type fault int

const (
	none          fault = iota
	version             // another version of the echo
	malformed           // no message of ours
	notMember           // from an instance that is not registered, and no live member when it came
	unknown             // reply to a ping never sent, or long forgotten
	stale               // reply after more than maxRoundTrip
	replayed            // reply to a ping already answered
	forged              // reply that contradicts its ping
	queueFull           // nobody took it in time
	streamLimit         // a connection above the limits of intake
	streamTimeout       // a connection whose message did not come in time
	streamInvalid       // a connection that proved to be no peer's
	packetInvalid       // a datagram that no node sends
	impostor            // an announcement of a registered instance with another name or address
	faults
)

var faultNames = [faults]string{
	"none", "version", "malformed", "not_member", "unknown", "stale", "replayed", "forged", "queue_full",
	"stream_limit", "stream_timeout", "stream_invalid", "packet_invalid", "impostor",
}

// dropped counts messages by why they were dropped.
type dropped [faults]atomic.Uint64

// DropReasons lists the keys of Stats.Dropped.
func DropReasons() []string { return slices.Clone(faultNames[none+1:]) }

// receive settles a reply that came at time t4, and returns the peer that sent
// it. A nonce counts once, whatever becomes of its reply.
func (t *table) receive(p pong, t4 int64) (from *peer, f fault) {
	a := t.nonces[p.Nonce]
	switch {
	case a == nil:
		return nil, unknown
	case a.answered:
		return nil, replayed
	}
	a.answered = true
	rtt := t4 - a.t1
	from = t.peers[p.Instance]
	switch {
	case a.of != p.Instance || a.t1 != p.T1 || rtt < 0 || int64(p.Hold) > rtt:
		return nil, forged
	case rtt > int64(maxRoundTrip):
		return nil, stale
	case from == nil:
		return nil, notMember
	case from.Node != p.Node:
		return nil, forged
	}
	return from, none
}

// answered notes an exchange with p.
func (t *table) answered(p *peer, e *agreement.Exchange) {
	if p.last == nil {
		p.due = e.Sample.T4 + t.every/4 + t.rand.Int64N(t.every*3/4) // spreads the peers over the interval
	}
	p.last = e
}
