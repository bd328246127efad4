package keeper

import (
	"errors"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// outageAfter is how many calls in a row fail before that is an outage. One alone
// is a change of etcd's leader, or a lost packet.
const outageAfter = 2

// Outage is how calls to etcd fail: several in a row, since the first of them. Last is when the last call before
// was answered; 0: none was.
type Outage struct {
	Since clock.Millis
	Last  clock.Millis
	Error string // empty: there is no outage
}

// noteOutage notes the beginning and the end of an outage, if ev is the answer to a call.
func (k *Keeper) noteOutage(now clock.Millis, ev lease.Event) {
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
	if err == nil || errors.Is(err, lease.ErrLeaseGone) {
		k.failing, k.answeredAt = 0, now
		k.outage.Store(nil)
		return
	}
	if k.failing == 0 {
		k.failedAt = now
	}
	if k.failing++; k.failing == outageAfter {
		k.outage.Store(&Outage{Since: k.failedAt, Last: k.answeredAt, Error: err.Error()})
	}
}
