package daemon

import (
	"context"
	"fmt"
)

// rest gives the node's sid back for good, for an operator who drains it, and
// returns once etcd has confirmed that. The server has made the node refuse
// before. The process stays, as a witness to the others' clocks.
func (d *Daemon) rest(ctx context.Context) error {
	d.watch.Drain()
	for {
		s, changed := d.keeper.Watch()
		if s.Idle && !s.GateOpen {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sid %d is not given back yet: %w; its lease runs on until the process stops: %s", s.Grant.SID, ctx.Err(), s.Problem)
		case <-changed:
		}
	}
}
