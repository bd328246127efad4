package repair

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Release is a sid's new record. Problem is what is wrong with the one that it replaces,
// Bound is where the new ceiling comes from, and Warnings are for the operator to confirm.
type Release struct {
	Write    Write
	Problem  string
	Bound    string
	Warnings []string
}

// ReleaseSID returns the write of a new, released record for a sid that an operator
// quarantined, or whose record is unreadable, has a ceiling far in the future, or
// is missing although the ledger has lines of the sid. A sid whose record is lost and which
// may have been reserved is reserved again: nodes must not issue beside its generator.
//
// above, if not 0, is the operator's assurance that no ID of the sid was or will be
// issued at or after that time. Without it the ceiling is the old one if that can
// be read, and else a bound on what a node with a correct clock can have been
// granted: max(ledger, other windows' ceilings, now) + W + 2·max_skew + max_lead.
// A readable ceiling is lowered only with above, only if it is far in the future,
// and only if the process that it was granted to is gone.
//
// It returns ErrNotInitialized or ErrRefused.
func ReleaseSID(
	v lease.View, ledger []Line, sid flake.SID, above clock.Millis, bounds lease.Bounds, by Author,
) (Release, error) {
	if err := usable(v, sid); err != nil {
		return Release{}, err
	}
	bounds, warnings := widened(bounds, v.SIDs)
	s := v.SIDs[sid]
	w := s.Window.Value
	readable := s.Window.Exists() && s.Window.Err == nil
	far := bounds.SoundBy(by.Now, v.Era.Value, true)
	r := Release{Warnings: warnings}
	var ceil clock.Millis
	var gone lease.Instance
	var err error
	switch {
	case !s.Window.Exists() && len(ledger) == 0 && !s.Holder.Exists():
		return r, refuse("sid %d was never used: there is nothing to repair", sid)
	case readable && w.State == lease.Reserved:
		return r, refuse("sid %d is reserved for a generator outside of the cluster: stop that generator, then run "+
			"\"allocator admin unreserve %d\"", sid, sid)
	case readable && s.Holder.Exists() && w.State != lease.Quarantined:
		return r, refuse("sid %d is held by %s: stop that node first, "+
			"or run \"allocator admin quarantine %d --force\"", sid, holderName(s), sid)
	case readable:
		r.Problem = problemOf(s, v.Era.Value, far)
		ceil, gone, err = r.fromRecord(v, sid, above, far)
	default:
		r.Problem = "it has ledger lines but no window record"
		if s.Window.Err != nil {
			r.Problem = s.Window.Err.Error()
		}
		ceil, gone, err = r.fromTraces(v, ledger, sid, above, far, bounds)
	}
	if err != nil {
		return r, err
	}
	again := !readable && mayBeReserved(s.Window, ledger)
	if again && v.Mark.Err != nil {
		return r, refuseMark(v.Mark.Err)
	}
	prior := w.Priors(v.Mark.Value)
	if !readable { // Nothing is known of who issues, and up to far it may.
		prior = lease.Prior{Ceil: far}
	}
	if prior.Ceil = min(prior.Ceil, ceil); prior.Ceil <= prior.Floor {
		prior.Floor, prior.Ceil, prior.Node = 0, 0, "" // The operator says that it issued nothing.
	}
	prior.Uncovered = min(prior.Uncovered, ceil)
	r.Write = Write{
		SID: sid, Seen: s, Config: v.Config, Era: v.Era, Gone: gone, Ledger: true,
		Window: by.window(v.Era.Value, lastTerm(s, ledger)+1, ceil, lease.Released),
	}
	r.Write.Window.Prior = prior
	if again {
		r.Warnings = append(r.Warnings, fmt.Sprintf("sid %d may have been reserved for a generator outside of the "+
			"cluster, so it is reserved again: if there is no such generator, or once it has stopped, run "+
			"\"allocator admin unreserve %d\"", sid, sid))
		ceil = max(ceil, v.Era.Value.Floor, v.Mark.Value.At) // As in Reserve.
		w := &r.Write.Window
		r.Write.Mark, w.State, w.Reason, w.Base, w.Ceil = v.Mark, lease.Reserved, lostReservation, ceil, ceil
	}
	return r, nil
}

// lostReservation is the reason in the record of a sid that is reserved again.
const lostReservation = "its record was lost, and the sid may have been reserved"

// mayBeReserved reports whether a sid whose record is lost may have been reserved for a
// generator outside of the cluster. It was not if the last line of the ledger is of a node or
// a worker, unless the damaged record says so all the same.
func mayBeReserved(window lease.Entry[lease.Window], ledger []Line) bool {
	if len(ledger) == 0 || strings.Contains(window.Raw, string(lease.Reserved)) {
		return true
	}
	last := slices.MaxFunc(ledger, func(a, b Line) int { return cmp.Compare(a.Term, b.Term) }).Entry
	return last.Err != nil || last.Value.Node == lease.Operator
}

// problemOf returns why a sid with a readable record is not used, or "".
func problemOf(s lease.SIDRecords, era lease.Era, far clock.Millis) string {
	switch w := s.Window.Value; {
	case w.State == lease.Quarantined:
		return w.ByOperator()
	case w.Era > era.Number:
		return fmt.Sprintf("its record is of era %d, and this is era %d", w.Era, era.Number)
	case w.Ceil > far:
		return "its ceiling is far in the future: " + At(w.Ceil)
	}
	return ""
}

// fromRecord returns the ceiling of a sid whose record can be read, and which
// instance must be gone.
func (r *Release) fromRecord(
	v lease.View, sid flake.SID, above, far clock.Millis,
) (clock.Millis, lease.Instance, error) {
	w := v.SIDs[sid].Window.Value
	switch {
	case above == 0 && w.Ceil > far:
		return 0, "", refuse("the ceiling of sid %d is %s; %q wrote it at %s by its clock. "+
			"Nothing was issued above the ceiling, and nothing more is known. "+
			"If you know a time after the sid's last ID, pass it as --above TIME. "+
			"To find it, search for the latest ID with sid %d, and check that node's clock", sid, At(w.Ceil), w.Node,
			At(w.Wall), sid)
	case above == 0 && r.Problem == "":
		return 0, "", refuse("sid %d needs no repair: its record is readable, it is not quarantined, "+
			"and it can be used from %s on", sid, At(w.Ceil))
	case above == 0:
		r.Bound = "the ceiling of the record itself"
		return w.Ceil, "", nil
	case above >= w.Ceil:
		r.Bound = "--above, not below the record's ceiling of " + At(w.Ceil)
		return above, "", nil
	case w.Ceil <= far:
		// Lowering it has no use, and could cause duplicates.
		return 0, "", refuse("the record's ceiling %s is above --above and is not far in the future, so it is kept; "+
			"omit --above", At(w.Ceil))
	case registered(v, w.Instance):
		return 0, "", refuse("the ceiling %s was granted to %q (%s), which is running and may issue up to it: "+
			"stop that process first", At(w.Ceil), w.Node, w.Instance)
	}
	r.Bound = "--above, below the record's ceiling of " + At(w.Ceil)
	if w.Worker {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the ceiling was granted to the worker %q, "+
			"and workers are not registered: make sure that it has stopped", w.Node))
	}
	r.Warnings = append(r.Warnings, fmt.Sprintf("the ceiling is lowered from %s because of --above: "+
		"if an ID of sid %d has the time %s or a later one, or a process with instance %s still runs, "+
		"IDs will be issued twice", At(w.Ceil), sid, At(above), w.Instance))
	return above, w.Instance, nil
}

// fromTraces returns the ceiling of a sid whose record is lost: a bound on what
// can have been granted.
func (r *Release) fromTraces(
	v lease.View, ledger []Line, sid flake.SID, above, far clock.Millis, bounds lease.Bounds,
) (clock.Millis, lease.Instance, error) {
	s := v.SIDs[sid]
	latest, from := far-bounds.Slack(), "the clock"
	see := func(at clock.Millis, who string) {
		if at > latest {
			latest, from = at, who
		}
	}
	for _, l := range ledger {
		if l.Entry.Err != nil {
			r.Warnings = append(r.Warnings, fmt.Sprintf("line %d of its ledger is unreadable and was ignored: %v",
				l.Term, l.Entry.Err))
			continue
		}
		see(l.Entry.Value.Since, fmt.Sprintf("line %d of its ledger", l.Term))
	}
	if at := digits(s.Window.Raw, "ceil"); s.Window.Err != nil && at > far {
		// Only the checksum may be damaged.
		see(at, "its damaged record")
	}
	for _, other := range slices.Sorted(maps.Keys(v.SIDs)) {
		o := v.SIDs[other]
		switch c := o.Window.Value.Ceil; {
		case other == sid || !o.Window.Exists() || o.Window.Err != nil:
		case c > far && o.Holder.Exists() && above == 0:
			return 0, "", refuse("sid %d, which is held, has a ceiling of %s: "+
				"this machine's clock seems to be far behind; correct it", other, At(c))
		case c > far:
			r.Warnings = append(r.Warnings, fmt.Sprintf("the ceiling of sid %d was ignored: "+
				"it is far in the future: %s", other, At(c)))
		default:
			see(c, fmt.Sprintf("the ceiling of sid %d", other))
		}
	}
	bound := latest + bounds.Slack()
	var gone lease.Instance
	switch {
	case above == 0 && latest > far:
		return 0, "", refuse("%s has %s, far in the future: a wrong clock wrote it; "+
			"if you know a time after the last ID of sid %d, pass it as --above TIME", from, At(latest), sid)
	case above == 0:
		r.Bound = fmt.Sprintf("%s, %s, plus %v that a node can have been granted", from, At(latest),
			bounds.Slack().Duration())
		return bound, "", nil
	case above < bound:
		// As for a readable record: a process that was granted more must be gone.
		gone = lastOwner(s, ledger)
		if registered(v, gone) {
			return 0, "", refuse("sid %d was granted to %s, which is running and may issue up to %s: "+
				"stop that process first, or omit --above", sid, gone, At(bound))
		}
		r.Warnings = append(r.Warnings, fmt.Sprintf("--above is below %s, a bound on what can have been granted: "+
			"if an ID of sid %d has the time %s or a later one, it will be issued twice", At(bound), sid, At(above)))
	}
	r.Bound = "--above"
	return above, gone, nil
}

// lastOwner returns the instance that held the sid last, from its holder key or
// its ledger; "" if neither has it.
func lastOwner(s lease.SIDRecords, ledger []Line) lease.Instance {
	if s.Holder.Exists() && s.Holder.Err == nil {
		return s.Holder.Value.Instance
	}
	var owner lease.Instance
	term := int64(0)
	for _, l := range ledger {
		if l.Entry.Err == nil && l.Term > term {
			owner, term = l.Entry.Value.Instance, l.Term
		}
	}
	return owner
}

// lastTerm returns the highest term in any record of the sid.
func lastTerm(s lease.SIDRecords, ledger []Line) int64 {
	term := s.Window.Value.Term
	if s.Window.Err != nil {
		term = max(term, int64(digits(s.Window.Raw, "term")))
	}
	for _, l := range ledger {
		term = max(term, l.Term, l.Entry.Value.Term)
	}
	return term
}

// maxDigits bounds the numbers read from a damaged record, so that adding to them
// cannot overflow.
const maxDigits = 1 << 52

// digits returns the number in the field of a damaged record, or 0.
func digits(raw, name string) clock.Millis {
	_, rest, found := strings.Cut(raw, `"`+name+`":`)
	if !found {
		return 0
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	var n int64
	if json.Unmarshal([]byte(rest[:end]), &n) != nil || n > maxDigits {
		return 0
	}
	return clock.Millis(n)
}
