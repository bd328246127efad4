package cluster

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/internal/agreement"
)

// ask asks a peer for its report. It has the form of a ping.
type ask ping

// report answers an ask: Said is what the node says of itself, whose form others know.
type report struct {
	Instance uuid.UUID
	Nonce    uint64
	Said     []byte
}

// AsksAtOnce is how many peers are asked for their reports at once by those who ask all. A
// fleet is asked in four calls of AskReports.
const AsksAtOnce = 256

func appendAsk(b []byte, a ask) []byte {
	at := len(b)
	b = appendPing(b, ping(a))
	b[at+1] = kindAsk
	return b
}

func appendReport(b []byte, r report) []byte {
	b = append(b, echoVersion, kindReport)
	b = append(b, r.Instance[:]...)
	b = binary.BigEndian.AppendUint64(b, r.Nonce)
	return append(b, r.Said...)
}

// PeerReport is a registered peer and its latest report.
type PeerReport struct {
	Peer agreement.Peer
	Said []byte        // nil: it sent none
	Age  time.Duration // since it came
	Owed time.Duration // since the first request that it has not answered; 0: it has
}

// askedLately is how long after a request nothing of its answer means that the peer is silent,
// in raw ns. Peers are asked each second while somebody looks.
const askedLately = int64(5 * time.Second)

// owes returns for how long the peer has not answered requests for its report; 0: it has, or
// nobody asked it lately.
func (p *peer) owes(now int64) int64 {
	if p.reportOwed == 0 || now-p.asks.at > askedLately {
		return 0
	}
	return now - p.reportOwed
}

// AskReports asks registered peers for their reports: those asked longest ago, at most n.
func (c *Cluster) AskReports(n int) {
	now := c.cfg.Local.Clocks().Raw
	type asked struct {
		id   uuid.UUID
		peer *peer
		node *memberlist.Node
	}
	var all []asked
	c.mu.Lock()
	for id, p := range c.table.peers {
		all = append(all, asked{id, p, p.node})
	}
	slices.SortFunc(all, func(a, b asked) int {
		return cmp.Or(cmp.Compare(a.peer.asks.at, b.peer.asks.at), slices.Compare(a.id[:], b.id[:]))
	})
	all = all[:min(len(all), n)]
	asks := make([]ask, len(all))
	for i, to := range all {
		to.peer.reportOwed = now - to.peer.owes(now)
		to.peer.asks.ask(c.table.rand.Uint64(), now)
		asks[i] = ask{From: c.instance, Nonce: to.peer.asks.nonce, T1: now}
	}
	c.mu.Unlock()
	for i, to := range all {
		c.send(to.node, appendAsk(make([]byte, 0, pingSize), asks[i]))
	}
}

// Reports returns each registered peer with its latest report, by instance.
func (c *Cluster) Reports() map[string]PeerReport {
	now := c.cfg.Local.Clocks().Raw
	out := map[string]PeerReport{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, p := range c.table.peers {
		r := PeerReport{Peer: p.Peer, Said: p.said, Owed: time.Duration(p.owes(now))}
		if p.said != nil {
			r.Age = time.Duration(now - p.saidAt)
		}
		out[id.String()] = r
	}
	return out
}

// takeReport keeps a report that was asked for.
func (t *table) takeReport(r report, came int64) fault {
	p := t.peers[r.Instance]
	if p == nil {
		return notMember
	}
	if fault := p.asks.answered(r.Nonce, came); fault != none {
		return fault
	}
	p.reportOwed, p.said, p.saidAt = 0, r.Said, came
	return none
}
