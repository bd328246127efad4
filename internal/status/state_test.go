package status

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/watermark"
)

const now = 1_795_000_000_000

// states has the state of a node by what is known of its clock, by what it reports, and
// by whether it holds a sid. The console, top and status once had a rule each, and agreed on
// nine of these forty.
const states = `
	clock       reports   with a sid                  without
	none        nothing   unknown                     unknown
	none        well      serving                     standby
	none        NO_SID    standby                     standby
	none        DRAINING  refusing:DRAINING           refusing:DRAINING
	silent      nothing   silent                      silent
	silent      well      silent                      silent
	silent      NO_SID    silent                      silent
	silent      DRAINING  refusing:DRAINING           refusing:DRAINING
	open        nothing   serving                     standby
	open        well      serving                     standby
	open        NO_SID    standby                     standby
	open        DRAINING  refusing:DRAINING           refusing:DRAINING
	skewed      nothing   refusing:CLOCK_SKEW         refusing:CLOCK_SKEW
	skewed      well      refusing:CLOCK_SKEW         refusing:CLOCK_SKEW
	skewed      NO_SID    refusing:CLOCK_SKEW         refusing:CLOCK_SKEW
	skewed      DRAINING  refusing:DRAINING           refusing:DRAINING
	unverified  nothing   refusing:CLOCK_UNVERIFIED   refusing:CLOCK_UNVERIFIED
	unverified  well      refusing:CLOCK_UNVERIFIED   refusing:CLOCK_UNVERIFIED
	unverified  NO_SID    refusing:CLOCK_UNVERIFIED   refusing:CLOCK_UNVERIFIED
	unverified  DRAINING  refusing:DRAINING           refusing:DRAINING
`

func TestStateOf(t *testing.T) {
	seen := 0
	for line := range strings.Lines(states) {
		row := strings.Fields(line)
		if len(row) != 4 {
			continue
		}
		for i, sid := range []int{7, -1} {
			for _, falseticker := range []bool{false, true} { // changes nothing
				n := Node{SID: sid, Ceil: now + 1}
				switch row[0] {
				case "none":
				case "silent":
					n.Clock = &PeerClock{Verdict: "open", Falseticker: falseticker}
				default:
					n.Clock = &PeerClock{Verdict: row[0], Fresh: true, Falseticker: falseticker}
				}
				switch row[1] {
				case "nothing":
				case "well":
					n.Report = &Report{}
				default:
					n.Report = &Report{Refusing: node.ReasonOf(row[1])}
				}
				state, reason := StateOf(n, now)
				if got := strings.TrimSuffix(string(state)+":"+reason.String(), ":"); got != row[2+i] {
					t.Errorf("clock %s, reports %s, sid %d: %s, want %s", row[0], row[1], sid, got, row[2+i])
				}
				seen++
			}
		}
	}
	if seen != 20*4 {
		t.Errorf("%d cases", seen)
	}
}

// TestLaterReport: a report that came after the clock's samples decides, and an older one does
// not.
func TestLaterReport(t *testing.T) {
	for age, want := range map[int64]State{0: Serving, 999: Serving, 1000: Refusing, 2000: Refusing} {
		n := Node{SID: 7, Ceil: now + 1, Clock: &PeerClock{Fresh: true, Verdict: "unverified", Age: 1_000_000}, Report: &Report{Age: age}}
		if state, reason := StateOf(n, now); state != want || (reason == node.ClockUnverified) != (want == Refusing) {
			t.Errorf("a report %d ms old: %s %s", age, state, reason)
		}
		n.SID = -1
		if state, _ := StateOf(n, now); want == Serving && state != Standby {
			t.Errorf("without a sid: %s", state)
		}
	}
}

// TestEndedWindows: a node whose window has ended refuses; one whose window is not known
// is not said to.
func TestEndedWindows(t *testing.T) {
	for ceil, want := range map[int64]State{0: Serving, now - 1: Refusing, now: Refusing, now + 1: Serving} {
		state, reason := StateOf(Node{SID: 7, Ceil: ceil, Report: &Report{}}, now)
		if state != want || (reason == node.WindowExhausted) != (want == Refusing) {
			t.Errorf("ceiling %d: %s %s", ceil, state, reason)
		}
	}
}

func TestSIDState(t *testing.T) {
	holder := func(sid int, ceil int64, state State, reason node.Reason) *Node {
		return &Node{SID: sid, Ceil: ceil, State: state, Refusing: reason}
	}
	for name, tc := range map[string]struct {
		sid    SID
		holder *Node
		want   string
	}{
		"free":                              {SID{State: Free}, nil, Free},
		"waiting":                           {SID{State: Waiting, Ceil: now + 1}, nil, Waiting},
		"waited":                            {SID{State: Waiting, Ceil: now}, nil, Free},
		"quarantined":                       {SID{State: Quarantined}, nil, Quarantined},
		"held by a worker":                  {SID{State: Held, Ceil: now + 1}, nil, Held},
		"a worker's interval has ended":     {SID{State: Held, Ceil: now}, nil, HeldEnded},
		"held":                              {SID{SID: 3, State: Held, Ceil: now + 1}, holder(3, 0, Serving, 0), Held},
		"extended since":                    {SID{SID: 3, State: Held, Ceil: now}, holder(3, now+1, Serving, 0), Held},
		"the holder has another sid now":    {SID{SID: 3, State: Held, Ceil: now}, holder(4, now+1, Serving, 0), HeldEnded},
		"the holder refuses":                {SID{SID: 3, State: Held, Ceil: now}, holder(3, 0, Refusing, node.ClockSkew), HeldRefused},
		"the holder refuses for its window": {SID{SID: 3, State: Held, Ceil: now}, holder(3, 0, Refusing, node.WindowExhausted), HeldEnded},
	} {
		if got := SIDState(tc.sid, tc.holder, now); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// three is a cluster of three nodes where all is well, as n1 sees it.
func three() Cluster {
	c := Cluster{
		Read: now - 1000,
		Self: Self{Name: "n1", Instance: "i1", Ready: true, SID: 1, Ceil: now + 28_000, Now: now, Window: 30_000, Phase: "holding", Clock: &Clock{}},
	}
	for i := 1; i <= 3; i++ {
		name, instance := "n"+strconv.Itoa(i), "i"+strconv.Itoa(i)
		c.SIDs = append(c.SIDs, SID{SID: i, State: Held, Node: name, Instance: instance, Ceil: now + 24_000})
		c.Nodes = append(c.Nodes, Node{
			Name: name, Instance: instance, SID: i, Clock: &PeerClock{Fresh: true, Verdict: "open", Self: i == 1},
			Report: &Report{Ceil: now + 26_000, Age: 500},
		})
	}
	return c
}

// TestJudgeOwnNode: what the node that answers knows of itself is newer than its record.
func TestJudgeOwnNode(t *testing.T) {
	c := three()
	c.Self.SID, c.Self.Ready, c.Self.Refusing, c.Self.Rate = -1, false, node.ClockSkew, 7
	c.Self.Ceil = 0
	c.Judge()
	if n := c.Nodes[0]; n.State != Refusing || n.Refusing != node.ClockSkew || n.SID != -1 || n.Ceil != 0 || n.Report.Rate != 7 {
		t.Errorf("%+v", n)
	}
	if n := c.Nodes[1]; n.State != Serving || n.Ceil != now+26_000 {
		t.Errorf("%+v", n)
	}
}

func TestProblems(t *testing.T) {
	pages, kinds := map[string]bool{}, map[string]bool{}
	for name, tc := range map[string]struct {
		change  func(*Cluster)
		summary string   // the level and the sentence
		more    []string // kinds of the problems after the first
	}{
		"well":          {func(*Cluster) {}, "ok All is well: 3 nodes serve, every window lasts 26.0s or longer.", nil},
		"one node":      {func(c *Cluster) { c.Nodes = c.Nodes[:1] }, "ok All is well: 1 node serves, every window lasts 28.0s or longer.", nil},
		"a wrong clock": {func(c *Cluster) { c.Nodes[1].Clock.Verdict = "skewed" }, "bad n2: the clock is wrong, so it refuses. 2 of 3 nodes serve.", nil},
		"the own clock": {func(c *Cluster) { c.Self.Refusing = node.ClockSkew }, "bad n1: the clock is wrong, so it refuses. 2 of 3 nodes serve.", nil},
		"all clocks": {func(c *Cluster) {
			c.Self.Refusing = node.ClockSkew
			c.Nodes[1].Clock.Verdict, c.Nodes[2].Clock.Verdict = "skewed", "skewed"
		}, "bad The clocks disagree, and nobody issues: n1, n2 and n3. 0 of 3 nodes serve.", nil},
		"a clock that is found wrong first by others": {func(c *Cluster) { c.Nodes[1].Clock.Falseticker = true },
			"bad n2: a majority disagrees with the clock. 3 of 3 nodes serve.", nil},
		"unconfirmed": {func(c *Cluster) { c.Nodes[1].Clock.Verdict, c.Nodes[2].Clock.Verdict = "unverified", "unverified" },
			"bad n2 and n3: no majority confirms the clock, so they refuse. 1 of 3 nodes serve.", nil},
		"a window that ended": {func(c *Cluster) { c.SIDs[1].Ceil, c.Nodes[1].Report.Ceil = now, now },
			"bad n2: the window has ended, so it refuses (since 11:06:40 UTC). 2 of 3 nodes serve.", nil},
		"a window that is not extended": {func(c *Cluster) { c.SIDs[1].Ceil, c.Nodes[1].Report.Ceil = now, now+19_000 },
			"warn n2: etcd does not extend the window (since 11:06:29 UTC). 3 of 3 nodes serve.", nil},
		"an own window that is not extended": {func(c *Cluster) { c.Self.Ceil = now + 19_999 },
			"warn n1: etcd does not extend the window (since 11:06:29 UTC). 3 of 3 nodes serve.", nil},
		"windows of an old report": {func(c *Cluster) {
			c.SIDs[1].Ceil, c.Nodes[1].Report = now+16_000, &Report{Ceil: now + 16_000, Age: 4500}
		}, "ok All is well: 3 nodes serve, every window lasts 16.0s or longer.", nil},
		"windows of an old record": {func(c *Cluster) { c.Read, c.SIDs[1].Ceil, c.Nodes[1].Report = now-4400, now+16_000, nil },
			"ok All is well: 3 nodes serve, every window lasts 16.0s or longer.", nil},
		"drained": {func(c *Cluster) { c.Nodes[1].Report.Refusing, c.Nodes[1].SID = node.Draining, -1 },
			"warn n2: drained or stopping, so it refuses. 2 of 3 nodes serve.", nil},
		"another reason": {func(c *Cluster) { c.Nodes[1].Report.Refusing = node.ClockRegression },
			"warn Refusing: n2 with CLOCK_REGRESSION. 2 of 3 nodes serve.", nil},
		"silent": {func(c *Cluster) { c.Nodes[2].Clock.Fresh, c.Nodes[2].Clock.Age = false, 2_500_000 }, "warn No reply from n3 (since 11:06:37 UTC). 2 of 3 nodes serve.", nil},
		"without gossip": {func(c *Cluster) { c.Nodes[2].Clock, c.Nodes[2].Report = nil, nil },
			"warn Nothing is known of n3: no gossip came. 2 of 3 nodes serve.", nil},
		"a standby": {func(c *Cluster) {
			c.Nodes[2].SID, c.Nodes[2].Report, c.SIDs = -1, &Report{Refusing: node.NoSID}, c.SIDs[:2]
		},
			"warn No sid is left for n3. 2 of 3 nodes serve.", nil},
		"as many as expected": {func(c *Cluster) { c.Expected = 3 }, "ok All is well: 3 nodes serve, every window lasts 26.0s or longer.", nil},
		"missing":             {func(c *Cluster) { c.Expected = 4 }, "warn 3 of 4 nodes expected are registered. 3 of 4 nodes serve.", nil},
		"two of one name": {func(c *Cluster) { c.Nodes[2].Name = "n2" },
			"warn Several processes are registered as n2: if that lasts for longer than a lease, set node.name on each. 3 of 3 nodes serve.", nil},
		"vanished": {func(c *Cluster) {
			c.Nodes = c.Nodes[:2]
			c.SIDs[2] = SID{SID: 3, State: Waiting, Node: "n3", Ceil: now + 5000, Written: now - 25_000, Unreleased: true}
		}, "warn n3 vanished, and has not released sid 3 (since 11:06:15 UTC). 2 of 3 nodes serve.", nil},
		"vanished, and one more is missing": {func(c *Cluster) {
			c.Nodes, c.Expected = c.Nodes[:2], 4
			c.SIDs[2] = SID{SID: 3, State: Waiting, Node: "n3", Ceil: now + 5000, Written: now - 25_000, Unreleased: true}
		}, "warn n3 vanished, and has not released sid 3 (since 11:06:15 UTC). 2 of 4 nodes serve; 1 problem more.", []string{NodesMissing}},
		"vanished, and replaced by another": {func(c *Cluster) {
			c.Expected = 3
			c.SIDs = append(c.SIDs, SID{SID: 9, State: Free, Node: "n9", Written: now - 25_000, Unreleased: true})
		}, "ok All is well: 3 nodes serve, every window lasts 26.0s or longer.", nil},
		"vanished long ago": {func(c *Cluster) {
			c.SIDs = append(c.SIDs, SID{SID: 9, State: Free, Node: "n9", Written: now - 3_600_000, Unreleased: true})
		},
			"ok All is well: 3 nodes serve, every window lasts 26.0s or longer.", nil},
		"killed, and back": {func(c *Cluster) {
			c.SIDs = append(c.SIDs, SID{SID: 9, State: Free, Node: "n3", Written: now - 20_000, Unreleased: true})
		},
			"ok All is well: 3 nodes serve, every window lasts 26.0s or longer.", nil},
		"a worker that was killed": {func(c *Cluster) {
			c.SIDs = append(c.SIDs, SID{SID: 9, State: Free, Node: "w", Written: now - 20_000, Unreleased: true, Worker: true})
		}, "ok All is well: 3 nodes serve, every window lasts 26.0s or longer.", nil},
		"quarantined": {func(c *Cluster) { c.SIDs = append(c.SIDs, SID{SID: 9, State: Quarantined}) }, "warn 1 sid quarantined. 3 of 3 nodes serve.", nil},
		"rewound":     {func(c *Cluster) { c.Self.Phase = "rewound" }, "bad etcd's history went back: nodes refuse until an operator begins a new era. 3 of 3 nodes serve.", nil},
		"rewound, as another node says": {func(c *Cluster) { c.Nodes[1].Report.Refusing = node.HistoryRewound },
			"bad etcd's history went back: nodes refuse until an operator begins a new era. 2 of 3 nodes serve.", nil},
		"a record": {func(c *Cluster) { c.Problem = "the era is unreadable" }, "warn the era is unreadable. 3 of 3 nodes serve.", nil},
		"the watermark is held": {func(c *Cluster) {
			c.Watermark = &watermark.Answer{Lag: 61_250, Held: true, BlockedBy: []watermark.Blocker{
				{SID: -1, Why: watermark.EtcdAway, Text: "this node has read nothing"},
				{Node: "n2", SID: 2, Since: now - 60_000, Why: lease.BlockedSilent, Text: "node n2 (sid 2) is silent"},
			}}
		}, "warn The watermark is 61.2s behind: node n2 (sid 2) is silent (since 11:05:40 UTC). 3 of 3 nodes serve.", nil},
		"the watermark is behind, and nobody has to look": {func(c *Cluster) {
			c.Watermark = &watermark.Answer{Lag: 50_000, BlockedBy: []watermark.Blocker{{Node: "n2", SID: 2, Text: "silent"}}}
		}, "ok All is well: 3 nodes serve, every window lasts 26.0s or longer.", nil},
		"etcd away": {func(c *Cluster) { c.Read = now - 4501 },
			"bad etcd does not answer (since 11:06:35 UTC). Nodes issue until their windows end, the first in 26.0s. 3 of 3 nodes serve.", nil},
		"etcd away, and windows ended": {func(c *Cluster) {
			c.Read, c.Self.Ceil = now-30_000, now
			for i := range c.Nodes {
				c.SIDs[i].Ceil, c.Nodes[i].Report = now, nil
			}
		}, "bad etcd does not answer (since 11:06:10 UTC), and the windows have ended: nobody issues. 0 of 3 nodes serve; 1 problem more.", []string{WindowEnded}},
		"etcd away, and windows unknown": {func(c *Cluster) {
			c.Read, c.SIDs, c.Self.Ceil = 0, nil, 0
			for i := range c.Nodes {
				c.Nodes[i].Report = nil
			}
		}, "bad etcd does not answer, and the state of sids is not known. 3 of 3 nodes serve.", nil},
		"a member away": {func(c *Cluster) { c.Etcd = members(3, 1) },
			"warn etcd has 2 of 3 members: the loss of one more stops every write (no answer from m1). 3 of 3 nodes serve.", nil},
		"one of five": {func(c *Cluster) { c.Etcd = members(5, 1) },
			"warn etcd has 4 of 5 members: 1 more may fail (no answer from m1). 3 of 3 nodes serve.", nil},
		"a learner or a removed host away": {func(c *Cluster) { c.Etcd = members(4, 1); c.Etcd.Voters = 3 },
			"warn etcd has 3 of 3 members: 1 more may fail (no answer from m1). 3 of 3 nodes serve.", nil},
		"one of two endpoints": {func(c *Cluster) { c.Etcd = members(2, 1); c.Etcd.Voters, c.Etcd.VotersAnswer = 0, 0 },
			"warn No answer from etcd at m1. 3 of 3 nodes serve.", nil},
		"no majority in reach, and etcd was read": {func(c *Cluster) { c.Etcd = members(3, 2) },
			"warn No answer from etcd at m1 and m2. 3 of 3 nodes serve.", nil},
		"no majority": {func(c *Cluster) { c.Etcd, c.Read = members(3, 2), now-4501 },
			"bad etcd does not answer (since 11:06:35 UTC). Nodes issue until their windows end, the first in 26.0s. 3 of 3 nodes serve.", nil},
		"all members": {func(c *Cluster) { c.Etcd = members(3, 0) }, "ok All is well: 3 nodes serve, every window lasts 26.0s or longer.", nil},
		"an alarm": {func(c *Cluster) { c.Etcd = members(3, 0); c.Etcd.Members[0].Problem = "alarm" },
			"ok All is well: 3 nodes serve, every window lasts 26.0s or longer.", nil},
		"nothing read yet": {func(c *Cluster) { c.Read, c.Nodes, c.SIDs = 0, nil, nil }, "warn No node is known yet: etcd has not been read.", nil},
		"several, the worst first": {func(c *Cluster) {
			c.Problem = "the era is unreadable"
			c.Nodes[1].Clock.Verdict = "skewed"
			c.Nodes[2].Clock.Fresh = false
		}, "bad n2: the clock is wrong, so it refuses. 1 of 3 nodes serve; 2 problems more.", []string{Records, NodesSilent}},
	} {
		t.Run(name, func(t *testing.T) {
			c := three()
			tc.change(&c)
			c.Judge()
			if got := string(c.Summary.Level) + " " + c.Summary.Text; got != tc.summary {
				t.Errorf("got  %s\nwant %s", got, tc.summary)
			}
			var more []string
			for i, p := range c.Problems {
				pages[p.Page], kinds[p.Kind] = true, true
				if p.Kind == "" || p.Text == "" || p.Page == "" || p.Level == OK {
					t.Errorf("%+v", p)
				}
				if i > 0 {
					more = append(more, p.Kind)
				}
			}
			if !slices.Equal(more, tc.more) || (len(c.Problems) == 0) != (c.Summary.Level == OK) {
				t.Errorf("problems %+v", c.Problems)
			}
		})
	}
	if got, want := slices.Sorted(maps.Keys(kinds)), slices.Sorted(slices.Values(schemas(t)["ClusterProblem"].Properties["kind"].Enum)); !slices.Equal(got, want) {
		t.Errorf("seen are the kinds\n%v, openapi.yaml has\n%v", got, want)
	}
	for page := range pages {
		file, anchor, _ := strings.Cut(page, "#")
		content, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Error(err)
		}
		if anchor != "" && !strings.Contains(anchors(string(content)), "\n#"+anchor+"\n") {
			t.Errorf("%s has no heading %s", file, anchor)
		}
	}
}

// members are so many members of etcd, of which the first do not answer.
func members(all, away int) *Etcd {
	e := &Etcd{Endpoints: all, Answer: all - away, Voters: all, VotersAnswer: all - away}
	for i := range all {
		m := EtcdMember{Endpoint: fmt.Sprintf("m%d", i+1), Size: 1 << 20}
		if i < away {
			m.Size, m.Problem = 0, "it does not answer"
		}
		e.Members = append(e.Members, m)
	}
	return e
}

// TestSinceWhen: a problem of nodes has since when they are in their state, where that is known of all
// that have it.
func TestSinceWhen(t *testing.T) {
	drained := func(n *Node) { n.Report.Refusing, n.SID = node.Draining, -1 }
	for name, tc := range map[string]struct {
		change func(*Cluster)
		began  map[string]int64
		want   string
	}{
		"drained":         {func(c *Cluster) { drained(&c.Nodes[1]) }, map[string]int64{"i2": now - 40_000}, "n2: drained or stopping, so it refuses (since 11:06:00 UTC)."},
		"two":             {func(c *Cluster) { drained(&c.Nodes[1]); drained(&c.Nodes[2]) }, map[string]int64{"i2": now - 1, "i3": now - 40_000}, "n2 and n3: drained or stopping, so they refuse (since 11:06:00 UTC)."},
		"known of one":    {func(c *Cluster) { drained(&c.Nodes[1]); drained(&c.Nodes[2]) }, map[string]int64{"i3": now - 40_000}, "n2 and n3: drained or stopping, so they refuse."},
		"another clock":   {func(c *Cluster) { c.Nodes[1].Clock.Verdict = "skewed" }, map[string]int64{"i2": now - 40_000}, "n2: the clock is wrong, so it refuses (since 11:06:00 UTC)."},
		"without its own": {func(c *Cluster) { c.Nodes[1].Clock.Falseticker = true }, map[string]int64{"i2": now - 40_000}, "n2: a majority disagrees with the clock."},
	} {
		c := three()
		tc.change(&c)
		c.judgeNodes()
		c.conclude(tc.began)
		if got := c.Problems[0].Text; got != tc.want {
			t.Errorf("%s: %s\nwant %s", name, got, tc.want)
		}
	}
}

// anchors returns the anchors of the headings of a page, one a line.
func anchors(page string) string {
	out := "\n"
	for line := range strings.Lines(page) {
		if title := strings.TrimLeft(line, "#"); title != line {
			kept := strings.Map(func(r rune) rune {
				if r == ' ' {
					return '-'
				}
				if r == '-' || unicode.IsLetter(r) || unicode.IsDigit(r) {
					return unicode.ToLower(r)
				}
				return -1
			}, strings.TrimSpace(title))
			out += "#" + kept + "\n"
		}
	}
	return out
}

// TestSilentAtOnce: a node that was killed is silent as soon as it owes an answer, or gossip
// has found it dead, and not when its last measurement is old.
func TestSilentAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		heard map[string]Heard
		want  string
	}{
		"well": {map[string]Heard{"i2": {Report: &Report{Ceil: now + 26_000}}, "i3": {Report: &Report{Ceil: now + 26_000}}},
			"ok All is well: 3 nodes serve, every window lasts 26.0s or longer."},
		"a lost answer": {map[string]Heard{"i2": {Report: &Report{}, Owed: owedFor}, "i3": {Owed: owedFor}}, "ok All is well: 3 nodes serve, every window lasts 24.0s or longer."},
		"no answer":     {map[string]Heard{"i2": {Report: &Report{}, Owed: owedFor + 1}, "i3": {Report: &Report{}}}, "warn No reply from n2 (since 11:06:39 UTC). 2 of 3 nodes serve."},
		"never one":     {map[string]Heard{"i2": {Owed: owedFor + 1}, "i3": {Report: &Report{}}}, "warn No reply from n2 (since 11:06:39 UTC). 2 of 3 nodes serve."},
		"no member":     {map[string]Heard{"i3": {Report: &Report{}}}, "warn No reply from n2 (since 11:06:39 UTC). 2 of 3 nodes serve."},
		"no gossip yet": {nil, "ok All is well: 3 nodes serve, every window lasts 24.0s or longer."},
	} {
		c := three()
		for i := range c.Nodes {
			c.Nodes[i].Report, c.Nodes[i].Clock.Age = nil, 1_000_000
		}
		new(Reader).fillLive(&c, clock.Report{}, tc.heard, reportFresh)
		c.Judge()
		if got := string(c.Summary.Level) + " " + c.Summary.Text; got != tc.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, tc.want)
		}
	}
}
