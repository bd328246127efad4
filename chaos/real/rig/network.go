package rig

import (
	"context"
	"net"

	"github.com/flakelease/allocator/chaos/real/netswitch"
)

// Ports in a network of one's own.
const clientPort, peerPort, gossipPort = 2379, 2380, 7946

// GossipPort is the port of gossip between nodes that have networks of their own.
const GossipPort = gossipPort

// Network is a switch with a host for each process, and one for the harness.
type Network struct {
	*netswitch.Switch
	home  *netswitch.Host
	hosts map[string]*netswitch.Host
}

func newNetwork(seed uint64) (*Network, error) {
	s, err := netswitch.New(seed)
	if err != nil {
		return nil, err
	}
	home, err := s.AddHost("harness")
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return &Network{Switch: s, home: home, hosts: map[string]*netswitch.Host{}}, nil
}

func (n *Network) add(name string) (Place, error) {
	h, err := n.AddHost(name)
	if err != nil {
		return nil, err
	}
	n.hosts[name] = h
	return h, nil
}

// Hosts returns the hosts of the processes of those names.
func (n *Network) Hosts(names ...string) (out []*netswitch.Host) {
	for _, name := range names {
		if h := n.hosts[name]; h != nil {
			out = append(out, h)
		}
	}
	return out
}

// Dial connects from the harness to a process.
func (n *Network) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return n.home.DialContext(ctx, network, addr)
}
