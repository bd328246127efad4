package scale

import (
	"fmt"
	"math"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
)

// Rates are of one node, a second. Bytes are without the headers of IP, TCP, UDP
// and without encryption.
type Rates struct {
	Writes     float64 // transactions that put something
	Loads      float64 // lists of the whole space
	KeepAlives float64
	SentBytes  float64 // to etcd
	ReadBytes  float64 // from etcd

	GossipPackets float64 // sent
	GossipBytes   float64 // sent, in packets and streams
}

// Start is what one node needed when all started at once.
type Start struct {
	Seconds   float64 // until the last one was ready, with an etcd that answers at once
	Loads     float64 // lists, and reads of one sid
	Writes    float64 // attempts to take a sid, and the registration
	ReadBytes float64
}

// Measured is a cluster of whole nodes in virtual time.
type Measured struct {
	Nodes       int
	Start       Start
	CalmSeconds float64 // 0: measured before a watch kept the list of the space
	Calm        Rates
	Confirmed   int // nodes whose clock a majority confirmed at the end of the time at rest
	Restarts    int // nodes restarted, one after the other
	Pause       float64
	Rolling     Rates // meanwhile
	Dropped     int   // packets of gossip dropped at a full queue
	HeapKB      float64
	Goroutines  float64
	RealSeconds float64 // The simulation took this long in real time.
}

// Plan is the setup of a cluster.
type Plan struct {
	Nodes       int
	Layout      flake.Layout
	ExtendEvery time.Duration
	KeepAlive   time.Duration
	ReloadEvery time.Duration
}

// Default returns the plan of n nodes with default settings in layout fleet.
func Default(n int) Plan {
	l := config.Default().Lease
	return Plan{
		Nodes:       n,
		Layout:      flake.Fleet,
		ExtendEvery: l.ExtendEvery,
		KeepAlive:   l.KeepAlive,
		ReloadEvery: l.ReloadEvery,
	}
}

// Sizes on the wire, in bytes. Those of records follow from what is stored; the
// rest was fitted to measured.json, and TestCalculation compares them.
const (
	kvExtra        = 22  // A key and value in an answer take these for revisions, lease and lengths.
	answer         = 100 // An answer takes these for its header and HTTP/2 frames, besides its records.
	request        = 60  // A request takes these besides its records.
	keepAliveSent  = 320 // a stream of its own, opened and closed
	keepAliveRead  = 85
	loadSent       = 500
	watchAnswer    = 50 // A report of a watch takes these besides its records.
	deletion       = 50 // A deleted key takes these in such a report.
	progressRead   = 45 // an answer to what a watch asks every 10 s
	progressSent   = 20
	echo           = 105.5 // a ping or a pong, on the average
	probe          = 76    // a probe of memberlist's, or its answer
	pushPullMember = 142   // One member takes these in memberlist's exchange of all state.
)

// sample are typical records of a cluster of about a hundred nodes.
var sample = struct{ space, era, mark, holder, window, node, ledger int }{
	space:  kv("config", lease.Space{Layout: flake.Fleet, Epoch: clock.Millis(flake.DefaultEpoch), Pool: aUUID}),
	era:    kv("era", lease.Era{Number: 1, Cluster: 1 << 63}),
	mark:   kv("mark", lease.Mark{Era: 1, At: aTime, Nonce: aUUID[:26], Node: aNode, Wall: aTime}),
	holder: kv("holder/100", lease.Holder{Instance: aUUID, Node: aNode}),
	window: kv("window/100", lease.Window{
		Era:      1,
		Term:     1,
		Instance: aUUID,
		Node:     aNode,
		Nonce:    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
		Base:     aTime,
		Ceil:     aTime,
		State:    lease.Active,
		Wall:     aTime,
	}),
	node: kv("node/"+aUUID, lease.Registration{Instance: aUUID, Node: aNode, Version: "v1.0.0",
		GRPC: "host100:9000", HTTP: "host100:8080", Gossip: "10.0.0.100:7946"}),
	ledger: kv("ledger/100/00000000000000000001",
		lease.LedgerLine{Term: 1, Instance: aUUID, Node: aNode, Era: 1, Since: aTime}),
}

const (
	aUUID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
	aNode = "allocator-100"
	aTime = 1_800_000_000_000
)

func kv[T any](key string, record T) int {
	return len("/allocator/default/") + len(key) + len(lease.Encode(record)) + kvExtra
}

// load returns the size of a list of the space.
func (p Plan) load() float64 {
	return float64(answer + sample.space + sample.era + p.Nodes*(sample.holder+sample.window+sample.node))
}

// loadEvery returns the mean time between two lists while the watch keeps the list: up
// to a fifth of ReloadEvery is added at random, and 10 to 30 times it.
func (p Plan) loadEvery() float64 { return 21.1 * p.ReloadEvery.Seconds() }

// voters returns how many peers a node compares its clock with; clock.Voters
// is the rule.
func (p Plan) voters() int {
	var members []clock.Member
	for i := range p.Nodes {
		members = append(members, clock.Member{Name: fmt.Sprint(i), Instance: fmt.Sprint(i)})
	}
	return len(clock.Voters("0", members))
}

// pushPullEvery returns how often memberlist exchanges all state with another
// member: each 30 s up to 32 members, and less often with each doubling.
func (p Plan) pushPullEvery() float64 {
	return 30 * math.Max(1, math.Ceil(math.Log2(float64(p.Nodes))-5)+1)
}

// Calm returns the traffic of a node while no node starts or stops, but for the watermark's.
func (p Plan) Calm() Rates { return p.at(1/p.loadEvery(), 0) }

// mostRaises returns how often the watermark of a space is raised a second, at most: as often as
// somebody lists the space for it. Where floors move together it is raised less often.
func (p Plan) mostRaises() float64 { return 4 / p.ExtendEvery.Seconds() }

// raises returns how often the watermark was raised a second in a space whose nodes wrote so
// often each. It is 0 for what was measured before there was a watermark.
func (p Plan) raises(writes float64) float64 {
	most := p.mostRaises()
	raises := (writes - 1/p.ExtendEvery.Seconds()) * float64(p.Nodes)
	if raises < most/10 {
		return 0
	}
	return min(raises, most)
}

// at returns the traffic of a node that lists the space so many times a second, while the
// watermark of the space is raised so often.
func (p Plan) at(loads, raises float64) Rates {
	extends := 1 / p.ExtendEvery.Seconds()
	own := raises / float64(p.Nodes)
	r := Rates{Writes: extends + own, KeepAlives: 1 / p.KeepAlive.Seconds(), Loads: loads}
	// An extension compares these records, and is answered with them and the holder.
	all := sample.space + sample.era + sample.window
	r.SentBytes = extends*float64(request+all+sample.window+sample.window/2) + r.KeepAlives*keepAliveSent +
		loads*loadSent + own*float64(request+sample.space+sample.era+2*sample.mark)
	r.ReadBytes = extends*float64(answer+all+sample.holder) + r.KeepAlives*keepAliveRead + loads*p.load()
	if raises > 0 {
		r.ReadBytes += (extends+own+loads)*float64(sample.mark) + own*answer + raises*float64(watchAnswer+sample.mark)
	}
	progress := 3 / p.ReloadEvery.Seconds()
	r.SentBytes += progress * progressSent
	r.ReadBytes += progress * progressRead
	voters := float64(p.voters())
	r.GossipPackets = voters + 2 // each peer is asked every 2 s, and asks; a probe a second
	r.GossipBytes = voters*echo + 2*probe + 2*float64(p.Nodes)*pushPullMember/p.pushPullEvery()
	return r
}

// A restart deletes and creates a holder and a registration, each in a message of its
// own to every watch, and adds a line to the ledger. The node that starts lists the
// space.
const (
	changes    = 4
	startLoads = 2 // before it has a sid
)

// Rolling returns the traffic of a node while nodes are restarted one after the
// other, perSecond of them. Gossip is as in Calm: that of a starting node is not
// counted.
func (p Plan) Rolling(perSecond float64) Rates {
	r := p.at(1/p.loadEvery()+startLoads*perSecond/float64(p.Nodes), 0)
	r.ReadBytes += perSecond * p.watched()
	return r
}

// watched returns what a restart has etcd send to every watch.
func (p Plan) watched() float64 {
	return float64(changes*watchAnswer + sample.holder + sample.node + sample.ledger + 2*deletion)
}

// Differences compares a measured cluster with the calculation.
func Differences(m Measured) (out []string) {
	p := Default(m.Nodes)
	compare := func(what string, got, want, most float64) {
		if math.Abs(got-want) > most*want {
			out = append(out, fmt.Sprintf("%d nodes: %s: measured %.4g, calculated %.4g", m.Nodes, what, got, want))
		}
	}
	c := p.at(m.Calm.Loads, p.raises(m.Calm.Writes)) // a few minutes have too few lists to compare
	compare("writes", m.Calm.Writes, c.Writes, 0.05)
	compare("keepalives", m.Calm.KeepAlives, c.KeepAlives, 0.05)
	compare("bytes sent to etcd", m.Calm.SentBytes, c.SentBytes, 0.1)
	compare("bytes read from etcd", m.Calm.ReadBytes, c.ReadBytes, 0.15)
	compare("packets of gossip", m.Calm.GossipPackets, c.GossipPackets, 0.05)
	compare("bytes of gossip", m.Calm.GossipBytes, c.GossipBytes, 0.15)
	if m.Restarts > 0 && m.CalmSeconds > 0 {
		r, rest := p.Rolling(1/m.Pause), p.Calm() // Who raises the watermark lists the space meanwhile, as at rest.
		compare("lists for restarts", m.Rolling.Loads-m.Calm.Loads, r.Loads-rest.Loads, 0.5)
		// By the lists that were counted: one more in a few restarts is allowed above.
		compare("bytes read for restarts", m.Rolling.ReadBytes-m.Calm.ReadBytes,
			(m.Rolling.Loads-m.Calm.Loads)*p.load()+p.watched()/m.Pause, 0.3)
	}
	most := 3 / p.loadEvery()
	if c.Writes > 1.001/p.ExtendEvery.Seconds() {
		most += 1.2 * p.mostRaises() / float64(m.Nodes)
	}
	if m.CalmSeconds > 0 && m.Calm.Loads > most {
		out = append(out,
			fmt.Sprintf("%d nodes: %.4f lists a second at rest, want %.4f at most", m.Nodes, m.Calm.Loads, most))
	}
	if m.Confirmed != m.Nodes {
		out = append(out, fmt.Sprintf("%d nodes: %d are confirmed", m.Nodes, m.Confirmed))
	}
	if m.Start.Loads > 4.5 || m.Start.Writes > 4.5 {
		out = append(out, fmt.Sprintf("%d nodes start at once: %.1f lists and %.1f writes each: do they all ask for "+
			"one sid?", m.Nodes, m.Start.Loads, m.Start.Writes))
	}
	return out
}
