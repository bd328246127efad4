package console

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/status"
)

// next returns what the page shows once the server has sent something.
func (p *page) next() shown {
	p.t.Helper()
	had := eval[int](p, "probe.snapshots")
	p.until(fmt.Sprintf("probe.snapshots > %d", had))
	return p.read()
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
			for end := time.Now().Add(patience); ; { // A number may change twice between two answers of the API.
				before := getJSON[status.Cluster](t, "http://"+node.HTTP+"/v1/cluster")
				node.issue(t, 7)
				m := p.next()
				after := getJSON[status.Cluster](t, "http://"+node.HTTP+"/v1/cluster")
				wrong = nil
				then := m.differs(name, &before)
				for what, differs := range m.differs(name, &after) {
					if was, both := then[what]; both { // It is neither what was so nor what is.
						wrong = append(wrong, fmt.Sprintf("%s: %s; %s", what, was, differs))
					}
				}
				if len(wrong) == 0 || time.Now().After(end) {
					break
				}
			}
			for _, w := range wrong {
				t.Error(w)
			}
		})
	}
}

func commas(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// late is how much later than what the API answers a page may be, in s.
const late = 3

// differs compares what a page shows with what the API answers, and returns by name what differs.
func (m shown) differs(page string, s *status.Cluster) map[string]string {
	wrong := map[string]string{}
	same := func(what, got, want string) {
		if got != want {
			wrong[what] = fmt.Sprintf("%q, want %q", got, want)
		}
	}
	left := func(what, got string, ceil int64) {
		seconds, err := strconv.ParseFloat(strings.TrimSuffix(got, "s"), 64)
		if want := float64(max(0, ceil-s.Self.Now)) / 1e3; err != nil || math.Abs(seconds-want) > late {
			wrong[what] = fmt.Sprintf("%q, want %.1f s", got, want)
		}
	}
	same("the level of the summary", m.Level, string(s.Summary.Level))
	tile := func(name, want string) { same(name, m.Tiles[name], want) }
	switch page {
	case "":
		rows := map[string]row{}
		for _, r := range m.Tables["nodes"] {
			rows[r.Key] = r
		}
		sum := int64(0)
		for _, n := range s.Nodes {
			cells := rows[n.Instance].Cells
			if len(cells) != 10 {
				wrong["the row of "+n.Name] = "there is none"
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
			wrong["etcd"] = fmt.Sprintf("nothing is known of it: %+v, a write took %d µs", s.Etcd, s.Self.Work.Write)
		}
	case "pool":
		held := 0
		byName := map[string]status.Node{}
		for _, n := range s.Nodes {
			byName[n.Instance] = n
		}
		if len(m.Tables["sids"]) != len(s.SIDs) {
			wrong["sids"] = fmt.Sprintf("%d rows of %d", len(m.Tables["sids"]), len(s.SIDs))
			return wrong
		}
		for i, sid := range s.SIDs {
			cells := m.Tables["sids"][i].Cells
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
		for _, r := range m.Tables["clocks"] {
			rows[r.Key] = r
		}
		for _, n := range s.Nodes {
			cells := rows[n.Instance].Cells
			if len(cells) != 6 {
				wrong["the row of "+n.Name] = "there is none"
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
			if want := float64(n.Clock.Age) / 1e6; err != nil || math.Abs(ago-want) > late {
				wrong[n.Name+" last reply"] = fmt.Sprintf("%q, want %.1f s", cells[3], want)
			}
			same(n.Name+" false since", cells[5], "–")
		}
	case "node":
		self := &s.Self
		tile("lease", "holding")
		tile("sid · term", fmt.Sprintf("%d · %d", self.SID, self.Term))
		left("window left", m.Tiles["window left"], self.Ceil)
		tile("lead", fmt.Sprintf("%d ms", self.Lead))
		tile("IDs issued", commas(self.Issued))
		tile("of these before peers confirmed the clock", commas(self.Unverified))
		tile("IDs/s", commas(self.Rate))
		tile("version", self.Version)
		var refused []string
		for _, r := range m.Tables["refused"] {
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
			wrong["refused"] = "no request was"
		}
		for i, r := range m.Tables["conditions"] {
			same(fmt.Sprint("condition ", i), r.Cells[0], "yes")
		}
	}
	return wrong
}

// offset is written as in the command line: ms with one decimal, its uncertainty rounded up.
func offset(us, uncertainty int64) string {
	return fmt.Sprintf("%+.1fms ±%.1fms", math.Round(float64(us)/100)/10, math.Ceil(float64(uncertainty)/100)/10)
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
	p.run(sendKeys("#id", "02MVRE9MT10N2"), click(".inspect button"))
	p.until(`document.querySelector(".bits") !== null`)
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
			p.until(fmt.Sprintf("location.href === %q && document.querySelector('#answers').textContent === 'node-2'", c.nodes[1].own()+to.path))
			// The name is there before the browser has read the tables below it.
			p.until(`[...document.querySelectorAll("table a")].map((a) => a.textContent).sort().join() === "node-1,node-3"`)
		}
	}
}
