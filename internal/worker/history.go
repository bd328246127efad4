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
	if (history.Loss{LastEra: known.Era.Number}).Over(v) { // The node has not read that era yet.
		_ = h.Resume(v) // Another space is found below.
	}
	switch found := h.Check(v).(type) {
	case history.Loss:
		return again(node.HistoryRewound, "%s", found.Why)
	case history.Unready:
		return again(node.Starting, "%s: ask the space's operator", found.Why)
	case history.Unusable:
		return again(node.HistoryRewound, "%v", found.Err)
	}
	c.config, c.era, c.mark = v.Config, v.Era, v.Mark
	return nil
}
