// Package repair computes what an operator's repair writes: a new era after etcd
// was restored from a backup, the quarantine of a sid, a new record for a sid whose
// record was lost or is wrong. It decides from what was read and from the given
// time, and does no I/O. Package etcdstore carries the writes out, and compares
// what was read.
//
// It upholds two claims of docs/DESIGN.md: a ceiling is lowered only if the operator
// states what was issued (I4), and the floor of a new era is above every ceiling in
// etcd and in nodes' reports (I1 after a restore).
package repair

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/text"
)

// Errors of the package. Each is wrapped with what was found and what to do.
var (
	// ErrNotInitialized: the space has no config.
	ErrNotInitialized = errors.New("the space is not initialized")
	// ErrRefused: the repair could cause duplicates, or would repair nothing.
	ErrRefused = errors.New("refused")
	// ErrChanged: a store wrote nothing, because a record is not as it was read. Read it again.
	ErrChanged = errors.New("records have changed since they were read")
)

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

// widened returns b with the largest window that the active records show, if that
// is larger: the operator's settings may differ from the nodes'. A window is as
// long as its ceiling is beyond its writer's clock, unless it is empty: then its
// ceiling was taken over. One over [lease.MaxWindow] was written by hand; it is not
// used, and a warning names it.
func widened(b lease.Bounds, sids map[flake.SID]lease.SIDRecords) (lease.Bounds, []string) {
	var warnings []string
	for _, sid := range slices.Sorted(maps.Keys(sids)) {
		w := sids[sid].Window.Value
		if sids[sid].Window.Err != nil || w.State != lease.Active || w.Base == w.Ceil {
			continue
		}
		if w.Ceil-w.Wall > clock.MillisOf(lease.MaxWindow) {
			warnings = append(warnings, fmt.Sprintf("sid %d has a ceiling of %s, and its writer's clock read %s: "+
				"a window has at most %v, so this was not taken for one",
				sid, At(w.Ceil), At(w.Wall), lease.MaxWindow))
			continue
		}
		b.Window = max(b.Window, (w.Ceil - w.Wall).Duration())
	}
	return b, warnings
}

// Line is a line of a sid's ledger. Term is that of its key, so it is known even if the
// line is unreadable.
type Line struct {
	Term  int64
	Entry lease.Entry[lease.LedgerLine]
}

// Author signs what an operator writes at Now by the operator's clock. Instance is unique
// to the run of the command, and Nonce to the write. Who is the operator, for people: at most maxBy bytes of it.
type Author struct {
	Who      string
	Instance lease.Instance
	Nonce    string
	Now      clock.Millis
}

// By returns what records have of Who.
func (a Author) By() string { return text.Cut(a.Who, maxBy) }

// window returns a record that an operator writes, of a sid from whose ceiling on its next owner begins.
func (a Author) window(era lease.Era, term int64, ceil clock.Millis, state lease.WindowState) lease.Window {
	return lease.Window{
		Era: era.Number, Term: term, Instance: a.Instance, Node: lease.Operator, Nonce: a.Nonce,
		Base: ceil, Ceil: ceil, State: state, Wall: a.Now, By: a.By(),
	}
}

// Write is a guarded write of one sid's records. It is applied whole, and only
// if config, era, window and holder are as read, by revision and by value, and
// no process of the instance Gone, if there is one, is registered. With Unused, the ledger
// may have no line of the sid. The holder is deleted. With Ledger a line for the window's term
// is added. A window that reserves its sid needs the mark as read, by value, and puts it again:
// so each later mark names the sid as not covered. An Act that is not zero is recorded with it.
type Write struct {
	SID    flake.SID
	Seen   lease.SIDRecords
	Config lease.Entry[lease.Space]
	Era    lease.Entry[lease.Era]
	Mark   lease.Entry[lease.Mark]
	Window lease.Window
	Ledger bool
	Unused bool
	Gone   lease.Instance
	Act    lease.Act
}

// At returns a time as messages show it: UTC, to the millisecond.
func At(t clock.Millis) string { return text.Millis(int64(t)) }

// usable checks what every repair of a sid needs.
func usable(v lease.View, sid flake.SID) error {
	switch {
	case !v.Config.Exists():
		return fmt.Errorf("%w: it has no config; run \"allocator init\" first", ErrNotInitialized)
	case v.Config.Err != nil:
		return refuse("the space's config is unreadable (%w): restore etcd from a backup", v.Config.Err)
	case !v.Era.Exists() || v.Era.Err != nil:
		return refuse("the space's era is missing or unreadable: run \"allocator admin recover\" to write a new one")
	case !v.Config.Value.SIDs().Has(sid):
		return refuse("there is no such sid: the space has sids %v", v.Config.Value.SIDs().Of(v.Config.Value.Layout))
	}
	return nil
}

// Quarantine returns the write that quarantines a sid: its window keeps term and
// ceiling, for when it is released. With force the sid is also taken from its
// holder, which then uses its confirmed window and acquires another sid.
//
// It returns ErrNotInitialized or ErrRefused.
func Quarantine(v lease.View, past bool, sid flake.SID, reason string, force bool, by Author) (Write, error) {
	if err := usable(v, sid); err != nil {
		return Write{}, err
	}
	if err := checkReason(reason); err != nil {
		return Write{}, err
	}
	s := v.SIDs[sid]
	w := s.Window.Value
	switch {
	case s.Window.Err != nil:
		return Write{}, refuse("sid %d is quarantined already: its record is unreadable (%w); "+
			"to repair it run \"allocator admin release-sid %d\"", sid, s.Window.Err, sid)
	case !s.Window.Exists() && past:
		return Write{}, refuse("sid %d is quarantined already: it has ledger lines but no window record; "+
			"to repair it run \"allocator admin release-sid %d\"", sid, sid)
	case w.State == lease.Quarantined:
		return Write{}, refuse("sid %d is quarantined already: %s", sid, w.ByOperator())
	case w.State == lease.Reserved && !s.Holder.Exists():
		return Write{}, refuse("sid %d is reserved already: %s; no node takes it",
			sid, w.ByOperator())
	case s.Holder.Exists() && !force:
		return Write{}, refuse("sid %d is held by %s: drain that node first, or use --force: "+
			"the node then loses the sid at its next extension, "+
			"uses its confirmed window, and acquires another sid; a worker does the same", sid, holderName(s))
	case !s.Window.Exists(): // It was never used, and nothing was issued.
		w = by.window(v.Era.Value, 1, v.Era.Value.Floor, lease.Quarantined)
	}
	w.Era, w.State, w.Reason = v.Era.Value.Number, lease.Quarantined, reason
	w.Nonce, w.Wall, w.By = by.Nonce, by.Now, by.By()
	return Write{SID: sid, Seen: s, Config: v.Config, Era: v.Era, Window: w, Ledger: !s.Window.Exists()}, nil
}

func holderName(s lease.SIDRecords) string {
	if s.Holder.Err != nil {
		return "a holder whose record is unreadable"
	}
	return fmt.Sprintf("%q (%s)", s.Holder.Value.Node, s.Holder.Value.Instance)
}

func registered(v lease.View, i lease.Instance) bool {
	return slices.ContainsFunc(v.Nodes, func(n lease.Registration) bool { return n.Instance == i })
}
