// Package history tells whether a view of the store continues the views before it.
//
// An etcd that was restored from a backup, or replaced by another one, has lost writes
// that it had confirmed. A node that reads such a store may be granted what this process
// holds. So a process that finds evidence of it makes no use of the store until an
// operator begins a new era:
//
//	unknown ──▶ known ──▶ lost ──▶ unknown
//
// A History is unknown until a view shows config and era of a space. From then on it is
// known: revision and era may only grow, and cluster and config may not change. [Loss]
// says what was lost. The store may be used again once [Loss.Over]; then
// [History.Resume] forgets all but the space.
package history

import (
	"fmt"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// History is what one reader has read of a store, as far as later views are compared
// with it. It is owned by one goroutine.
type History struct {
	format flake.Format
	// known: config and era are set.
	known  bool
	config lease.Entry[lease.Space]
	era    lease.Entry[lease.Era]
	// cluster is 0 before the first view. revision is the highest; answers arrive in order,
	// so it may never fall.
	cluster  uint64
	revision int64
	readAt   clock.Mono
	// reported is the latest that peers reported, and expected what they had reported
	// before the outstanding list was asked for.
	reported lease.ReportedRevision
	expected lease.ReportedRevision
}

// New returns the history of a node that is configured for IDs of format.
func New(format flake.Format) History { return History{format: format} }

// Of returns the history that a node's status shows. Without revision, cluster and era
// in st, views are compared with the space alone.
func Of(st lease.Status) History {
	return History{
		format: st.Space.Format(), known: true,
		config:   lease.Entry[lease.Space]{Value: st.Space},
		era:      lease.Entry[lease.Era]{Value: st.Era},
		cluster:  st.Cluster,
		revision: st.Revision,
	}
}

// Finding is what a view shows: one of Sound, Loss, Unready and Unusable.
type Finding interface{ finding() }

// The findings. Only a view that is Sound may be used for anything else.
type (
	// Sound: the view continues the history. It is the First one if the history was
	// unknown, and has a NewEra if an operator began another since the view before.
	Sound struct{ First, NewEra bool }
	// Loss: the store lost something that it had confirmed. Only an era after LastEra
	// ends that.
	Loss struct {
		Why     string
		LastEra int64
	}
	// Unready: the store has no space, or one that cannot be read.
	Unready struct{ Why string }
	// Unusable: no retry can help.
	Unusable struct{ Err error }
)

func (Sound) finding()    {}
func (Loss) finding()     {}
func (Unready) finding()  {}
func (Unusable) finding() {}

// Check compares v with the history, and adds it if it is sound.
//
// Revision and cluster are added whatever the space is like. If the era began on another
// cluster, config and era are added too, since only a later era ends that loss.
func (h *History) Check(v lease.View) Finding {
	switch {
	case v.Revision < h.revision:
		return h.lost(v, "etcd's revision went back from %d to %d", h.revision, v.Revision)
	case h.cluster != 0 && v.Cluster != h.cluster:
		return h.lost(v, "etcd's cluster changed from %x to %x", h.cluster, v.Cluster)
	}
	h.revision, h.cluster = v.Revision, v.Cluster
	was, config := h.config.Value, v.Config.Value
	switch {
	case !v.Config.Exists() && h.known:
		return h.lost(v, "the space's config is gone")
	case !v.Config.Exists():
		return Unready{"the space is not initialized: run \"allocator init\" once"}
	case v.Config.Err != nil:
		return Unready{fmt.Sprintf("the space's config is unreadable: %v", v.Config.Err)}
	case h.known && config.Pool != was.Pool:
		return h.lost(v, "the space is another one: pool %s, was %s", config.Pool, was.Pool)
	case config.Format() != h.format:
		return Unusable{&lease.FormatError{Space: config.Format(), Node: h.format}}
	case h.known && config != was:
		return h.lost(v, "the space's config was rewritten: its sids are %v, were %v", config.SIDs(), was.SIDs())
	}
	last, era := h.era.Value, v.Era.Value
	switch {
	case !v.Era.Exists() && h.known:
		return h.lost(v, "the space's era is gone")
	case !v.Era.Exists():
		return Unready{"the space has a config but no era: etcd's data is incomplete"}
	case v.Era.Err != nil:
		return Unready{fmt.Sprintf("the space's era is unreadable: %v", v.Era.Err)}
	case h.known && era.Number < last.Number:
		return h.lost(v, "the era went back from %d to %d", last.Number, era.Number)
	case h.known && era.Number == last.Number && era != last:
		return h.lost(v, "era %d was rewritten", era.Number)
	}
	found := Sound{First: !h.known, NewEra: h.known && era.Number > last.Number}
	h.known, h.config, h.era = true, v.Config, v.Era
	if era.Cluster != v.Cluster {
		return h.lost(v, "etcd's cluster is %x, but era %d began on %x: "+
			"etcd was restored from a backup, or this is another etcd", v.Cluster, era.Number, era.Cluster)
	}
	return found
}

// lost returns a loss that v shows. A backup can be older than the last era: then the
// operator's next one has a number that was seen before.
func (h *History) lost(v lease.View, format string, args ...any) Loss {
	l := h.Lost(format, args...)
	if v.Era.Exists() && v.Era.Err == nil {
		l.LastEra = min(l.LastEra, v.Era.Value.Number)
	}
	return l
}

// Lost returns a loss that something else shows: the store has the history's era, and
// only a later one ends the loss.
func (h *History) Lost(format string, args ...any) Loss {
	return Loss{Why: "etcd's history cannot be trusted: " + fmt.Sprintf(format, args...), LastEra: h.era.Value.Number}
}

// Over reports whether v shows that an operator began an era after the loss. Its floor
// is above everything that was ever issued.
func (l Loss) Over(v lease.View) bool { return v.Era.Err == nil && v.Era.Value.Number > l.LastEra }

// Resume makes the history unknown once a loss is over, as v shows.
//
// It returns lease.ErrOtherPool for another space: gossip and everything else of this process
// belong to the old one. The history is then unchanged.
func (h *History) Resume(v lease.View) error {
	if h.known && v.Config.Err == nil && v.Config.Value.Pool != h.config.Value.Pool {
		return lease.ErrOtherPool
	}
	*h = New(h.format)
	return nil
}

// Reported takes what peers report, and says whether that is later than their last report.
// It is evidence only against a list that is asked for afterwards.
func (h *History) Reported(r lease.ReportedRevision) bool {
	later := r.After(h.reported)
	if later {
		h.reported = r
	}
	return later
}

// Listing notes that a list is asked for now, which has to reach what was reported.
func (h *History) Listing() { h.expected = h.reported }

// Listed returns the loss that a sound list shows by not reaching what was reported before
// it was asked for.
func (h *History) Listed(v lease.View) (Loss, bool) {
	read, want := lease.ReportedRevision{Era: h.era.Value.Number, Revision: v.Revision}, h.expected
	if !want.After(read) {
		return Loss{}, false
	}
	l := h.Lost("peers reported era %d at revision %d, but a later read shows era %d at revision %d",
		want.Era, want.Revision, read.Era, read.Revision)
	l.LastEra = max(l.LastEra, want.Era)
	return l, true
}

// Read notes when v was read, and reports whether it was the latest to be added, whatever its space is like.
func (h *History) Read(now clock.Mono, v lease.View) bool {
	added := h.revision == v.Revision && h.cluster == v.Cluster
	if added {
		h.readAt = now
	}
	return added
}

// ReadAt returns when the revision was read.
func (h *History) ReadAt() clock.Mono { return h.readAt }

// Known reports whether config and era were read.
func (h *History) Known() bool { return h.known }

// Config returns the config as it was read; zero while unknown.
func (h *History) Config() lease.Entry[lease.Space] { return h.config }

// Era returns the era as it was read; zero while unknown.
func (h *History) Era() lease.Entry[lease.Era] { return h.era }

// Cluster returns etcd's cluster ID; 0 before the first view.
func (h *History) Cluster() uint64 { return h.cluster }

// Revision returns the highest revision that a view had; 0 before the first one.
func (h *History) Revision() int64 { return h.revision }
