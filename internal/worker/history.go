package worker

import (
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/history"
	"github.com/flakelease/allocator/internal/node"
)

// check takes over config and era of a view that was read after the node knew what known
// says, or returns why no view of this store can be used. If the store lost something, the
// node finds that out for itself, and stops.
func (c *Call) check(known lease.Status, v lease.View) *node.Refusal {
	h := history.Of(known)
	if (history.Loss{LastEra: known.Era.Number}).Over(v) { // an era that the node has not read yet
		if err := h.Resume(v); err != nil {
			return &node.Refusal{Reason: node.HistoryRewound, RetryAfter: retry, Message: err.Error()}
		}
	}
	switch found := h.Check(v).(type) {
	case history.Loss:
		return &node.Refusal{Reason: node.HistoryRewound, RetryAfter: retry, Message: found.Why}
	case history.Unready:
		return &node.Refusal{Reason: node.Starting, RetryAfter: retry, Message: found.Why + ": ask the space's operator"}
	case history.Unusable:
		return &node.Refusal{Reason: node.HistoryRewound, RetryAfter: retry, Message: found.Err.Error()}
	}
	c.config, c.era = v.Config, v.Era
	return nil
}
