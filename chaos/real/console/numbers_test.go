package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/server/console"
	"github.com/flakelease/allocator/internal/status"
)

// moment is a snapshot, and what the page showed when it had taken it.
type moment struct {
	Took     float64 `json:"took"` // ms
	Text     string  `json:"snapshot"`
	Shown    shown   `json:"shown"`
	Snapshot console.Snapshot
}

// next returns the next snapshot that the page takes.
func (p *page) next() (m moment) {
	p.t.Helper()
	had := eval[int](p, "probe.snapshots")
	p.until(fmt.Sprintf("probe.snapshots > %d", had))
	m = eval[moment](p, "probe.last")
	if err := json.Unmarshal([]byte(m.Text), &m.Snapshot); err != nil {
		p.t.Fatal(err)
	}
	return m
}

// TestNumbers: each page shows what the API answers at that time. One node is given work, so
// that no number is zero.
func TestNumbers(t *testing.T) {
	t.Parallel()
	c := dev(t)
	c.settle()
	node := c.nodes[0]
	for range 3 {
		if status, _ := node.issue(t, 1234); status != 200 {
			t.Fatalf("status %d", status)
		}
	}
	if status, _ := node.issue(t, 0); status != 400 {
		t.Fatalf("status %d", status)
	}
	pages := map[string]*page{}
	for _, name := range []string{"", "pool", "clocks", "node"} {
		pages[name] = open(t, node.own(), name)
	}
	for name, p := range pages {
		t.Run("page "+name, func(t *testing.T) {
			var wrong []string
			for end := time.Now().Add(patience); ; { // a number may change twice between two answers of the API
				before := getJSON[status.Cluster](t, "http://"+node.HTTP+"/v1/cluster")
				node.issue(t, 7)
				m := p.next()
				metrics := string(get(t, "http://"+node.Admin+"/metrics"))
				after := getJSON[status.Cluster](t, "http://"+node.HTTP+"/v1/cluster")
				if differ := m.differs(name); len(differ) > 0 {
					t.Fatalf("the page shows what its snapshot does not have:\n%s\n%+v\n%s", strings.Join(differ, "\n"), m.Shown, m.Text)
				}
				wrong = between(&before, &m.Snapshot, &after)
				issued, _ := strconv.ParseFloat(regexp.MustCompile(`(?m)^allocator_ids_issued_total(?:{.*})? (\S+)$`).FindStringSubmatch(metrics + "\nallocator_ids_issued_total -1")[1], 64)
				if float64(m.Snapshot.Self.Issued) > issued || issued > float64(after.Self.Issued) {
					wrong = append(wrong, fmt.Sprintf("%d IDs issued, then /metrics has %.0f and the API %d", m.Snapshot.Self.Issued, issued, after.Self.Issued))
				}
				if len(wrong) == 0 || time.Now().After(end) {
					break
				}
			}
			for _, w := range wrong {
				t.Error(w)
			}
		})
		p.shot("numbers-" + map[string]string{"": "nodes"}[name] + name)
	}
}

func commas(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// differs compares what a page shows with its snapshot.
func (m *moment) differs(page string) (wrong []string) {
	s := &m.Snapshot
	same := func(what, got, want string) {
		if got != want {
			wrong = append(wrong, fmt.Sprintf("%s: %q, want %q", what, got, want))
		}
	}
	left := func(what, got string, ceil int64) {
		seconds, err := strconv.ParseFloat(strings.TrimSuffix(got, "s"), 64)
		if want := float64(max(0, ceil-s.Self.Now)) / 1e3; err != nil || seconds > want || seconds < want-0.1-m.Took/1e3-0.05 {
			wrong = append(wrong, fmt.Sprintf("%s: %q, want %.1f s", what, got, want))
		}
	}
	same("the summary", m.Shown.Summary, s.Summary.Text)
	same("its level", m.Shown.Level, string(s.Summary.Level))
	tile := func(name, want string) { same(name, m.Shown.Tiles[name], want) }
	switch page {
	case "":
		rows := map[string]row{}
		for _, r := range m.Shown.Tables["nodes"] {
			rows[r.Key] = r
		}
		sum := int64(0)
		for _, n := range s.Nodes {
			cells := rows[n.Instance].Cells
			if len(cells) != 10 {
				wrong = append(wrong, fmt.Sprintf("no row of %s", n.Name))
				continue
			}
			rate, refused := "–", "–"
			if n.Report != nil {
				sum += n.Report.Rate
				rate, refused = commas(n.Report.Rate), "none"
				if got := n.Report.Work.Refused["INVALID_COUNT"]; got > 0 {
					refused = fmt.Sprintf("INVALID_COUNT %.1f/s", float64(got)/5)
				}
			}
			same(n.Name+" node", cells[0], n.Name)
			same(n.Name+" state", cells[1], n.What())
			same(n.Name+" rate", cells[3], rate)
			same(n.Name+" refused", cells[5], refused)
			left(n.Name+" window left", cells[6], n.Ceil)
			same(n.Name+" version", cells[8], n.Version)
		}
		tile("IDs/s, all nodes", commas(sum))
		tile("etcd answers", fmt.Sprintf("%d of %d", s.Etcd.Answer, s.Etcd.Endpoints))
		tile("leader of etcd", s.Etcd.Leader)
		if s.Etcd.Answer == 0 || s.Etcd.Leader == "" || s.Self.Work.Write == 0 {
			wrong = append(wrong, fmt.Sprintf("nothing is known of etcd: %+v, a write took %d µs", s.Etcd, s.Self.Work.Write))
		}
	case "pool":
		held := 0
		byName := map[string]status.Node{}
		for _, n := range s.Nodes {
			byName[n.Instance] = n
		}
		if len(m.Shown.Tables["sids"]) != len(s.SIDs) {
			wrong = append(wrong, fmt.Sprintf("%d rows of %d sids", len(m.Shown.Tables["sids"]), len(s.SIDs)))
			return wrong
		}
		for i, sid := range s.SIDs {
			cells := m.Shown.Tables["sids"][i].Cells
			if sid.State == "held" {
				held++
			}
			rate, ceil := "–", sid.Ceil
			if r := byName[sid.Instance].Report; r != nil {
				rate = commas(r.Rate)
			}
			if holder, ok := byName[sid.Instance]; ok {
				ceil = sid.End(&holder)
			}
			name := fmt.Sprintf("sid %d: ", sid.SID)
			same(name+"number", cells[0], strconv.Itoa(sid.SID))
			same(name+"state", cells[1], sid.State)
			same(name+"holder", cells[2], sid.Node)
			same(name+"term", cells[3], strconv.FormatInt(sid.Term, 10))
			left(name+"window left", cells[4], ceil)
			same(name+"rate", cells[7], rate)
		}
		tile("sids held", fmt.Sprintf("%d of %d", held, s.PoolSize))
		tile("standbys", "0")
		tile("waiting", "0")
		tile("quarantined", "0")
		tile("windows ended", "0")
		tile("IDs/s, this node", commas(s.Self.Rate))
	case "clocks":
		k := s.Self.Clock
		tile("verdict, this node", k.State+" "+k.Finding)
		tile("agree · disagree · silent", fmt.Sprintf("%d · %d · %d of %d, quorum %d", k.Agree, k.Disagree, k.Silent, k.Registered, k.Quorum))
		tile("steps ahead · back", fmt.Sprintf("%d · %d", k.StepsForward, k.StepsBack))
		tile("suspends · stalls", fmt.Sprintf("%d · %d", k.Suspends, k.Stalls))
		tile("cluster's time − this node's", offset(k.Offset, k.Uncertainty))
		tile("limit", "±"+strconv.FormatInt(k.Limit/1000, 10)+"ms")
		rows := map[string]row{}
		for _, r := range m.Shown.Tables["clocks"] {
			rows[r.Key] = r
		}
		for _, n := range s.Nodes {
			cells := rows[n.Instance].Cells
			if len(cells) != 6 {
				wrong = append(wrong, fmt.Sprintf("no row of %s", n.Name))
				continue
			}
			same(n.Name+" node", cells[0], n.Name)
			self := n.Instance == s.Self.Instance
			uncertainty := n.Clock.Error
			if self {
				uncertainty = k.Uncertainty
			}
			same(n.Name+" offset", cells[2], offset(n.Clock.Offset-k.Offset, uncertainty))
			if self {
				same(n.Name+" last reply", cells[3], "this node")
				continue
			}
			ago, err := strconv.ParseFloat(strings.TrimSuffix(cells[3], "s ago"), 64)
			if want := float64(n.Clock.Age) / 1e6; err != nil || ago < want-0.1 || ago > want+0.05+m.Took/1e3 {
				wrong = append(wrong, fmt.Sprintf("%s last reply: %q, want %.1f s", n.Name, cells[3], want))
			}
			same(n.Name+" false since", cells[5], "–")
		}
	case "node":
		self := &s.Self
		tile("lease", "holding")
		tile("sid · term", fmt.Sprintf("%d · %d", self.SID, self.Term))
		left("window left", m.Shown.Tiles["window left"], self.Ceil)
		tile("lead", fmt.Sprintf("%d ms", self.Lead))
		tile("IDs issued", commas(self.Issued))
		tile("of these before peers confirmed the clock", commas(self.Unverified))
		tile("IDs/s", commas(self.Rate))
		tile("version", self.Version)
		var refused []string
		for _, r := range m.Shown.Tables["refused"] {
			refused = append(refused, strings.Join(r.Cells, " "))
		}
		var want []string
		for reason, n := range self.Refused {
			if n > 0 {
				want = append(want, reason+" "+commas(n))
			}
		}
		slices.Sort(want)
		same("refused", strings.Join(refused, "; "), strings.Join(want, "; "))
		if len(want) == 0 {
			wrong = append(wrong, "no request was refused")
		}
		for i, r := range m.Shown.Tables["conditions"] {
			same("condition", r.Cells[1], s.Conditions[i].Text)
		}
	}
	return wrong
}

// offset is written as in the command line: ms with one decimal, its uncertainty rounded up.
func offset(us, uncertainty int64) string {
	return fmt.Sprintf("%+.1fms ±%.1fms", math.Round(float64(us)/100)/10, math.Ceil(float64(uncertainty)/100)/10)
}

// between says where a snapshot differs from both what the API answered before and what it
// answered after.
func between(before *status.Cluster, s *console.Snapshot, after *status.Cluster) (wrong []string) {
	one := func(what string, a, b, c any) {
		if fmt.Sprint(a) != fmt.Sprint(b) && fmt.Sprint(c) != fmt.Sprint(b) {
			wrong = append(wrong, fmt.Sprintf("%s: the API had %v and then %v, the page %v", what, a, c, b))
		}
	}
	rises := func(what string, a, b, c int64) {
		if a > b || b > c {
			wrong = append(wrong, fmt.Sprintf("%s: the API had %v and then %v, the page %v", what, a, c, b))
		}
	}
	if len(before.SIDs) != len(s.SIDs) || len(s.SIDs) != len(after.SIDs) || len(before.Nodes) != len(s.Nodes) || len(s.Nodes) != len(after.Nodes) {
		return []string{fmt.Sprintf("the API had %d sids and %d nodes, then %d and %d, the page %d and %d; %s", len(before.SIDs), len(before.Nodes),
			len(after.SIDs), len(after.Nodes), len(s.SIDs), len(s.Nodes), after.Problem)}
	}
	one("era", before.Era, s.Era, after.Era)
	one("pool size", before.PoolSize, s.PoolSize, after.PoolSize)
	a, b, c := &before.Self, &s.Self, &after.Self
	one("sid", a.SID, b.SID, c.SID)
	one("term", a.Term, b.Term, c.Term)
	one("rate", a.Rate, b.Rate, c.Rate)
	one("unconfirmed IDs", a.Unverified, b.Unverified, c.Unverified)
	one("ready", a.Ready, b.Ready, c.Ready)
	one("version", a.Version, b.Version, c.Version)
	one("offset", a.Clock.Offset, b.Clock.Offset, c.Clock.Offset)
	one("agree", a.Clock.Agree, b.Clock.Agree, c.Clock.Agree)
	one("steps", a.Clock.StepsForward, b.Clock.StepsForward, c.Clock.StepsForward)
	rises("ceiling", a.Ceil, b.Ceil, c.Ceil)
	rises("IDs issued", a.Issued, b.Issued, c.Issued)
	for _, reason := range slices.Sorted(maps.Keys(b.Refused)) {
		rises(reason, a.Refused[reason], b.Refused[reason], c.Refused[reason])
	}
	if len(wrong) > 0 {
		return wrong
	}
	for i := range s.SIDs {
		a, b, c := &before.SIDs[i], &s.SIDs[i], &after.SIDs[i]
		name := fmt.Sprintf("sid %d ", b.SID)
		one(name, a.SID, b.SID, c.SID)
		one(name+"state", a.State, b.State, c.State)
		one(name+"term", a.Term, b.Term, c.Term)
		one(name+"holder", a.Node, b.Node, c.Node)
		one(name+"ceiling", a.Ceil, b.Ceil, c.Ceil)
	}
	for i := range s.Nodes {
		a, b, c := &before.Nodes[i], &s.Nodes[i], &after.Nodes[i]
		one(b.Name, a.Name, b.Name, c.Name)
		one(b.Name+" offset", a.Clock.Offset, b.Clock.Offset, c.Clock.Offset)
	}
	return wrong
}

// TestWithoutJavaScript: pages are tables with the same numbers, and forms work.
func TestWithoutJavaScript(t *testing.T) {
	t.Parallel()
	c := dev(t)
	c.settle()
	node := c.nodes[0]
	node.issue(t, 1234)
	node.issue(t, 0)
	for _, name := range []string{"", "pool", "clocks", "node"} {
		p := open(t, node.own(), name, withoutScripts)
		if live := eval[string](p, `document.querySelector("#live").textContent`); !strings.HasPrefix(live, "as of ") {
			t.Errorf("scripts run: the page is %q", live)
		}
		var s status.Cluster
		if s = getJSON[status.Cluster](t, "http://"+node.HTTP+"/v1/cluster"); len(s.SIDs) != 3 {
			t.Fatalf("%+v", s)
		}
		text := eval[string](p, "document.body.innerText")
		want := []string{"All is well: 3 nodes serve"}
		switch name {
		case "":
			want = append(want, "node-1\tserving", "node-2\tserving", "node-3\tserving", "3 nodes", "16 for workers", "13 free", "latest write")
		case "pool":
			want = append(want, "sids held\n3 of 32")
			for _, sid := range s.SIDs {
				want = append(want, fmt.Sprintf("%d\theld\t%s\t%d\t", sid.SID, sid.Node, sid.Term))
			}
		case "clocks":
			want = append(want, "node-1\tserving", "node-2\tserving", "node-3\tserving", "this node", "agreed")
		case "node":
			want = append(want, "IDs issued\n1,234", fmt.Sprintf("sid · term\n%d · %d", s.Self.SID, s.Self.Term), "INVALID_COUNT\t1")
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("page %q does not show %q:\n%s", name, w, text)
			}
		}
		if strings.Contains(text, "–\n") && name == "node" {
			t.Errorf("a number is missing:\n%s", text)
		}
	}
	// Forms work too.
	p := open(t, node.own(), "ids", withoutScripts)
	p.run(sendKeys("#ids", "02MVRE9MT10N2\n95552449898644130"), click(".inspect button"))
	p.until(`document.body.innerText.includes("that come twice")`)
	b := open(t, c.console, "break", withoutScripts)
	b.press("node-3", "cut")
	b.until(`document.body.innerText.includes("cut off from etcd")`)
	b.press("node-3", "repair")
	b.until(`!document.body.innerText.includes("cut off from etcd")`)
}

// TestLinksToNodes: from a node's page a click leads to the page of another one.
func TestLinksToNodes(t *testing.T) {
	t.Parallel()
	c := dev(t)
	for path, to := range map[string]struct{ table, path string }{"": {"nodes", ""}, "pool": {"sids", ""}, "clocks": {"clocks", "clocks"}} {
		for _, options := range [][]option{nil, {withoutScripts}} {
			p := open(t, c.nodes[0].own(), path, options...)
			if options == nil {
				p.until("probe.snapshots > 1")
			}
			p.mu.Lock()
			p.linked = "http://" + c.nodes[1].Admin + "/"
			p.mu.Unlock()
			p.run(click(fmt.Sprintf("#%s a[href=%q]", to.table, c.nodes[1].own()+to.path)))
			p.until(fmt.Sprintf("location.href === %q && document.querySelector('[data-bind=\"self.name\"]').textContent === 'node-2'", c.nodes[1].own()+to.path))
			// The name is there before the browser has read the tables below it.
			p.until(`[...document.querySelectorAll("table a")].map((a) => a.textContent).sort().join() === "node-1,node-3"`)
		}
	}
}
