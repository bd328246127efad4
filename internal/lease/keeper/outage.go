package keeper

import (
	"errors"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// outage is a time in which every call to etcd fails: so many in a row, the first one at since.
type outage struct {
	since  clock.Mono
	failed int
}

// outageAfter is how many calls in a row fail before an outage is logged. One alone
// is a change of etcd's leader, or a lost packet.
const outageAfter = 2

// logOutage logs the beginning and the end of an outage, once each, if ev is the
// answer to a call.
func (k *Keeper) logOutage(now clock.Reading, ev lease.Event) {
	var err error
	switch ev := ev.(type) {
	case lease.Loaded:
		err = ev.Err
	case lease.Committed:
		err = ev.Err
	case lease.Registered:
		err = ev.Err
	case lease.KeptAlive:
		err = ev.Err
	default:
		return
	}
	o := &k.outage
	if err == nil || errors.Is(err, lease.ErrLeaseGone) {
		if o.failed >= outageAfter {
			k.cfg.Logger.Info("calls to etcd succeed again",
				"after", now.Mono.Sub(o.since).Round(time.Millisecond).String(), "window_left", k.left(now))
		}
		*o = outage{}
		k.failing.Store(false)
		return
	}
	if o.failed == 0 {
		o.since = now.Mono
	}
	if o.failed++; o.failed == outageAfter {
		k.failing.Store(true)
		if !k.Status().Held {
			k.cfg.Logger.Warn("calls to etcd fail: the node has no window, and issues when etcd answers", "error", err)
			return
		}
		k.cfg.Logger.Warn("calls to etcd fail: IDs are issued until the window ends",
			"window_left", k.left(now), "error", err)
	}
}

// left returns for how long IDs can be issued without etcd.
func (k *Keeper) left(now clock.Reading) string {
	s := k.Status()
	if !s.Held {
		return "0s"
	}
	return max(0, s.Grant.Ceil-now.Wall).Duration().Round(time.Millisecond).String()
}
