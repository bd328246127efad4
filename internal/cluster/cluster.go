package cluster

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/internal/agreement"
)

// Cluster is this node's part in gossip. Its methods are safe for concurrent use.
type Cluster struct {
	cfg      Config
	instance uuid.UUID
	name     string // in gossip
	pool     [poolHashSize]byte
	announce []byte

	ring *memberlist.Keyring // nil: no encryption

	log     *slog.Logger
	lines   *lineLog
	list    atomic.Pointer[memberlist.Memberlist]
	socket  atomic.Pointer[socket] // nil with another transport
	addr    atomic.Pointer[string] // as peers know it; nil until Run listens
	n       counters
	running atomic.Bool

	wake      chan struct{} // somebody may be due
	peersNew  chan struct{} // a peer was listed that was not there before
	replies   chan reply
	exchanges chan agreement.Exchange

	mu    sync.Mutex // guards the rest; never held while calling memberlist
	table *table
	addrs []string // The peers are dialled at them in this order.
}

// Queues. A burst is every peer asking at once; what does not fit is dropped,
// since by the time it were served it would measure nothing but the queue.
const (
	replyQueue    = 1024
	exchangeQueue = 1024
)

// New returns a cluster; Run starts it.
//
// It returns ErrNoKey if gossip would be open to unauthenticated senders.
func New(cfg Config) (*Cluster, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Random == nil {
		var seed [32]byte
		_, _ = crand.Read(seed[:]) // it never fails
		cfg.Random = rand.NewChaCha8(seed)
	}
	c := &Cluster{
		cfg: cfg, instance: uuid.MustParse(cfg.Instance), pool: poolHash(cfg.Pool), log: cfg.Logger,
		wake: make(chan struct{}, 1), peersNew: make(chan struct{}, 1),
		replies: make(chan reply, replyQueue), exchanges: make(chan agreement.Exchange, exchangeQueue),
		table: newTable(cfg.Every, cfg.Random),
	}
	c.name = memberName(cfg.Node, c.instance)
	c.announce = announcement{Pool: c.pool, Instance: c.instance}.encode()
	if s, ok := cfg.Transport.(*socket); ok {
		c.lines = s.lines
	} else {
		c.lines = newLineLog(cfg.Logger, rawOf(cfg.Local))
	}
	if cfg.Keys != nil {
		c.ring = cfg.Keys.ring
	}
	return c, nil
}

const leaveTimeout = time.Second // five rounds of gossip

// Run gossips until ctx ends, then leaves within leaveTimeout and returns
// nil. It returns an error if it cannot listen. It may be called once.
//
// It ends every goroutine it started. Of the library's own, some may live on
// for a few seconds, until their timers run out; none of them calls us any more.
func (c *Cluster) Run(ctx context.Context) error {
	if c.running.Swap(true) {
		return errors.New("cluster: already running")
	}
	if c.cfg.Transport == nil {
		t, _, err := listen(c.cfg, c.lines)
		if err != nil {
			return err
		}
		c.cfg.Transport = t
	}
	if s, ok := c.cfg.Transport.(*socket); ok {
		c.socket.Store(s)
		s.serve(newFraming(c.cfg.Label, c.cfg.Keys))
	}
	conf, err := c.library()
	if err == nil {
		var list *memberlist.Memberlist
		if list, err = memberlist.Create(conf); err == nil {
			c.list.Store(list)
		}
	}
	if err != nil {
		_ = c.cfg.Transport.Shutdown()
		return fmt.Errorf("cluster: start gossip: %w", err)
	}
	list := c.list.Load()
	c.log.Info("gossip started", "name", c.name, "addr", *c.addr.Load(), "encrypted", c.ring != nil)

	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	var asking, answering sync.WaitGroup
	asking.Go(func() { c.ask(ctx) })
	asking.Go(func() { c.rejoin(ctx, list) })
	answering.Go(func() { c.answer(serving) })
	answering.Go(func() { c.deliver(serving) })

	<-ctx.Done()
	// Peers are answered until they know that we leave.
	if err := list.Leave(leaveTimeout); err != nil {
		c.log.Warn("gossip leave failed: peers detect by probing that this node is gone", "error", err)
	}
	_ = list.Shutdown() // also ends what rejoin is dialling
	asking.Wait()
	stopServing()
	answering.Wait()
	return nil
}

// library returns the configuration of memberlist.
func (c *Cluster) library() (*memberlist.Config, error) {
	ip, port, err := c.cfg.Transport.FinalAdvertiseAddr("", 0)
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort(ip.String(), strconv.Itoa(port))
	c.addr.Store(&addr)
	conf := memberlist.DefaultLANConfig()
	conf.Name, conf.Label = c.name, c.cfg.Label
	conf.Transport = c.cfg.Transport
	conf.BindAddr, conf.BindPort = ip.String(), port
	conf.AdvertiseAddr, conf.AdvertisePort = ip.String(), port
	conf.DelegateProtocolMin, conf.DelegateProtocolMax, conf.DelegateProtocolVersion = echoVersion, echoVersion,
		echoVersion
	d := delegate{c}
	conf.Delegate, conf.Events, conf.Alive, conf.Merge, conf.Conflict = d, d, d, d, d
	conf.Keyring, conf.GossipVerifyIncoming, conf.GossipVerifyOutgoing = c.ring, true, true
	conf.UDPBufferSize = 1200      // overlay networks carry less than an Ethernet frame
	conf.EnableCompression = false // our messages are too small to gain, and unpacking is a risk
	conf.TCPTimeout = 3 * time.Second
	conf.Logger = c.lines.logger()
	return conf, nil
}

// SetPeers lists the other nodes that are registered. Only they are asked, at the addresses
// that they registered, and only their answers count. Those that are no live members of
// gossip are dialled, at once if they are new and then every Rejoin.
func (c *Cluster) SetPeers(peers []agreement.Peer) {
	now := c.cfg.Local.Clocks().Raw
	c.mu.Lock()
	fresh := c.table.list(peers, now)
	c.requeue()
	c.addrs = nil
	for _, p := range peers {
		c.addrs = append(c.addrs, p.Gossip)
	}
	c.mu.Unlock()
	if fresh {
		wake(c.peersNew)
	}
	wake(c.wake)
}

// Ask asks a peer for its clocks now, besides what is due. An instance that is not
// registered is ignored.
func (c *Cluster) Ask(instance string) {
	id, err := uuid.Parse(instance)
	if err != nil {
		return
	}
	c.mu.Lock()
	p := c.table.peers[id]
	if p != nil {
		p.again = true
	}
	c.mu.Unlock()
	if p != nil {
		wake(c.wake)
	}
}

// wake wakes whoever waits on ch, once for any number of calls.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// rejoin dials peers that are no live members: the nodes registered before us,
// at the start, and later those on the other side of a partition that healed.
func (c *Cluster) rejoin(ctx context.Context, list *memberlist.Memberlist) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	silent := map[string]bool{} // those that were warned about
	for next := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.peersNew:
			if next > 0 {
				continue // its turn comes
			}
		}
		if next = c.joinMissing(ctx, list, next, silent); next > 0 {
			timer.Reset(c.cfg.Rejoin / 15) // the rest
		} else {
			timer.Reset(c.cfg.Rejoin)
		}
	}
}

const (
	// dialsAtOnce bounds connections under way: an address that swallows packets
	// holds one for seconds, and must not keep the others waiting.
	dialsAtOnce = 8
	// dialsInARound bounds the addresses of a round, so that thousands of
	// registrations without a process cost no more than a few. An address that
	// answers sends all members, and most of the others need no dial then.
	dialsInARound = 64
)

// joinMissing dials the peers from the one at index first on that are not live, in
// one round. It returns where the next round begins; 0: all were dialled.
func (c *Cluster) joinMissing(ctx context.Context, list *memberlist.Memberlist, first int,
	silent map[string]bool) (next int) {
	c.mu.Lock()
	addrs := c.addrs // SetPeers replaces it
	c.mu.Unlock()
	var (
		mu      sync.Mutex // guards failed
		failed  = map[string]error{}
		wg      sync.WaitGroup
		working = make(chan struct{}, dialsAtOnce)
	)
	if next = first + dialsInARound; next >= len(addrs) {
		first, next = min(first, len(addrs)), 0
	}
	round := addrs[first:cmp.Or(next, len(addrs))]
	for _, addr := range round {
		working <- struct{}{}
		wg.Go(func() {
			defer func() { <-working }()
			if err := c.join(ctx, list, addr); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[addr] = err
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return next
	}
	var fresh []string
	for _, addr := range round {
		switch {
		case failed[addr] == nil:
			delete(silent, addr)
		case !silent[addr]:
			silent[addr] = true
			fresh = append(fresh, addr)
		}
	}
	if len(fresh) > 0 {
		c.log.Warn("gossip join failed: retrying; check that the address is reachable over TCP and UDP, and that "+
			"its space and key are the same",
			"addr", fresh[0], "others", len(fresh)-1, "error", failed[fresh[0]])
	}
	if next == 0 {
		maps.DeleteFunc(silent, func(addr string, _ bool) bool { return !slices.Contains(addrs, addr) })
	}
	return next
}

// live reports whether a peer registered at addr is a live member. A node that is dialled
// sends all members that it knows, so the answer changes from one dial to the next:
// a node that dialled each of a thousand peers would be sent the whole list a
// thousand times.
//
// The library's own list of members is not read: what it hands out may change
// while it is read.
func (c *Cluster) live(addr string) bool {
	if addr == *c.addr.Load() {
		return true // An earlier process of this node registered it.
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, p := range c.table.peers {
		if p.Gossip == addr && c.table.live(id) {
			return true
		}
	}
	return false
}

// join dials a peer unless it is live.
func (c *Cluster) join(ctx context.Context, list *memberlist.Memberlist, addr string) error {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return err // The library would ask the name server for a name.
	}
	if c.live(addr) || ctx.Err() != nil {
		return ctx.Err()
	}
	c.n.joins.Add(1)
	_, err := list.Join([]string{addr})
	if err != nil {
		c.n.joinFailures.Add(1)
	}
	return err
}

// counters are what a cluster counts, for Stats and for tests.
type counters struct {
	pongs, exchanges, sendFailures, refusedPool atomic.Uint64
	joins, joinFailures, joined, left           atomic.Uint64
	dropped                                     dropped
}

// Stats is a copy of what a cluster counted, for metrics.
type Stats struct {
	Pongs      uint64 // sent in reply
	Exchanges  uint64 // replies that counted
	Unanswered uint64 // pings forgotten without a reply that counted
	// Dropped has messages and connections by why they were dropped: all reasons, zeros included.
	Dropped map[string]uint64
}

// Members returns how many registered nodes are live members of gossip, this one
// included, and our address as peers know it, which is empty until Run listens.
func (c *Cluster) Members() (live int, addr string) {
	if a := c.addr.Load(); a != nil {
		addr = *a
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	live = 1
	for id := range c.table.peers {
		if c.table.live(id) {
			live++
		}
	}
	return live, addr
}

// Stats returns what the cluster counted until now.
func (c *Cluster) Stats() Stats {
	s := Stats{Pongs: c.n.pongs.Load(), Exchanges: c.n.exchanges.Load(), Dropped: map[string]uint64{}}
	for f := none + 1; f < faults; f++ {
		s.Dropped[faultNames[f]] = c.n.dropped[f].Load()
		if t := c.socket.Load(); t != nil {
			s.Dropped[faultNames[f]] += t.dropped[f].Load()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Unanswered = c.table.expired
	return s
}
