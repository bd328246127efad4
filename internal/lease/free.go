package lease

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/text"
)

// Bounds is what bounds how far ahead of a clock a sound ceiling lies.
//
// Window is W of nodes: how far ahead of the clock a ceiling is reserved. WorkerWindow is
// W of workers. A clock may be off by MaxSkew, and IDs may run ahead of it by MaxLead.
type Bounds struct {
	Window       time.Duration
	WorkerWindow time.Duration
	MaxSkew      time.Duration
	MaxLead      time.Duration
}

// SoundBy returns the latest ceiling that a sound clock can have written by now into a
// record of a node, or of a worker: W by the rules, the writer's skew and ours, and the
// lead of the last ID.
func (b Bounds) SoundBy(now clock.Millis, era Era, worker bool) clock.Millis {
	return max(now, era.Floor) + b.slack(worker)
}

// Slack returns the maximum by which a sound ceiling is ahead of a correct clock: W of nodes or workers,
// whichever is longer, + 2·max_skew + max_lead.
func (b Bounds) Slack() clock.Millis { return b.slack(true) }

func (b Bounds) slack(worker bool) clock.Millis {
	return clock.MillisOf(b.windowOf(worker) + 2*b.MaxSkew + b.MaxLead)
}

func (b Bounds) windowOf(worker bool) time.Duration {
	if worker {
		return max(b.Window, b.WorkerWindow)
	}
	return b.Window
}

// Dead reports whether the holder of a sid is treated as one whose lease has ended, though it lives:
// its records have been the same for as long as a window, and its ceiling has passed by that and twice
// the skew. It can issue nothing until it has written again. Each new leader of etcd gives all leases
// their whole TTL, so a lease may outlive its process by any time.
func (b Bounds) Dead(s SIDRecords, now clock.Millis, unchanged time.Duration) bool {
	w, window := s.Window.Value, b.windowOf(s.Window.Value.Worker)
	return s.Holder.Exists() && s.Holder.Err == nil && s.Window.Err == nil && w.State == Active &&
		w.Instance == s.Holder.Value.Instance && unchanged >= window && w.Ceil+clock.MillisOf(window+2*b.MaxSkew) <= now
}

// Early returns for how long no sid is acquired yet in an era, whose floor is further ahead than a window
// reaches, or 0. A sid that is acquired has the floor as its ceiling at least. If a wrong clock set the floor,
// each start of a process would use up another sid, and an era with a lower floor would find none.
func (b Bounds) Early(now clock.Millis, e Era) time.Duration {
	return max(e.Floor-b.SoundBy(now, Era{}, true), 0).Duration()
}

// Begins says for people when the era begins, which is later than now, and what to do about that.
func (e Era) Begins(now clock.Millis) string {
	return fmt.Sprintf("era %d begins at %s, in %s, and no ID has an earlier time: wait, or set this node's clock "+
		"if it is behind, or, if a wrong clock set that floor, \"allocator admin recover --dry-run\" names one "+
		"to give with --floor",
		e.Number, e.Floor.Time().UTC().Format(time.RFC3339), text.Span((e.Floor - now).Duration()))
}

// PastWithoutWindow is a reason to distrust a sid that only an attempt to acquire it can
// find: a list does not show the ledger.
const PastWithoutWindow = "it has ledger lines but no window record"

// Distrust returns why nobody acquires the sid in an era, or "". sound is the latest
// ceiling that a sound clock can have written.
func (s SIDRecords) Distrust(era Era, sound clock.Millis) string {
	w := s.Window.Value
	switch {
	case s.Window.Err != nil:
		return s.Window.Err.Error()
	case s.Holder.Err != nil:
		return s.Holder.Err.Error()
	case w.Era > era.Number:
		return fmt.Sprintf("its record is of era %d, and this is era %d", w.Era, era.Number)
	case w.State == Quarantined:
		return w.ByOperator()
	case w.State == Reserved && s.Holder.Exists():
		return "it is reserved, and it has a holder: etcd's data was edited"
	case s.Holder.Exists() && !s.Window.Exists():
		return "it has a holder but no window record"
	case !s.Holder.Exists() && w.Ceil > sound:
		return cmp.Or(w.Waits(sound), fmt.Sprintf("its ceiling is %s: a wrong clock wrote it, or this node's clock is "+
			"far behind", w.Ceil.Time().Format(time.RFC3339)))
	}
	return ""
}

// TakenByOperator reports whether no node has the sid because an operator decided so.
func (w Window) TakenByOperator() bool { return w.State == Quarantined || w.State == Reserved }

// Waits says when a sid that an operator released is usable, if that is later than now; "": no operator released
// it, or it is usable by now.
func (w Window) Waits(now clock.Millis) string {
	if w.State != Released || w.Node != Operator || w.Ceil <= now {
		return ""
	}
	return w.ByOperator() + "; usable at " + w.Ceil.Time().Format(time.RFC3339)
}

// ShowsTime reports whether the wall time in the window of a sid that is not distrusted is
// evidence of the time. That of an operator is a clock which nobody compares, and a ceiling
// that no sound clock can have written is of a wrong one. A live holder with gossip shows the
// time all the same: it compares its clock, and ours may be the one that is behind.
func (s SIDRecords) ShowsTime(sound clock.Millis) bool {
	w := s.Window.Value
	return w.Node != Operator && !w.TakenByOperator() && (w.Ceil <= sound || s.Holder.Exists() && w.Gossip)
}

// ByOperator says that an operator quarantined, reserved or released the sid, with the reason that was
// given.
func (w Window) ByOperator() string {
	did := cmp.Or(Printable(w.By), "an operator")
	switch w.State {
	case Reserved:
		did += " reserved it for a generator outside of the cluster"
	case Released:
		did += " released it"
	default:
		did += " quarantined it"
	}
	if w.Reason == "" {
		return did
	}
	return did + ": " + Printable(w.Reason)
}

// Free returns the sids of r that have no holder, are not reserved and not distrusted, in order: past
// are those whose ceilings have passed, and later those that can be acquired now and used
// once the clock has reached the ceiling.
func Free(
	sids map[flake.SID]SIDRecords, r SIDRange, now clock.Millis, distrusted func(flake.SID) bool,
) (past, later []flake.SID) {
	for sid := r.From; sid < r.To; sid++ {
		s := sids[sid] // A sid that was never used has no records, and so the ceiling 0.
		switch {
		case s.Holder.Exists() || s.Window.Value.State == Reserved || distrusted(sid):
		case s.Window.Value.Ceil <= now:
			past = append(past, sid)
		default:
			later = append(later, sid)
		}
	}
	return past, later
}

// LastOf returns those of some sids that a node had last, or a worker, of that name.
func LastOf(name string, worker bool, among []flake.SID, sids map[flake.SID]SIDRecords) []flake.SID {
	return slices.DeleteFunc(slices.Clone(among), func(sid flake.SID) bool {
		w := sids[sid].Window
		return !w.Exists() || w.Value.Worker != worker || w.Value.Node != name
	})
}

// Lowest returns the one of some sids that has the lowest ceiling: the first of equal ones.
func Lowest(among []flake.SID, sids map[flake.SID]SIDRecords) flake.SID {
	return slices.MinFunc(among, func(a, b flake.SID) int {
		return cmp.Compare(sids[a].Window.Value.Ceil, sids[b].Window.Value.Ceil)
	})
}

// holdersNamed is how many holders are named to people.
const holdersNamed = 8

// Taken says for people that no sid of r is free, and who has them. bad is how many are
// quarantined and without a holder.
func Taken(sids map[flake.SID]SIDRecords, r SIDRange, bad int) string {
	type holder struct {
		node string
		sids int
	}
	var holders []holder // Each name is there once, in the order of sids.
	held, reserved := 0, 0
	for sid := r.From; sid < r.To; sid++ {
		h := sids[sid].Holder
		if !h.Exists() {
			if sids[sid].Window.Value.State == Reserved {
				reserved++
			}
			continue
		}
		held++
		name := cmp.Or(Printable(h.Value.Node), "unknown")
		i := slices.IndexFunc(holders, func(o holder) bool { return o.node == name })
		if i < 0 {
			i, holders = len(holders), append(holders, holder{node: name})
		}
		holders[i].sids++
	}
	var names []string
	for i, h := range holders {
		switch {
		case i == holdersNamed:
			names = append(names, fmt.Sprintf("and %d more", len(holders)-i))
		case i > holdersNamed:
		case h.sids > 1:
			names = append(names, fmt.Sprintf("%s (%d)", h.node, h.sids))
		default:
			names = append(names, h.node)
		}
	}
	by := ""
	if len(names) > 0 {
		by = " by " + strings.Join(names, ", ")
	}
	said := fmt.Sprintf("is free: %d of %d are held%s, %d quarantined", held, r.Len(), by, bad)
	if reserved > 0 {
		said += fmt.Sprintf(", %d reserved", reserved)
	}
	return said
}
