package cluster

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
)

// Report is what a node says of its work and of what it has seen, for people. It is asked
// for while somebody looks, and by nodes that keep a history for those who look later.
type Report struct {
	PerSecond int64        // IDs, lately
	Lead      clock.Millis // The last ID lies ahead of the node's clock by this.
	Ceil      clock.Millis // The node's window ends at this Unix ms; 0: it holds no sid.
	Era       int64        // The node has seen no later era; 0: none.
	Highest   clock.Millis // ceiling ever confirmed to it; 0: none
	Reason    uint8        // why it refuses, as numbered in allocator.proto; 0: it does not
	// Refused has how many requests it refused in the last 5 s, by the number of the reason.
	Refused [MaxReasons]uint32
	// P50 and P99 are how long requests for IDs took in the same time; 0: there were none.
	P50, P99 Micros
	// Write is how long the latest confirmed write to etcd took, and Written how many ms ago
	// that was; 0: there was none.
	Write   Micros
	Written uint32
}

// Micros is a duration in microseconds.
type Micros uint32

// MaxReasons is above the number of every reason.
const MaxReasons = 32

// ask asks a peer for its report. It has the form of a ping.
type ask ping

// report answers an ask.
type report struct {
	Instance uuid.UUID
	Nonce    uint64
	Report
}

const (
	// reportSize has the head of every message.
	reportSize = 2 + 16 + 8 + 5*8 + 1 + MaxReasons*4 + 4*4
	// AsksAtOnce is how many peers are asked for their reports at once by those who ask all. A
	// fleet is asked in four calls of AskReports.
	AsksAtOnce = 256

	maxPerSecond = 1 << 40
	maxEra       = 1 << 40
)

func appendAsk(b []byte, a ask) []byte {
	at := len(b)
	b = appendPing(b, ping(a))
	b[at+1] = kindAsk
	return b
}

// appendReport appends r's message to b. It returns errMalformed for one that decode would
// refuse.
func appendReport(b []byte, r report) ([]byte, error) {
	if err := r.check(); err != nil {
		return b, err
	}
	u64 := binary.BigEndian.AppendUint64
	b = append(b, echoVersion, kindReport)
	b = append(b, r.Instance[:]...)
	b = u64(b, r.Nonce)
	b = u64(b, uint64(r.PerSecond))
	b = u64(b, uint64(r.Lead))
	b = u64(b, uint64(r.Ceil))
	b = u64(b, uint64(r.Era))
	b = u64(b, uint64(r.Highest))
	b = append(b, r.Reason)
	for _, n := range r.Refused {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	for _, n := range []uint32{uint32(r.P50), uint32(r.P99), uint32(r.Write), r.Written} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b, nil
}

// decodeReport reads what follows the version and the kind.
func decodeReport(b reader) (any, error) {
	if len(b) != reportSize-2 {
		return nil, fmt.Errorf("%w: report of %d bytes", errMalformed, len(b)+2)
	}
	r := report{Instance: b.uuid(), Nonce: b.u64()}
	r.Report = Report{
		PerSecond: b.i64(),
		Lead:      clock.Millis(b.i64()),
		Ceil:      clock.Millis(b.i64()),
		Era:       b.i64(),
		Highest:   clock.Millis(b.i64()),
		Reason:    b.u8(),
	}
	for i := range r.Refused {
		r.Refused[i] = b.u32()
	}
	r.P50, r.P99, r.Write, r.Written = Micros(b.u32()), Micros(b.u32()), Micros(b.u32()), b.u32()
	if err := r.check(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r report) check() error {
	switch {
	case r.PerSecond < 0 || r.PerSecond > maxPerSecond:
		return fmt.Errorf("%w: rate %d", errMalformed, r.PerSecond)
	case !within(int64(r.Lead), int64(maxCeiling)):
		return fmt.Errorf("%w: lead %d", errMalformed, r.Lead)
	case r.Ceil < 0 || r.Ceil > maxCeiling:
		return fmt.Errorf("%w: ceiling %d", errMalformed, r.Ceil)
	case r.Era < 0 || r.Era > maxEra:
		return fmt.Errorf("%w: era %d", errMalformed, r.Era)
	case r.Highest < 0 || r.Highest > maxCeiling:
		return fmt.Errorf("%w: highest ceiling %d", errMalformed, r.Highest)
	}
	return nil
}

// PeerReport is a registered peer and its latest report.
type PeerReport struct {
	Peer agreement.Peer
	Sent bool // it sent one; else the rest is zero
	Report
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
// Nodes of older versions do not answer.
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
		r := PeerReport{Peer: p.Peer}
		if p.report != nil {
			r.Sent, r.Report, r.Age = true, *p.report, time.Duration(now-p.reportAt)
		}
		r.Owed = time.Duration(p.owes(now))
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
	p.reportOwed, p.report, p.reportAt = 0, &r.Report, came
	return none
}

// sendReport answers an ask.
func (c *Cluster) sendReport(to *memberlist.Node, nonce uint64) error {
	msg, err := appendReport(make([]byte, 0, reportSize),
		report{Instance: c.instance, Nonce: nonce, Report: c.cfg.Report()})
	if err != nil {
		c.n.sendFailures.Add(1)
		return err
	}
	c.send(to, msg)
	return nil
}
