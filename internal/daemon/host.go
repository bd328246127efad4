package daemon

import (
	"context"
	"net"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
)

// Host is what a node takes from the machine it runs on. Fields that are not set
// are this machine's own; whole nodes in simulated time have others.
type Host struct {
	Clock  *clock.System
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Gossip opens the transport of gossip and returns the address to tell others.
	Gossip func(cluster.Config) (cluster.Transport, string, error)
	Etcd   []grpc.DialOption // of the connections to etcd, after ours
}

// orMachine returns h with this machine's in place of what is not set.
func (h Host) orMachine(cfg config.Config) Host {
	if h.Clock == nil {
		h.Clock = clock.NewSystem(clock.SystemConfig{Anchor: clock.AnchorConfig{StepHold: cfg.Clock.StepHold}})
	}
	if h.Listen == nil {
		h.Listen = new(net.ListenConfig).Listen
	}
	if h.Gossip == nil {
		h.Gossip = cluster.Listen
	}
	return h
}
