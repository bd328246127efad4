package catalog

import (
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// maxLater is how many changes are remembered while a list is on its way.
const maxLater = 4096

// watch is what is known of the watch. Each one that is opened has a number, from 1. A list
// has every change before it was asked for, and the watch that was open then reports every
// change after it.
type watch struct {
	number int
	open   bool
	// The watch was opened at revision from, and has reached revision. It owes another one
	// since a transaction showed that; owes is 0 if it is not behind.
	from     int64
	revision int64
	owes     int64
	since    clock.Mono
	// asked and listed are the numbers of the watches when the latest list was asked for,
	// and when the list that arrived was. They are 0 if changes since then are missing.
	asked  int
	listed int
	// later are the changes since the latest list was asked for that are not applied yet.
	later []lease.Change
}

// covers reports whether the watch has reported every change since a list of a revision
// was asked for.
func (w *watch) covers(revision int64) bool {
	return w.open && w.listed == w.number && revision >= w.from
}

func (w *watch) ask() {
	if len(w.later) > 0 {
		w.listed = 0 // If no other list follows, the catalog lacks these changes.
	}
	w.asked, w.later = w.number, nil
}

// due returns when the watch is given up unless it reaches what it owes before.
func (w *watch) due(patience time.Duration) clock.Mono {
	if !w.open || w.owes == 0 {
		return never
	}
	return w.since.Add(patience)
}

// Watched takes a report of the watch.
func (c *Catalog) Watched(now clock.Mono, ev lease.Watched, need Need) {
	w := &c.watch
	switch {
	case ev.Opened:
		*w = watch{
			number: w.number + 1, open: true,
			from: ev.Revision, revision: ev.Revision,
			asked: w.asked, listed: w.listed,
		}
		c.gap(now, need)
		return
	case !w.open: // It was given up.
		return
	}
	w.revision = ev.Revision
	if ev.Revision >= w.owes {
		w.owes = 0
	}
	if len(ev.Changes) == 0 {
		return
	}
	if w.later = append(w.later, ev.Changes...); len(w.later) > maxLater {
		w.later, w.asked = nil, 0
		c.gap(now, need)
	}
	switch {
	case c.in(need) != kept:
		c.Hint(now, need)
	case c.loading: // The list may be too old to have them, or never come.
		c.apply(now, ev.Changes, need)
	}
}

// gap notes that changes are missing, and has the space listed. Many nodes find this at
// one moment, as when a member of etcd ends.
func (c *Catalog) gap(now clock.Mono, need Need) {
	if c.watch.listed != 0 {
		c.watch.listed = 0
		again := now.Add(c.cfg.ReloadEvery + c.cfg.Jitter(max(c.cfg.ReloadEvery/5, c.spread())))
		c.plan.again = max(c.plan.again, again)
	}
	c.Hint(now, need)
}

// CatchUp applies what was reported since the list, before there was a sid too.
func (c *Catalog) CatchUp(now clock.Mono, need Need) {
	if later := c.watch.later; len(later) > 0 && !c.loading && c.in(need) == kept {
		c.watch.later = nil
		c.apply(now, later, need)
	}
}

// Acquired notes that the process has a sid from now on. Unless the catalog is kept by
// that, what changed since the list is not known.
func (c *Catalog) Acquired(now clock.Mono, need Need) {
	if c.watch.open && c.in(need) != kept {
		c.Hint(now, need)
	}
}

// Shown notes that a transaction showed a revision, which the watch has to reach: etcd
// may have forgotten the watch, or the member that it is on is cut off.
func (c *Catalog) Shown(now clock.Mono, revision int64) {
	if w := &c.watch; w.open && w.owes == 0 && revision > w.revision {
		w.owes, w.since = revision, now
	}
}

// GiveUp gives the watch up if it has not reached in time what it owes, and says whether
// it did: then the watch has to be opened again.
func (c *Catalog) GiveUp(now clock.Mono, need Need) bool {
	if now < c.WatchDue() {
		return false
	}
	c.watch.open = false
	c.gap(now, need)
	return true
}

// WatchDue returns when GiveUp has to be called, if nothing happens before.
func (c *Catalog) WatchDue() clock.Mono { return c.watch.due(c.cfg.ReloadEvery) }

// apply brings a kept catalog up to date.
func (c *Catalog) apply(now clock.Mono, changes []lease.Change, need Need) {
	c.nodes = slices.Clone(c.nodes)
	for _, ch := range changes {
		switch {
		case ch.Revision <= c.revision: // The list has it.
		case ch.Key == lease.ChangedOther, ch.Holder.Err != nil, endsLease(changes, ch):
			c.Hint(now, need)
		case ch.Key == lease.ChangedNode:
			if ch.Node == (lease.Registration{}) && ch.Instance == c.cfg.Registration.Instance {
				c.plan.at = now // It registers again once a list shows that.
			}
			c.setNode(ch)
		case ch.SID == need.SID, !c.space.Has(ch.SID), ch.Revision <= c.sids[ch.SID].Holder.Rev:
			// A change of the process's own sid is in the answer to its next extension.
		default:
			// Its window changed as well, and is not known any more.
			c.Put(ch.SID, lease.SIDRecords{Holder: ch.Holder})
			c.Stale()
			if ch.Holder.Value.Instance == c.cfg.Registration.Instance {
				c.plan.at = now // A late write acquired it for this process, which gives it back.
			}
		}
	}
}

// deletes reports whether c deletes a key of that kind.
func deletes(c lease.Change, key lease.ChangedKey) bool {
	return c.Key == key && !c.Holder.Exists() && c.Node == lease.Registration{}
}

// endsLease reports that c deletes a holder or a registration together with one of the
// other kind, or that another node has ended a hold. A node that gives its sid back deletes the
// holder alone, and windows show the difference: the sid of an ended lease is still
// active, and whoever counts its node needs the window. So this waits for a list.
func endsLease(changes []lease.Change, c lease.Change) bool {
	with := func(key lease.ChangedKey) bool {
		return slices.ContainsFunc(changes, func(o lease.Change) bool {
			return o.Revision == c.Revision && deletes(o, key)
		})
	}
	expired := slices.ContainsFunc(changes, func(o lease.Change) bool {
		return o.Revision == c.Revision && o.Key == lease.ChangedOther
	})
	return deletes(c, lease.ChangedHolder) && (with(lease.ChangedNode) || expired) ||
		deletes(c, lease.ChangedNode) && with(lease.ChangedHolder)
}

// setNode puts or deletes a registration.
func (c *Catalog) setNode(ch lease.Change) {
	i, found := slices.BinarySearchFunc(c.nodes, ch.Instance, func(r lease.Registration, id lease.Instance) int {
		return strings.Compare(string(r.Instance), string(id))
	})
	switch gone := ch.Node == (lease.Registration{}); {
	case gone && found:
		c.nodes = slices.Delete(c.nodes, i, i+1)
	case !gone && found:
		c.nodes[i] = ch.Node
	case !gone:
		c.nodes = slices.Insert(c.nodes, i, ch.Node)
	}
}
