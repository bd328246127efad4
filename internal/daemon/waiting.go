package daemon

import (
	"context"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/lease"
)

// When to log why a node is not ready.
const (
	waitingAfter = 2 * time.Second // an ordinary start is over by then
	waitingEvery = time.Minute
)

// logWaiting logs what the node waits for, if it waits long, until ctx ends.
func (d *Daemon) logWaiting(ctx context.Context) error {
	timer := time.NewTimer(waitingAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(waitingEvery)
		s := d.keeper.Status()
		log := d.log.With("phase", s.Phase.String(), "problem", s.Problem)
		switch s.Phase {
		case lease.Connecting:
			log.Warn("waiting for etcd: no reply; check that it runs and is reachable at these endpoints",
				"endpoints", strings.Join(d.cfg.Etcd.Addresses(), ","))
		case lease.Uninitialized:
			log.Warn("waiting for the space to be initialized: run `allocator init` once with this node's etcd, "+
				"root, space, layout and epoch",
				"root", d.cfg.Root, "space", d.cfg.Space)
		case lease.Standby:
			log.Info("standby: all sids are held; the node acquires the next free one", "pool_size", s.Pool.Size,
				"pool_held", s.Pool.Held,
				"quarantined", len(s.Quarantined))
		case lease.Holding:
		default:
			log.Info("not ready yet")
		}
	}
}
