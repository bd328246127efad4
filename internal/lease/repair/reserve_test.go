package repair

import (
	"errors"
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestReserve: a sid that nobody has is reserved with its ceiling, and given back above all
// that the generator outside can have issued.
func TestReserve(t *testing.T) {
	v := space(
		sid(1, entry(window(ceil(now-5), released)), false),
		sid(2, entry(window(ceil(now+5000))), false),
		sid(3, entry(window(ceil(now))), true),
		sid(4, entry(window(ceil(now), quarantined)), false),
		sid(5, entry(window(ceil(now), reserved)), false),
		sid(6, corrupt(window()), false),
		sid(7, entry(window(ceil(now), reserved)), true),
	)
	term := v.SIDs[1].Window.Value.Term + 1
	floor := v.Era.Value.Floor
	for sid, want := range map[flake.SID]struct {
		term     int64
		ceil     clock.Millis
		warns    bool
		refusing string
	}{
		0: {term: 1, ceil: floor},
		1: {term: term, ceil: max(now-5, floor)},
		2: {term: term, ceil: now + 5000, warns: true},
		3: {refusing: "sid 3 is held by"},
		4: {refusing: "quarantined it: why not"},
		5: {refusing: "is reserved already: an operator reserved it for a generator outside of the cluster: java"},
		6: {refusing: "unreadable"},
		7: {refusing: "is reserved already"},
	} {
		w, warning, err := Reserve(v, sid, "mine", by)
		if want.refusing != "" {
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want.refusing) {
				t.Errorf("sid %d: %v, want %q", sid, err, want.refusing)
			}
			continue
		}
		record := lease.Window{
			Era: v.Era.Value.Number, Term: want.term, Instance: by.Instance, Node: lease.Operator, Nonce: by.Nonce, State: lease.Reserved,
			Base: w.Window.Ceil, Ceil: w.Window.Ceil, Wall: by.Now, Reason: "mine", By: by.Who, Prior: w.Window.Prior,
		}
		if err != nil || w.Window != record || w.Window.Ceil != want.ceil || !w.Ledger ||
			w.Unused != (want.term == 1) || (warning != "") != want.warns || !w.Seen.Window.Same(v.SIDs[sid].Window) {
			t.Errorf("sid %d: %+v, %q, %v", sid, w, warning, err)
		}
		if _, err := lease.Decode[lease.Window](lease.Encode(w.Window)); err != nil {
			t.Error(err)
		}
	}

	// An earlier era may have granted more than the record shows: its history was lost.
	later := space(sid(1, entry(window(ceil(now-5), released)), false), func(v *lease.View) {
		v.Era = entry(lease.Era{Number: 3, Floor: now + 60_000, Cluster: cluster})
	})
	for _, n := range []flake.SID{0, 1} {
		w, warning, err := Reserve(later, n, "", by)
		if err != nil || w.Window.Ceil != now+60_000 || w.Window.Base != w.Window.Ceil || warning == "" {
			t.Errorf("sid %d below the floor: %+v, %q, %v", n, w.Window, warning, err)
		}
	}

	// Answers of the watermark up to now did not say that they do not cover the sid.
	marked := space(sid(1, entry(window(ceil(now-5), released)), false), func(v *lease.View) {
		v.Mark = entry(lease.Mark{Era: 2, At: now - 2})
	})
	for _, n := range []flake.SID{0, 1} {
		w, _, err := Reserve(marked, n, "", by)
		if err != nil || w.Window.Ceil != now-2 || w.Window.Base != w.Window.Ceil || !w.Mark.Same(marked.Mark) {
			t.Errorf("sid %d below the watermark: %+v, %v", n, w.Window, err)
		}
	}
	marked.Mark = corrupt(lease.Mark{Era: 2, At: now - 2})
	if _, _, err := Reserve(marked, 1, "", by); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "admin recover") {
		t.Errorf("with an unreadable watermark: %v", err)
	}

	for above, want := range map[clock.Millis]clock.Millis{
		0:          by.Now + 501, // The clocks may differ by 250 ms each, and its last ID is of this ms.
		now + 9000: now + 9000,
		now - 9000: now, // never below the record's
	} {
		w, err := Unreserve(v, 5, above, slack, by)
		if err != nil || w.Window.Ceil != want || w.Window.Base != want || w.Window.State != lease.Released ||
			w.Window.Term != term || w.Window.Reason != "" || !w.Ledger {
			t.Errorf("above %d: %+v, %v, want ceiling %d", above, w, err, want)
		}
	}
	for _, sid := range []flake.SID{0, 1, 4, 6, 7} {
		if _, err := Unreserve(v, sid, 0, slack, by); !errors.Is(err, ErrRefused) {
			t.Errorf("sid %d: %v", sid, err)
		}
	}
	if _, err := ReleaseSID(v, nil, 5, 0, slack, by); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "admin unreserve 5") {
		t.Errorf("released: %v", err)
	}
	if _, err := Quarantine(v, false, 5, "", false, by); !errors.Is(err, ErrRefused) {
		t.Errorf("quarantined: %v", err)
	}
}

// TestLostReservation: a sid whose record is lost goes back to the pool only if the last to take
// it was surely a node or a worker. Else a generator outside of the cluster may use it, and it is
// reserved again.
func TestLostReservation(t *testing.T) {
	generators := Line{Term: 8, Entry: entry(lease.LedgerLine{Term: 8, Instance: "op-0", Node: lease.Operator, Era: 2, Since: now - 1000})}
	damaged := generators
	damaged.Entry = corrupt(generators.Entry.Value)
	rotten := entry(window(reserved)) // The record can be read but for its state.
	rotten = lease.NewEntry[lease.Window](rotten.Rev, 0, strings.Replace(rotten.Raw, `"reserved"`, `"reservee"`, 1))
	for name, tc := range map[string]struct {
		view   lease.View
		ledger []Line
		want   lease.WindowState
	}{
		"a node was last":                      {space(sid(5, corrupt(window()), false)), []Line{line(7, now)}, lease.Released},
		"a node was last, after a reservation": {space(sid(5, corrupt(window()), false)), []Line{generators, line(9, now)}, lease.Released},
		"it was reserved":                      {space(sid(5, corrupt(window(reserved)), false)), []Line{line(7, now), generators}, lease.Reserved},
		"the record says so alone":             {space(sid(5, corrupt(window(reserved)), false)), []Line{line(7, now)}, lease.Reserved},
		"the ledger says so alone":             {space(sid(5, rotten, false)), []Line{generators, line(7, now)}, lease.Reserved},
		"the record is gone":                   {space(), []Line{line(7, now), generators}, lease.Reserved},
		"the last line is damaged too":         {space(sid(5, rotten, false)), []Line{line(7, now), damaged}, lease.Reserved},
		"the ledger is gone":                   {space(sid(5, rotten, false)), nil, lease.Reserved},
	} {
		for _, above := range []clock.Millis{0, now - 5000, now + 40_000} {
			v, lost := tc.view, tc.view.SIDs[5]
			v.Mark = entry(lease.Mark{Era: 2, At: now - 2})
			r, err := ReleaseSID(v, tc.ledger, 5, above, slack, by)
			w := r.Write.Window
			if err != nil || w.State != tc.want {
				t.Errorf("%s, above %d: %+v, %v, want %s", name, above, w, err, tc.want)
				continue
			}
			if _, err := lease.Decode[lease.Window](lease.Encode(w)); err != nil {
				t.Error(err)
			}
			if w.State == lease.Released {
				continue
			}
			v.SIDs[5] = lease.SIDRecords{Window: entry(w)}
			back, err := Unreserve(v, 5, 0, slack, by)
			if w.Ceil < v.Mark.Value.At || w.Base != w.Ceil || !r.Write.Mark.Same(v.Mark) ||
				!strings.Contains(strings.Join(r.Warnings, "; "), "allocator admin unreserve 5") ||
				err != nil || back.Window.Term != w.Term+1 || back.Window.Ceil < w.Ceil {
				t.Errorf("%s, above %d: %+v, given back %+v, %v", name, above, r, back, err)
			}
			v.SIDs[5] = lost
		}
	}
	v := space(sid(5, corrupt(window(reserved)), false))
	v.Mark = corrupt(lease.Mark{Era: 2, At: now})
	_, err := ReleaseSID(v, []Line{generators}, 5, 0, slack, by)
	refused(t, err, "admin recover")
}
