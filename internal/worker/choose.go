package worker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// choose picks the sid to acquire: among the free ones whose ceilings have passed the one
// that this name had last, else any at random, so that workers that start together ask
// for different ones. Where none has passed, the one with the lowest ceiling: its
// interval begins in the future.
func (c *Call) choose(now clock.Reading, name string) (sid flake.SID, ok bool) {
	of := c.config.Value.SIDs()
	var past, own []flake.SID
	for s := c.cfg.SIDs.From; s < c.cfg.SIDs.To; s++ {
		w := c.sids[s].Window.Value // zero: never used
		if !of.Has(s) || c.bad[s] || c.unusable(now, c.sids[s]) {
			continue
		}
		if w.Ceil <= now.Wall {
			past = append(past, s)
			if w.Worker && w.Node == name {
				own = append(own, s)
			}
		}
		if !ok || w.Ceil < c.sids[sid].Window.Value.Ceil {
			sid, ok = s, true
		}
	}
	switch {
	case len(own) > 0:
		return own[c.cfg.Random(len(own))], true
	case len(past) > 0:
		return past[c.cfg.Random(len(past))], true
	}
	return sid, ok
}

// unusable reports whether a sid is held, or its records cannot be trusted.
func (c *Call) unusable(now clock.Reading, s lease.SIDRecords) bool {
	w := s.Window.Value
	return s.Holder.Exists() || s.Window.Err != nil || w.State == lease.Quarantined ||
		w.Era > c.era.Value.Number || w.Ceil > c.soundBy(now)
}

// soundBy returns the latest ceiling that a sound clock can have written, as nodes do.
func (c *Call) soundBy(now clock.Reading) clock.Millis {
	return max(now.Wall, c.era.Value.Floor) + clock.MillisOf(c.cfg.Window+2*c.cfg.MaxSkew+c.cfg.MaxLead)
}

// namesShown is how many holders the message about an exhausted range names.
const namesShown = 8

// noneFree says that no sid can be taken, and who has them.
func (c *Call) noneFree() string {
	count, held, bad := map[string]int{}, 0, 0
	for sid, s := range c.sids {
		switch {
		case !c.cfg.SIDs.Has(sid):
		case s.Holder.Exists():
			held++
			count[cmp.Or(s.Holder.Value.Node, "unknown")]++
		case s.Window.Exists():
			bad++
		}
	}
	by := ""
	for i, name := range slices.Sorted(maps.Keys(count)) {
		if i == namesShown {
			by += fmt.Sprintf(" and %d more", len(count)-i)
			break
		}
		if by == "" {
			by = " by"
		} else {
			by += ","
		}
		by += " " + lease.Printable(name)
		if n := count[name]; n > 1 {
			by += fmt.Sprintf(" (%d)", n)
		}
	}
	return fmt.Sprintf("no sid of worker.sid-range %v is free: %d of %d are held%s, %d quarantined: stop some workers, or widen the range",
		c.cfg.SIDs, held, c.cfg.SIDs.Len(), by, bad)
}
