package catalog

import (
	"maps"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Summary is what a status says of all sids. A space has up to 1,024, so it is made once
// for each version of the catalog, not for each status; statuses share it.
type Summary struct {
	Version int

	// Size, Held and Bad count the sids within a range, and WorkersHeld and WorkersBad
	// those for workers. Bad sids are quarantined and have no holder.
	Within                  lease.SIDRange
	Size, Held, Bad         int
	WorkersHeld, WorkersBad int

	Quarantined map[flake.SID]string
	// Holders and Lapsed are in the order of sids. Holders is nil while the catalog is unknown.
	Holders []lease.Held
	Lapsed  []lease.Lapsed
	// Ceiling is the highest of any sid.
	Ceiling clock.Millis
}

// Version is a number that differs whenever the summary may.
func (c *Catalog) Version() int { return c.version }

// Summarize counts the sids of the space, and those within a range.
func (c *Catalog) Summarize(within lease.SIDRange) *Summary {
	s := &Summary{Version: c.version, Within: within, Size: within.Len(), Quarantined: maps.Clone(c.bad)}
	if c.Listed() {
		s.Holders = make([]lease.Held, 0, len(c.sids))
	}
	for sid := c.space.From; sid < c.space.To; sid++ {
		r := c.sids[sid]
		w, held, bad := r.Window.Value, r.Holder.Exists(), c.bad[sid] != ""
		count := func(within lease.SIDRange, withHolder, quarantined *int) {
			switch {
			case !within.Has(sid):
			case held:
				*withHolder++
			case bad:
				*quarantined++
			}
		}
		count(within, &s.Held, &s.Bad)
		count(c.cfg.Workers, &s.WorkersHeld, &s.WorkersBad)
		s.Ceiling = max(s.Ceiling, w.Ceil)
		switch {
		case held && r.Holder.Err == nil:
			h := r.Holder.Value
			s.Holders = append(s.Holders, lease.Held{
				SID:      sid,
				Instance: h.Instance,
				Node:     lease.Printable(h.Node),
				Worker:   h.Worker,
			})
		case !held && !bad && w.State == lease.Active && w.Gossip:
			s.Lapsed = append(s.Lapsed, lease.Lapsed{
				Node:     w.Node,
				Instance: w.Instance,
				Wall:     w.Wall,
				Rev:      r.Window.Rev,
			})
		}
	}
	return s
}
