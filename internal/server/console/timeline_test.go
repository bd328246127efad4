package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/status/trend"
	"github.com/flakelease/allocator/internal/text"
)

// TestTimelineLanes: a tenure is one bar, whatever its node did in it, and ends where its node was last seen to do
// something; what a node refused, and when it was silent, stands beside it.
func TestTimelineLanes(t *testing.T) {
	stretch := func(node string, sid int, term int64, what string, from, until, ceil int64) trend.Stretch {
		return trend.Stretch{
			Node:     node,
			Instance: "i-" + node,
			SID:      sid,
			Term:     term,
			What:     what,
			From:     from,
			Until:    until,
			Ceil:     ceil,
		}
	}
	v := timelineView{Latest: 100_000, To: 200_000, Stretches: []trend.Stretch{
		stretch("n10", 2, 1, "serving", 0, 100_000, 130_000),
		stretch("n9", 1, 0, "serving", 20_000, 30_000, 60_000), // of term 4, which is not known yet
		stretch("n9", 1, 4, "CLOCK_SKEW", 35_000, 40_000, 60_000),
		stretch("n9", 1, 4, "silent", 45_000, 50_000, 0),
		stretch("n9", -1, 0, "standby", 90_000, 100_000, 0),
		stretch("n7", 1, 5, "serving", 70_000, 100_000, 140_000),
		stretch("n8", 3, 1, "serving", -90_000, -80_000, -50_000),
	}, Away: []away{{-9, -5}, {90_000, 0}}, Events: []feed.Event{
		{Node: "n9", Kind: feed.ClockStep, At: 25_000, Attributes: map[string]string{"step": "+1s"}},
		{Node: "gone", Kind: feed.ClockStall, At: 25_000},
	}}
	drawn := func() string {
		var out []string
		for _, l := range v.lanes() {
			parts := []string{l.Name}
			for _, list := range [][]bar{l.Held, l.Refused, l.Absent, l.Steps} {
				for _, b := range list {
					parts = append(parts, fmt.Sprintf("%s+%s(%s) %s", b.X, b.Width, b.Used, b.Says))
				}
			}
			out = append(out, strings.Join(parts, "; "))
		}
		return strings.Join(out, "\n")
	}
	want := `n7; 35.00+35.00(15.00) sid 1, term 5: window from 00:01:10.0 to 00:02:20.0
n8
n9; 10.00+20.00(10.00) sid 1, term 4: window from 00:00:20.0 to 00:01:00.0, holder gone; 17.50+2.50() refused, CLOCK_SKEW; 22.50+2.50() silent; 45.00+5.00() standby; 12.50+0.00() 00:00:25.0: clock +1s
n10; 0.00+65.00(50.00) sid 2, term 1: window from 00:00:00.0 to 00:02:10.0`
	if got := drawn(); got != want {
		t.Errorf("rows of nodes:\n%s\nwant\n%s", got, want)
	}
	v.BySID = true
	want = `sid 1; 10.00+20.00(10.00) n9, sid 1, term 4: window from 00:00:20.0 to 00:01:00.0, holder gone; 35.00+35.00(15.00) n7, sid 1, term 5: window from 00:01:10.0 to 00:02:20.0; 17.50+2.50() refused, CLOCK_SKEW; 22.50+2.50() n9 silent; 12.50+0.00() 00:00:25.0: clock +1s
sid 2; 0.00+65.00(50.00) n10, sid 2, term 1: window from 00:00:00.0 to 00:02:10.0
sid 3`
	if got := drawn(); got != want {
		t.Errorf("rows of sids:\n%s\nwant\n%s", got, want)
	}
	// Between one sid and the next, a node's clock was set: the step stays in the row of the first.
	v.Stretches = []trend.Stretch{
		stretch("n9", 2, 1, "serving", 20_000, 30_000, 60_000), stretch("n9", 1, 1, "serving", 30_000, 40_000, 60_000),
	}
	v.Events[0].At = 30_000
	for range 20 {
		if l := v.lanes(); len(l[0].Steps) != 1 || len(l[1].Steps) != 0 {
			t.Fatalf("steps of %s: %v, of %s: %v", l[0].Name, l[0].Steps, l[1].Name, l[1].Steps)
		}
	}
	// Texts do not overlap: of two steps that are near, the later one has its text.
	v.Events = append(v.Events, feed.Event{Node: "n9", Kind: feed.ClockStall, At: 31_000})
	if s := v.lanes()[0].Steps; len(s) != 2 || s[0].Text != "" || s[0].Says == "" || s[1].Text != "clock stall" {
		t.Errorf("steps %v", s)
	}
	if got := fmt.Sprint(v.Outages()); got != "[{45.00 5.00  false etcd away etcd is away}]" {
		t.Errorf("outages %s", got)
	}
}

// TestTimelineAddresses: each link leads to an address, and shows the same time as the one before unless it moves.
func TestTimelineAddresses(t *testing.T) {
	cluster := two()
	c := fixture(&cluster)
	for i := range int64(3) {
		s := two()
		s.Self.Now = start + i*5000
		s.Judge()
		c.Add(s)
	}
	for address, want := range map[string]string{
		"":                  "?span=450 ?span=1800 ?by=sid ?",
		"?span=240&by=sid":  "?span=120&by=sid ?span=480&by=sid ?span=240 ?span=240&by=sid",
		"?span=1&at=nobody": "?span=60 ?span=120 ?span=60&by=sid ?span=60",
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		v := c.drawn(u.Query())
		if got := fmt.Sprint(v.Zoom(0.5), " ", v.Zoom(2), " ", v.Turned(), " ", v.Follow()); got != want {
			t.Errorf("%s leads to %s, want %s", address, got, want)
		}
	}
	at := text.Millis(start)
	body := do(c, http.MethodGet, Path+"timeline?at="+at+"&span=120", "").Body.String()
	if want := `href="?at=` + at + `&amp;span=60"`; !strings.Contains(body, want) || strings.Contains(body, "ZgotmplZ") {
		t.Errorf("the page lacks %s: %s", want, body)
	}
}
