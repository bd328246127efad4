package repair

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

const (
	now     clock.Millis = 1_800_000_000_000
	cluster              = 0xc1
	year    clock.Millis = 365 * 24 * 3600 * 1000
)

// slack sums up to 30,750 ms.
var slack = lease.Bounds{Window: 10 * time.Second, WorkerWindow: 30 * time.Second, MaxSkew: 250 * time.Millisecond, MaxLead: 250 * time.Millisecond}

const total clock.Millis = 30_750

var by = Author{Who: "ann@ops-1", Instance: "op-1", Nonce: "fresh", Now: now}

// revs are the revisions of keys, each of its own.
var revs int64

func entry[T any](v T) lease.Entry[T] {
	revs++
	return lease.NewEntry[T](revs, 0, lease.Encode(v))
}

func corrupt[T any](v T) lease.Entry[T] {
	revs++
	return lease.NewEntry[T](revs, 0, strings.Replace(lease.Encode(v), "a1 ", "a1 0", 1))
}

// window is one that n1 was granted at now.
func window(change ...func(*lease.Window)) lease.Window {
	w := lease.Window{Era: 2, Term: 7, Instance: "i1", Node: "n1", Nonce: "n", Base: now, Ceil: now + 30_000, State: lease.Active, Wall: now}
	for _, f := range change {
		f(&w)
	}
	return w
}

func released(w *lease.Window)    { w.State = lease.Released }
func quarantined(w *lease.Window) { w.State, w.Reason = lease.Quarantined, "why not" }
func reserved(w *lease.Window)    { w.State, w.Reason = lease.Reserved, "java" }
func ceil(at clock.Millis) func(*lease.Window) {
	return func(w *lease.Window) { w.Ceil = at; w.Base = min(w.Base, at) }
}

// space is one in era 2, with what change makes of it.
func space(change ...func(*lease.View)) lease.View {
	v := lease.View{
		Cluster: cluster, Revision: 100,
		Config: entry(lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}),
		Era:    entry(lease.Era{Number: 2, Floor: now - 1000, Cluster: cluster}),
		SIDs:   map[flake.SID]lease.SIDRecords{},
	}
	for _, f := range change {
		f(&v)
	}
	return v
}

// part makes the space one of a part of the sids.
func part(from, to flake.SID) func(*lease.View) {
	return func(v *lease.View) {
		s := v.Config.Value
		s.Part = lease.SIDRange{From: from, To: to}
		v.Config = entry(s)
	}
}

func sid(n flake.SID, w lease.Entry[lease.Window], held bool) func(*lease.View) {
	return func(v *lease.View) {
		s := lease.SIDRecords{Window: w}
		if held {
			s.Holder = entry(lease.Holder{Instance: "i1", Node: "n1"})
			v.Nodes = append(v.Nodes, lease.Registration{Instance: "i1", Node: "n1"})
		}
		v.SIDs[n] = s
	}
}

func runs(i lease.Instance) func(*lease.View) {
	return func(v *lease.View) { v.Nodes = append(v.Nodes, lease.Registration{Instance: i, Node: "n1"}) }
}

func line(term int64, since clock.Millis) Line {
	return Line{Term: term, Entry: entry(lease.LedgerLine{Term: term, Instance: "i1", Node: "n1", Era: 2, Since: since})}
}

// refused checks that err is a refusal which says want.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, ErrRefused) && !errors.Is(err, ErrNotInitialized) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want a refusal with %q", err, want)
	}
}

func TestNextEra(t *testing.T) {
	mark := func(at clock.Millis) func(*lease.View) {
		return func(v *lease.View) { v.Mark = entry(lease.Mark{Era: 2, At: at}) }
	}
	for _, tc := range []struct {
		name    string
		view    lease.View
		reports []NodeReport
		floor   clock.Millis
		number  int64
		want    clock.Millis // of the floor
		warns   string       // first
		of      string       // The highest ceiling is of it; "": not compared.
	}{
		{name: "nothing was granted", view: space(), number: 3, want: now + total, of: "nobody"},
		{name: "a ceiling in etcd", view: space(sid(1, entry(window(ceil(now+20_000))), true)), number: 3, want: now + 20_000 + total, of: "sid 1 in etcd"},
		{name: "the lower ceiling comes last", view: space(sid(2, entry(window(ceil(now+20_000))), true), sid(3, entry(window(ceil(now+5000))), true)),
			number: 3, want: now + 20_000 + total, of: "sid 2 in etcd"},
		{name: "a node has seen as much", view: space(sid(1, entry(window(ceil(now+10_000))), true)), reports: []NodeReport{{"a", 2, now + 10_000}},
			number: 3, want: now + 10_000 + total, of: "sid 1 in etcd"},
		{name: "a ceiling of the past", view: space(sid(1, entry(window(ceil(now-20_000))), false)), number: 3, want: now + total},
		{name: "a node has seen more", view: space(sid(1, entry(window()), true)),
			reports: []NodeReport{{"a", 2, now + 30_500}, {"b", 2, now + 25_000}}, number: 3, want: now + 30_500 + total, of: "node a"},
		{name: "a node is of a later era", view: space(), reports: []NodeReport{{"a", 5, 0}, {"b", 4, 0}}, number: 6, want: now + total},
		{name: "a record is of a later era", view: space(sid(1, entry(window(func(w *lease.Window) { w.Era = 9 })), false)), number: 10, want: now + 30_000 + total},
		{name: "the era is gone", view: space(func(v *lease.View) { v.Era = lease.Entry[lease.Era]{} }, sid(1, entry(window(ceil(now))), false)),
			reports: []NodeReport{{"a", 4, 0}}, number: 5, want: now + total, warns: "missing or unreadable"},
		{name: "the era is unreadable", view: space(func(v *lease.View) { v.Era = corrupt(v.Era.Value) }, sid(1, entry(window(ceil(now))), false)),
			number: 3, want: now + total, warns: "missing or unreadable"},
		{name: "a record is unreadable", view: space(sid(4, corrupt(window()), false)), number: 3, want: now + total, warns: "sid 4 is unreadable"},
		{name: "nodes have longer windows than we were told",
			view:   space(sid(1, entry(window(ceil(now+300_000))), true)),
			number: 3, want: now + 300_000 + 300_750, warns: "windows of 5m0s"},
		{name: "nodes have windows of hours",
			view:   space(sid(1, entry(window(ceil(now+7_200_000))), true)),
			number: 3, want: now + 7_200_000 + 7_200_750, warns: "windows of 2h0m0s"},
		{name: "the longest window", view: space(sid(1, entry(window(ceil(now+20_000), func(w *lease.Window) { w.Wall = w.Ceil - clock.MillisOf(lease.MaxWindow) })), true)),
			number: 3, want: now + 20_000 + clock.MillisOf(lease.MaxWindow) + 750, warns: "windows of 24h0m0s"},
		{name: "a window longer than any", view: space(sid(1, entry(window(ceil(now+30_000), func(w *lease.Window) { w.Wall -= year })), true)),
			number: 3, want: now + 30_000 + total, warns: "a window has at most 24h0m0s"},
		{name: "an empty window tells nothing of windows", view: space(sid(1, entry(window(ceil(now+30_000), func(w *lease.Window) { w.Base, w.Wall = w.Ceil, now-600_000 })), true)),
			number: 3, want: now + 30_000 + total},
		{name: "a released ceiling tells nothing of windows",
			view:    space(sid(1, entry(window(ceil(now+30_000), func(w *lease.Window) { w.Wall -= 600_000; w.State = lease.Released })), false)),
			reports: nil, number: 3, want: now + 30_000 + total},
		{name: "a floor not reached yet", view: space(func(v *lease.View) { v.Era = entry(lease.Era{Number: 2, Floor: now + 60_000, Cluster: cluster}) },
			sid(1, entry(window(ceil(now+60_000), released)), true)), number: 3, want: now + 60_000 + total, warns: "the floor of era 2 is " + At(now+60_000)},
		{name: "a floor far ahead, and nothing granted", view: space(func(v *lease.View) { v.Era = entry(lease.Era{Number: 2, Floor: now + 1_260_000, Cluster: cluster}) },
			sid(1, entry(window()), true)), number: 3, want: now + 1_260_000 + total, warns: "the floor of era 2 is " + At(now+1_260_000)},
		{name: "a floor that a node can have been granted", view: space(func(v *lease.View) { v.Era = entry(lease.Era{Number: 2, Floor: now + total, Cluster: cluster}) }),
			number: 3, want: now + total + total},
		{name: "the operator's floor is the present one", view: space(func(v *lease.View) { v.Era = entry(lease.Era{Number: 2, Floor: now + 2*total, Cluster: cluster}) }),
			floor: now + 2*total, number: 3, want: now + 2*total, warns: "the one computed from records"},
		{name: "the operator's floor is as low as can be", view: space(), floor: now + total, number: 3, want: now + total},
		{name: "the operator's floor is below the present one", view: space(func(v *lease.View) { v.Era = entry(lease.Era{Number: 2, Floor: now + 1_260_000, Cluster: cluster}) }),
			floor: now + total, number: 3, want: now + total, warns: "that of era 2"},
		{name: "the operator's floor", view: space(sid(1, entry(window(ceil(now+10*year), released)), false)), floor: now + total,
			number: 3, want: now + total, warns: "quarantine the sid"},
		{name: "the operator's floor, and a node with a wrong clock", view: space(), reports: []NodeReport{{"a", 2, now + 10*year}}, floor: now + total,
			number: 3, want: now + total, warns: "node a has 2037"},
		{name: "a watermark, and its record was lost", view: space(mark(now + 3_000)), number: 3, want: now + 3_000 + total},
		{name: "the operator's floor is below the watermark", view: space(mark(now + total + 7)), floor: now + total, number: 3, want: now + total,
			warns: "not above the watermark, " + At(now+total+7)},
		{name: "the operator's floor, and the watermark is unreadable", view: space(func(v *lease.View) { v.Mark = corrupt(lease.Mark{Era: 2, At: now}) }),
			floor: now + total, number: 3, want: now + total, warns: "the watermark is unreadable"},
		{name: "the operator's floor is above a watermark far ahead, which is of no sid", view: space(mark(now + 10*year)),
			floor: now + 11*year, number: 3, want: now + 11*year},
		{name: "the operator's floor is above", view: space(), floor: now + year, number: 3, want: now + year},
		{name: "the operator's floor is low", view: space(sid(1, entry(window()), true)), floor: now + total + 1, number: 3, want: now + total + 1, warns: "is below " + At(now+30_000+total)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := NextEra(tc.view, tc.reports, tc.floor, slack, now)
			fatal.If(t, err)
			want := lease.Era{Number: tc.number, Floor: tc.want, Cluster: cluster}
			if e.Era != want {
				t.Errorf("got %+v, want %+v", e.Era, want)
			}
			if first := append(e.Warnings, "")[0]; tc.warns == "" && first != "" || !strings.Contains(first, tc.warns) {
				t.Errorf("warns %q, want %q", e.Warnings, tc.warns)
			}
			if tc.of != "" && tc.of != cmp.Or(e.HighestOf, "nobody") {
				t.Errorf("the highest ceiling is %v, of %q, want it of %s", e.Highest, e.HighestOf, tc.of)
			}
		})
	}
}

func TestNextEraRefuses(t *testing.T) {
	distant := sid(3, entry(window(ceil(now+10*year), released)), false)
	for _, tc := range []struct {
		name    string
		view    lease.View
		reports []NodeReport
		floor   clock.Millis
		want    string
	}{
		{"no config", space(func(v *lease.View) { v.Config = lease.Entry[lease.Space]{} }), nil, 0, "\"allocator init\" without --fresh"},
		{"a poisoned ceiling in etcd", space(distant), nil, 0, "sid 3 in etcd has 2037"},
		{"a watermark far ahead", space(func(v *lease.View) { v.Mark = entry(lease.Mark{Era: 2, At: now + 10*year}) }), nil, 0, "the watermark has 2037"},
		{"a node with a wrong clock", space(), []NodeReport{{"a", 2, now + 10*year}}, 0, "node a has 2037"},
		{"it names a floor that will do", space(distant), nil, 0, "--floor " + At(now+total)},
		{"a floor too low for any node", space(), nil, now + total - 1, "must be " + At(now+total)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := NextEra(tc.view, tc.reports, tc.floor, slack, now)
			refused(t, err, tc.want)
		})
	}
}

func TestQuarantine(t *testing.T) {
	v := space(sid(1, entry(window(released, func(w *lease.Window) { w.Era = 1 })), false), sid(2, entry(window()), true))
	for _, tc := range []struct {
		sid   flake.SID
		force bool
	}{{1, false}, {2, true}} {
		w, err := Quarantine(v, true, tc.sid, "disk", tc.force, by)
		fatal.If(t, err)
		// Term, owner and ceiling stay: nothing is forgotten.
		want := v.SIDs[tc.sid].Window.Value
		want.State, want.Reason, want.Nonce, want.Wall, want.By = lease.Quarantined, "disk", "fresh", now, by.Who
		want.Era = v.Era.Value.Number // A node of this era would ignore a record of an earlier one.
		if w.Window != want || w.Ledger || w.Gone != "" || !w.Seen.Window.Same(v.SIDs[tc.sid].Window) || !w.Seen.Holder.Same(v.SIDs[tc.sid].Holder) {
			t.Errorf("sid %d: got %+v", tc.sid, w)
		}
	}
	longest := strings.Repeat("x", lease.MaxReason)
	w, err := Quarantine(v, false, 9, longest, false, by) // never used
	if err != nil || w.Window.Reason != longest || w.Window.Term != 1 || w.Window.Ceil != v.Era.Value.Floor || !w.Ledger || w.Seen.Window.Exists() {
		t.Errorf("got %+v, %v", w, err)
	}
	if _, err := lease.Decode[lease.Window](lease.Encode(w.Window)); err != nil {
		t.Error(err)
	}
}

func TestQuarantineRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		view   lease.View
		past   bool
		sid    flake.SID
		reason string
		force  bool
		want   string
	}{
		{"held", space(sid(1, entry(window()), true)), true, 1, "", false, `held by "n1" (i1)`},
		{"held by nobody knows whom", space(sid(1, entry(window()), true), func(v *lease.View) {
			v.SIDs[1] = lease.SIDRecords{Window: v.SIDs[1].Window, Holder: corrupt(v.SIDs[1].Holder.Value)}
		}), true, 1, "", false, "held by a holder whose record is unreadable"},
		{"unreadable", space(sid(1, corrupt(window()), false)), true, 1, "", true, "unreadable"},
		{"missing", space(), true, 1, "", true, "has ledger lines but no window record"},
		{"quarantined", space(sid(1, entry(window(quarantined)), false)), true, 1, "", true, "already: an operator quarantined it: why not"},
		{"a long reason", space(), false, 1, strings.Repeat("x", lease.MaxReason+1), false, "201 bytes"},
		{"a line break", space(), false, 1, "a\nb", false, "control character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Quarantine(tc.view, tc.past, tc.sid, tc.reason, tc.force, by)
			refused(t, err, tc.want)
		})
	}
}

// TestUnusable: a space that is not there, or does not have the sid, is repaired in no way.
func TestUnusable(t *testing.T) {
	for want, v := range map[string]lease.View{
		"not initialized":               space(func(v *lease.View) { v.Config = lease.Entry[lease.Space]{} }),
		"config is unreadable":          space(func(v *lease.View) { v.Config = corrupt(v.Config.Value) }),
		"admin recover":                 space(func(v *lease.View) { v.Era = corrupt(v.Era.Value) }),
		"the space has sids 8-15 of 32": space(part(8, 16)),
	} {
		for _, write := range []func(lease.View) (lease.Window, error){reserve, unreserve, quarantine, release(0)} {
			_, err := write(v)
			refused(t, err, want)
		}
	}
}

// TestReleaseSID: a repaired sid begins above all that its holders can have been granted.
//
// Incidents T21 (a clock of the future) and T34 (somebody deleted the record of what was used), docs/INCIDENTS.md.
func TestReleaseSID(t *testing.T) {
	poisoned := entry(window(ceil(now+10*year), released))
	damaged := window(func(w *lease.Window) { w.Term = 50 })
	of := func(term int64, i lease.Instance) Line {
		return Line{Term: term, Entry: entry(lease.LedgerLine{Term: term, Instance: i, Node: "n", Era: 2, Since: now - 5000})}
	}
	damagedLine := Line{Term: 9, Entry: corrupt(lease.LedgerLine{Term: 9, Instance: "i9"})}
	held := func(h lease.Entry[lease.Holder]) func(*lease.View) {
		return func(v *lease.View) { v.SIDs[1] = lease.SIDRecords{Window: corrupt(damaged), Holder: h} }
	}
	for _, tc := range []struct {
		name   string
		view   lease.View
		ledger []Line
		above  clock.Millis
		term   int64
		ceil   clock.Millis
		gone   lease.Instance
		warns  string
		what   string // is wrong
		again  bool   // It is reserved again.
	}{
		{name: "quarantined", view: space(sid(1, entry(window(quarantined)), false)), ledger: []Line{line(7, now)}, term: 8, ceil: now + 30_000,
			what: "an operator quarantined it: why not"},
		{name: "quarantined by somebody", view: space(sid(1, entry(window(quarantined, func(w *lease.Window) { w.Reason, w.By = "", "bob@ops-2" })), false)),
			term: 8, ceil: now + 30_000, what: "bob@ops-2 quarantined it"},
		{name: "quarantined, to be raised", view: space(sid(1, entry(window(quarantined)), false)), above: now + 40_000, term: 8, ceil: now + 40_000},
		{name: "of a later era", view: space(sid(1, entry(window(released, func(w *lease.Window) { w.Era = 3 })), false)), term: 8, ceil: now + 30_000,
			what: "its record is of era 3, and this is era 2"},
		{name: "in order, to be raised", view: space(sid(1, entry(window(released)), false)), above: now + 40_000, term: 8, ceil: now + 40_000},
		{name: "poisoned, on the operator's assurance", view: space(sid(1, poisoned, false), runs("i2")), above: now - 5000,
			term: 8, ceil: now - 5000, gone: "i1", warns: "because of --above", what: "its ceiling is far in the future: "},
		{name: "poisoned, of a worker", view: space(sid(1, entry(window(ceil(now+10*year), func(w *lease.Window) { w.Worker = true })), false)), above: now - 5000,
			term: 8, ceil: now - 5000, gone: "i1", warns: "workers are not registered"},
		{name: "unreadable", view: space(sid(1, corrupt(damaged), false)), ledger: []Line{line(6, now-9000), line(7, now-5000)}, term: 51, ceil: now + total,
			what: "record is malformed"},
		{name: "unreadable and still held", view: space(sid(1, corrupt(damaged), true)), ledger: []Line{line(60, now-5000)}, term: 61, ceil: now + total},
		{name: "unreadable, others are ahead", view: space(sid(1, corrupt(damaged), false), sid(2, entry(window(ceil(now+20_000))), true)), ledger: []Line{line(7, now-5000)}, term: 51, ceil: now + 20_000 + total},
		{name: "unreadable, began ahead", view: space(sid(1, corrupt(damaged), false)), ledger: []Line{line(7, now+15_000)}, term: 51, ceil: now + 15_000 + total},
		{name: "unreadable, and another was poisoned", view: space(sid(1, corrupt(damaged), false), sid(2, poisoned, false)), ledger: []Line{line(7, now-5000)}, term: 51, ceil: now + total, warns: "sid 2 was ignored"},
		{name: "missing", view: space(), ledger: []Line{line(3, now-90_000)}, term: 4, ceil: now + total, what: "it has ledger lines but no window record"},
		{name: "missing, with a bad line", view: space(), ledger: []Line{line(4, now-90_000), {Term: 3, Entry: corrupt(lease.LedgerLine{Term: 3, Instance: "i"})}},
			term: 5, ceil: now + total, warns: "line 3 of its ledger is unreadable"},
		{name: "missing, with --above", view: space(), ledger: []Line{line(3, now-90_000)}, above: now - 1000, term: 4, ceil: now - 1000, gone: "i1", warns: "a bound on what"},
		{name: "missing, and the highest term was the last owner's", view: space(), ledger: []Line{of(5, "i5"), of(3, "i3"), damagedLine}, above: now - 1000,
			term: 10, ceil: now - 1000, gone: "i5", warns: "line 9", again: true},
		{name: "unreadable, and the key of the holder says whose", view: space(held(entry(lease.Holder{Instance: "i7", Node: "n"}))), ledger: []Line{of(5, "i5")}, above: now - 1000,
			term: 51, ceil: now - 1000, gone: "i7", warns: "a bound on what"},
		{name: "unreadable, as is the key of the holder", view: space(held(corrupt(lease.Holder{Instance: "i7", Node: "n"}))), ledger: []Line{of(5, "i5")}, above: now - 1000,
			term: 51, ceil: now - 1000, gone: "i5", warns: "a bound on what"},
		{name: "missing, with a large --above", view: space(), ledger: []Line{line(3, now+10*year)}, above: now + 11*year, term: 4, ceil: now + 11*year},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := ReleaseSID(tc.view, tc.ledger, 1, tc.above, slack, by)
			fatal.If(t, err)
			want := lease.Window{Era: 2, Term: tc.term, Instance: "op-1", Node: lease.Operator, Nonce: "fresh", Base: tc.ceil, Ceil: tc.ceil, State: lease.Released, Wall: now, By: by.Who,
				Prior: r.Write.Window.Prior} // See TestPriorsOfRepairs.
			if tc.again {
				want.State, want.Reason = lease.Reserved, lostReservation
			}
			if r.Write.Window != want {
				t.Errorf("got  %+v\nwant %+v", r.Write.Window, want)
			}
			if r.Write.Gone != tc.gone || !r.Write.Ledger || !r.Write.Seen.Window.Same(tc.view.SIDs[1].Window) || !r.Write.Seen.Holder.Same(tc.view.SIDs[1].Holder) {
				t.Errorf("got %+v", r.Write)
			}
			if got := strings.Join(r.Warnings, "\n"); tc.warns == "" && got != "" || !strings.Contains(got, tc.warns) {
				t.Errorf("warns %q, want %q", got, tc.warns)
			}
			if !strings.Contains(r.Problem, tc.what) {
				t.Errorf("the problem is %q, want %q", r.Problem, tc.what)
			}
			if r.Bound == "" {
				t.Error("does not say where the ceiling comes from")
			}
			if _, err := lease.Decode[lease.Window](lease.Encode(r.Write.Window)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestReleaseSIDRefuses(t *testing.T) {
	poisoned := entry(window(ceil(now+10*year), released))
	for _, tc := range []struct {
		name   string
		view   lease.View
		ledger []Line
		above  clock.Millis
		want   string
	}{
		{"never used", space(), nil, 0, "never used"},
		{"sound", space(sid(1, entry(window(released)), false)), nil, 0, "needs no repair"},
		{"held", space(sid(1, entry(window()), true)), nil, now, `held by "n1"`},
		{"held and poisoned", space(sid(1, entry(window(ceil(now+10*year))), true)), nil, now, `held by "n1"`},
		{"poisoned", space(sid(1, poisoned, false)), nil, 0, "--above TIME"},
		{"quarantined and poisoned", space(sid(1, entry(window(ceil(now+10*year), quarantined)), false)), nil, 0, "--above TIME"},
		{"unreadable, with --above, and its holder runs", space(sid(1, corrupt(window()), true), runs("i1")), []Line{line(7, now-5000)}, now, "is running"},
		{"missing, with --above, and its last owner runs", space(runs("i1")), []Line{line(7, now-5000)}, now, "is running"},
		{"poisoned, and its process runs", space(sid(1, poisoned, false), runs("i1")), nil, now, "is running"},
		{"nothing is gained", space(sid(1, entry(window(quarantined)), false)), nil, now - 1, "it is kept"},
		{"missing, with a poisoned past", space(), []Line{line(3, now+10*year)}, 0, "line 3 of its ledger has 2037"},
		{"unreadable, and its ceiling is far ahead", space(sid(1, corrupt(window(ceil(now+10*year))), false)), nil, 0, "its damaged record has 2037"},
		{"our clock is behind", space(sid(1, corrupt(window()), false), sid(2, entry(window(ceil(now+1*year))), true)), nil, 0, "this machine's clock seems to be far behind"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ReleaseSID(tc.view, tc.ledger, 1, tc.above, slack, by)
			refused(t, err, tc.want)
		})
	}
}

// far is the last ceiling that a node with a correct clock can have, in these spaces.
const far = now + total

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

func TestDigits(t *testing.T) {
	for raw, want := range map[string]clock.Millis{
		"": 0, `"ceil":`: 0, `"ceil":12`: 12, `{"base":1,"ceil":12}`: 12, `"ceil":-5`: 0, `"ceil":"7"`: 0, `"ceil":007`: 0,
		`"ceil":99999999999999999999`: 0, fmt.Sprintf(`"ceil":%d`, int64(1)<<60): 0, `"ceil":12x`: 12,
	} {
		if got := digits(raw, "ceil"); got != want {
			t.Errorf("digits(%q) = %d, want %d", raw, got, want)
		}
	}
}

// TestPriorsOfRepairs: whoever an operator takes a sid from may issue on, up to the ceiling
// that it was granted, and the new record says so: else the watermark would pass its IDs.
func TestPriorsOfRepairs(t *testing.T) {
	floor, old := now-4_000, lease.Prior{Floor: now - 9_000, Ceil: now - 1_000, Node: "n0"}
	mine := func(w *lease.Window) { w.Floor, w.Node = floor, "n1" }
	after := func(w *lease.Window) { w.Prior = old }
	worker := func(w *lease.Window) { w.Worker, w.Node = true, "w" }
	at := func(mark clock.Millis) func(*lease.View) {
		return func(v *lease.View) { v.Mark = entry(lease.Mark{Era: 2, At: mark}) }
	}
	of := func(floor, ceil clock.Millis, node string) lease.Prior {
		return lease.Prior{Floor: floor, Ceil: ceil, Node: node}
	}
	ceiling := now + 20_000
	for name, tc := range map[string]struct {
		view  lease.View
		write func(lease.View) (lease.Window, error)
		want  lease.Prior
	}{
		"reserved, of a vanished holder":                {space(sid(1, entry(window(ceil(ceiling), mine)), false)), reserve, of(floor, ceiling, "n1")},
		"reserved, of one after another":                {space(sid(1, entry(window(ceil(ceiling), mine, after)), false)), reserve, of(old.Floor, ceiling, "n1")},
		"reserved, and the mark is past the other":      {space(sid(1, entry(window(ceil(ceiling), mine, after)), false), at(old.Ceil)), reserve, of(floor, ceiling, "n1")},
		"reserved, and the mark is past both":           {space(sid(1, entry(window(ceil(ceiling), mine, after)), false), at(ceiling)), reserve, lease.Prior{}},
		"reserved, of one who gave it back":             {space(sid(1, entry(window(ceil(ceiling), mine, released)), false)), reserve, lease.Prior{}},
		"reserved, and one before who did not":          {space(sid(1, entry(window(ceil(ceiling), mine, released, after)), false)), reserve, old},
		"released, quarantined in use":                  {space(sid(1, entry(window(ceil(ceiling), mine, quarantined)), false)), release(0), of(floor, ceiling, "n1")},
		"released, with a word that it ended":           {space(sid(1, entry(window(ceil(now+10*year), mine)), false)), release(now - 2_000), of(floor, now-2_000, "n1")},
		"released, with a word that nothing was issued": {space(sid(1, entry(window(ceil(now+10*year), mine)), false)), release(floor), lease.Prior{}},
		"released, unreadable":                          {space(sid(1, corrupt(window(ceil(ceiling), mine)), false)), release(0), of(0, now+slack.Slack(), "")},
		"reserved, of a worker without floors":          {space(sid(1, entry(window(ceil(ceiling), worker)), false)), reserve, lease.Prior{Uncovered: ceiling, Worker: "w"}},
		"released, of such a one":                       {space(sid(1, entry(window(ceil(ceiling), worker, quarantined)), false)), release(0), lease.Prior{Uncovered: ceiling, Worker: "w"}},
		"released, with a word that such a one ended":   {space(sid(1, entry(window(ceil(now+10*year), worker)), false)), release(now - 2_000), lease.Prior{Uncovered: now - 2_000, Worker: "w"}},
		"given back":  {space(sid(1, entry(window(ceil(ceiling), after, isReserved)), false)), unreserve, old},
		"quarantined": {space(sid(1, entry(window(ceil(ceiling), mine, after)), false)), quarantine, old},
	} {
		w, err := tc.write(tc.view)
		if err != nil || w.Prior != tc.want {
			t.Errorf("%s: %+v, %v, want %+v", name, w.Prior, err, tc.want)
		}
	}
}

func reserve(v lease.View) (lease.Window, error) {
	w, _, err := Reserve(v, 1, "", by)
	return w.Window, err
}

func unreserve(v lease.View) (lease.Window, error) {
	w, err := Unreserve(v, 1, 0, slack, by)
	return w.Window, err
}

func quarantine(v lease.View) (lease.Window, error) {
	w, err := Quarantine(v, false, 1, "", true, by)
	return w.Window, err
}

func release(above clock.Millis) func(lease.View) (lease.Window, error) {
	return func(v lease.View) (lease.Window, error) {
		r, err := ReleaseSID(v, []Line{line(7, now-90_000)}, 1, above, slack, by)
		return r.Write.Window, err
	}
}

func isReserved(w *lease.Window) { w.State = lease.Reserved }
