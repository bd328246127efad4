package catalog

import (
	"maps"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Summary is what a status says of all sids. A space has up to 1,024, so it is made once
// after each change of the catalog, not for each status; statuses share it.
type Summary struct {
	within lease.SIDRange
	// Pool counts the sids within a range, and Workers those for workers.
	Pool, Workers lease.Pool

	Quarantined map[flake.SID]string
	// Holders and Lapsed are in the order of sids. Holders is nil while the catalog is unknown.
	Holders []lease.Held
	Lapsed  []lease.Lapsed
	// Ceiling is the highest of any sid.
	Ceiling clock.Millis
}

// Summary returns the summary of the space, and of the sids within a range. Do not write to it.
func (c *Catalog) Summary(within lease.SIDRange) *Summary {
	if c.sum == nil || c.sum.within != within {
		c.sum = c.summarize(within)
	}
	return c.sum
}

func (c *Catalog) summarize(within lease.SIDRange) *Summary {
	s := &Summary{
		within:      within,
		Pool:        lease.Pool{Size: within.Len()},
		Workers:     lease.Pool{Size: c.cfg.Workers.Len()},
		Quarantined: maps.Clone(c.bad),
	}
	if c.Listed() {
		s.Holders = make([]lease.Held, 0, len(c.sids))
	}
	for sid := c.space.From; sid < c.space.To; sid++ {
		r := c.sids[sid]
		w, held, bad := r.Window.Value, r.Holder.Exists(), c.bad[sid] != ""
		count := func(within lease.SIDRange, pool *lease.Pool) {
			switch {
			case !within.Has(sid):
			case held:
				pool.Held++
			case bad:
				pool.Quarantined++
			case w.State == lease.Reserved:
				pool.Reserved++
			}
		}
		count(within, &s.Pool)
		count(c.cfg.Workers, &s.Workers)
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
				Started:  w.Started,
				Wall:     w.Wall,
				Rev:      r.Window.Rev,
			})
		}
	}
	return s
}
