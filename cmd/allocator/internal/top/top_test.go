package top

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

// answer is what n1 says of a cluster of three: n2 has a wrong clock, n3 no gossip, and a
// worker and an operator have a sid each.
func answer() *pb.GetClusterResponse {
	return &pb.GetClusterResponse{
		Space: "default",
		Self:  &pb.NodeStatus{Name: "n1", Instance: "i1", NowUnixMs: 1_769_904_000_000, Refused: map[string]int64{"CLOCK_SKEW": 30, "NO_SID": 0, "DRAINING": 7}},
		Nodes: []*pb.Node{
			{Name: "n2", Instance: "i2", Sid: -1, Clock: &pb.PeerClock{Verdict: "skewed", Fresh: true, OffsetUs: 1e6, ErrorUs: 300, Falseticker: true},
				Report: &pb.NodeReport{Refusing: pb.Reason_REASON_CLOCK_SKEW, AgeMs: 800}},
			{Name: "n1", Instance: "i1", Sid: 4, Clock: &pb.PeerClock{Verdict: "open", Fresh: true, Self: true}, Report: &pb.NodeReport{IdsPerSecond: 1234, LeadMs: 2, CeilUnixMs: 1_769_904_020_000}},
			{Name: "n3", Instance: "i3", Sid: 5},
		},
		Sids: []*pb.Sid{
			{Sid: 4, State: "held", Term: 7, CeilUnixMs: 1_769_904_015_000},
			{Sid: 5, State: "held", Term: 1, CeilUnixMs: 1_769_904_010_000},
			{Sid: 9, State: "held", Node: "w1", CeilUnixMs: 1_769_904_060_000},
			{Sid: 11, State: "quarantined", Problem: "by hand"},
		},
	}
}

func TestView(t *testing.T) {
	before := answer()
	before.Self.NowUnixMs -= 2000
	before.Self.Refused["CLOCK_SKEW"] = 10
	events := []*pb.Event{{Id: "b-1", AtUnixMs: 1_769_903_999_000, Node: "n2", Kind: "gate_shut", Message: "the clocks disagree"}}
	want := `space default as n1 sees it at 00:00:00
n2 refuses: CLOCK_SKEW; 1 sid quarantined

NODE  SID  TERM  WINDOW             CLOCK    OFFSET                  IDS/S  LEAD  STATE
n1    4    7     ██████████  20.0s  open     -                       1234   2ms   serves
n2    -    -                 -      skewed   +1000.0ms ±0.3ms FALSE  0      0ms   CLOCK_SKEW
n3    5    1     █████░░░░░  10.0s  unknown  -                       -      -     no report

SID  STATE        HOLDER  USABLE IN  PROBLEM
9    held         w1      60.0s      -
11   quarantined  -       0.0s       by hand

refused by n1: CLOCK_SKEW 30 (10/s), DRAINING 7 (0/s)

23:59:59  n2  gate_shut  the clocks disagree`
	if got := strings.Join(newView(answer(), before, events).lines(0, 0), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A report that is no longer fresh is not shown as if it were, and a clock that was not
// measured lately is called silent.
func TestStaleValues(t *testing.T) {
	c := answer()
	c.Nodes[1].Report.AgeMs = staleAfter.Milliseconds()
	c.Nodes[0].Clock = &pb.PeerClock{Verdict: "open", OffsetUs: 5, AgeUs: 31e6}
	c.Nodes[0].Report = nil
	v := newView(c, nil, nil)
	if n := v.Nodes[0]; n.Reported || n.PerSecond != 0 || n.WindowMs != 15_000 {
		t.Errorf("%+v", n)
	}
	if text := strings.Join(v.lines(0, 0), "\n"); !strings.Contains(text, "n2    -    -                 -      silent") || !strings.Contains(v.Summary, "n2 does not answer by gossip") {
		t.Errorf("%s", text)
	}
}

func TestSummaries(t *testing.T) {
	serving := func(name string) *pb.Node {
		return &pb.Node{Name: name, Instance: name, Clock: &pb.PeerClock{Verdict: "open", Fresh: true}, Report: &pb.NodeReport{}}
	}
	for _, tc := range []struct {
		name string
		c    *pb.GetClusterResponse
		want string
	}{
		{"well", &pb.GetClusterResponse{Nodes: []*pb.Node{serving("a"), serving("b")}}, "all is well: 2 nodes with a sid"},
		{"a standby", &pb.GetClusterResponse{Nodes: []*pb.Node{serving("a"), {Name: "b", Sid: -1, Report: &pb.NodeReport{Refusing: pb.Reason_REASON_NO_SID}}}}, "all is well: 1 node with a sid; 1 node without one"},
		{"empty", &pb.GetClusterResponse{}, "no node is registered"},
		{"etcd", &pb.GetClusterResponse{Problem: "etcd cannot be read", Nodes: []*pb.Node{serving("a")}}, "etcd cannot be read"},
	} {
		if got := newView(tc.c, nil, nil).Summary; got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// Texts of other machines cannot command the terminal, and the screen is never larger than
// the terminal.
func TestScreenIsCut(t *testing.T) {
	c := answer()
	for i := range 500 {
		c.Nodes = append(c.Nodes, &pb.Node{Name: "\x1b[2J\n" + fmt.Sprint(i), Instance: fmt.Sprint(i), Sid: -1})
		c.Sids = append(c.Sids, &pb.Sid{Sid: int32(100 + i), State: "quarantined", Problem: "\x1b]0;x\a" + strings.Repeat("y", 1000)})
	}
	var m tea.Model = model{}
	for _, msg := range []tea.Msg{tea.WindowSizeMsg{Width: 60, Height: 20}, looked{view: newView(c, nil, nil)}, tea.KeyPressMsg{Code: tea.KeyDown}, looked{err: errors.New("node at\x1b[1m x: gone\nmore"), took: 2 * time.Second}} {
		m, _ = m.Update(msg)
		lines := strings.Split(m.(model).screen(), "\n")
		if len(lines) > 20 {
			t.Errorf("%T: %d lines", msg, len(lines))
		}
		for _, l := range lines {
			if n := len([]rune(l)); n > 60 || strings.ContainsAny(l, "\x1b\a") {
				t.Errorf("%T: %d characters: %q", msg, n, l)
			}
		}
	}
	got := m.(model).screen()
	if !strings.HasPrefix(got, "NO ANSWER for 3s, below is what was before: node at") || !strings.Contains(got, "NODE") {
		t.Errorf("%s", got)
	}
	if m, cmd := m.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); cmd == nil || m.(model).skip != 1 {
		t.Errorf("q does not quit, or skip is %d", m.(model).skip)
	}
}
