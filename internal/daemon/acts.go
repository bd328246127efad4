package daemon

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/status/feed"
)

// actsPause is the minimum time between two reads of acts, however many are written.
const actsPause = time.Second

// runActs logs acts of operators that went to etcd directly, and makes each an event, until ctx ends. It reads their
// records in etcd. An "etcd restore" has no such record; the member of this node hands its act over when it takes the
// restored data. An act among the events of an earlier process is not repeated.
func (d *Daemon) runActs(ctx context.Context) error {
	told := map[string]bool{}
	events, _ := d.feed.Latest(math.MaxInt)
	for _, e := range events {
		if e.Kind == feed.OperatorActed {
			told[e.Attributes["act"]] = true
		}
	}
	var last []lease.Act
	var failed error
	for {
		if failed == nil {
			select {
			case <-ctx.Done():
				return nil
			case a := <-d.restored:
				d.tell(a)
				continue
			case <-d.etcd.store.Acted():
			}
		}
		var list []lease.Act
		if list, failed = d.etcd.store.Acts(ctx); failed == nil {
			for _, a := range list {
				if !told[a.Nonce] && !slices.Contains(last, a) {
					d.tell(a)
				}
			}
			last = list
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(actsPause):
		}
	}
}

// tell makes an act an event and a line of the log.
func (d *Daemon) tell(a lease.Act) {
	is := d.feed.Act(d.clock.Now().Wall, d.cfg.Node.Name, a).Attributes
	d.log.Info(lease.Acted, "action", is["action"], "caller", is["caller"], "by", is["by"], "from", is["from"],
		"reason", is["why"], "at", is["at"], "act", is["act"])
}
