package repair

import (
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// far is the last ceiling that a node with a correct clock can have, in these spaces.
const far = now + total

// TestNextEraNamesTheHighest: the operator sees which record or node made the floor.
func TestNextEraNamesTheHighest(t *testing.T) {
	low, high := sid(1, entry(window(ceil(now+10_000))), true), sid(2, entry(window(ceil(now+20_000))), true)
	for _, tc := range []struct {
		name    string
		view    lease.View
		reports []NodeReport
		highest clock.Millis
		of      string
	}{
		{"nothing", space(), nil, 0, ""},
		{"a record", space(low, high), nil, now + 20_000, "sid 2 in etcd"},
		{"the lower record comes last", space(high, sid(3, entry(window(ceil(now+5000))), true)), nil, now + 20_000, "sid 2 in etcd"},
		{"a node", space(low), []NodeReport{{"a", 2, now + 30_000}, {"b", 2, now + 25_000}}, now + 30_000, "node a"},
		{"as high as a record", space(low), []NodeReport{{"a", 2, now + 10_000}}, now + 10_000, "sid 1 in etcd"},
	} {
		e, err := NextEra(tc.view, tc.reports, 0, slack, now)
		if err != nil || e.Highest != tc.highest || e.HighestOf != tc.of {
			t.Errorf("%s: %v of %q, want %v of %q: %v", tc.name, e.Highest, e.HighestOf, tc.highest, tc.of, err)
		}
	}
}

// TestFarIsInclusive: a ceiling of just as much as can be granted is sound, and one
// millisecond more is not.
func TestFarIsInclusive(t *testing.T) {
	at := func(c clock.Millis) lease.View { return space(sid(1, entry(window(ceil(c), released)), false)) }
	if e, err := NextEra(at(far), nil, 0, slack, now); err != nil || e.Era.Floor != far+total {
		t.Errorf("era: %+v, %v", e.Era, err)
	}
	_, err := NextEra(at(far+1), nil, 0, slack, now)
	refused(t, err, "sid 1 in etcd has ")
	_, err = ReleaseSID(at(far), nil, 1, 0, slack, by)
	refused(t, err, "needs no repair")
	_, err = ReleaseSID(at(far+1), nil, 1, 0, slack, by)
	refused(t, err, "--above TIME")
	_, err = ReleaseSID(at(far), nil, 1, far-1, slack, by)
	refused(t, err, "it is kept")
	if r, err := ReleaseSID(at(far+1), nil, 1, far, slack, by); err != nil || r.Write.Window.Ceil != far || r.Write.Gone != "i1" {
		t.Errorf("lowered: %+v, %v", r.Write, err)
	}
	if r, err := ReleaseSID(at(far+1), nil, 1, far+1, slack, by); err != nil || r.Write.Window.Ceil != far+1 || r.Write.Gone != "" || len(r.Warnings) > 0 {
		t.Errorf("kept: %+v, %v", r, err)
	}
	lost := func(c clock.Millis, held bool) lease.View {
		return space(sid(1, corrupt(window()), false), sid(2, entry(window(ceil(c), released)), held))
	}
	if r, err := ReleaseSID(lost(far, true), []Line{line(3, now-1)}, 1, 0, slack, by); err != nil || r.Write.Window.Ceil != far+total {
		t.Errorf("beside another: %+v, %v", r.Write.Window, err)
	}
	if r, err := ReleaseSID(lost(far, false), []Line{line(3, now-1)}, 1, 0, slack, by); err != nil || r.Write.Window.Ceil != far+total || len(r.Warnings) > 0 {
		t.Errorf("beside another: %+v, %v", r, err)
	}
	if r, err := ReleaseSID(lost(now, false), []Line{line(3, far)}, 1, 0, slack, by); err != nil || r.Write.Window.Ceil != far+total {
		t.Errorf("from a line: %+v, %v", r.Write.Window, err)
	}
	if r, err := ReleaseSID(lost(now, false), []Line{line(3, now-1)}, 1, now+total, slack, by); err != nil || r.Write.Gone != "" || len(r.Warnings) > 0 {
		t.Errorf("--above as high as the bound: %+v, %v", r, err)
	}
}

// TestFloorsThatWarnOfNothing: a floor that equals another is not below it.
func TestFloorsThatWarnOfNothing(t *testing.T) {
	floor := func(at clock.Millis) func(*lease.View) {
		return func(v *lease.View) { v.Era = entry(lease.Era{Number: 2, Floor: at, Cluster: cluster}) }
	}
	for _, tc := range []struct {
		view  lease.View
		floor clock.Millis
	}{
		{space(floor(now + total)), 0},
		{space(), now + total},
	} {
		if e, err := NextEra(tc.view, nil, tc.floor, slack, now); err != nil || len(e.Warnings) > 0 {
			t.Errorf("%+v: %q, %v", tc.floor, e.Warnings, err)
		}
	}
	e, err := NextEra(space(floor(now+2*total)), nil, now+2*total, slack, now)
	if err != nil || strings.Contains(strings.Join(e.Warnings, "\n"), "that of era 2") {
		t.Errorf("the present floor again: %q, %v", e.Warnings, err)
	}
	if e, err := NextEra(space(sid(1, entry(window(ceil(now+20_000), func(w *lease.Window) { w.Wall = now + 20_000 - clock.MillisOf(lease.MaxWindow) })), true)), nil, 0, slack, now); err != nil ||
		e.Bounds.Window != lease.MaxWindow {
		t.Errorf("the longest window: %v, %v", e.Bounds.Window, err)
	}
}

// TestLastOwner: the holder's key says who had the sid last, and without it the line of
// the highest term that can be read.
func TestLastOwner(t *testing.T) {
	at := func(term int64, i lease.Instance) Line {
		return Line{Term: term, Entry: entry(lease.LedgerLine{Term: term, Instance: i, Node: "n", Era: 2, Since: now - 5000})}
	}
	bad := Line{Term: 9, Entry: corrupt(lease.LedgerLine{Term: 9, Instance: "i9"})}
	ledger := []Line{at(5, "i5"), at(3, "i3"), bad}
	held := func(h lease.Entry[lease.Holder]) func(*lease.View) {
		return func(v *lease.View) {
			v.SIDs[1] = lease.SIDRecords{Window: corrupt(window()), Holder: h}
		}
	}
	for name, tc := range map[string]struct {
		view lease.View
		want lease.Instance
	}{
		"ledger":            {space(), "i5"},
		"holder":            {space(held(entry(lease.Holder{Instance: "i7", Node: "n"}))), "i7"},
		"unreadable holder": {space(held(corrupt(lease.Holder{Instance: "i7", Node: "n"}))), "i5"},
	} {
		r, err := ReleaseSID(tc.view, ledger, 1, now-1000, slack, by)
		if err != nil || r.Write.Gone != tc.want {
			t.Errorf("%s: %q, want %q: %v", name, r.Write.Gone, tc.want, err)
		}
	}
}

// TestProblems: the operator reads what is wrong with a sid.
func TestProblems(t *testing.T) {
	for want, tc := range map[string]struct {
		view   lease.View
		ledger []Line
		above  clock.Millis
	}{
		"an operator quarantined it: why not":       {view: space(sid(1, entry(window(quarantined)), false))},
		"bob@ops-2 quarantined it":                  {view: space(sid(1, entry(window(quarantined, func(w *lease.Window) { w.Reason, w.By = "", "bob@ops-2" })), false))},
		"its record is of era 3, and this is era 2": {view: space(sid(1, entry(window(released, func(w *lease.Window) { w.Era = 3 })), false))},
		"its ceiling is far in the future: ":        {view: space(sid(1, entry(window(released, ceil(now+year))), false)), above: now + year},
		"it has ledger lines but no window record":  {view: space(), ledger: []Line{line(3, now)}},
		"record is malformed":                       {view: space(sid(1, corrupt(window()), false))},
	} {
		r, err := ReleaseSID(tc.view, tc.ledger, 1, tc.above, slack, by)
		if err != nil || !strings.Contains(r.Problem, want) {
			t.Errorf("%q, want %q: %v", r.Problem, want, err)
		}
	}
	v := space(func(v *lease.View) {
		v.SIDs[1] = lease.SIDRecords{Window: entry(window()), Holder: corrupt(lease.Holder{Instance: "i7", Node: "n"})}
	})
	_, err := Quarantine(v, true, 1, "", false, by)
	refused(t, err, "held by a holder whose record is unreadable")
	if w, err := Quarantine(space(), false, 1, strings.Repeat("x", lease.MaxReason), false, by); err != nil || len(w.Window.Reason) != lease.MaxReason {
		t.Errorf("the longest reason: %v", err)
	}
}

// TestReleaseSIDNeedsASpace: what no sid can be repaired in is refused first.
func TestReleaseSIDNeedsASpace(t *testing.T) {
	for want, tc := range map[string]struct {
		view lease.View
		sid  flake.SID
	}{
		"not initialized":      {space(func(v *lease.View) { v.Config = lease.Entry[lease.Space]{} }), 1},
		"config is unreadable": {space(func(v *lease.View) { v.Config = corrupt(v.Config.Value) }), 1},
		"admin recover":        {space(func(v *lease.View) { v.Era = corrupt(v.Era.Value) }), 1},
		"sids 0-31 of 32":      {space(), 32},
	} {
		_, err := ReleaseSID(tc.view, []Line{line(3, now)}, tc.sid, 0, slack, by)
		refused(t, err, want)
	}
}
