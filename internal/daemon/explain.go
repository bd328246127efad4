package daemon

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Pace of the words for an operator who wonders why a node is not ready.
const (
	explainAfter = 2 * time.Second // an ordinary start is over by then
	explainEvery = time.Minute
)

// explain says what the node is waiting for, when it waits long, until ctx ends.
func (d *Daemon) explain(ctx context.Context) error {
	timer := time.NewTimer(explainAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(explainEvery)
		s := d.keeper.Status()
		log := d.log.With("phase", s.Phase.String(), "problem", s.Problem)
		switch s.Phase {
		case lease.Connecting:
			log.Warn("waiting for etcd: is it running and reachable at these endpoints?", "endpoints", strings.Join(d.cfg.Etcd.Endpoints, ","))
		case lease.Uninitialized:
			log.Warn("waiting for the space to be initialised: run «allocator init» once with this node's etcd, root, space, layout and epoch",
				"root", d.cfg.Root, "space", d.cfg.Space)
		case lease.Standby:
			log.Info("standing by: a sid is taken as soon as one is free", "pool_size", s.PoolSize, "pool_held", s.PoolHeld,
				"quarantined", len(s.Quarantined))
		case lease.Holding:
		default:
			log.Info("not ready yet")
		}
	}
}

// plausible returns an error if a clock that reads now cannot be right: a
// ceiling written by it, or an ID, could not be taken back.
func plausible(now, epoch clock.Millis, built time.Time) error {
	at := now.Time().Format(time.RFC3339)
	switch end := epoch + flake.MaxTimestamp; {
	case now <= epoch:
		return fmt.Errorf("daemon: the clock reads %s, before the epoch %s: set the clock right", at, epoch.Time().Format(time.RFC3339))
	case now.Time().Before(built):
		return fmt.Errorf("daemon: the clock reads %s, before this program was built (%s): set the clock right", at, built.Format(time.RFC3339))
	case now > end:
		return fmt.Errorf("daemon: the clock reads %s, past the last ID of this epoch (%s)", at, end.Time().Format(time.RFC3339))
	}
	return nil
}

// buildTime returns the time of the commit that the program was built from; zero
// where that is unknown.
func buildTime() time.Time {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" {
				t, _ := time.Parse(time.RFC3339, s.Value)
				return t
			}
		}
	}
	return time.Time{}
}
