package adopt

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/audit"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func format(t *testing.T, s string) flake.Format {
	t.Helper()
	f, err := flake.ParseFormat(s)
	fatal.If(t, err)
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
			fatal.If(t, err)
			out = append(out, fmt.Sprint(int64(id)))
		}
	}
	return out
}

func report(t *testing.T, cfg Config, lines ...string) (*Report, error) {
	t.Helper()
	cfg.Now = clock.Millis(now.UnixMilli())
	s := New(cfg)
	fatal.If(t, s.Read(strings.NewReader(strings.Join(lines, "\n"))))
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
		fatal.If(t, err)
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
	fatal.If(t, err)
	ahead, err := f.Make(now.Add(30*time.Second).UnixMilli(), 0, 2) // clocks differ
	fatal.If(t, err)
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
		fatal.If(t, err)
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
	fatal.If(t, err)
	ids := append(sample(t, "discord", 1)[:9], fmt.Sprint(int64(future)))
	cfg := Config{Format: f}
	if r, err := report(t, cfg, ids...); err != nil || r.Plan == nil || r.Plan.Future != 1 {
		t.Errorf("one of ten: %v, %+v", err, r)
	}
	if r, err := report(t, cfg, ids[1:]...); err != nil || r.Plan != nil {
		t.Errorf("one of nine: %v, %+v", err, r)
	}
}

// Reading ends with the error of the reader.
func TestReadEnds(t *testing.T) {
	stop := errors.New("stop")
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
	var ids []string
	for sid := range flake.SID(12) {
		ids = append(ids, sample(t, "twitter", sid)[:100+50*sid]...)
	}
	r, err := report(t, Config{Format: format(t, "twitter")}, ids...)
	if err != nil || r.Plan == nil {
		t.Fatal(err, r)
	}
	want := "[{11 650} {10 600} {9 550} {8 500} {7 450} {6 400} {5 350} {4 300} {3 250} {2 200}]"
	if got := fmt.Sprint(r.Plan.SIDs); got != want || r.Plan.SIDsSeen != 12 {
		t.Errorf("%s of %d", got, r.Plan.SIDsSeen)
	}
}

// TestFirstLines: a first line that is no number is a header, and nothing else is.
func TestFirstLines(t *testing.T) {
	ids := sample(t, "twitter", 1)
	for line, invalid := range map[string]int64{
		"id": 0, "\"id\"": 0, "/": 0, ":": 0, "\"": 0, "0": 1, "0x1": 1, "9a": 1, "5x": 1, "-5": 1,
		"9999999999999999999999": 1,
	} {
		r, err := report(t, Config{}, append([]string{line}, ids...)...)
		if err != nil || r.Invalid != invalid || r.IDs != int64(len(ids)) {
			t.Errorf("%q: %v, %d invalid, %d IDs", line, err, r.Invalid, r.IDs)
		}
	}
}

// TestShown: ten of what is wrong are shown, and all are counted.
func TestShown(t *testing.T) {
	ids := sample(t, "twitter", 1)
	for _, n := range []int{9, 10, 11, 500} {
		lines := slices.Concat(ids, ids[:n], slices.Repeat([]string{"wrong"}, n))
		r, err := report(t, Config{}, lines...)
		if err != nil || r.Invalid != int64(n) || r.Duplicates != uint64(n) || len(r.ShownInvalid) != min(n, 10) ||
			len(r.ShownDuplicates) != min(n, 10) {
			t.Errorf("%d: %v, %d and %d, shown %d and %d", n, err, r.Invalid, r.Duplicates, len(r.ShownInvalid),
				len(r.ShownDuplicates))
		}
	}
}

// TestLimitsOfTime: an ID a minute ahead of the clock is of the past, the largest of the layout is of
// the future, and one of the first hour after the epoch is a counter.
func TestLimitsOfTime(t *testing.T) {
	f := format(t, "twitter")
	at := func(ms int64, sequence uint32, sid flake.SID) flake.ID {
		id, err := f.Make(ms, sequence, sid)
		fatal.If(t, err)
		return id
	}
	last := now.Add(FutureAfter).UnixMilli()
	for _, tc := range []struct {
		name                 string
		id                   flake.ID
		past, future, unheld int64
		fits                 bool
	}{
		{"a minute ahead", at(last, 4095, 1023), 1, 0, 0, true},
		{"further", at(last+1, 0, 0), 0, 1, 0, false},
		{"the largest", 1<<63 - 1, 0, 1, 0, false},
		{"an hour after the epoch", at(f.Epoch+3_600_000, 0, 0), 1, 0, 0, true},
		{"less", at(f.Epoch+3_599_999, 4095, 1023), 1, 0, 0, false},
	} {
		c := newCandidate(f, Config{Now: clock.Millis(now.UnixMilli())})
		c.add(tc.id, 1)
		past := int64(0)
		if c.from != 0 {
			past = 1
		}
		if v := c.verdict(1); past != tc.past || c.future != tc.future || c.unheld != tc.unheld || v.Fits != tc.fits {
			t.Errorf("%s: %d of the past, %d of the future, %d unheld, %+v", tc.name, past, c.future, c.unheld, v)
		}
	}
	small := format(t, "js53")
	c := newCandidate(small, Config{Now: clock.Millis(now.UnixMilli())})
	c.add(1<<53-1, 1)
	if c.add(1<<53, 1); c.future != 1 || c.unheld != 1 {
		t.Errorf("%d of the future, %d unheld", c.future, c.unheld)
	}
}

// TestStaleAfterADay: a sample whose last ID is older than a day is stale, and is planned for if its
// layout is named, or is the only one that fits.
func TestStaleAfterADay(t *testing.T) {
	const custom = "twitter,epoch=2026-01-01T00:00:00Z"
	f := format(t, custom)
	for _, tc := range []struct {
		after time.Duration
		stale bool
	}{{staleAfter, false}, {staleAfter + time.Millisecond, true}} {
		id, err := f.Make(now.Add(-tc.after).UnixMilli(), 0, 1)
		fatal.If(t, err)
		r, err := report(t, Config{Format: f}, fmt.Sprint(int64(id)))
		if err != nil || r.Plan == nil || r.Plan.Stale != tc.stale {
			t.Errorf("after %v: %v, %+v", tc.after, err, r.Plan)
		}
	}
	// Other layouts have no sid of these.
	f = format(t, "sonyflake")
	id, err := f.Make(now.AddDate(0, 0, -30).UnixMilli(), 0, 60_000)
	fatal.If(t, err)
	r, err := report(t, Config{SIDs: lease.SIDRange{From: 60_000, To: 60_001}}, fmt.Sprint(int64(id)))
	fit := 0
	for _, v := range r.Layouts {
		if v.Fits {
			fit++
		}
	}
	if err != nil || fit != 1 || r.Plan == nil || !r.Plan.Stale || r.Plan.Layout != "sonyflake" {
		t.Errorf("%v, %d fit, %+v", err, fit, r.Plan)
	}
}

// TestSIDsOfNodes: nodes get sids that the space has by default, if it has enough of them, and those of
// the old generators are reserved only if the space has them.
func TestSIDsOfNodes(t *testing.T) {
	for _, tc := range []struct {
		sids []flake.SID // of old generators
		ends string
	}{
		{upTo(511), " --fresh --reserve 0-510"},
		{upTo(512), " --fresh --sids 512-1535"},
		{upTo(600), " --fresh --sids 600-1623"},
		{[]flake.SID{60_000}, " --fresh"},
	} {
		f := format(t, "sonyflake")
		var ids []string
		for _, sid := range tc.sids {
			id, err := f.Make(now.Add(-time.Second).UnixMilli(), 0, sid)
			fatal.If(t, err)
			ids = append(ids, fmt.Sprint(int64(id)))
		}
		r, err := report(t, Config{Format: f}, ids...)
		if err != nil || r.Plan == nil || !strings.HasSuffix(r.Plan.Init, tc.ends) {
			t.Errorf("%d sids: %v, %+v", len(tc.sids), err, r.Plan)
		}
	}
}

func upTo(n flake.SID) (sids []flake.SID) {
	for sid := range n {
		sids = append(sids, sid)
	}
	return sids
}

// zoned returns IDs of four sids over three days, one a minute, in the order of insertion: with an epoch of
// midnight in Shanghai, and the last of them with another one.
func zoned(t *testing.T, last int, epoch string) (out []string) {
	t.Helper()
	for i := range 4320 {
		f := format(t, "41/10/12,epoch=2016-10-31T16:00:00Z")
		if i >= 4320-last {
			f = format(t, "41/10/12,epoch="+epoch)
		}
		at := now.Add(-time.Second - time.Duration(4319-i)*time.Minute - time.Duration(i*7919%9973)*time.Millisecond)
		id, err := f.Make(at.UnixMilli(), uint32(i%7), flake.SID(i%4))
		fatal.If(t, err)
		out = append(out, fmt.Sprint(int64(id)))
	}
	return out
}

// TestEpochs: the epoch of a library, or of another time zone, is found or asked for.
func TestEpochs(t *testing.T) {
	const shanghai, utc = "41/10/12,epoch=2016-10-31T16:00:00Z", "41/10/12,epoch=2016-11-01T00:00:00Z"
	ids := zoned(t, 0, "")
	if r, err := report(t, Config{}, ids...); err != nil || r.Plan != nil || r.Clean || len(r.Hints) != 1 || r.Hints[0].Layout != shanghai {
		t.Errorf("no layout is named: %v, %+v", err, r.Hints)
	}
	if r, err := report(t, Config{Format: format(t, shanghai)}, ids...); err != nil || !r.Clean || r.Hints != nil {
		t.Errorf("its layout: %v, %+v", err, r)
	}
	// A tenth of three days is less than the eight hours.
	r, err := report(t, Config{Format: format(t, utc)}, ids...)
	if err != nil || r.Plan != nil || !strings.HasSuffix(r.Layouts[0].Why, "8 hours ahead: is the epoch another time zone's?") {
		t.Errorf("midnight in UTC: %v, %+v", err, r.Layouts[0])
	}
	older := append(drawn(t, shanghai, 15, 1, 2, 3), ids...)
	if r, err = report(t, Config{}, older...); err != nil || len(r.Hints) != 1 || r.Hints[0].Layout != shanghai {
		t.Errorf("no layout is named, ten days: %v, %+v", err, r.Hints)
	}
	r, err = report(t, Config{Format: format(t, utc)}, older...)
	if err != nil || r.Plan == nil || r.Clean || !strings.Contains(r.Plan.Ahead, "8 hours ahead") {
		t.Errorf("midnight in UTC, of ten days: %v, %+v", err, r.Plan)
	}
	for epoch, want := range map[string]Hint{
		"2019-12-24T16:00:00Z": {"41/10/12,epoch=2019-12-24T16:00:00Z", "CosId"},
		"2021-03-04T05:06:07Z": {"41/10/12,epoch=2021-03-04T05:07:24Z", ""}, // The newest ID is 77 s old.
	} {
		r, err := report(t, Config{}, drawn(t, "41/10/12,epoch="+epoch, 15, 1, 2)...)
		if err != nil || r.Plan != nil || !slices.Equal(r.Hints, []Hint{want}) {
			t.Errorf("%s: %v, %+v", epoch, err, r.Hints)
		}
	}
	if r, err := report(t, Config{}, sample(t, "twitter", 1)...); err != nil || r.Hints != nil {
		t.Errorf("a layout that fits: %v, %+v", err, r.Hints)
	}
	for name, id := range map[string]string{"a counter": "1000", "random": "9223372036854775806", "15 digits": "911222333444555"} {
		if r, err := report(t, Config{}, id); err != nil || r.Hints != nil {
			t.Errorf("%s: %v, %+v", name, err, r.Hints)
		}
	}
}

// TestLibrariesOnThePage: the page has the epochs that are tried.
func TestLibrariesOnThePage(t *testing.T) {
	page, err := os.ReadFile("../../../../../docs/how-to/take-over-snowflakes.md")
	fatal.If(t, err)
	for _, l := range libraries {
		name, _, _ := strings.Cut(l.name, " up to")
		name, _, _ = strings.Cut(name, ",")
		if format(t, l.layout); !strings.Contains(string(page), "`"+l.layout+"`") || !strings.Contains(string(page), "| "+name+" |") {
			t.Errorf("the page does not have %s with %s", name, l.layout)
		}
	}
}

// TestStepBack: a sid that goes back by hours in a sample that is in order has changed its epoch.
func TestStepBack(t *testing.T) {
	shanghai := Config{Format: format(t, "41/10/12,epoch=2016-10-31T16:00:00Z")}
	const utc = "2016-11-01T00:00:00Z"
	mixed := zoned(t, 100, utc)
	rolling := zoned(t, 100, utc) // One generator was started again later than the others.
	for i, id := range zoned(t, 60, utc) {
		if i%4 == 3 {
			rolling[i] = id
		}
	}
	unordered := slices.Clone(mixed)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(unordered), func(i, j int) {
		unordered[i], unordered[j] = unordered[j], unordered[i]
	})
	down := slices.Clone(mixed)
	slices.Reverse(down)
	for name, tc := range map[string]struct {
		ids  []string
		want StepBack // zero: none
	}{
		"mixed":        {mixed, StepBack{SID: 0, Line: 4221, By: "7h56m2s"}},
		"rolling":      {rolling, StepBack{SID: 0, Line: 4221, By: "7h56m2s"}},
		"for hours":    {zoned(t, 450, utc), StepBack{SID: 2, Line: 3871, By: "7h56m2s"}},
		"one epoch":    {zoned(t, 0, ""), StepBack{}},
		"half an hour": {zoned(t, 100, "2016-10-31T16:30:00Z"), StepBack{}},
		"days":         {zoned(t, 100, "2016-11-02T00:00:01Z"), StepBack{}}, // two exports
		"in no order":  {unordered, StepBack{}},
		"newest first": {down, StepBack{}},
	} {
		r, err := report(t, shanghai, tc.ids...)
		if err != nil || r.Plan == nil {
			t.Fatalf("%s: %v, %+v", name, err, r)
		}
		var got StepBack
		if r.Plan.StepBack != nil {
			got = *r.Plan.StepBack
		}
		if got != tc.want || r.Clean != (tc.want == StepBack{}) {
			t.Errorf("%s: %+v, want %+v; clean %v", name, got, tc.want, r.Clean)
		}
	}
}

// TestSpoolFails: what a spool says ends the search for duplicates.
func TestSpoolFails(t *testing.T) {
	full := errors.New("the disk is full")
	s := New(Config{Now: clock.Millis(now.UnixMilli()), Spool: spool{full}})
	ids := slices.Repeat(sample(t, "twitter", 1, 2, 3, 4, 5, 6, 7, 8), 10) // more than fits in the least memory
	err := s.Read(strings.NewReader(strings.Join(ids, "\n")))
	if err == nil {
		_, err = s.Finish()
	}
	if !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
}

// spool keeps nothing: what was written to it cannot be opened.
type spool struct{ err error }

func (s spool) Create() (audit.Spooled, error) { return s, nil }
func (s spool) Write(b []byte) (int, error)    { return len(b), nil }
func (s spool) Close() error                   { return nil }
func (s spool) Open() (io.ReadCloser, error)   { return nil, s.err }
