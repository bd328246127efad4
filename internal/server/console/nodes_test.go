package console

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/status/feed"
)

// TestPast: a page gets the samples, and the events of the same time.
func TestPast(t *testing.T) {
	cluster := two()
	c := fixture(&cluster)
	state := feed.State{Node: node.Stats{Name: "node-1", Instance: "a", Now: start - 1}}
	c.cfg.Feed.Observe(state) // before the first sample
	state.Node.Now, state.Node.Draining = start+7000, true
	c.cfg.Feed.Observe(state)
	const more = 600
	for range more {
		state.EtcdFails = !state.EtcdFails
		c.cfg.Feed.Observe(state)
	}
	for i := range int64(3) {
		s := two()
		s.Self.Now, s.Self.Rate = start+i*5000, i+1
		s.Nodes[1].Report = &status.Report{}
		s.Judge()
		c.Add(s)
	}
	var got charts
	fatal.If(t, json.Unmarshal(do(c, "GET", Path+"charts?span=1h", "").Body.Bytes(), &got))
	if rate := got.Charts["rate"].Lists; len(got.Times) != 3 || got.Times[2]-got.Times[0] != 10 || rate[0][2] == nil || *rate[0][2] != 3 || len(got.Charts) != 4 {
		t.Errorf("%+v", got)
	}
	if len(got.Marks) != 1+more || !got.Marks[0].Bad || !strings.Contains(got.Marks[0].Text, " node-1: drained: ") {
		t.Errorf("%d events, first %+v", len(got.Marks), got.Marks[0])
	}
	for page, want := range map[string]struct {
		chart string
		first float64
	}{"node": {"window", 29}, "clocks": {"clocks", 1}} { // of node b: its name is first
		var lines charts
		fatal.If(t, json.Unmarshal(do(c, "GET", Path+"charts?page="+page, "").Body.Bytes(), &lines))
		if lists := lines.Charts[want.chart].Lists; len(lines.Times) != 3 || len(lists) == 0 || len(lists[0]) != 3 || lists[0][0] == nil || *lists[0][0] != want.first {
			t.Errorf("a page of %s that is opened has %+v", page, lines)
		}
	}
	if drawn := c.timeline(); drawn.First != start || len(drawn.Events) != 0 || len(drawn.Away) != more/2 || drawn.Away[0] != (away{start + 7000, start + 7000}) {
		t.Errorf("the timeline begins at %d with %d events, and etcd is away %d times", drawn.First-start, len(drawn.Events), len(drawn.Away))
	}
	if w := do(c, "GET", Path+"charts?span=2h", "", "Accept", "application/json"); w.Code != http.StatusBadRequest {
		t.Errorf("a span of two hours: HTTP %d", w.Code)
	}
}

// TestTimelineEtcdAway: the timeline shows each time in which etcd did not answer, also where the event that began it is not kept.
func TestTimelineEtcdAway(t *testing.T) {
	const minute, latest = 60_000, start + 3*3_600_000
	for name, tc := range map[string]struct {
		entries int     // that the feed keeps; 0: all
		turns   []int64 // when calls to etcd begin to fail, and succeed again
		want    []away
	}{
		"never":                    {0, nil, []away{}},
		"within the hour":          {0, []int64{latest - 50*minute, latest - 40*minute, latest - 9*minute}, []away{{latest - 50*minute, latest - 40*minute}, {latest - 9*minute, 0}}},
		"before it":                {0, []int64{latest - 70*minute, latest - 65*minute}, []away{}},
		"it began before the hour": {0, []int64{latest - 70*minute, latest - 40*minute}, []away{{latest - 60*minute, latest - 40*minute}}},
		"longer than the hour":     {0, []int64{latest - 70*minute}, []away{{latest - 70*minute, 0}}},
		"the event was dropped":    {2, []int64{latest - 9*minute, latest - 8*minute, latest - 7*minute}, []away{{latest - 60*minute, latest - 8*minute}, {latest - 7*minute, 0}}},
	} {
		cluster := two()
		c := fixture(&cluster, func(c *Config) { c.Feed = feed.New(feed.Config{Boot: "boot", Entries: tc.entries}) })
		s := feed.State{Node: node.Stats{Name: "node-1", Instance: "a", Now: latest - 80*minute}}
		c.cfg.Feed.Observe(s)
		for i, at := range tc.turns {
			s.Node.Now, s.EtcdFails, s.EtcdSince = clock.Millis(at), i%2 == 0, clock.Millis(at)
			c.cfg.Feed.Observe(s)
		}
		for _, at := range []clock.Millis{latest - 80*minute, latest} {
			c.past.history.Add(at, status.Cluster{Nodes: []status.Node{{Instance: "a", Name: "node-1"}}})
		}
		if got := c.timeline(); !slices.Equal(got.Away, tc.want) {
			t.Errorf("%s: %+v, want %+v", name, got.Away, tc.want)
		}
	}
}

// TestVanished: a node that was killed keeps its row until its sid is released, and is counted.
func TestVanished(t *testing.T) {
	cluster := two()
	cluster.SIDs = append(cluster.SIDs, status.SID{SID: 9, State: status.Waiting, Node: "node-9", Instance: "i9",
		Ceil: cluster.Self.Now + 5000, Written: cluster.Self.Now - 25_000, Unreleased: true})
	c := fixture(&cluster)
	body := do(c, "GET", Path, "").Body.String()
	row := regexp.MustCompile(`(?s)<tr data-key="i9" data-state="gone">.*?</tr>`).FindString(body)
	for _, want := range []string{"node-9", ">gone<", ">25s<", ">5.0s<"} {
		if !strings.Contains(row, want) {
			t.Errorf("the row of node-9 lacks %s: %s", want, row)
		}
	}
	if !strings.Contains(body, "2 of 3 nodes serve") {
		t.Error("the sentence on top does not count node-9")
	}
	if nodes, members := strings.Index(body, `id="nodes"`), strings.Index(body, `id="etcd"`); nodes > members {
		t.Error("the members of etcd stand above the nodes")
	}
}

// TestFirstPage: the console begins with the nodes, those that do not serve first, and with
// what they do together.
func TestFirstPage(t *testing.T) {
	cluster := two()
	cluster.WorkerSIDs = "16-31"
	cluster.Etcd = &status.Etcd{Endpoints: 3, Answer: 2, Leader: "https://etcd-2:2379"}
	cluster.Self.Rate = 1000
	cluster.Self.Work = status.Work{P50: 40, P99: 1500, Write: 2300, Written: start - 1200, Refused: map[string]int64{"NO_SID": 1, "CLOCK_SKEW": 12}}
	cluster.Nodes[1].Report = &status.Report{Rate: 234, Refusing: node.ClockSkew, Ceil: start + 1000, Work: status.Work{P99: 900_000}}
	cluster.Nodes[1].Started = start - 90_000
	body := do(fixture(&cluster), "GET", Path, "").Body.String()
	for _, want := range []string{
		`aria-current="page">Nodes</a>`, `<dd id="rate">1,234</dd>`, "CLOCK_SKEW 2.4/s, NO_SID 0.2/s", "40 µs · 900 ms", "2 <small>of 3</small>",
		"https://etcd-2:2379", "2.3 ms", "1.2s ago", `data-state="held" x="0" width="2"`, `data-state="worker" x="2" width="16"`,
		"2 nodes</span>", "16 for workers</span>", "14 free</span>", "1m30s",
		`<table id="etcd" class="list" hidden>`, // A script shows it once members have answered.
	} {
		if !strings.Contains(body, want) {
			t.Errorf("it does not show %s", want)
		}
	}
	if serving, refusing := strings.Index(body, `data-key="a"`), strings.Index(body, `data-key="b"`); refusing < 0 || refusing > serving {
		t.Errorf("the node that refuses is not the first row")
	}
	if t.Failed() {
		t.Log(body)
	}
}
