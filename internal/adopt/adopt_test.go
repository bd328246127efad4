package adopt

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func format(t *testing.T, s string) flake.Format {
	t.Helper()
	f, err := flake.ParseFormat(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// sample returns IDs of three sids, over ten days until a second before now.
func sample(t *testing.T, layout string, sids ...flake.SID) (out []string) {
	t.Helper()
	f := format(t, layout)
	for i := range 2000 {
		at := now.Add(-time.Second - time.Duration(2000-i)*432*time.Second)
		for _, sid := range sids {
			id, err := f.Make(at.UnixMilli(), uint32(i%5), sid)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprint(int64(id)))
		}
	}
	return out
}

func report(t *testing.T, cfg Config, lines ...string) (*Report, error) {
	t.Helper()
	cfg.Now = clock.Millis(now.UnixMilli())
	s := New(cfg)
	if err := s.Read(strings.NewReader(strings.Join(lines, "\n"))); err != nil {
		t.Fatal(err)
	}
	return s.Finish()
}

// The layout of a table in use is found without being named, whichever it is.
func TestFindsTheLayout(t *testing.T) {
	for _, name := range []string{"scalable", "twitter", "discord", "instagram", "sonyflake", "js53"} {
		t.Run(name, func(t *testing.T) {
			ids := sample(t, name, 1, 2, 9)
			first := ids[0]
			ids = slices.Concat(ids[3000:], ids[:3000]) // in no order
			r, err := report(t, Config{}, ids...)
			if err != nil || r.Plan == nil {
				t.Fatalf("%v, %+v", err, r)
			}
			greatest := slices.MaxFunc(ids, func(a, b string) int { return strings.Compare(fmt.Sprintf("%20s", a), fmt.Sprintf("%20s", b)) })
			p := r.Plan
			if p.Layout != name || p.Above != greatest || p.Stale || p.Last != "" || !r.Clean || r.IDs != 6000 || r.Duplicates != 0 {
				t.Errorf("%+v, clean %v; the greatest is %s", p, r.Clean, greatest)
			}
			if p.SIDsSeen != 3 || p.Lowest != 1 || p.Highest != 9 || p.SIDs[0].IDs != 2000 || !strings.HasPrefix(p.NodeSIDs, "10-") {
				t.Errorf("sids: %+v", p)
			}
			if n, err := strconv.ParseInt(first, 10, 64); err != nil || p.From != format(t, name).Time(flake.ID(n)).Format("2006-01-02T15:04:05.000Z") || r.Disorder == 0 {
				t.Errorf("from %s, %v; disorder %d", p.From, err, r.Disorder)
			}
			if want := now.Add(-time.Second).UTC().Format("2006-01-02T15:04"); !strings.HasPrefix(p.To, want[:len(want)-3]) {
				t.Errorf("to %s", p.To)
			}
			if !strings.HasSuffix(p.Init, " --layout "+name+" --above "+greatest+" --fresh --reserve 0-9") || !strings.HasSuffix(p.Serve, " --layout "+name) {
				t.Errorf("%s\n%s", p.Init, p.Serve)
			}
			for _, v := range r.Layouts {
				if v.Layout == "standalone" || v.Fits == (v.Why != "") || v.Fits && v.To == "" {
					t.Errorf("%+v", v)
				}
				if same := slices.Contains(v.Same, "leaf"); same != (v.Layout == "twitter") {
					t.Errorf("%s cannot be told from %v", v.Layout, v.Same)
				}
			}
		})
	}
}

// A layout that no built-in one is like has to be named; one that does not fit is refused
// though it is named, and others that do are listed.
func TestNamedLayout(t *testing.T) {
	const custom = "baidu,epoch=2026-01-01T00:00:00Z"
	r, err := report(t, Config{Format: format(t, custom)}, sample(t, custom, 70_000, 3)...)
	if err != nil || r.Plan == nil || r.Plan.Layout != custom || r.Plan.SIDsSeen != 2 || r.Plan.NodeSIDs != "70001-71024" || !strings.HasSuffix(r.Plan.Init, " --fresh --sids 70001-71024") {
		t.Errorf("%v, %+v", err, r.Plan)
	}
	r, err = report(t, Config{Format: format(t, "js53")}, sample(t, "twitter", 1)...)
	if err != nil || r.Plan != nil || r.Clean || r.Layouts[0].Layout != "js53" || r.Layouts[0].Why != "100 % of the IDs have more than its 53 bits" || r.Layouts[1].Layout != "twitter" || !r.Layouts[1].Fits {
		t.Errorf("%v, %+v", err, r.Layouts)
	}
	// leaf and twitter are one to an ID: the named one is planned for.
	r, err = report(t, Config{Format: format(t, "leaf")}, sample(t, "twitter", 1)...)
	if err != nil || r.Plan == nil || r.Plan.Layout != "leaf" || !slices.Equal(r.Layouts[0].Same, []string{"twitter"}) {
		t.Errorf("%v, %+v", err, r.Layouts)
	}
}

// What no layout is like is said to be so, with a reason for each.
func TestFitsNone(t *testing.T) {
	var counters, future, random []string
	f := format(t, "twitter")
	for i := range 100 {
		counters = append(counters, fmt.Sprint(1000+i))
		id, err := f.Make(now.AddDate(30, 0, 0).UnixMilli(), uint32(i), 1)
		if err != nil {
			t.Fatal(err)
		}
		future = append(future, fmt.Sprint(int64(id)))
		random = append(random, fmt.Sprint((uint64(i+1)*0x9e3779b97f4a7c15)>>1))
	}
	for name, c := range map[string]struct {
		ids  []string
		why  string
		sids lease.SIDRange
	}{
		"counters":   {ids: counters, why: "counters, not times"},
		"future":     {ids: future, why: "in the future, up to 2056-11-22T12:00:00"},
		"random":     {ids: random, why: "in the future"},
		"other sids": {ids: sample(t, "twitter", 500), sids: lease.SIDRange{To: 4}, why: "outside 0-3"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := report(t, Config{SIDs: c.sids}, c.ids...)
			if err != nil || r.Plan != nil || r.Clean {
				t.Fatalf("%v, %+v", err, r.Plan)
			}
			found := false
			for _, v := range r.Layouts {
				found = found || strings.Contains(v.Why, c.why)
				if v.Layout == "baidu" && !strings.Contains(v.Why, "ended at 2024-11-") {
					t.Errorf("baidu: %s", v.Why)
				}
			}
			if !found {
				t.Errorf("%+v", r.Layouts)
			}
		})
	}
}

// Odd rows of a table do not hide its layout; they are counted, and none is what the
// space begins above.
func TestSuspicious(t *testing.T) {
	ids := sample(t, "twitter", 1, 2)
	f := format(t, "twitter")
	last := ids[len(ids)-1]
	future, err := f.Make(now.AddDate(0, 0, 3).UnixMilli(), 0, 7)
	if err != nil {
		t.Fatal(err)
	}
	ahead, err := f.Make(now.Add(30*time.Second).UnixMilli(), 0, 2) // clocks differ
	if err != nil {
		t.Fatal(err)
	}
	lines := append([]string{"\ufeffid,created_at"}, ids...)
	lines = append(lines, `"`+last+`",2026-11-22`, "NULL", "-4", "0", "9223372036854775808", "", ",x",
		fmt.Sprintf("%d;x", int64(future)), fmt.Sprint(int64(ahead)))
	r, err := report(t, Config{SIDs: lease.SIDRange{To: 2}}, lines...)
	if err != nil || r.Plan != nil {
		t.Fatalf("half of them have sid 2: %v, %+v", err, r.Plan)
	}
	r, err = report(t, Config{}, lines...)
	if err != nil || r.Plan == nil {
		t.Fatalf("%v, %+v", err, r)
	}
	p := r.Plan
	if r.Clean || r.Duplicates != 1 || len(r.ShownDuplicates) != 1 || r.ShownDuplicates[0].ID != last || r.ShownDuplicates[0].And != fmt.Sprint(len(ids)+2) {
		t.Errorf("duplicates: %+v", r)
	}
	if r.Invalid != 4 || r.ShownInvalid[0].Error.Message != `"NULL": not a decimal ID, 1 to 2^63−1` || r.Disorder != 1 {
		t.Errorf("invalid: %d, %+v; disorder %d", r.Invalid, r.ShownInvalid, r.Disorder)
	}
	if p.Future != 1 || p.Last != fmt.Sprint(int64(future)) || p.LastAt != "2026-11-25T12:00:00.000Z" || p.Above != fmt.Sprint(int64(ahead)) {
		t.Errorf("future: %+v", p)
	}
	// Sids that are said to be the old generators' are not given to nodes, seen or not.
	r, err = report(t, Config{SIDs: lease.SIDRange{To: 1000}}, append(ids, sample(t, "twitter", 1010)[:10]...)...)
	if err != nil || r.Plan == nil || r.Plan.Outside != 10 || r.Plan.NodeSIDs != "1011-1023" || r.Clean {
		t.Errorf("%v, %+v", err, r.Plan)
	}
}

// A generator whose clock is fast has its sid, though all its IDs are of the future: nodes
// that had it too would meet these IDs one for one.
func TestFastGenerator(t *testing.T) {
	ids := sample(t, "twitter", 1, 2, 3)
	f := format(t, "twitter")
	for i := range 300 {
		id, err := f.Make(now.Add(4*time.Minute+time.Duration(i)*time.Second).UnixMilli(), 0, 500)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, fmt.Sprint(int64(id)))
	}
	r, err := report(t, Config{}, ids...)
	if err != nil || r.Plan == nil {
		t.Fatalf("%v, %+v", err, r)
	}
	p := r.Plan
	if p.NodeSIDs != "501-1023" || p.SIDsSeen != 4 || p.Highest != 500 || !slices.Equal(p.Fast, []int{500}) || p.Future != 300 || p.Outside != 0 {
		t.Errorf("%+v", p)
	}
	// Nobody said that there is a sid 500.
	r, err = report(t, Config{SIDs: lease.SIDRange{To: 4}}, ids...)
	if err != nil || r.Plan == nil || r.Plan.Outside != 300 || r.Plan.NodeSIDs != "501-1023" {
		t.Errorf("%v, %+v", err, r.Plan)
	}
}

// A sample of a layout that is neither built in nor named, or that is old, may fit some
// others: its newest ID is then not of today, and which it is has to be said.
func TestStale(t *testing.T) {
	r, err := report(t, Config{}, sample(t, "baidu,epoch=2026-11-01T00:00:00Z", 3)...)
	if err != nil || r.Plan != nil || r.Clean {
		t.Errorf("%v, %+v", err, r)
	}
	r, err = report(t, Config{}, "1541815603606036480") // a published one, of June 2022
	if err != nil || r.Plan != nil || r.Clean {
		t.Fatalf("%v, %+v", err, r)
	}
	fits := map[string]string{}
	for _, v := range r.Layouts {
		if v.Fits {
			fits[v.Layout] = v.To
		}
	}
	if fits["scalable"] != fits["fleet"] { // they have the same times, and other sids
		t.Errorf("%v", fits)
	}
	if r, err = report(t, Config{Format: format(t, "twitter")}, "1541815603606036480"); err != nil || r.Plan == nil || !r.Plan.Stale || !r.Clean {
		t.Errorf("named: %v, %+v", err, r)
	}
	if fits["twitter"] != "2022-06-28T16:07:40.105Z" || len(fits) < 2 {
		t.Errorf("%v", fits)
	}
}

func TestNoIDs(t *testing.T) {
	for in, want := range map[string]error{"": ErrEmpty, "\n \n": ErrEmpty, "id\n": ErrNoIDs, "id\nabc\n": ErrNoIDs, "-3": ErrNoIDs, strings.Repeat("9", 5000): ErrNoIDs} {
		if _, err := report(t, Config{}, in); !errors.Is(err, want) || len(err.Error()) > 200 {
			t.Errorf("%.20q: %v", in, err)
		}
	}
}

// Decimal is read as strconv does, within an ID's bits.
func TestParse(t *testing.T) {
	texts := []string{"0", "1", "9223372036854775799", "9223372036854775800", "9223372036854775807", "9223372036854775808", "18446744073709551616",
		"92233720368547758070", "00012", "+1", "-1", "1_0", "1e3", "", "१", "12a"}
	for i := range 2000 {
		texts = append(texts, fmt.Sprint(uint64(i+1)*0x9e3779b97f4a7c15>>(i%64)))
	}
	for _, text := range texts {
		want, err := strconv.ParseUint(text, 10, 63)
		got, gotErr := parse([]byte(text))
		if bad := err != nil || want == 0; bad != (gotErr != nil) || !bad && got != flake.ID(want) {
			t.Errorf("%q: %d, %v; want %d, %v", text, got, gotErr, want, err)
		}
	}
}

// One in ten may be odd, and no more.
func TestTolerance(t *testing.T) {
	f := format(t, "discord")
	future, err := f.Make(now.AddDate(0, 0, 3).UnixMilli(), 0, 7)
	if err != nil {
		t.Fatal(err)
	}
	ids := append(sample(t, "discord", 1)[:9], fmt.Sprint(int64(future)))
	cfg := Config{Format: f}
	if r, err := report(t, cfg, ids...); err != nil || r.Plan == nil || r.Plan.Future != 1 {
		t.Errorf("one of ten: %v, %+v", err, r)
	}
	if r, err := report(t, cfg, ids[1:]...); err != nil || r.Plan != nil {
		t.Errorf("one of nine: %v, %+v", err, r)
	}
}

// Reading ends with the error of Progress, and of the reader.
func TestReadEnds(t *testing.T) {
	stop := errors.New("stop")
	var seen int64
	s := New(Config{Now: clock.Millis(now.UnixMilli()), Progress: func(ids int64) error { seen = ids; return stop }})
	if err := s.Read(strings.NewReader(strings.Repeat("1541815603606036480\n", 1<<15))); !errors.Is(err, stop) || seen != 1<<14-1 {
		t.Errorf("%v after %d IDs", err, seen)
	}
	if err := New(Config{}).Read(iotest.ErrReader(stop)); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// Every sid in use leaves none to nodes.
func TestWidest(t *testing.T) {
	used := map[flake.SID]bool{}
	for sid := range flake.SID(8) {
		used[sid] = true
	}
	if r, ok := widest(used, 8); ok {
		t.Errorf("%v is free", r)
	}
	delete(used, 2)
	delete(used, 5)
	delete(used, 6)
	if r, ok := widest(used, 8); !ok || r.String() != "5-6" {
		t.Errorf("%v, %v", r, ok)
	}
	if r, _ := widest(nil, 1<<16); r.String() != "0-1023" {
		t.Errorf("%v", r)
	}
}

// TestReserve: the space keeps the sids of the old generators, those that are said and those that
// are seen, and nodes have the longest run of the others, the lowest of equal ones.
func TestReserve(t *testing.T) {
	for _, c := range []struct {
		said  lease.SIDRange
		seen  []flake.SID
		nodes string
		init  string
	}{
		{lease.SIDRange{To: 8}, []flake.SID{1, 2}, "8-1023", " --fresh --reserve 0-7"},
		{lease.SIDRange{}, []flake.SID{1, 2}, "3-1023", " --fresh --reserve 0-2"},
		{lease.SIDRange{}, []flake.SID{3, 1000}, "4-999", " --fresh --reserve 0-3,1000-1023"},
		{lease.SIDRange{From: 341, To: 683}, []flake.SID{341, 682}, "0-340", " --fresh --reserve 341-1023"},
		{lease.SIDRange{}, []flake.SID{1023}, "0-1022", " --fresh --reserve 1023"},
	} {
		r, err := report(t, Config{SIDs: c.said}, sample(t, "twitter", c.seen...)...)
		if err != nil || r.Plan == nil || r.Plan.NodeSIDs != c.nodes || !strings.HasSuffix(r.Plan.Init, c.init) {
			t.Errorf("%v and %v: %v, %+v", c.said, c.seen, err, r.Plan)
		}
	}
}

// TestMostIDsFirst: the sids with most IDs are shown.
func TestMostIDsFirst(t *testing.T) {
	ids := append(sample(t, "twitter", 5, 6), sample(t, "twitter", 7)[:10]...)
	r, err := report(t, Config{}, slices.Concat(ids, ids[:1])...)
	if err != nil || r.Plan == nil {
		t.Fatal(err, r)
	}
	if got := fmt.Sprint(r.Plan.SIDs); got != "[{5 2001} {6 2000} {7 10}]" && got != "[{6 2001} {5 2000} {7 10}]" {
		t.Errorf("%s", got)
	}
}
