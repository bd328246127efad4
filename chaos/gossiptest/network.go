// Package gossiptest is a network in memory for gossip: packets are late, lost,
// reordered and cut off as a test sets them, and nothing ever waits for a receiver.
// It runs under testing/synctest. Only tests use it.
package gossiptest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/cluster"
)

// Link is how packets fare from one node to another.
type Link struct {
	Latency time.Duration
	Jitter  time.Duration // added, uniform in [0, Jitter): more than the gap between packets reorders them
	Loss    float64       // share of packets that vanish, 0 to 1
	Cut     bool          // nothing passes, and dials time out
}

// Network connects the transports that it makes. It is safe for concurrent use.
type Network struct {
	now func() time.Time

	mu    sync.Mutex // guards the rest
	rand  *rand.Rand
	nodes map[string]*Transport // by address
	link  Link
	links map[[2]string]Link // from, to
	tap   func(from, to string, packet []byte)
}

// New returns a network without delay or loss. now is time.Now, in a bubble the
// bubble's; seed decides what is lost.
func New(now func() time.Time, seed uint64) *Network {
	return &Network{
		now: now, rand: rand.New(rand.NewPCG(seed, 0)),
		nodes: map[string]*Transport{}, links: map[[2]string]Link{},
	}
}

// SetLink sets how packets fare on every link without a setting of its own.
func (n *Network) SetLink(l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link = l
}

// SetLinkBetween sets how packets fare from one address to another; the way
// back is not touched.
func (n *Network) SetLinkBetween(from, to string, l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links[[2]string{from, to}] = l
}

// Partition cuts all links between two sets of addresses, both ways.
func (n *Network) Partition(a, b []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range a {
		for _, y := range b {
			n.links[[2]string{x, y}] = Link{Cut: true}
			n.links[[2]string{y, x}] = Link{Cut: true}
		}
	}
}

// Heal removes all settings of single links, partitions among them.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.links)
}

// Tap has f see every packet that is sent, lost or not. f must not keep it.
func (n *Network) Tap(f func(from, to string, packet []byte)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tap = f
}

// Inject delivers a packet to an address at once, as if another had sent it.
func (n *Network) Inject(from, to string, packet []byte) {
	if t := n.at(to); t != nil {
		t.deliver(from, packet)
	}
}

// Queues of a transport; what finds one full is dropped, or refused.
const (
	packetQueue = 4096
	streamQueue = 256
)

// Listen returns a transport with an address of its own.
func (n *Network) Listen() *Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := len(n.nodes) + 1
	t := &Transport{
		net:  n,
		addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 7946),

		packets: make(chan *cluster.Packet, packetQueue),
		streams: make(chan net.Conn, streamQueue),
		open:    map[*conn]struct{}{},
	}
	n.nodes[t.Addr()] = t
	return t
}

func (n *Network) at(addr string) *Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[addr]
}

// between returns the settings of a link.
func (n *Network) between(from, to string) Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.linkLocked(from, to)
}

func (n *Network) linkLocked(from, to string) Link {
	if l, ok := n.links[[2]string{from, to}]; ok {
		return l
	}
	return n.link
}

// send decides what becomes of a packet.
func (n *Network) send(from, to string, packet []byte) {
	n.mu.Lock()
	if n.tap != nil {
		n.tap(from, to, packet)
	}
	l := n.linkLocked(from, to)
	lost := l.Cut || n.rand.Float64() < l.Loss
	delay := l.Latency
	if l.Jitter > 0 {
		delay += time.Duration(n.rand.Int64N(int64(l.Jitter)))
	}
	t := n.nodes[to]
	n.mu.Unlock()
	switch {
	case lost || t == nil:
	case delay == 0:
		t.deliver(from, packet)
	default:
		time.AfterFunc(delay, func() { t.deliver(from, packet) })
	}
}

// Traffic counts bytes of packets and streams, without the headers of a real
// network, and packets.
type Traffic struct {
	Sent, Received atomic.Uint64
	Packets        atomic.Uint64 // sent
	Dropped        atomic.Uint64 // received while the queue was full
}

// Transport is one node's place in a Network; [cluster.Config] takes it.
type Transport struct {
	Traffic Traffic

	net     *Network
	addr    netip.AddrPort
	packets chan *cluster.Packet
	streams chan net.Conn

	mu     sync.Mutex // guards the rest
	open   map[*conn]struct{}
	closed bool
}

var _ cluster.Transport = (*Transport)(nil)

var (
	errClosed  = errors.New("gossiptest: transport is shut down")
	errRefused = errors.New("gossiptest: connection refused")
	errTimeout = errors.New("gossiptest: i/o timeout")
)

// Addr returns the transport's ip:port.
func (t *Transport) Addr() string { return t.addr.String() }

// FinalAdvertiseAddr returns the transport's address.
func (t *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return net.IP(t.addr.Addr().AsSlice()), int(t.addr.Port()), nil
}

// WriteTo sends a packet.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, cluster.Address{Addr: addr})
}

// WriteToAddress sends a packet. Like UDP it does not know whether it arrives.
func (t *Transport) WriteToAddress(b []byte, a cluster.Address) (time.Time, error) {
	if t.isClosed() {
		return time.Time{}, errClosed
	}
	t.Traffic.Sent.Add(uint64(len(b)))
	t.Traffic.Packets.Add(1)
	t.net.send(t.Addr(), a.Addr, append([]byte(nil), b...))
	return t.net.now(), nil
}

func (t *Transport) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

func (t *Transport) deliver(from string, packet []byte) {
	if t.isClosed() {
		return
	}
	at, err := netip.ParseAddrPort(from)
	if err != nil {
		panic(fmt.Sprintf("gossiptest: sender %q", from))
	}
	t.Traffic.Received.Add(uint64(len(packet)))
	select {
	case t.packets <- &cluster.Packet{Buf: packet, From: net.UDPAddrFromAddrPort(at), Timestamp: t.net.now()}:
	default:
		t.Traffic.Dropped.Add(1)
	}
}

// PacketCh gives the packets that arrived.
func (t *Transport) PacketCh() <-chan *cluster.Packet { return t.packets }

// StreamCh gives the connections that were made to this transport.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout connects to a transport.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(cluster.Address{Addr: addr}, timeout)
}

// DialAddressTimeout connects to a transport, after a round trip. It fails after
// the whole timeout where one of the two ways is cut, as a dial into silence does.
func (t *Transport) DialAddressTimeout(a cluster.Address, timeout time.Duration) (net.Conn, error) {
	there, back := t.net.between(t.Addr(), a.Addr), t.net.between(a.Addr, t.Addr())
	wait := there.Latency + back.Latency
	cut := there.Cut || back.Cut || wait > timeout
	if cut {
		wait = timeout
	}
	if wait > 0 {
		<-time.After(wait)
	}
	to := t.net.at(a.Addr)
	switch {
	case cut:
		return nil, errTimeout
	case to == nil:
		return nil, errRefused
	}
	ours, theirs := net.Pipe()
	from := &conn{Conn: ours, owner: t, peer: to}
	accepted := &conn{Conn: theirs, owner: to, peer: t}
	// Whoever dialled writes before it sets a deadline of its own, and a pipe has
	// no buffer: without this one it could wait forever.
	_ = ours.SetDeadline(t.net.now().Add(timeout))
	if !t.hold(from) {
		return nil, errClosed
	}
	if !to.accept(accepted) {
		_ = from.Close()
		return nil, errRefused
	}
	return from, nil
}

// hold notes a connection to break at Shutdown.
func (t *Transport) hold(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.open[c] = struct{}{}
	return true
}

func (t *Transport) accept(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	select {
	case t.streams <- c:
		t.open[c] = struct{}{}
		return true
	default:
		return false
	}
}

// Shutdown breaks all connections; nothing arrives any more.
func (t *Transport) Shutdown() error {
	t.mu.Lock()
	t.closed = true
	open := t.open
	t.open = map[*conn]struct{}{}
	t.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close()
	}
	return nil
}

// conn is one end of a connection.
type conn struct {
	net.Conn
	owner, peer *Transport
}

// Write sends b, unless the link was cut meanwhile.
func (c *conn) Write(b []byte) (int, error) {
	if c.owner.net.between(c.owner.Addr(), c.peer.Addr()).Cut {
		return 0, errTimeout
	}
	n, err := c.Conn.Write(b)
	c.owner.Traffic.Sent.Add(uint64(n))
	c.peer.Traffic.Received.Add(uint64(n))
	return n, err
}

func (c *conn) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.open, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// LocalAddr and RemoteAddr are the transports'.
func (c *conn) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(c.owner.addr) }
func (c *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.peer.addr) }
