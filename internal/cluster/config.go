package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
)

// Local is this node, asked at the very moment a message comes or goes. It is
// called from several goroutines, some of which everybody waits for: it must
// not block.
type Local interface {
	// Clocks reads the clocks.
	Clocks() clock.Snapshot
	// Status is what is reported to peers.
	Status() agreement.Status
}

// rawOf returns l's raw clock alone, in ns.
func rawOf(l Local) func() int64 { return func() int64 { return l.Clocks().Raw } }

// Config is what a cluster needs.
type Config struct {
	Node     string // this node's name
	Instance string // UUID of this process: random, never that of another live one
	Label    string // root and space: packets with another label are dropped unread
	Pool     string // UUID of the space: nodes of another are kept out

	// Bind is the ip:port to listen on, for UDP and TCP; port 0 takes a free one
	// and no ip all interfaces. Advertise is the ip:port that peers use;
	// empty: the bound one, or with none the machine's private address.
	Bind      string
	Advertise string
	// Keys are shared by all nodes, and whoever made them runs them; nil: no encryption.
	Keys *Keys
	// Insecure allows a Bind beyond loopback without Keys.
	Insecure bool
	// Transport carries the packets; nil: Run calls Listen.
	Transport Transport

	Local  Local
	Logger *slog.Logger

	// OnExchange takes each answer of a peer, in the order in which they came. One
	// goroutine calls it. While it blocks, answers queue up; those that find the
	// queue full are dropped.
	OnExchange func(agreement.Exchange)

	// Report returns what peers are told that ask for it, under the conditions of Local.
	// Nil: they are not answered.
	Report func() []byte

	// Random gives nonces, which nobody must be able to guess. Nil: from the
	// system's cryptographic source. Used under a lock.
	Random rand.Source

	// Every is how often each peer is asked. 0: [agreement.ExchangeEvery].
	Every time.Duration
	// Rejoin is how often peers that are no live members are dialled. 0: 15 s. The
	// library forgets a dead member after 30 s and would never find it again.
	Rejoin time.Duration
}

// ErrNoKey says that gossip would be open to anyone who can send a packet here.
var ErrNoKey = errors.New("cluster: gossip beyond loopback needs a key: " +
	"set gossip.key-file to a file from \"allocator gossip keygen\", listen on 127.0.0.1, or set gossip.insecure")

// withDefaults returns c with zero values replaced.
func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Every, agreement.ExchangeEvery)
	def(&c.Rejoin, 15*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate returns the first rule that c breaks, and ErrNoKey where gossip would
// be open to unauthenticated senders. It reads no file.
func (c Config) Validate() error {
	if err := c.validateListen(); err != nil {
		return err
	}
	bad := func(field, rule string) error { return fmt.Errorf("cluster: %s %s", field, rule) }
	switch {
	case !validNode(c.Node):
		return bad("Node", "must be 1 to 253 visible characters")
	case len(c.Label) == 0 || len(c.Label) > memberlist.LabelMaxSize:
		return bad("Label", fmt.Sprintf("must have 1 to %d bytes", memberlist.LabelMaxSize))
	case c.Pool == "":
		return bad("Pool", "is not given")
	case c.Local == nil:
		return bad("Local", "is not given")
	case c.OnExchange == nil:
		return bad("OnExchange", "is not given")
	case c.Every < 0 || c.Rejoin < 0:
		return bad("Every and Rejoin", "must not be negative")
	}
	if id, err := uuid.Parse(c.Instance); err != nil || id.String() != c.Instance {
		return bad("Instance", fmt.Sprintf("%q is not a UUID in its usual form", c.Instance))
	}
	return nil
}

// validateListen checks what Listen needs.
func (c Config) validateListen() error {
	if c.Transport != nil {
		return nil
	}
	bind, err := parseAddress(c.Bind)
	if err != nil {
		return fmt.Errorf("cluster: Bind: %w", err)
	}
	if c.Advertise != "" {
		a, err := parseAddress(c.Advertise)
		if err == nil && a.Addr().IsUnspecified() {
			err = errors.New("no peer can reach this address")
		}
		if err != nil {
			return fmt.Errorf("cluster: Advertise %q: %w", c.Advertise, err)
		}
	} else if bind.Addr().IsUnspecified() && bind.Addr().Is6() {
		return errors.New("cluster: Advertise must be given with a Bind to all IPv6 interfaces")
	}
	if c.Keys == nil && !c.Insecure && !bind.Addr().IsLoopback() {
		return ErrNoKey
	}
	return nil
}

// parseAddress reads an ip:port. The library would take a host name to mean
// every interface of the machine, so only the one that means loopback passes.
func parseAddress(s string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, err
	}
	switch host {
	case "":
		host = "0.0.0.0"
	case "localhost":
		host = "127.0.0.1"
	}
	a, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not an ip:port", s)
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), nil
}
