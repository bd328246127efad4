package repair

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Release is a sid's new record, and where its ceiling comes from.
type Release struct {
	Write    Write
	Problem  string   // what is wrong with the record that is replaced
	Bound    string   // where the new ceiling comes from
	Warnings []string // what the operator should know before saying yes
}

// ReleaseSID returns the write of a fresh, readable and released record for a
// sid that is quarantined by an operator, has an unreadable record, a ceiling
// far in the future, or a past and no record.
//
// above, if not 0, is the operator's word that no ID of the sid was or will be
// issued at or after that time. Without it the ceiling is the old one where that
// can be read, and else a bound on what a node with a sound clock can have been
// granted: max(ledger, other windows' ceilings, now) + W + 2·max_skew + max_lead.
// A readable ceiling is lowered only on the operator's word, only if it lies in
// the future, and only if the process that it was granted to is gone.
//
// It returns ErrNotInitialized or ErrRefused.
func ReleaseSID(v lease.View, ledger []Line, sid flake.SID, above clock.Millis, slack Slack, by Author) (Release, error) {
	if err := usable(v, sid); err != nil {
		return Release{}, err
	}
	slack = slack.widened(v.SIDs)
	s := v.SIDs[sid]
	w := s.Window.Value
	readable := s.Window.Exists() && s.Window.Err == nil
	far := max(by.Now, v.Era.Value.Floor) + slack.Total()
	r := Release{}
	var ceil clock.Millis
	var gone lease.Instance
	var err error
	switch {
	case !s.Window.Exists() && len(ledger) == 0 && !s.Holder.Exists():
		return r, refuse("sid %d was never used: there is nothing to repair", sid)
	case readable && s.Holder.Exists() && w.State != lease.Quarantined:
		return r, refuse("sid %d is held by %s: stop that node first, or take the sid from it with «allocator admin quarantine %d --force»", sid, holderName(s), sid)
	case readable:
		r.Problem = problemOf(s, v.Era.Value, far)
		ceil, gone, err = r.fromRecord(v, sid, above, far)
	default:
		r.Problem = "it has a past but no window record"
		if s.Window.Err != nil {
			r.Problem = s.Window.Err.Error()
		}
		ceil, gone, err = r.fromTraces(v, ledger, sid, above, far, slack)
	}
	if err != nil {
		return r, err
	}
	r.Write = Write{
		SID: sid, Seen: s, Config: v.Config, Era: v.Era, Gone: gone, Ledger: true,
		Window: lease.Window{
			Era: v.Era.Value.Number, Term: lastTerm(s, ledger) + 1,
			Instance: by.Instance, Node: Name, Nonce: by.Nonce,
			Base: ceil, Ceil: ceil, State: lease.Released, Wall: by.Now,
		},
	}
	return r, nil
}

// problemOf says why a readable record keeps its sid from being used, or "".
func problemOf(s lease.SIDRecords, era lease.Era, far clock.Millis) string {
	switch w := s.Window.Value; {
	case w.State == lease.Quarantined:
		return "an operator put it aside: " + orNone(w.Reason)
	case w.Era > era.Number:
		return fmt.Sprintf("its record is of era %d, and this is era %d", w.Era, era.Number)
	case w.Ceil > far:
		return "its ceiling lies far in the future: " + At(w.Ceil)
	}
	return ""
}

// fromRecord returns the ceiling of a sid whose record can be read, and which
// instance must be gone.
func (r *Release) fromRecord(v lease.View, sid flake.SID, above, far clock.Millis) (clock.Millis, lease.Instance, error) {
	w := v.SIDs[sid].Window.Value
	switch {
	case above == 0 && w.Ceil > far:
		return 0, "", refuse("the ceiling of sid %d is %s, written by %q at %s by its clock. All that can be known is that nothing was issued beyond it. "+
			"If you know more, say so with --above TIME: no ID of this sid carries that time or a later one. "+
			"Look for its latest ID (it has sid %d), and at what that node's clock showed", sid, At(w.Ceil), w.Node, At(w.Wall), sid)
	case above == 0 && r.Problem == "":
		return 0, "", refuse("sid %d is in order: its record is readable, nobody put it aside, and it can be used from %s on", sid, At(w.Ceil))
	case above == 0:
		r.Bound = "the ceiling of the record itself"
		return w.Ceil, "", nil
	case above >= w.Ceil:
		r.Bound = "--above, at or over the record's ceiling of " + At(w.Ceil)
		return above, "", nil
	case w.Ceil <= far:
		// Nothing would be gained by lowering it, and something could be lost.
		return 0, "", refuse("the record's ceiling %s is above --above, and no later than any sound one: it is kept; leave --above out", At(w.Ceil))
	case registered(v, w.Instance):
		return 0, "", refuse("the ceiling %s was granted to %q (%s), which still runs and may use all of it: stop that process first", At(w.Ceil), w.Node, w.Instance)
	}
	r.Bound = "--above, below the record's ceiling of " + At(w.Ceil)
	r.Warnings = append(r.Warnings, fmt.Sprintf("the ceiling is lowered from %s on your word: if an ID of sid %d carries %s or later, or a process with instance %s still runs, "+
		"it will be issued twice", At(w.Ceil), sid, At(above), w.Instance))
	return above, w.Instance, nil
}

// fromTraces returns the ceiling of a sid whose record is lost: a bound on what
// can have been granted.
func (r *Release) fromTraces(v lease.View, ledger []Line, sid flake.SID, above, far clock.Millis, slack Slack) (clock.Millis, lease.Instance, error) {
	s := v.SIDs[sid]
	latest, from := far-slack.Total(), "the clock"
	see := func(at clock.Millis, who string) {
		if at > latest {
			latest, from = at, who
		}
	}
	for _, l := range ledger {
		if l.Entry.Err != nil {
			r.Warnings = append(r.Warnings, fmt.Sprintf("line %d of its ledger is unreadable and was left out: %v", l.Term, l.Entry.Err))
			continue
		}
		see(l.Entry.Value.Since, fmt.Sprintf("line %d of its ledger", l.Term))
	}
	if at := digits(s.Window.Raw, "ceil"); s.Window.Err != nil && at > far {
		// Damaged, but it may be the checksum that is.
		see(at, "what is left of its record")
	}
	for _, other := range ordered(v.SIDs) {
		o := v.SIDs[other]
		switch c := o.Window.Value.Ceil; {
		case other == sid || !o.Window.Exists() || o.Window.Err != nil:
		case c > far && o.Holder.Exists() && above == 0:
			return 0, "", refuse("sid %d, which is in use, has a ceiling of %s: this machine's clock seems to be far behind. Set it right", other, At(c))
		case c > far:
			r.Warnings = append(r.Warnings, fmt.Sprintf("the ceiling of sid %d was left out, for it lies far in the future: %s", other, At(c)))
		default:
			see(c, fmt.Sprintf("the ceiling of sid %d", other))
		}
	}
	bound := latest + slack.Total()
	var gone lease.Instance
	switch {
	case above == 0 && latest > far:
		return 0, "", refuse("%s has %s, far in the future: a bad clock wrote it. If you know that no ID of sid %d carries some time or a later one, say so with --above TIME", from, At(latest), sid)
	case above == 0:
		r.Bound = fmt.Sprintf("%s, %s, and %v for what a node can have been granted beyond", from, At(latest), slack.Total().Duration())
		return bound, "", nil
	case above < bound:
		// As for a record that can be read: who was granted more must be gone.
		gone = lastOwner(s, ledger)
		if registered(v, gone) {
			return 0, "", refuse("sid %d was granted to %s, which still runs and may issue up to %s: stop that process first, or leave --above out", sid, gone, At(bound))
		}
		r.Warnings = append(r.Warnings, fmt.Sprintf("--above lies below %s, a bound on what can have been granted: if an ID of sid %d carries %s or later, it will be issued twice", At(bound), sid, At(above)))
	}
	r.Bound = "--above"
	return above, gone, nil
}

// lastOwner returns the instance that held the sid last, as its holder key or
// its ledger has it; "" if neither tells.
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

// lastTerm returns the highest term of the sid that anything shows.
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

// maxDigits is the most that is believed of a damaged record, so that one more
// is still a number.
const maxDigits = 1 << 52

// digits returns the number that a damaged record has under a name, or 0.
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

func ordered(sids map[flake.SID]lease.SIDRecords) []flake.SID {
	var out []flake.SID
	for sid := range sids {
		out = append(out, sid)
	}
	slices.Sort(out)
	return out
}
