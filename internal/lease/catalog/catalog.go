// Package catalog keeps what a node knows of its space: who is registered, who holds
// which sid, and which sids cannot be trusted.
//
// A list of the space costs etcd a read of all keys, so holders list rarely: a watch
// reports changes between lists. What the catalog has is in one of these states:
//
//	unknown  nothing was listed
//	old      it may lack anything; nothing may be chosen from it
//	fresh    it was listed, and nothing is known against it: a sid may be chosen from it
//	kept     this process holds a sid, and the watch has reported every change since
//	         the list was asked for; they are applied
//
//	unknown ──Loaded──▶ fresh ──Stale, a change applied──▶ old ──Loaded──▶ fresh
//	old, fresh ──a sid acquired──▶ kept ──sid lost, watch opened again or behind──▶ old, fresh
//
// Each state lasts while the next list is on its way. No write rests on a kept catalog: a
// sid is chosen only from a fresh one, and every write compares.
package catalog

import (
	"maps"
	"slices"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Need is what the process uses the catalog for at a moment. With Keep it holds SID, and
// the record there is its own.
type Need struct {
	Haste Haste
	Keep  bool
	SID   flake.SID
}

// Haste is how soon a list is needed once something changed.
type Haste uint8

// The hastes.
const (
	// None: no list is needed, since the answer to the process's next write shows a change.
	None Haste = iota
	// Spread: every holder gets every hint. The more sids, the wider their lists are spread.
	Spread
	// Soon: the process waits for a change.
	Soon
)

// Catalog is what one process knows of the space. It is owned by one goroutine.
type Catalog struct {
	cfg   lease.Config
	state state // It is never kept: that depends on the need, see in.
	space lease.SIDRange
	sids  map[flake.SID]lease.SIDRecords
	// since is when the records of a sid were first listed as they are, without the time in which nothing was
	// answered: holders could not write either. failed: some call has failed since the latest list.
	since  map[flake.SID]clock.Mono
	failed bool
	// nodes are in the order of instances. Statuses share the slice, so nothing writes to it.
	nodes []lease.Registration
	// bad is why sids are not used.
	bad map[flake.SID]string
	// sum is nil after each change of sids and bad.
	sum *Summary
	// The list that arrived last was of revision, and showed evidence.
	revision int64
	evidence Evidence

	// loading: a list is on its way. When the latest one was asked for, this process had
	// lease; changed says that a change was reported since then.
	loading bool
	lease   lease.LeaseID
	changed bool
	plan    schedule
	watch   watch
}

type state uint8

const (
	unknown state = iota
	old
	fresh
	kept
)

// Evidence is what a list shows about clocks.
type Evidence struct {
	// At is when the list arrived.
	At clock.Reading
	// HolderWall is the latest wall time in records of live holders with gossip, or 0.
	HolderWall clock.Millis
	// WithoutGossip is the latest one in records of live nodes without gossip, or 0.
	WithoutGossip clock.Millis
	// LatestWall is the latest wall time in any sound record, or the floor of the era if that
	// is later.
	LatestWall clock.Millis
	Accepted   lease.Entry[lease.AcceptedTime]
}

// New returns a catalog that is unknown, and wants to be listed at once.
func New(cfg lease.Config) Catalog {
	return Catalog{cfg: cfg, bad: map[flake.SID]string{}, since: map[flake.SID]clock.Mono{}}
}

// in returns the state of the catalog for a need.
func (c *Catalog) in(need Need) state {
	if need.Keep && c.watch.covers(c.revision) {
		return kept
	}
	return c.state
}

// Fresh reports whether a sid may be chosen from the catalog.
func (c *Catalog) Fresh() bool { return c.state == fresh }

// Listed reports whether the space was ever listed.
func (c *Catalog) Listed() bool { return c.state != unknown }

// Changed reports whether something changed after the latest list was asked for.
func (c *Catalog) Changed() bool { return c.changed }

// SIDs returns the records by sid. Sids that were never used are absent.
func (c *Catalog) SIDs() map[flake.SID]lease.SIDRecords { return c.sids }

// Nodes returns who is registered. Do not write to it.
func (c *Catalog) Nodes() []lease.Registration { return c.nodes }

// Bad returns why a sid is not used, or "".
func (c *Catalog) Bad(sid flake.SID) string { return c.bad[sid] }

// Evidence returns what the latest list showed about clocks.
func (c *Catalog) Evidence() Evidence { return c.evidence }

// Lease returns this process's lease when the latest list was asked for, and whether its
// registration is missing from the catalog.
func (c *Catalog) Lease() (asked lease.LeaseID, missing bool) {
	return c.lease, !slices.ContainsFunc(c.nodes, func(r lease.Registration) bool {
		return r.Instance == c.cfg.Registration.Instance
	})
}

// Ask notes that the space is listed from now on, while the process has a lease.
func (c *Catalog) Ask(now clock.Mono, on lease.LeaseID) {
	c.loading, c.lease, c.changed = true, on, false
	c.watch.ask()
	c.plan.asked(now, c.cfg)
}

// Answered notes that a list or a read of one sid was answered, and says which it was. After
// an error the space is listed again; a process with a sid waits longer, since a window must
// still be extended between the lists where those fail and small writes succeed.
func (c *Catalog) Answered(now clock.Mono, err error, holds bool) (list bool) {
	list, c.loading = c.loading, false
	c.failed = c.failed || err != nil
	switch {
	case !list:
	case err != nil:
		c.plan.failed(now, c.cfg, holds)
	default:
		c.plan.retries = lease.Retries{}
	}
	return list
}

// Loaded takes a list of the space.
//
// It returns in order the sids that cannot be trusted, unless an operator decided so, and
// those that have the key of this process.
func (c *Catalog) Loaded(now clock.Reading, v lease.View) (found []flake.SID) {
	era := v.Era.Value
	var silent time.Duration
	if c.failed {
		silent = now.Mono.Sub(c.evidence.At.Mono)
	}
	c.failed = false
	for sid, s := range v.SIDs {
		was := c.sids[sid]
		since, listed := c.since[sid]
		if !listed || !s.Window.Same(was.Window) || !s.Holder.Same(was.Holder) {
			since = now.Mono
		}
		c.since[sid] = min(since.Add(silent), now.Mono)
	}
	c.state, c.space, c.sids, c.nodes = fresh, v.Config.Value.SIDs(), v.SIDs, v.Nodes
	c.sum, c.revision = nil, v.Revision
	c.watch.listed = c.watch.asked
	c.evidence = Evidence{At: now, Accepted: v.Accepted}
	// What a list cannot show again counts until the list shows it repaired.
	maps.DeleteFunc(c.bad, func(sid flake.SID, why string) bool {
		return why != lease.PastWithoutWindow || c.sids[sid].Window.Exists()
	})
	for _, sid := range slices.Sorted(maps.Keys(c.sids)) {
		s := c.sids[sid]
		w := s.Window.Value // It is zero without a readable record.
		if !c.space.Has(sid) {
			delete(c.sids, sid) // No node takes it.
			continue
		}
		sound := c.cfg.SoundBy(now.Wall, era, w.Worker)
		why := s.Distrust(era, sound)
		if why == "" && s.ShowsTime(sound) {
			c.evidence.LatestWall = max(c.evidence.LatestWall, w.Wall)
		}
		switch {
		case why != "":
			c.bad[sid] = why
			if s.Window.Err != nil || w.State != lease.Quarantined {
				found = append(found, sid)
			}
		case !s.Holder.Exists():
		case s.Holder.Value.Instance == c.cfg.Registration.Instance:
			found = append(found, sid)
		case w.Gossip:
			// Nobody compares the clock of a holder without gossip, and it never refuses: it
			// may have been wrong for months. A sound node must not be kept from starting by it.
			c.evidence.HolderWall = max(c.evidence.HolderWall, w.Wall)
		case !w.Worker:
			c.evidence.WithoutGossip = max(c.evidence.WithoutGossip, w.Wall)
		}
	}
	// The era began no earlier than its floor says, give or take its slack: there may be no record yet, or
	// only that of a clock which is years behind.
	c.evidence.LatestWall = max(c.evidence.LatestWall, era.Floor)
	return found
}

// Put takes the records of a sid as this process wrote them.
func (c *Catalog) Put(sid flake.SID, s lease.SIDRecords) {
	if c.Listed() {
		c.sids[sid] = s
		delete(c.since, sid)
		c.sum = nil
	}
}

// Dead returns the first sid with a dead holder, by the list that just arrived; see [lease.Bounds.Dead].
func (c *Catalog) Dead(now clock.Reading) (flake.SID, bool) {
	for _, sid := range slices.Sorted(maps.Keys(c.sids)) {
		s := c.sids[sid]
		if since, listed := c.since[sid]; listed && c.bad[sid] == "" &&
			s.Holder.Value.Instance != c.cfg.Registration.Instance && c.cfg.Dead(s, now.Wall, now.Mono.Sub(since)) {
			return sid, true
		}
	}
	return 0, false
}

// Distrust notes why a sid is not used.
func (c *Catalog) Distrust(sid flake.SID, why string) {
	c.bad[sid] = why
	c.sum = nil
}

// TrustAll forgets why sids are not used, until the next list.
func (c *Catalog) TrustAll() {
	c.bad = map[flake.SID]string{}
	c.sum = nil
}

// Stale has no sid chosen from the catalog until it is listed again.
func (c *Catalog) Stale() { c.state = min(c.state, old) }

// Replace is Stale, with the list asked for at a time, not before.
func (c *Catalog) Replace(at clock.Mono) {
	c.Stale()
	c.plan.at = at
}

// AskBy has the space listed at a time, if not before.
func (c *Catalog) AskBy(at clock.Mono) { c.plan.at = min(c.plan.at, at) }

// Due returns when the space is listed next.
func (c *Catalog) Due(need Need) clock.Mono {
	again := c.plan.again
	if c.in(need) == kept {
		again = c.plan.keptUntil
	}
	return max(min(c.plan.at, again), c.plan.retry)
}

// Retry returns before when the space is not listed, whatever happens.
func (c *Catalog) Retry() clock.Mono { return c.plan.retry }
