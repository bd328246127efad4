package marker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/marker"
)

const (
	now   = clock.Millis(1_800_000_000_000)
	grace = clock.Millis(5_000)
)

// view is a space in era 2 whose mark is last, with those windows of sids 0, 1, …; a holder
// has the sid if its window's Reason says so.
func view(last lease.Mark, floor clock.Millis, windows ...lease.Window) lease.View {
	v := lease.View{
		Era:  lease.NewEntry[lease.Era](1, 0, lease.Encode(lease.Era{Number: 2, Floor: floor})),
		Mark: lease.NewEntry[lease.Mark](1, 0, lease.Encode(last)),
		SIDs: map[flake.SID]lease.SIDRecords{},
	}
	for i, w := range windows {
		s := lease.SIDRecords{Window: lease.NewEntry[lease.Window](2, 0, lease.Encode(w))}
		if w.Reason == "held" {
			s.Holder = lease.NewEntry[lease.Holder](2, 7, lease.Encode(lease.Holder{Instance: w.Instance}))
		}
		v.SIDs[flake.SID(i)] = s
	}
	return v
}

// TestNextMark: the mark is the lowest floor of all owners that may still issue. Only a window that a
// confirmed clock has seen pass, with the grace, and whose holder's key is gone, no longer counts.
func TestNextMark(t *testing.T) {
	const floor = now - 1_000
	rules := lease.MarkRules{Grace: grace.Duration(), Late: 7 * time.Second}
	last := lease.Mark{Era: 2, At: floor - 60_000}
	of := func(node string, floor, ceil clock.Millis, change ...func(*lease.Window)) lease.Window {
		w := lease.Window{
			Era: 2, Term: 1, Instance: lease.Instance(node), Node: node, State: lease.Active, Floor: floor, Ceil: ceil, Nonce: "n", Reason: "held",
		}
		for _, f := range change {
			f(&w)
		}
		return w
	}
	gone := func(w *lease.Window) { w.Reason = "" }
	before := func(w *lease.Window) { w.Era = 1 }
	state := func(s lease.WindowState) func(*lease.Window) {
		return func(w *lease.Window) { w.State, w.Reason = s, "" }
	}
	worker := func(w *lease.Window) { w.Worker, w.Floor = true, 0 }
	tells := func(w *lease.Window) { w.Worker = true }
	after := func(p lease.Prior) func(*lease.Window) { return func(w *lease.Window) { w.Prior = p } }
	passed, until := now-grace, now-grace+1
	self := of("a", floor, now+29_000)
	old := floor - 20_000
	type prior = lease.Prior
	type with []lease.Window
	for name, tc := range map[string]struct {
		last        lease.Mark
		eraFloor    clock.Millis
		beside      with // the windows of sids 1, 2, …; self has sid 0
		unconfirmed bool
		at          clock.Millis
		blocked     string
		rests       string
		uncovered   string
	}{
		"alone":                               {at: floor},
		"a later one":                         {beside: with{of("b", floor+500, now)}, at: floor},
		"one that is behind":                  {beside: with{of("b", old, now+9)}, at: old, blocked: "1 b silent"},
		"its ceiling has passed, its key not": {beside: with{of("b", old, passed-90_000)}, at: old, blocked: "1 b silent"},
		"vanished":                            {beside: with{of("b", old, until, gone)}, at: old, blocked: "1 b vanished"},
		"vanished, and passed":                {beside: with{of("b", old, passed, gone)}, at: floor, rests: "1 b vanished"},
		"passed by a clock that is not confirmed": {beside: with{of("b", old, passed, gone)}, unconfirmed: true,
			at: old, blocked: "1 b vanished"},
		"vanished, passed before, no clock now": {last: lease.Mark{Era: 2, At: floor - 100}, beside: with{of("b", old, floor-200, gone)},
			unconfirmed: true, at: floor},
		"given back": {beside: with{of("b", old, now+9, state(lease.Released))}, at: floor},
		"quarantined in use": {beside: with{of("b", old, until, state(lease.Quarantined))},
			at: old, blocked: "1 b vanished"},
		"quarantined, never used": {beside: with{of(lease.Operator, 0, now, state(lease.Quarantined))}, at: floor},
		"tells no floor":          {beside: with{of("b", 0, now+9)}, at: last.At, blocked: "1 b silent"},
		"a predecessor": {beside: with{of("b", floor, now+9, after(prior{Floor: old, Ceil: until, Node: "z"}))},
			at: old, blocked: "1 z replaced"},
		"a predecessor, sid given back": {beside: with{of("b", floor, now+9, state(lease.Released), after(prior{Floor: old, Ceil: until, Node: "z"}))},
			at: old, blocked: "1 z replaced"},
		"a predecessor of a worker": {beside: with{of("w", 0, now+9, worker, after(prior{Floor: old, Ceil: until, Node: "z"}))},
			at: old, blocked: "1 z replaced", uncovered: "1"},
		"a predecessor that has passed": {beside: with{of("b", floor, now+9, after(prior{Floor: old, Ceil: passed, Node: "z"}))},
			at: floor, rests: "1 z replaced"},
		"a predecessor below the mark": {beside: with{of("b", floor, now+9, after(prior{Floor: last.At - 9, Ceil: last.At, Node: "z"}))},
			at: floor},
		"workers and outsiders": {beside: with{of("w", 0, now+9, worker), of("x", 0, 0, state(lease.Reserved)), of("v", 0, until, worker, gone)},
			at: floor, uncovered: "1-3"},
		"a worker that has ended": {beside: with{of("w", 0, passed, worker, gone), of("w", 0, now+9, worker, state(lease.Released))},
			at: floor, rests: "1 w vanished"},
		"a worker before another owner": {beside: with{of("b", floor, now+9, after(prior{Uncovered: until, Worker: "w"}))},
			at: floor, uncovered: "1"},
		"a worker before another owner, ended": {beside: with{of("b", floor, now+9, after(prior{Uncovered: passed, Worker: "w"}))},
			at: floor, rests: "1 w replaced"},
		"a worker before another owner, no clock now": {
			last:        lease.Mark{Era: 2, At: last.At, Rests: lease.Blocker{SID: 1, Node: "w", Why: lease.BlockedReplaced, Ceil: passed}},
			unconfirmed: true,
			beside:      with{of("b", floor, now+9, after(prior{Uncovered: passed, Worker: "w"}))}, at: floor, rests: "1 w replaced"},
		"a worker that tells floors": {beside: with{of("w", old, now+9, tells)}, at: old, blocked: "1 w silent"},
		"a worker with floors, before its extension": {beside: with{of("w", old, now+33, tells, func(w *lease.Window) { w.Wall = now - 30 })},
			at: old, blocked: "1 w worker"},
		"a worker with floors, overdue": {beside: with{of("w", old, now+30, tells, func(w *lease.Window) { w.Wall = now - 30 })},
			at: old, blocked: "1 w silent"},
		"a worker that is not behind":         {beside: with{of("w", floor-9, now+9, tells)}, at: floor - 9},
		"a worker that told floors, vanished": {beside: with{of("w", old, until, tells, gone)}, at: old, blocked: "1 w vanished"},
		"a worker that told floors, passed":   {beside: with{of("w", old, passed, tells, gone)}, at: floor, rests: "1 w vanished"},
		"a worker with floors, not confirmed": {beside: with{of("w", old, passed, tells, gone)}, unconfirmed: true,
			at: old, blocked: "1 w vanished"},
		"a worker with floors, given back": {beside: with{of("w", now, now, tells, state(lease.Released))}, at: floor},
		"a new era":                        {last: lease.Mark{Era: 1, At: last.At}, eraFloor: until, at: last.At, blocked: "0  era"},
		"a new era whose floor has passed": {last: lease.Mark{Era: 1, At: last.At}, eraFloor: passed, at: floor, rests: "0  era"},
		"a holder of an earlier era": {last: lease.Mark{Era: 1, At: last.At}, eraFloor: passed, beside: with{of("b", old, passed-9, before)},
			at: floor, rests: "0  era"},
		"a window that nobody knew": {last: lease.Mark{Era: 2, At: last.At}, eraFloor: passed - 100, beside: with{of("b", old, until, before)},
			at: old, blocked: "1 b vanished"},
		"a new era, a holder without a floor": {last: lease.Mark{Era: 1, At: last.At}, eraFloor: passed, beside: with{of("b", 0, now+9)},
			at: last.At, blocked: "1 b silent", rests: "0  era"},
		"a new era, not confirmed": {last: lease.Mark{Era: 1, At: last.At}, eraFloor: passed, unconfirmed: true,
			at: last.At, blocked: "0  era"},
		"never back": {last: lease.Mark{Era: 2, At: floor + 50}, beside: with{of("b", old, now+9)},
			at: floor + 50, blocked: "1 b silent"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.last.Era == 0 {
				tc.last = last
			}
			v := view(tc.last, tc.eraFloor, append(with{self}, tc.beside...)...)
			got := marker.Next(rules, v, now, !tc.unconfirmed)
			blocked := ""
			for _, b := range got.Blocked {
				blocked += fmt.Sprintf("%d %s %s", b.SID, b.Node, b.Why)
			}
			rests := ""
			if r := got.Rests; r.Why != "" {
				rests = fmt.Sprintf("%d %s %s", r.SID, r.Node, r.Why)
			}
			if got.At != tc.at || blocked != tc.blocked || rests != tc.rests || got.Uncovered != tc.uncovered {
				t.Errorf("got at now%+d, blocked %q, rests on %q, uncovered %q", got.At-now, blocked, rests, got.Uncovered)
			}
			if wantEra := int64(2); (got.Era == wantEra) == (tc.last.Era == 1 && tc.at == last.At) {
				t.Errorf("era %d", got.Era)
			}
			for _, b := range append(got.Blocked, got.Rests) {
				if b.Why != "" && b.String() == "" {
					t.Errorf("%+v says nothing", b)
				}
			}
		})
	}
	v := view(last, 0, self)
	v.SIDs[3] = lease.SIDRecords{Window: lease.NewEntry[lease.Window](2, 0, "junk")}
	if got := marker.Next(rules, v, now, true); got.At != last.At || len(got.Blocked) != 1 || got.Blocked[0].Why != lease.BlockedUnreadable {
		t.Errorf("beside an unreadable record: %+v", got)
	}
	v.SIDs[3] = lease.SIDRecords{Holder: lease.NewEntry[lease.Holder](2, 7, lease.Encode(lease.Holder{Instance: "z"}))}
	if got := marker.Next(rules, v, now, true); got.At != last.At || len(got.Blocked) != 1 || got.Blocked[0].Why != lease.BlockedUnreadable {
		t.Errorf("beside a holder whose record is gone: %+v", got)
	}
	var many []lease.Window
	for i := range 9 {
		many = append(many, of(fmt.Sprintf("n%d", i), old+clock.Millis(i), now+9))
	}
	if got := marker.Next(rules, view(last, 0, many...), now, true); len(got.Blocked) != 4 || got.Blocked[0].Node != "n0" || got.At != old {
		t.Errorf("nine that are behind: %+v", got)
	}
}

// TestFits: the record of the largest space is below the limit of records.
func TestFits(t *testing.T) {
	v := view(lease.Mark{}, 0)
	long := strings.Repeat("ä", 900)
	for sid := range flake.SID(lease.MaxSIDs) {
		w := lease.Window{Era: 1, Term: 1, Instance: "i", Node: long, Nonce: "n", State: lease.Active, Ceil: 1 << 50, Worker: sid%2 == 0}
		v.SIDs[sid] = lease.SIDRecords{Window: lease.Entry[lease.Window]{Rev: 1, Value: w}}
	}
	m := marker.Next(lease.MarkRules{}, v, now, true)
	m.Node, m.Nonce, m.Rests = long[:64], long[:64], m.Blocked[0]
	if got, err := lease.Decode[lease.Mark](lease.Encode(m)); err != nil || got.Says(m) || len(m.Uncovered) < 1000 {
		t.Errorf("%d bytes: %v", len(lease.Encode(m)), err)
	}
}
