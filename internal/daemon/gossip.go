package daemon

import (
	"context"
	"slices"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/lease"
)

// gossipConfig returns what is known before the space is: enough to listen.
func (d *Daemon) gossipConfig() cluster.Config {
	return cluster.Config{
		Node: d.cfg.Node.Name, Instance: string(d.instance), Label: d.cfg.Root + "/" + d.cfg.Space,
		Bind: d.cfg.Listen.Gossip, Advertise: d.cfg.Advertise.Gossip,
		KeyFile: d.cfg.Gossip.KeyFile, Insecure: d.cfg.Gossip.Insecure,
		Local: local{d}, Logger: d.log,
	}
}

// local is this node as gossip sees it.
type local struct{ d *Daemon }

// Clocks reads the clocks.
func (l local) Clocks() clock.Snapshot {
	c, _ := l.d.clock.Snapshot()
	return c
}

// Status is asked once the cluster runs.
func (l local) Status() agreement.Status { return l.d.watch.Status() }

// runGossip joins the cluster as soon as its pool is known, and keeps it told
// of who is registered, until ctx ends.
func (d *Daemon) runGossip(ctx context.Context) error {
	if d.gossip == nil {
		<-ctx.Done()
		return nil
	}
	st, changed := d.keeper.Watch()
	for st.Space.Pool == "" {
		select {
		case <-ctx.Done():
			return d.gossip.Shutdown()
		case <-changed:
		}
		st, changed = d.keeper.Watch()
	}
	cfg := d.gossipConfig()
	cfg.Pool = st.Space.Pool
	cfg.GRPC, cfg.HTTP = d.addrs.AdvertisedGRPC, d.addrs.AdvertisedHTTP
	cfg.Transport, cfg.Advertise = d.gossip, d.addrs.Gossip
	cfg.OnExchange = d.watch.OnExchange
	c, err := cluster.New(cfg)
	if err != nil {
		_ = d.gossip.Shutdown()
		return err
	}
	d.cluster.Store(c)
	d.watch.SetGossip(c)
	seeding, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.seed(seeding, c)
	}()
	err = c.Run(ctx)
	stop()
	<-done
	return err
}

// gossipStats returns what gossip has counted; ok is false until it runs.
func (d *Daemon) gossipStats() (s cluster.Stats, ok bool) {
	if c := d.cluster.Load(); c != nil {
		return c.Stats(), true
	}
	return s, false
}

// seed tells gossip where the registered nodes are, until ctx ends.
func (d *Daemon) seed(ctx context.Context, c *cluster.Cluster) {
	var known []lease.Registration
	for {
		st, changed := d.keeper.Watch()
		if !slices.Equal(st.Nodes, known) {
			known = st.Nodes
			var seeds []string
			for _, r := range known {
				if r.Instance != d.instance && r.Gossip != "" {
					seeds = append(seeds, r.Gossip)
				}
			}
			c.SetSeeds(seeds)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// closeListeners closes every port.
func (d *Daemon) closeListeners() {
	d.listeners.close()
	if d.gossip != nil {
		_ = d.gossip.Shutdown()
	}
}

// tellStep logs what happened to the machine's clock, once each.
func (d *Daemon) tellStep(e clock.AnchorEvent) {
	log := d.log.With("step", e.Step.String(), "held", e.Held.String())
	switch e.Kind {
	case clock.Stepped:
		log.Warn("the wall clock was set; IDs keep their time until the others, or time, tell which is right")
	case clock.Followed:
		log.Warn("the wall clock is followed", "by", e.By, "after", e.Lasted.String(), "jump", e.Jump.String(), "slew", e.Slew.String())
	case clock.Refuted:
		log.Warn("the others agree with the time before the step: this machine's wall clock is wrong")
	case clock.Withdrawn:
		log.Info("the wall clock is back", "after", e.Lasted.String())
	case clock.Blocked:
		log.Error("the wall clock was set forward by more than a node alone follows: set it back, or restart the node if it is right")
	case clock.Nudged:
		log.Info("the wall clock was set by small steps", "steps", e.Count)
	case clock.Suspended:
		log.Warn("the machine slept", "for", e.Lasted.String())
	case clock.Stalled:
		log.Warn("the process did not run", "for", e.Lasted.String())
	}
}
