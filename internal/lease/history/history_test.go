package history

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

var space = lease.Space{Layout: flake.Scalable, Epoch: 1, Pool: "p"}

// view is what a sound store shows at a revision, in era 2 on cluster 7, with changes.
func view(revision int64, changes ...func(v *lease.View)) lease.View {
	v := lease.View{
		Cluster: 7, Revision: revision,
		Config: lease.Entry[lease.Space]{Rev: 1, Value: space},
		Era:    lease.Entry[lease.Era]{Rev: 2, Value: lease.Era{Number: 2, Floor: 100, Cluster: 7}},
	}
	for _, change := range changes {
		change(&v)
	}
	return v
}

func era(number int64) func(*lease.View)  { return func(v *lease.View) { v.Era.Value.Number = number } }
func cluster(id uint64) func(*lease.View) { return func(v *lease.View) { v.Cluster = id } }
func began(on uint64) func(*lease.View)   { return func(v *lease.View) { v.Era.Value.Cluster = on } }
func noConfig(v *lease.View)              { v.Config = lease.Entry[lease.Space]{} }
func noEra(v *lease.View)                 { v.Era = lease.Entry[lease.Era]{} }
func badConfig(v *lease.View)             { v.Config = lease.Entry[lease.Space]{Rev: 9, Err: lease.ErrChecksum} }
func badEra(v *lease.View)                { v.Era = lease.Entry[lease.Era]{Rev: 9, Err: lease.ErrChecksum} }
func floor(v *lease.View)                 { v.Era.Value.Floor++ }
func pool(v *lease.View)                  { v.Config.Value.Pool = "q" }
func layout(v *lease.View)                { v.Config.Value.Layout = flake.Fleet }
func part(v *lease.View)                  { v.Config.Value.Part = lease.SIDRange{To: 4} }

func show(f Finding) string {
	switch f := f.(type) {
	case Sound:
		switch {
		case f.First:
			return "sound, the first"
		case f.NewEra:
			return "sound, of a new era"
		}
		return "sound"
	case Loss:
		return fmt.Sprintf("lost until after era %d: %s", f.LastEra, strings.TrimPrefix(f.Why, "etcd's history cannot be trusted: "))
	case Unready:
		return "unready: " + f.Why
	case Unusable:
		return "unusable: " + f.Err.Error()
	}
	return fmt.Sprintf("%T", f)
}

// TestCheck: what a view shows to a history that knows nothing, and to one that has read
// revision 20 of era 2 on cluster 7.
func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name           string
		view           lease.View
		unknown, known string // how the findings begin
	}{
		{"the same revision", view(20), "sound, the first", "sound"},
		{"a later revision", view(21), "sound, the first", "sound"},
		{"a later era", view(20, era(3)), "sound, the first", "sound, of a new era"},
		{"an earlier revision", view(19), "sound, the first", "lost until after era 2: etcd's revision went back from 20 to 19"},
		{"an earlier revision and era", view(19, era(1)), "sound, the first", "lost until after era 1: etcd's revision went back"},
		{"an earlier revision of a later era", view(19, era(3)), "sound, the first", "lost until after era 2: etcd's revision"},
		{"an earlier revision, era damaged", view(19, badEra), "unready: the space's era is unreadable", "lost until after era 2: etcd's revision"},
		{"another cluster", view(20, cluster(8), began(8)), "sound, the first", "lost until after era 2: etcd's cluster changed from 7 to 8"},
		{"an era of another cluster", view(20, began(8)), "lost until after era 2: etcd's cluster is 7, but era 2 began on 8", "lost until after era 2: era 2 was rewritten"},
		{"a later era of another cluster", view(20, era(3), began(8)), "lost until after era 3: etcd's cluster is 7", "lost until after era 3: etcd's cluster is 7"},
		{"an earlier era", view(20, era(1)), "sound, the first", "lost until after era 1: the era went back from 2 to 1"},
		{"an era that was rewritten", view(20, floor), "sound, the first", "lost until after era 2: era 2 was rewritten"},
		{"no config", view(20, noConfig), "unready: the space is not initialized", "lost until after era 2: the space's config is gone"},
		{"no era", view(20, noEra), "unready: the space has a config but no era", "lost until after era 2: the space's era is gone"},
		{"a damaged config", view(20, badConfig), "unready: the space's config is unreadable", "unready: the space's config is unreadable"},
		{"a damaged era", view(20, badEra), "unready: the space's era is unreadable", "unready: the space's era is unreadable"},
		{"another pool", view(20, pool), "sound, the first", "lost until after era 2: the space is another one: pool q, was p"},
		{"another layout", view(20, layout), "unusable: the space has layout fleet", "unusable: the space has layout fleet"},
		{"another part", view(20, part), "sound, the first", "lost until after era 2: the space's config was rewritten: its sids are 0-3, were 0-31"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			unknown, known := New(space.Format()), New(space.Format())
			known.Check(view(20))
			told := Of(lease.Status{Space: space, Era: known.Era().Value, Cluster: 7, Revision: 20})
			for _, h := range []struct {
				*History
				want string
			}{{&unknown, tc.unknown}, {&known, tc.known}, {&told, tc.known}} {
				before := *h.History
				found := h.Check(tc.view)
				if got := show(found); !strings.HasPrefix(got, h.want) || h.want == "sound" && got != h.want {
					t.Errorf("known %v: found %q, want %q", before.known, got, h.want)
				}
				switch found.(type) {
				case Sound:
					if !h.Known() || !h.Read(9, tc.view) || h.Config() != tc.view.Config || h.Era() != tc.view.Era {
						t.Errorf("a sound view was not added: %+v", h.History)
					}
				case Unready, Unusable:
					if h.Known() != before.known || h.Config() != before.config || h.Era() != before.era || !h.Read(9, tc.view) {
						t.Errorf("more than revision and cluster were added: %+v", h.History)
					}
				}
			}
		})
	}
}

// TestLoss: a loss is over with a later era of the same space, and then nothing of the
// history before counts.
func TestLoss(t *testing.T) {
	h := New(space.Format())
	h.Check(view(20))
	h.Reported(lease.ReportedRevision{Era: 2, Revision: 30})
	h.Listing()
	h.Read(7, view(20))
	loss, ok := h.Check(view(19)).(Loss)
	if !ok || h.Read(8, view(19)) || h.ReadAt() != 7 {
		t.Fatalf("lost: %v, and revision 20 was read at %d", ok, h.ReadAt())
	}
	for _, v := range []lease.View{view(25), view(25, era(1)), view(25, badEra), view(25, noEra)} {
		if loss.Over(v) {
			t.Errorf("over with %+v", v.Era)
		}
	}
	restored := view(5, era(3), cluster(9), began(9))
	if !loss.Over(restored) {
		t.Error("not over with a new era")
	}
	if err := h.Resume(view(5, era(3), pool)); !errors.Is(err, lease.ErrOtherPool) || !h.Known() {
		t.Errorf("%v, known %v: the space was created again", err, h.Known())
	}
	if err := h.Resume(restored); err != nil || h.Known() || h.Revision() != 0 || h.Cluster() != 0 {
		t.Errorf("%v: %+v", err, h)
	}
	if got := show(h.Check(restored)); got != "sound, the first" {
		t.Error(got)
	}
	if l, ok := h.Listed(restored); ok {
		t.Errorf("what was reported of the lost history counts: %+v", l)
	}
}

// TestReported: a report counts against a list that was asked for after it.
func TestReported(t *testing.T) {
	h := New(space.Format())
	h.Check(view(20))
	r := func(era, revision int64) lease.ReportedRevision {
		return lease.ReportedRevision{Era: era, Revision: revision}
	}
	h.Listing()
	if !h.Reported(r(2, 25)) || h.Reported(r(2, 24)) || h.Reported(r(2, 25)) || h.Reported(r(1, 90)) {
		t.Error("only a later report is news")
	}
	if l, ok := h.Listed(view(21)); ok {
		t.Errorf("the list was asked for before the report: %+v", l)
	}
	h.Listing()
	if l, ok := h.Listed(view(25)); ok {
		t.Errorf("the list reaches the report: %+v", l)
	}
	if l, ok := h.Listed(view(24)); !ok || l.LastEra != 2 || !strings.Contains(l.Why, "peers reported era 2 at revision 25") {
		t.Errorf("%+v", l)
	}
	h.Reported(r(4, 3))
	h.Listing()
	if l, ok := h.Listed(view(99)); !ok || l.LastEra != 4 {
		t.Errorf("peers have read era 4: %+v", l)
	}
}
