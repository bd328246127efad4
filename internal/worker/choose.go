package worker

import (
	"fmt"
	"slices"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// choose picks the sid to acquire: among the free ones whose ceilings have passed the one
// that this name had last, else any at random, so that workers that start together ask
// for different ones. Where none has passed, the one with the lowest ceiling: its
// interval begins in the future.
//
// A sid that was released stays its owner's until its ceiling has passed. Once these and the workers
// that the owner holds are as many as its quota, it gets one of these: acquiring and releasing in turn
// keeps no more sids from others than holding them.
func (c *Call) choose(now clock.Reading, a Acquire) (sid flake.SID, ok bool) {
	past, later := lease.Free(c.sids, c.cfg.SIDs, now.Wall, func(sid flake.SID) bool {
		return c.distrusted(now, sid)
	})
	kept := slices.DeleteFunc(slices.Clone(later), func(sid flake.SID) bool {
		w := c.sids[sid].Window.Value
		return !w.Worker || w.Owner != a.Owner
	})
	if len(kept) > 0 && c.held(a.Owner)+len(kept) >= a.Quota {
		past, later = nil, kept
	}
	own := lease.LastOf(a.Name, true, past, c.sids)
	switch {
	case len(own) > 0:
		return own[c.cfg.Random(len(own))], true
	case len(past) > 0:
		return past[c.cfg.Random(len(past))], true
	case len(later) > 0:
		return lease.Lowest(later, c.sids), true
	}
	return 0, false
}

// held returns how many workers an owner holds.
func (c *Call) held(owner string) (n int) {
	for _, s := range c.sids {
		if s.Holder.Value.Worker && s.Holder.Value.Owner == owner {
			n++
		}
	}
	return n
}

// distrusted reports whether nobody acquires a sid.
func (c *Call) distrusted(now clock.Reading, sid flake.SID) bool {
	s, era := c.sids[sid], c.era.Value
	return !c.config.Value.SIDs().Has(sid) || c.bad[sid] ||
		s.Distrust(era, c.cfg.Bounds.SoundBy(now.Wall, era, s.Window.Value.Worker)) != ""
}

// noneFree says that no sid can be taken, and who has them.
func (c *Call) noneFree(now clock.Reading) string {
	bad := 0
	for sid := c.cfg.SIDs.From; sid < c.cfg.SIDs.To; sid++ {
		if !c.sids[sid].Holder.Exists() && c.distrusted(now, sid) {
			bad++
		}
	}
	return fmt.Sprintf("no sid of worker.sid-range %v %s: stop some workers, or widen the range",
		c.cfg.SIDs, lease.Taken(c.sids, c.cfg.SIDs, bad))
}
