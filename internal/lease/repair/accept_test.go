package repair

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

const hour clock.Millis = 3_600_000

func wall(at clock.Millis) func(*lease.Window) {
	return func(w *lease.Window) { w.Wall, w.Base, w.Ceil = at, at, at+30_000 }
}

func TestAcceptTime(t *testing.T) {
	before := func(era int64, until clock.Millis) func(*lease.View) {
		return func(v *lease.View) {
			v.Accepted = entry(lease.AcceptedTime{Era: era, Until: until, Nonce: "old", By: "bob@ops-2", At: until - hour})
		}
	}
	recorded := func(at clock.Millis) func(*lease.View) {
		return func(v *lease.View) {
			v.SIDs[3] = lease.SIDRecords{Window: entry(window(wall(at)))}
			v.SIDs[4] = lease.SIDRecords{Window: entry(window(wall(at - 1)))}
			v.SIDs[5] = lease.SIDRecords{Window: corrupt(window(wall(at + year)))}
			v.SIDs[6] = lease.SIDRecords{Window: entry(window(wall(at+year), func(w *lease.Window) { w.State = lease.Quarantined }))}
			v.SIDs[7] = lease.SIDRecords{Window: entry(window(wall(at+year), func(w *lease.Window) { w.Node = lease.Operator }))}
		}
	}
	begun := func(floor clock.Millis) func(*lease.View) {
		return func(v *lease.View) { v.Era = entry(lease.Era{Number: 2, Floor: floor, Cluster: v.Cluster}) }
	}
	poisoned := func(state lease.WindowState) func(*lease.View) {
		return func(v *lease.View) {
			v.SIDs[8] = lease.SIDRecords{Window: entry(window(wall(now+year), func(w *lease.Window) { w.State, w.Gossip = state, true }))}
		}
	}
	held := func(v *lease.View) { // Its node compares its clock, and ours may be the one that is behind.
		s := v.SIDs[3]
		s.Window.Value.Gossip, s.Holder = true, entry(lease.Holder{Instance: "i1", Node: "n1"})
		v.SIDs[3] = s
	}
	const limit = 10 * time.Minute
	for name, tc := range map[string]struct {
		v       lease.View
		until   clock.Millis // as given
		want    clock.Millis // accepted; 0: nothing is written
		refused string       // why
		warned  string
	}{
		"in a part without sid 0":      {v: space(part(3, 8), recorded(now-hour)), want: now + hour},
		"an hour behind":               {v: space(recorded(now - hour)), want: now + hour},
		"beyond the limit":             {v: space(recorded(now - clock.MillisOf(limit) - 1)), want: now + hour},
		"within it":                    {v: space(recorded(now - clock.MillisOf(limit))), refused: `node "n1" with sid 3 recorded`},
		"to the given time":            {v: space(recorded(now - year)), until: now + 2*hour, want: now + 2*hour},
		"a year ahead":                 {v: space(recorded(now)), until: now + year, want: now + year, warned: "ahead of this machine's clock"},
		"given, within the limit":      {v: space(recorded(now)), until: now + clock.MillisOf(limit), refused: "by themselves"},
		"the records are later":        {v: space(recorded(now+hour), held), refused: "is not later"},
		"given, the records are later": {v: space(recorded(now+3*hour), held), until: now + 2*hour, refused: "is not later"},
		"of a wrong clock":             {v: space(recorded(now-hour), poisoned(lease.Active)), want: now + hour},
		"of a wrong clock, released":   {v: space(recorded(now-hour), poisoned(lease.Released)), want: now + hour},
		"of a wrong clock alone":       {v: space(poisoned(lease.Active)), want: now + hour},
		"of operators alone": {v: space(func(v *lease.View) {
			v.SIDs[3] = lease.SIDRecords{Window: entry(window(wall(now+year), func(w *lease.Window) { w.State = lease.Quarantined }))}
		}), want: now + hour},
		"no records":                   {v: space(begun(0)), refused: "no record shows a time"},
		"initialized long ago":         {v: space(begun(now - year)), want: now + hour},
		"initialized just now":         {v: space(begun(now - 1)), refused: "the floor of the era recorded"},
		"accepted already":             {v: space(recorded(now-year), before(2, now+hour/2))},
		"accepted, and nearly over":    {v: space(recorded(now-year), before(2, now+hour/2-1)), want: now + hour},
		"the given time already":       {v: space(recorded(now-year), before(2, now+hour)), until: now + hour},
		"a later one than accepted":    {v: space(recorded(now-year), before(2, now+hour)), until: now + hour + 1, want: now + hour + 1},
		"an earlier one than accepted": {v: space(recorded(now-year), before(2, now+year)), until: now + hour},
		"accepted in another era":      {v: space(recorded(now-year), before(1, now+year)), want: now + hour},
		"unreadable": {v: space(recorded(now-year), func(v *lease.View) {
			v.Accepted = corrupt(lease.AcceptedTime{Era: 2, Until: now + year, Nonce: "x"})
		}), want: now + hour, warned: "is unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := AcceptTime(tc.v, tc.until, slack, by)
			if tc.refused != "" {
				if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.refused) {
					t.Fatalf("got %+v, %v, want it refused: %s", got, err, tc.refused)
				}
				return
			}
			if err != nil || got.Done != (tc.want == 0) {
				t.Fatalf("got %+v, %v", got, err)
			}
			if want := (lease.AcceptedTime{Era: 2, Until: tc.want, Nonce: "fresh", By: "ann@ops-1", At: now}); !got.Done && got.Accepted != want {
				t.Errorf("got %+v, want %+v", got.Accepted, want)
			}
			if !got.Done && got.Accepted.Until <= got.Before.Until {
				t.Errorf("%d replaces %d: a node may rely on that", got.Accepted.Until, got.Before.Until)
			}
			if text := strings.Join(got.Warnings, "; "); (tc.warned == "") != (text == "") || !strings.Contains(text, tc.warned) {
				t.Errorf("warnings %q, want %q", text, tc.warned)
			}
		})
	}
	if _, err := AcceptTime(lease.View{}, 0, slack, by); !errors.Is(err, ErrNotInitialized) {
		t.Errorf("without a space: %v", err)
	}
	long := Author{Who: strings.Repeat("x", 500), Instance: "op-1", Nonce: "n", Now: now}
	if got, err := AcceptTime(space(recorded(now-year)), 0, slack, long); err != nil || len(got.Accepted.By) != maxBy {
		t.Errorf("a long name: %+v, %v", got, err)
	}
}
