package repair

import (
	"fmt"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Reserved returns the record of a sid that was never used, in an era, once an operator has
// reserved it.
func Reserved(era lease.Era, reason string, by Author) lease.Window {
	w := by.window(era, 1, era.Floor, lease.Reserved)
	w.Reason = reason
	return w
}

// Reserve returns the write that reserves a sid for a generator outside of the cluster: no
// node or worker acquires it. Its window keeps its ceiling, below which nodes may have issued
// IDs; warning says so while that time has not come.
//
// It returns ErrNotInitialized, or ErrRefused for a sid that is held, quarantined or reserved.
func Reserve(v lease.View, sid flake.SID, reason string, by Author) (w Write, warning string, err error) {
	if err := usable(v, sid); err != nil {
		return Write{}, "", err
	}
	if err := checkReason(reason); err != nil {
		return Write{}, "", err
	}
	if v.Mark.Err != nil {
		return Write{}, "", refuseMark(v.Mark.Err)
	}
	s := v.SIDs[sid]
	old := s.Window.Value
	switch {
	case s.Window.Err != nil:
		return Write{}, "", refuseUnreadable(sid, s.Window.Err)
	case old.State == lease.Reserved:
		return Write{}, "", refuse("sid %d is reserved already: %s", sid, old.ByOperator())
	case old.State == lease.Quarantined:
		return Write{}, "", refuse("sid %d is quarantined: %s; run \"allocator admin release-sid %d\" first",
			sid, old.ByOperator(), sid)
	case s.Holder.Exists():
		return Write{}, "", refuse("sid %d is held by %s: drain that node, or stop that worker, first", sid,
			holderName(s))
	}
	record := Reserved(v.Era.Value, reason, by)
	record.Term = old.Term + 1
	// The lost history of an earlier era may have granted more than the record says. Of answers of
	// the watermark up to now nobody was told that they do not cover the sid.
	record.Ceil = max(old.Ceil, v.Era.Value.Floor, v.Mark.Value.At)
	record.Base = record.Ceil
	record.Prior = old.Priors(v.Mark.Value)
	if record.Ceil > by.Now {
		warning = fmt.Sprintf("IDs of sid %d may have been issued up to %s: let no other generator use it before",
			sid, At(record.Ceil))
	}
	return Write{
		SID: sid, Seen: s, Config: v.Config, Era: v.Era, Mark: v.Mark, Window: record, Ledger: true,
		Unused: !s.Window.Exists(),
	}, warning, nil
}

// Unreserve returns the write that gives a reserved sid to the cluster. The generator outside
// has stopped: no ID of the sid was or will be issued at or after the time above; 0: it was
// no further ahead of the clock than clocks may differ.
//
// It returns ErrNotInitialized, or ErrRefused for a sid that is not reserved.
func Unreserve(v lease.View, sid flake.SID, above clock.Millis, bounds lease.Bounds, by Author) (Write, error) {
	if err := usable(v, sid); err != nil {
		return Write{}, err
	}
	s := v.SIDs[sid]
	w := s.Window.Value
	switch {
	case s.Window.Err != nil:
		return Write{}, refuseUnreadable(sid, s.Window.Err)
	case w.State != lease.Reserved:
		return Write{}, refuse("sid %d is not reserved", sid)
	case s.Holder.Exists():
		return Write{}, refuse("sid %d is reserved, and held by %s: etcd's data was edited; "+
			"run \"allocator admin quarantine %d --force\" first", sid, holderName(s), sid)
	case above == 0:
		// A generator that stopped just now has used the unit of time that the clock is in.
		above = by.Now + clock.MillisOf(2*bounds.MaxSkew) + clock.Millis(v.Config.Value.Layout.Unit())
	}
	next := by.window(v.Era.Value, w.Term+1, max(w.Ceil, above), lease.Released)
	next.Prior = w.Prior
	return Write{SID: sid, Seen: s, Config: v.Config, Era: v.Era, Ledger: true, Window: next}, nil
}

func refuseUnreadable(sid flake.SID, err error) error {
	return refuse("the record of sid %d is unreadable (%w): "+
		"run \"allocator admin release-sid %d\" first", sid, err, sid)
}

// refuseMark refuses to reserve a sid without the watermark, which has to name it.
func refuseMark(err error) error {
	return refuse("the record of the watermark is unreadable (%w): run \"allocator admin recover\"", err)
}

// checkReason refuses a reason that a record cannot have.
func checkReason(reason string) error {
	switch {
	case strings.ContainsFunc(reason, func(r rune) bool { return r < ' ' }):
		return refuse("the reason has a line break or another control character")
	case len(reason) > lease.MaxReason:
		return refuse("the reason has %d bytes, at most %d", len(reason), lease.MaxReason)
	}
	return nil
}
