// Package netsim is a network in memory for connections: a test can make
// them slow, stalled in one direction or both, broken or refused. A dial into a
// stalled link waits as for a lost packet. It runs under testing/synctest, since it
// waits only on channels and timers. Only tests use it; gossiptest has the packets of
// gossip.
package netsim

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Network connects hosts, which are names. It is safe for concurrent use.
type Network struct {
	latency time.Duration // one way

	mu        sync.Mutex // guards the rest
	listeners map[string]*listener
	conns     map[*conn]struct{} // both ends of each
	stalled   map[way]bool
	dead      map[string]bool
	changed   chan struct{} // closed and renewed when stalled or dead change
	ports     int
}

// way is a direction between two hosts.
type way struct{ from, to string }

// New returns a network on which every byte takes latency.
func New(latency time.Duration) *Network {
	return &Network{
		latency: latency, listeners: map[string]*listener{}, conns: map[*conn]struct{}{},
		stalled: map[way]bool{}, dead: map[string]bool{}, changed: make(chan struct{}),
	}
}

// address is a host:port of the network.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }
func (a address) host() string   { host, _, _ := strings.Cut(string(a), ":"); return host }

// Listen returns a listener at host:port; port 0 is any that is free.
func (n *Network) Listen(at string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if host, ok := strings.CutSuffix(at, ":0"); ok {
		n.ports++
		at = fmt.Sprintf("%s:%d", host, 20000+n.ports)
	}
	if n.listeners[at] != nil {
		return nil, fmt.Errorf("listen %s: %w", at, syscall.EADDRINUSE)
	}
	l := &listener{net: n, addr: address(at), queue: make(chan net.Conn, 256), done: make(chan struct{})}
	n.listeners[at] = l
	return l, nil
}

// Dialer returns the dial function of a host.
func (n *Network) Dialer(from string) func(ctx context.Context, to string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) { return n.dial(ctx, from, to) }
}

// dial connects after a round trip. While either way is stalled it waits; a
// host that is dead, or does not listen, refuses.
func (n *Network) dial(ctx context.Context, from, to string) (net.Conn, error) {
	if err := sleep(ctx, 2*n.latency); err != nil {
		return nil, err
	}
	host := address(to).host()
	for {
		n.mu.Lock()
		changed := n.changed
		if n.dead[from] || !n.stalled[way{from, host}] && !n.stalled[way{host, from}] {
			break // with the lock
		}
		n.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer n.mu.Unlock()
	l := n.listeners[to]
	if l == nil || n.dead[host] || n.dead[from] {
		return nil, fmt.Errorf("dial %s: %w", to, syscall.ECONNREFUSED)
	}
	n.ports++
	ours, theirs := n.pair(address(fmt.Sprintf("%s:%d", from, 20000+n.ports)), l.addr)
	select {
	case l.queue <- theirs:
		n.conns[ours], n.conns[theirs] = struct{}{}, struct{}{}
		return ours, nil
	default:
		return nil, fmt.Errorf("dial %s: %w", to, syscall.ECONNREFUSED)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Stall holds back everything that is sent from one host to another, until
// Flow: then it arrives, in order. The other direction is not affected.
func (n *Network) Stall(from, to string) { n.set(way{from, to}, true) }

// Flow ends a Stall.
func (n *Network) Flow(from, to string) { n.set(way{from, to}, false) }

// Cut stalls both ways between two hosts.
func (n *Network) Cut(a, b string) { n.Stall(a, b); n.Stall(b, a) }

// Heal ends a Cut.
func (n *Network) Heal(a, b string) { n.Flow(a, b); n.Flow(b, a) }

func (n *Network) set(w way, stalled bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stalled[w] = stalled
	for c := range n.conns {
		if c.remote.host() == w.from && c.local.host() == w.to {
			c.in.stall(stalled)
		}
	}
	n.notify()
}

// notify wakes the dials that wait. n.mu is held.
func (n *Network) notify() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// Break resets all connections between two hosts; data in transit is lost.
func (n *Network) Break(a, b string) {
	n.reset(func(c *conn) bool {
		x, y := c.local.host(), c.remote.host()
		return x == a && y == b || x == b && y == a
	})
}

// Kill breaks all connections of a host and refuses new ones, permanently: nothing
// that it sends arrives.
func (n *Network) Kill(host string) {
	n.mu.Lock()
	n.dead[host] = true
	n.notify()
	n.mu.Unlock()
	n.reset(func(c *conn) bool { return c.local.host() == host || c.remote.host() == host })
}

func (n *Network) reset(which func(*conn) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if which(c) {
			c.in.reset()
			c.out.reset()
			delete(n.conns, c)
		}
	}
}

type listener struct {
	net   *Network
	addr  address
	queue chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, string(l.addr))
		l.net.mu.Unlock()
		close(l.done)
		for {
			select {
			case c := <-l.queue: // it will not be accepted
				_ = c.Close()
			default:
				return
			}
		}
	})
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }
