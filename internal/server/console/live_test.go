package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/status"
)

// sentBy returns what a follower sends of a cluster.
func (f *follower) sentBy(c *Console, of status.Cluster) (out []string) {
	of.Judge()
	f.show(c.Picture(of), func(_, text string) { out = append(out, text) })
	return out
}

var firstID = regexp.MustCompile(`^\s*<[a-z]+ id="([^"]+)"`)

// TestLive: an open page gets the elements of a page that is loaded, each with an ID of its own, and then those that changed.
func TestLive(t *testing.T) {
	cluster := two()
	cluster.WorkerSIDs = "16-31"
	c := fixture(&cluster, func(c *Config) { c.Break = new(breaker) })
	for name, want := range map[string]string{
		"nodes":  "space summary tiles sparks nodes sidsection etcd",
		"pool":   "space summary tiles watermark sidsection sids standbys",
		"clocks": "space summary tiles intervals clocks",
		"node":   "space summary tiles conditions refused holders",
		"break":  "space summary watermark sids",
		"events": "space summary", "timeline": "space summary", "ids": "space summary",
	} {
		f := follower{what: followed{page: name}}
		parts := f.sentBy(c, cluster)
		var ids []string
		loaded := do(c, "GET", Path+strings.TrimPrefix(name, "nodes"), "").Body.String()
		for _, part := range parts {
			m := firstID.FindStringSubmatch(part)
			if m == nil || !strings.Contains(loaded, part) {
				t.Fatalf("%s: a page that is loaded has no %s", name, part)
			}
			ids = append(ids, m[1])
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: it follows %s, want %s", name, got, want)
		}
		if again := f.sentBy(c, cluster); len(again) != 1 || again[0] != unchanged {
			t.Errorf("%s: nothing changed, and it sends %q", name, again)
		}
	}
	f := follower{what: followed{page: "pool"}}
	f.sentBy(c, cluster)
	cluster.Nodes[1].Report = &status.Report{Rate: 1234}
	if got := f.sentBy(c, cluster); len(got) != 1 || !strings.HasPrefix(got[0], `<table id="sids"`) || !strings.Contains(got[0], "1,234") {
		t.Errorf("one cell changed, and it sends %q", got)
	}
	if w := do(c, "GET", Path+"feed?page=login", ""); w.Code != 400 {
		t.Errorf("a page that does not change is followed: HTTP %d", w.Code)
	}
}

// TestGrid: each sid is sent to who opened it, with its state, the time left of its window, and words if there is room.
func TestGrid(t *testing.T) {
	cluster := two()
	cluster.Self.Window, cluster.WorkerSIDs = 40_000, "16-31"
	c := fixture(&cluster)
	cells := func(grid bool) []string {
		f := follower{what: followed{"pool", grid}}
		return regexp.MustCompile(`<div class="cell.*?</div>`).FindAllString(strings.Join(f.sentBy(c, cluster), ""), -1)
	}
	if got := cells(false); len(got) != 0 {
		t.Errorf("nobody opened it: %q", got)
	}
	got := cells(true)
	if len(got) != 32 || !strings.Contains(got[3], `data-state="held"`) || !strings.Contains(got[3], `height="72"`) || !strings.Contains(got[16], "<span>worker</span>") || !strings.Contains(got[0], `data-state="none"`) {
		t.Errorf("%d cells: %q", len(got), got)
	}
	cluster.PoolSIDs, cluster.PoolSize = "0-1023", 1024
	if got = cells(true); len(got) != 1024 || !strings.Contains(got[3], `title="sid 3: held, node-1"`) || !strings.Contains(got[500], `title="sid 500: free"`) || strings.Contains(got[3], "<span>") {
		t.Errorf("%d cells: %q, %q", len(got), got[3], got[500])
	}
}

// TestPageBytes: what an open page is sent in a second is bounded, however many nodes there are.
func TestPageBytes(t *testing.T) {
	for nodes, most := range map[int]int{3: 3_000, 64: 45_000, 128: 90_000, 1024: 90_000} {
		cluster := two()
		cluster.Nodes, cluster.SIDs = nil, nil
		for i := range nodes {
			instance := fmt.Sprintf("01a1f9d9-1a9a-7082-a8a2-%012d", i)
			cluster.Nodes = append(cluster.Nodes, status.Node{Instance: instance, Name: fmt.Sprintf("node-%d", i), SID: i, Version: "v1.2.3",
				Console: fmt.Sprintf("http://node-%d.example.com:7947/console/", i), Started: start - 90_000,
				Clock: &status.PeerClock{Fresh: true, Offset: int64(i), Error: 300}, Report: &status.Report{Rate: 1000}})
			cluster.SIDs = append(cluster.SIDs, status.SID{SID: i, State: status.Held, Term: 1, Node: fmt.Sprintf("node-%d", i), Instance: instance, Ceil: start + 3_600_000})
		}
		cluster.Self.Instance = cluster.Nodes[0].Instance
		cluster.Judge()
		c := fixture(&cluster)
		for i := range int64(180) { // a rate for each point of the line
			cluster.Self.Now = start + i*5000
			for j := range cluster.Nodes {
				cluster.Nodes[j].Report.Rate = 1000 + i*7
			}
			c.Add(cluster)
		}
		for _, name := range []string{"nodes", "pool", "clocks"} {
			f := follower{what: followed{page: name}}
			first, all := len(strings.Join(f.sentBy(c, cluster), "")), 0
			for range 5 { // seconds, of which one has a sample
				cluster.Self.Now += 1000
				for i := range cluster.Nodes {
					cluster.Nodes[i].Clock = &status.PeerClock{Fresh: true, Age: cluster.Self.Now % 7000 * 1000}
				}
				all += len(strings.Join(f.sentBy(c, cluster), ""))
			}
			c.Add(cluster)
			all += len(strings.Join(f.sentBy(c, cluster), ""))
			t.Logf("%d nodes, page %s: %d bytes at first, then %d a second", nodes, name, first, all/5)
			if all/5 > most {
				t.Errorf("%d nodes, page %s: %d bytes a second, want at most %d", nodes, name, all/5, most)
			}
		}
	}
}

// TestManyRows: an open page follows a bounded number of rows, first those that need somebody. One that is loaded has all.
func TestManyRows(t *testing.T) {
	cluster := two()
	for i := range 200 {
		cluster.Nodes = append(cluster.Nodes, status.Node{Instance: fmt.Sprint("i", i), Name: fmt.Sprint("n", i), SID: 8 + i, Clock: &status.PeerClock{Fresh: i != 150}})
		cluster.SIDs = append(cluster.SIDs, status.SID{SID: 8 + i, State: status.Held, Instance: fmt.Sprint("i", i), Ceil: start + 9000})
	}
	c := fixture(&cluster)
	key := regexp.MustCompile(`<tr data-key="([^"]*)"`)
	cluster.SIDs[170].State = status.Quarantined
	for name, first := range map[string]string{"nodes": "i150", "pool": "176"} {
		rows := func(text string) (out []string) {
			for _, m := range key.FindAllStringSubmatch(text, -1) {
				out = append(out, m[1])
			}
			return out
		}
		f := follower{what: followed{page: name}}
		sent := strings.Join(f.sentBy(c, cluster), "")
		if got := rows(sent); len(got) != shownRows || got[0] != first || !strings.Contains(sent, "<caption>128 of 202 ") {
			t.Errorf("%s: %d rows, the first is %s", name, len(got), got[0])
		}
		if got := rows(do(c, "GET", Path+strings.TrimPrefix(name, "nodes"), "").Body.String()); len(got) != 202 || !slices.Contains(got, first) {
			t.Errorf("%s: a page that is loaded has %d rows", name, len(got))
		}
	}
}

// TestIntervals: clocks are drawn from the cluster's time on one scale, with what is wrong in a color of its own.
func TestIntervals(t *testing.T) {
	cluster := two()
	cluster.Nodes[1].Clock.Falseticker = true
	cluster.Nodes[1].Clock.Offset = 900_500 // of the cluster's time: 900 ms
	cluster.Judge()
	got := snapshotOf(fixture(&cluster)).Intervals()
	if len(got.Clocks) != 2 || got.Clocks[0].Name != "node-1 (this)" || got.Clocks[0].Class != "" || got.Clocks[1].Class != "off" || got.Height != 88 {
		t.Errorf("%+v", got.Clocks)
	}
	if at := got.Clocks[1].At; at < "90" || at > "98.00" || got.Majority == nil || got.Marks[0].At != "50.00" {
		t.Errorf("%+v, %+v", got, got.Majority)
	}
	cluster.Self.Clock = nil
	if snapshotOf(fixture(&cluster)).Intervals() != nil {
		t.Error("without a judge there are clocks")
	}
}

// TestKernelClock: that the kernel does not synchronize its clock is said in small letters, with what to check, and not as
// loud as a verdict.
func TestKernelClock(t *testing.T) {
	cluster := two()
	cluster.Self.Clock.Kernel.Known = true
	body := do(fixture(&cluster), "GET", Path+"clocks", "").Body.String()
	if !strings.Contains(body, `<dd id="kernel" class="said">not synchronized: check NTP on this machine</dd>`) {
		t.Errorf("%s", body)
	}
}

// TestStreamLines: a name with line breaks ends no line of the stream: it would be an event of its own.
func TestStreamLines(t *testing.T) {
	cluster := two()
	cluster.Nodes[1].Name = "a\r\nevent: evil\n\nevent: evil\revent: evil"
	cluster.Judge()
	c := fixture(&cluster)
	s := httptest.NewServer(c)
	defer s.Close()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+Path+"feed?page=nodes&new=1", nil)
	fatal.If(t, err)
	res, err := http.DefaultClient.Do(req)
	fatal.If(t, err)
	defer res.Body.Close()
	c.cfg.Feed.SetSnapshot(c.Picture(cluster))
	var sent strings.Builder
	for buf := make([]byte, 64<<10); !strings.Contains(sent.String(), `id="etcd"`); {
		n, err := res.Body.Read(buf)
		sent.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v after %s", err, &sent)
		}
	}
	if got := sent.String(); strings.Contains(got, "\r") || strings.Contains(got, "\nevent: evil") || !strings.Contains(got, "\ndata: event: evil") || strings.Count(got, "\nevent: show\n") != 7 {
		t.Errorf("%q", got)
	}
	c.cfg.Feed.End()
}
