package catalog

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

const start = clock.Millis(1_800_000_000_000)

var space = lease.Space{Layout: flake.Scalable, Epoch: 1, Pool: "p", Part: lease.SIDRange{To: 8}}

func newCatalog() Catalog {
	return New(lease.Config{
		Registration: lease.Registration{Instance: "me"}, Workers: lease.SIDRange{From: 6, To: 8},
		Bounds:      lease.Bounds{Window: 30 * time.Second, WorkerWindow: time.Minute, MaxSkew: 250 * time.Millisecond, MaxLead: 500 * time.Millisecond},
		ReloadEvery: 10 * time.Second, RetryAfter: time.Second,
		Jitter: func(time.Duration) time.Duration { return 0 },
	})
}

func entry[T any](rev int64, value T) lease.Entry[T] { return lease.Entry[T]{Rev: rev, Value: value} }

func view(revision int64, sids map[flake.SID]lease.SIDRecords) lease.View {
	if sids == nil {
		sids = map[flake.SID]lease.SIDRecords{}
	}
	return lease.View{
		Revision: revision, SIDs: sids, Config: entry(1, space), Era: entry(2, lease.Era{Number: 2, Floor: start}),
		Nodes: []lease.Registration{{Instance: "b"}, {Instance: "me"}},
	}
}

func holder(rev int64, instance lease.Instance) lease.Entry[lease.Holder] {
	return entry(rev, lease.Holder{Instance: instance, Node: string(instance)})
}

var states = map[state]string{unknown: "unknown", old: "old", fresh: "fresh", kept: "kept"}

// play carries out what happens at a second, and returns the state and when the space is
// listed next.
func play(t *testing.T, c *Catalog, need *Need, line string) string {
	t.Helper()
	var second, rev int64
	words := strings.Fields(line)
	_, err := fmt.Sscanf(words[0], "%d", &second)
	if err != nil {
		t.Fatal(err)
	}
	if len(words) > 2 {
		_, _ = fmt.Sscanf(words[2], "%d", &rev)
	}
	now := clock.Mono(second * 1e9)
	report := func(ch ...lease.Change) { c.Watched(now, lease.Watched{Revision: rev, Changes: ch}, *need) }
	out := ""
	switch words[1] {
	case "ask":
		c.Ask(now, 1)
	case "list":
		c.Answered(now, nil, need.Keep)
		c.Loaded(clock.Reading{Mono: now, Wall: start}, view(rev, nil))
	case "fails":
		c.Answered(now, errors.New("timed out"), need.Keep)
	case "acquire":
		need.Keep, need.SID, need.Haste = true, 3, Spread
		c.Acquired(now, *need)
	case "lose":
		*need = Need{Haste: Soon}
		c.Replace(now)
	case "opened":
		c.Watched(now, lease.Watched{Opened: true, Revision: rev}, *need)
	case "reached":
		report()
	case "taken":
		report(lease.Change{Revision: rev, Key: lease.ChangedHolder, SID: 5, Holder: holder(rev, "b")})
	case "joined":
		report(lease.Change{Revision: rev, Key: lease.ChangedNode, Instance: "c", Node: lease.Registration{Instance: "c", Rev: rev}})
	case "edited":
		report(lease.Change{Revision: rev, Key: lease.ChangedOther})
	case "expired":
		report(lease.Change{Revision: rev, Key: lease.ChangedNode, Instance: "b"}, lease.Change{Revision: rev, Key: lease.ChangedHolder, SID: 5})
	case "unregistered":
		report(lease.Change{Revision: rev, Key: lease.ChangedNode, Instance: "me"})
	case "shown":
		c.Shown(now, rev)
	case "hint":
		c.Hint(now, *need)
	case "tick":
		if c.GiveUp(now, *need) {
			out = ", opens its watch again"
		}
	default:
		t.Fatalf("what is %q?", line)
	}
	c.CatchUp(now, *need)
	due := fmt.Sprintf("lists at %d", c.Due(*need)/1e9)
	if c.Due(*need) == never {
		due = "lists never"
	}
	return fmt.Sprintf("%s, %d nodes, %s%s", states[c.in(*need)], len(c.Nodes()), due, out)
}

// TestStates goes through the transitions of the package comment. Nothing is random: lists
// are 10 s apart, or 100 s where they are kept.
func TestStates(t *testing.T) {
	for name, lines := range map[string]string{
		"without a watch": `
			0 hint: unknown, 0 nodes, lists at 0
			0 ask: unknown, 0 nodes, lists at 10
			1 list 5: fresh, 2 nodes, lists at 10
			1 acquire: fresh, 2 nodes, lists at 10
			2 hint: fresh, 2 nodes, lists at 2
			2 ask: fresh, 2 nodes, lists at 12
			2 list 6: fresh, 2 nodes, lists at 12
			3 lose: old, 2 nodes, lists at 3`,
		"kept": `
			0 opened 1: unknown, 0 nodes, lists at 0
			0 ask: unknown, 0 nodes, lists at 10
			0 list 5: fresh, 2 nodes, lists at 10
			1 acquire: kept, 2 nodes, lists at 110
			2 joined 7: kept, 3 nodes, lists at 110
			3 taken 8: kept, 3 nodes, lists at 110
			4 lose: old, 3 nodes, lists at 4`,
		"changes before there was a sid": `
			0 opened 1: unknown, 0 nodes, lists at 0
			0 ask: unknown, 0 nodes, lists at 10
			0 list 5: fresh, 2 nodes, lists at 10
			1 joined 7: fresh, 2 nodes, lists at 10
			2 acquire: kept, 3 nodes, lists at 110`,
		"changes beside a list": `
			0 opened 1: unknown, 0 nodes, lists at 0
			0 ask: unknown, 0 nodes, lists at 10
			0 list 5: fresh, 2 nodes, lists at 10
			1 acquire: kept, 2 nodes, lists at 110
			2 ask: kept, 2 nodes, lists at 112
			2 joined 7: kept, 3 nodes, lists at 112
			3 list 6: kept, 3 nodes, lists at 112`,
		"a list that never comes": `
			0 opened 1: unknown, 0 nodes, lists at 0
			0 ask: unknown, 0 nodes, lists at 10
			0 list 5: fresh, 2 nodes, lists at 10
			1 acquire: kept, 2 nodes, lists at 110
			2 ask: kept, 2 nodes, lists at 112
			2 joined 7: kept, 3 nodes, lists at 112
			3 fails: kept, 3 nodes, lists at 4
			4 ask: kept, 3 nodes, lists at 114
			4 fails: kept, 3 nodes, lists at 6`,
		"a list fails before there was a sid": `
			0 opened 1: unknown, 0 nodes, lists at 0
			0 ask: unknown, 0 nodes, lists at 10
			0 list 5: fresh, 2 nodes, lists at 10
			1 joined 7: fresh, 2 nodes, lists at 10
			2 ask: fresh, 2 nodes, lists at 12
			2 fails: fresh, 2 nodes, lists at 3
			2 acquire: fresh, 2 nodes, lists at 3`,
		"the list is older than the watch": `
			0 opened 7: unknown, 0 nodes, lists at 0
			0 ask: unknown, 0 nodes, lists at 10
			0 list 5: fresh, 2 nodes, lists at 10
			1 acquire: fresh, 2 nodes, lists at 1`,
		"the watch is opened again": `
			0 opened 1: unknown, 0 nodes, lists at 0
			0 ask: unknown, 0 nodes, lists at 10
			0 list 5: fresh, 2 nodes, lists at 10
			1 acquire: kept, 2 nodes, lists at 110
			50 opened 9: fresh, 2 nodes, lists at 50
			50 ask: fresh, 2 nodes, lists at 60
			51 opened 9: fresh, 2 nodes, lists at 51
			51 list 9: fresh, 2 nodes, lists at 51`,
		"the watch stays behind": `
			0 opened 1: unknown, 0 nodes, lists at 0
			0 ask: unknown, 0 nodes, lists at 10
			0 list 5: fresh, 2 nodes, lists at 10
			1 acquire: kept, 2 nodes, lists at 110
			2 shown 6: kept, 2 nodes, lists at 110
			5 reached 6: kept, 2 nodes, lists at 110
			20 tick: kept, 2 nodes, lists at 110
			20 shown 7: kept, 2 nodes, lists at 110
			29 tick: kept, 2 nodes, lists at 110
			30 tick: fresh, 2 nodes, lists at 30, opens its watch again
			31 joined 8: fresh, 2 nodes, lists at 30`,
		"what no watch can apply": `
			0 opened 1: unknown, 0 nodes, lists at 0
			0 ask: unknown, 0 nodes, lists at 10
			0 list 5: fresh, 2 nodes, lists at 10
			1 acquire: kept, 2 nodes, lists at 110
			2 expired 7: kept, 2 nodes, lists at 2
			2 ask: kept, 2 nodes, lists at 112
			2 list 7: kept, 2 nodes, lists at 112
			3 edited 8: kept, 2 nodes, lists at 3
			3 ask: kept, 2 nodes, lists at 113
			3 list 8: kept, 2 nodes, lists at 113
			4 unregistered 9: kept, 1 nodes, lists at 4`,
		"lists that fail": `
			0 ask: unknown, 0 nodes, lists at 10
			1 fails: unknown, 0 nodes, lists at 2
			2 ask: unknown, 0 nodes, lists at 12
			2 fails: unknown, 0 nodes, lists at 4
			4 ask: unknown, 0 nodes, lists at 14
			4 fails: unknown, 0 nodes, lists at 8
			8 ask: unknown, 0 nodes, lists at 18
			8 list 5: fresh, 2 nodes, lists at 18
			18 ask: fresh, 2 nodes, lists at 28
			18 fails: fresh, 2 nodes, lists at 19`,
	} {
		t.Run(name, func(t *testing.T) {
			c, need := newCatalog(), Need{}
			for line := range strings.Lines(strings.TrimSpace(lines)) {
				what, want, _ := strings.Cut(strings.TrimSpace(line), ": ")
				if got := play(t, &c, &need, what); got != want {
					t.Errorf("%s: got %q, want %q", what, got, want)
				}
			}
		})
	}
}

// TestHaste: a hint has a list asked for as soon as the process needs it, at a moment that
// is drawn once.
func TestHaste(t *testing.T) {
	for haste, want := range map[Haste]time.Duration{None: 10 * time.Second, Spread: 8 * MaxJitter / 8, Soon: MaxJitter} {
		c := newCatalog()
		c.cfg.Jitter = func(maximum time.Duration) time.Duration { return maximum }
		c.Ask(0, 1)
		c.Loaded(clock.Reading{}, view(5, nil))
		want := clock.Mono(want)
		if haste == None {
			want = want.Add(c.cfg.ReloadEvery / 5)
		}
		for range 2 {
			if c.Hint(0, Need{Haste: haste}); c.Due(Need{}) != want || !c.Changed() {
				t.Errorf("haste %d: listed at %v, want %v", haste, c.Due(Need{}), want)
			}
		}
		c.Hint(clock.Mono(time.Hour), Need{Haste: haste})
		if c.Due(Need{}) != want {
			t.Errorf("haste %d: another hint moved the list to %v", haste, c.Due(Need{}))
		}
	}
}

// TestLoaded: what a list shows of each sid, of clocks and of this process.
func TestLoaded(t *testing.T) {
	window := func(ceil, wall clock.Millis, change func(*lease.Window)) lease.Entry[lease.Window] {
		w := lease.Window{Era: 2, Term: 1, Instance: "b", Node: "b", State: lease.Active, Ceil: start + ceil, Wall: start + wall, Gossip: true}
		if change != nil {
			change(&w)
		}
		return entry(4, w)
	}
	sound := clock.Millis(31_000)
	c := newCatalog()
	c.Distrust(1, lease.PastWithoutWindow)
	c.Distrust(2, lease.PastWithoutWindow)
	c.Ask(0, 7)
	found := c.Loaded(clock.Reading{Wall: start, Mono: 9}, view(5, map[flake.SID]lease.SIDRecords{
		0: {Holder: holder(3, "b"), Window: window(9e9, 10, nil)},                                              // a holder may have any ceiling
		2: {Window: window(sound, 5, func(w *lease.Window) { w.State = lease.Released })},                      // repaired, and sound
		3: {Window: window(sound+1, 300, nil)},                                                                 // of a wrong clock
		4: {Holder: holder(3, "me"), Window: window(0, 0, nil)},                                                // ours
		5: {Window: window(0, 500, func(w *lease.Window) { w.State, w.Reason = lease.Quarantined, "a test" })}, // by an operator
		6: {Window: window(61_000, 0, func(w *lease.Window) { w.Worker, w.State = true, lease.Released })},     // a worker's window is longer
		7: {Holder: holder(3, "w"), Window: window(9e9, 90, func(w *lease.Window) { w.Gossip = false })},       // nobody compares its clock
		8: {Window: window(0, 99, nil)},                                                                        // of another space
	}))
	if got := fmt.Sprint(found); got != "[3 4]" {
		t.Errorf("found %s", got)
	}
	for sid, want := range map[flake.SID]string{
		0: "", 1: lease.PastWithoutWindow, 2: "", 3: "its ceiling is ", 4: "", 5: "an operator quarantined it: a test", 6: "", 7: "", 8: "",
	} {
		if got := c.Bad(sid); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("sid %d: %q, want %q", sid, got, want)
		}
	}
	if e := c.Evidence(); e.HolderWall != start+10 || e.WithoutGossip != start+90 || e.LatestWall != start+10 || e.At.Mono != 9 {
		t.Errorf("%+v", e)
	}
	if asked, missing := c.Lease(); asked != 7 || missing {
		t.Errorf("lease %d, missing %v", asked, missing)
	}
	if _, ok := c.SIDs()[8]; ok {
		t.Error("sid 8 is not of this space")
	}
	s := c.Summary(lease.SIDRange{To: 6})
	if s.Pool != (lease.Pool{Size: 6, Held: 2, Quarantined: 3}) || s.Workers.Held != 1 || s.Workers.Quarantined != 0 || len(s.Holders) != 3 || len(s.Quarantined) != 3 {
		t.Errorf("%+v", s)
	}
	if fmt.Sprint(s.Lapsed) != "[]" || s.Ceiling != start+9e9 {
		t.Errorf("%+v", s)
	}
	c.Put(0, lease.SIDRecords{Window: window(0, 0, func(w *lease.Window) { w.State = lease.Reserved })})
	if s := c.Summary(lease.SIDRange{To: 6}); s.Pool != (lease.Pool{Size: 6, Held: 1, Quarantined: 3, Reserved: 1}) || s.Pool.Free() != 1 {
		t.Errorf("with a reserved sid: %+v", s.Pool)
	}
	c.Put(1, lease.SIDRecords{Window: window(0, 7, nil)})
	c.Summary(lease.SIDRange{To: 6})
	c.TrustAll()
	if s := c.Summary(lease.SIDRange{To: 6}); s.Pool.Quarantined != 0 || len(s.Lapsed) != 2 || s.Lapsed[0].Wall != start+7 {
		t.Errorf("with sid 1 lapsed, and all trusted: %+v", s)
	}
}

// TestFloorShowsTime: the floor of the era is evidence of the time, also where there is no record yet.
func TestFloorShowsTime(t *testing.T) {
	for _, floor := range []clock.Millis{0, start} {
		c, v := newCatalog(), view(5, nil)
		v.Era.Value.Floor = floor
		c.Loaded(clock.Reading{Wall: start - 9}, v)
		if got := c.Evidence().LatestWall; got != floor {
			t.Errorf("floor %d: %d", floor, got)
		}
	}
}

// TestDeadHolders: a holder is dead once its records have been listed unchanged for a window, and the time in which
// calls were not answered does not count: it could not write either. After another node has ended a hold the records
// stay until a list, which says who counts.
func TestDeadHolders(t *testing.T) {
	w := lease.Window{Era: 2, Term: 1, Instance: "b", Node: "b", State: lease.Active, Ceil: start - 3_600_000, Wall: start - 3_630_000}
	sids := map[flake.SID]lease.SIDRecords{5: {Holder: holder(3, "b"), Window: entry(4, w)}}
	for name, tc := range map[string]struct {
		fails  int64 // s; 0: no call does
		second int64
		change func(c *Catalog, s *lease.SIDRecords) // before the last list
		dead   bool
	}{
		"too early":              {0, 29, nil, false},
		"a window":               {0, 31, nil, true},
		"an outage":              {3, 40, nil, false},
		"a window after one":     {3, 71, nil, true},
		"half of one after it":   {3, 55, nil, false},
		"a short one, long over": {1, 33, nil, false},
		"another key":            {0, 31, func(_ *Catalog, s *lease.SIDRecords) { s.Holder = holder(6, "b") }, false},
		"read beside lists":      {0, 31, func(c *Catalog, s *lease.SIDRecords) { c.Put(5, *s) }, false},
		"of this process":        {0, 31, func(c *Catalog, _ *lease.SIDRecords) { c.cfg.Registration.Instance = "b" }, false},
	} {
		c, sids := newCatalog(), sids
		list := func(second int64) bool {
			now := clock.Reading{Mono: clock.Mono(second * 1e9), Wall: start}
			c.Ask(now.Mono, 1)
			c.Answered(now.Mono, nil, true)
			c.Loaded(now, view(5, sids))
			_, dead := c.Dead(now)
			return dead
		}
		list(0)
		if tc.fails > 0 {
			c.Answered(clock.Mono(tc.fails*1e9), errors.New("timed out"), true)
			list(min(tc.second, 40))
		}
		if tc.change != nil {
			s := sids[5]
			tc.change(&c, &s)
			sids = map[flake.SID]lease.SIDRecords{5: s}
		}
		if got := list(tc.second); got != tc.dead {
			t.Errorf("%s: dead %v", name, got)
		}
	}

	w.Era = 3
	c, need := newCatalog(), Need{}
	for _, second := range []int64{0, 31} {
		now := clock.Reading{Mono: clock.Mono(second * 1e9), Wall: start}
		c.Loaded(now, view(5, map[flake.SID]lease.SIDRecords{5: {Holder: holder(3, "b"), Window: entry(4, w)}}))
		if _, dead := c.Dead(now); dead {
			t.Error("the holder of a sid that is distrusted is dead")
		}
	}
	c = newCatalog()
	c.Watched(0, lease.Watched{Opened: true, Revision: 1}, need)
	c.Ask(0, 1)
	c.Answered(0, nil, false)
	c.Loaded(clock.Reading{Wall: start}, view(5, sids))
	need.Keep, need.SID, need.Haste = true, 3, Spread
	c.Acquired(1e9, need)
	c.Watched(2e9, lease.Watched{Revision: 7, Changes: []lease.Change{
		{Revision: 7, Key: lease.ChangedHolder, SID: 5}, {Revision: 7, Key: lease.ChangedOther},
	}}, need)
	c.CatchUp(2e9, need)
	if c.Due(need) != 2e9 || !c.SIDs()[5].Window.Exists() {
		t.Errorf("lists at %d, with %+v", c.Due(need)/1e9, c.SIDs()[5])
	}
}
