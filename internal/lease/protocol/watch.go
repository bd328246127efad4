package protocol

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// A node that holds a sid needs the list of the space only to know who is registered
// and who holds what. It keeps that list by the changes that a watch reports, and
// reads it again rarely.
//
// A list counts as kept if it was asked for after the watch was opened, so that no
// change is missed between the two, and as long as the watch reaches what the node's
// own transactions show. No write rests on a kept list: a sid is chosen only from one
// that was read, and every write compares.

const (
	// keptFor is how many times lease.reload-every a kept list lasts, on the average.
	// It is read again for what no watch reports, such as a window that was damaged.
	keptFor = 20
	// maxLater is how many changes are remembered while a list is on its way.
	maxLater = 4096
	// never is the time of a list that nothing asked for.
	never = clock.Mono(math.MaxInt64)
)

// ProgressEvery is how often a watch in which nothing changes reports its revision.
func (c Config) ProgressEvery() time.Duration { return c.ReloadEvery / 3 }

// watch is what is known of the watch.
type watch struct {
	number   int        // of this watch, from 1
	open     bool       // it was opened, and is not given up
	from     int64      // revision at which it was opened
	revision int64      // that it has reached
	owes     int64      // revision that a transaction showed and the watch has not reached; 0: none
	since    clock.Mono // when that was
}

func (m *Machine) onWatched(now clock.Reading, ev lease.Watched) {
	switch {
	case ev.Opened:
		m.watch = watch{number: m.watch.number + 1, open: true, from: ev.Revision, revision: ev.Revision}
		m.list.later = nil
		m.notKept(now)
		return
	case !m.watch.open: // given up
		return
	}
	m.watch.revision = ev.Revision
	if ev.Revision >= m.watch.owes {
		m.watch.owes = 0
	}
	if len(ev.Changes) == 0 {
		return
	}
	if m.list.later = append(m.list.later, ev.Changes...); len(m.list.later) > maxLater {
		m.list.later, m.list.asked = nil, 0
		m.notKept(now)
	}
	switch {
	case !m.kept():
		m.onChanged(now)
	case m.list.loading: // that list may be too old to have them, or never come
		m.apply(now, ev.Changes)
	}
}

// kept reports whether the list is kept by the watch. That of a node without a sid is
// not: it has to choose one from it.
func (m *Machine) kept() bool {
	return m.watch.open && m.list.number == m.watch.number && m.list.revision >= m.watch.from && m.own() != nil
}

// catchUp applies what was reported since the list, before there was a sid too.
func (m *Machine) catchUp(now clock.Reading) {
	if later := m.list.later; len(later) > 0 && m.kept() && !m.list.loading {
		m.list.later = nil
		m.apply(now, later)
	}
}

// notKept has the list read again: it does not have all changes. Many nodes find this
// at one moment, as when a member of etcd ends.
func (m *Machine) notKept(now clock.Reading) {
	if m.list.number != 0 {
		m.list.number = 0
		m.list.again = max(m.list.again, now.Mono.Add(m.cfg.ReloadEvery+m.cfg.Jitter(max(m.cfg.ReloadEvery/5, m.spread()))))
	}
	m.onChanged(now)
}

// checkWatch notes that a transaction showed a revision, which the watch has to reach:
// etcd may have forgotten the watch, or the member that it is on is cut off.
func (m *Machine) checkWatch(now clock.Reading, revision int64) {
	if m.watch.open && m.watch.owes == 0 && revision > m.watch.revision {
		m.watch.owes, m.watch.since = revision, now.Mono
	}
}

// planWatch has a watch opened again that has not reached in time what it owes.
func (m *Machine) planWatch(now clock.Reading) {
	if m.life != running || !m.watch.open || now.Mono < m.watch.due(m.cfg) {
		return
	}
	m.watch.open = false
	m.notKept(now)
	m.do(lease.Rewatch{})
}

// due returns when the watch is given up unless it reaches what it owes before.
func (w *watch) due(cfg Config) clock.Mono {
	if !w.open || w.owes == 0 {
		return never
	}
	return w.since.Add(cfg.ReloadEvery)
}

// apply brings a kept list up to date.
func (m *Machine) apply(now clock.Reading, changes []lease.Change) {
	sid := m.own().sid
	m.list.nodes = slices.Clone(m.list.nodes) // the status shares it
	for _, c := range changes {
		switch {
		case c.Revision <= m.list.revision: // the list has it
		case c.Key == lease.ChangedOther, c.Holder.Err != nil, endsLease(changes, c):
			m.onChanged(now)
		case c.Key == lease.ChangedNode:
			if c.Node == (lease.Registration{}) && c.Instance == m.cfg.Registration.Instance {
				m.reload = now.Mono // to register again
			}
			m.list.setNode(c)
		case c.SID == sid, !m.space().SIDs().Has(c.SID), c.Revision <= m.list.sids[c.SID].Holder.Rev:
			// A change of our own sid is in the answer to the next extension.
		default:
			// Its window changed as well, and is not known any more.
			m.list.sids[c.SID], m.list.fresh, m.list.summary = lease.SIDRecords{Holder: c.Holder}, false, nil
			if c.Holder.Value.Instance == m.cfg.Registration.Instance {
				m.reload = now.Mono // a late write acquired it for us: give it back
			}
		}
	}
}

// deletes reports whether c deletes a key of that kind.
func deletes(c lease.Change, key lease.ChangedKey) bool {
	return c.Key == key && !c.Holder.Exists() && c.Node == lease.Registration{}
}

// endsLease reports that c deletes a holder or a registration together with one of the
// other kind: that is the end of a lease. A node that gives its sid back deletes the
// holder alone, and windows show the difference: the sid of an ended lease is still
// active, and whoever counts its node needs the window. So this waits for a list.
func endsLease(changes []lease.Change, c lease.Change) bool {
	with := func(key lease.ChangedKey) bool {
		return slices.ContainsFunc(changes, func(o lease.Change) bool { return o.Revision == c.Revision && deletes(o, key) })
	}
	return deletes(c, lease.ChangedHolder) && with(lease.ChangedNode) || deletes(c, lease.ChangedNode) && with(lease.ChangedHolder)
}

// setNode puts or deletes a registration. They are in the order of instances.
func (l *list) setNode(c lease.Change) {
	i, found := slices.BinarySearchFunc(l.nodes, c.Instance, func(r lease.Registration, id lease.Instance) int {
		return strings.Compare(string(r.Instance), string(id))
	})
	switch gone := c.Node == (lease.Registration{}); {
	case gone && found:
		l.nodes = slices.Delete(l.nodes, i, i+1)
	case !gone && found:
		l.nodes[i] = c.Node
	case !gone:
		l.nodes = slices.Insert(l.nodes, i, c.Node)
	}
}
