package top

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/feed"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/watermark"
)

const now = 1_769_904_000_000

// answer is what n1 says of a cluster of three: n2 has a wrong clock, n3 no gossip, and a
// worker and an operator have a sid each.
func answer() status.Cluster {
	c := status.Cluster{
		Space: "default",
		Read:  now,
		Self: status.Self{
			Name: "n1", Instance: "i1", SID: 4, Now: now, Ceil: now + 20_000, Rate: 1234, Lead: 2,
			Refused: map[string]int64{"CLOCK_SKEW": 30, "NO_SID": 0, "DRAINING": 7},
		},
		Nodes: []status.Node{
			{
				Name: "n2", Instance: "i2", SID: -1,
				Clock:  &status.PeerClock{Verdict: "skewed", Fresh: true, Offset: 1e6, Error: 300, Falseticker: true},
				Report: &status.Report{Refusing: node.ClockSkew, Age: 800, Work: status.Work{Refused: map[string]int64{"CLOCK_SKEW": 12, "NO_SID": 1}}},
			},
			{Name: "n1", Instance: "i1", SID: 4, Clock: &status.PeerClock{Verdict: "open", Fresh: true, Self: true}},
			{Name: "n3", Instance: "i3", SID: 5},
		},
		SIDs: []status.SID{
			{SID: 4, State: "held", Term: 7, Ceil: now + 15_000},
			{SID: 5, State: "held", Term: 1, Ceil: now + 10_000},
			{SID: 9, State: "held", Node: "w1", Ceil: now + 60_000},
			{SID: 11, State: "quarantined", Problem: "by hand"},
		},
	}
	c.Judge()
	return c
}

func TestView(t *testing.T) {
	events := []feed.Event{eventOf(&pb.Event{Id: "b-1", AtUnixMs: now - 1000, Node: "n2", Kind: "gate_shut", Message: "the clocks\x1b disagree"})}
	want := `space default as n1 sees it at 00:00:00
n2: the clock is wrong, so it refuses. 1 of 3 nodes serve; 2 problems more.
Nothing is known of n3: no gossip came.
1 sid quarantined.

NODE  SID  TERM  WINDOW             CLOCK   OFFSET                  IDS/S  LEAD  STATE
n1    4    7     ██████████  20.0s  open    -                       1234   2ms   serving
n2    -    -                 -      skewed  +1000.0ms ±0.3ms FALSE  0      0ms   CLOCK_SKEW
n3    5    1     █████░░░░░  10.0s  -       -                       -      -     unknown

SID  STATE        HOLDER  USABLE IN  PROBLEM
9    held         w1      60.0s      -
11   quarantined  -       0.0s       by hand

refused by all nodes: CLOCK_SKEW 2.4/s, NO_SID 0.2/s
since n1 started, by it alone: CLOCK_SKEW 30, DRAINING 7

23:59:59  n2  gate_shut  the clocks� disagree`
	if got := strings.Join(newView(answer(), events).lines(0, 0), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The screen says who holds the watermark back.
func TestWatermark(t *testing.T) {
	c := answer()
	c.Watermark = &watermark.Answer{At: now - 20_500, Lag: 20_500, BlockedBy: []watermark.Blocker{
		{Node: "n3", SID: 5, Since: now - 20_500, Why: "silent", Text: "node n3 (sid 5) holds its sid and does not extend its window"},
	}}
	want := "watermark 2026-01-31T23:59:39.500Z, 20.5s behind: node n3 (sid 5) holds its sid and does not extend its window"
	if got := newView(c, nil).lines(0, 0); !slices.Contains(got, want) {
		t.Errorf("no line %q in\n%s", want, strings.Join(got, "\n"))
	}
}

// A clock that was not measured lately is called silent, and its offset is not shown as if it
// were now.
func TestStaleValues(t *testing.T) {
	c := answer()
	c.Nodes[0].Clock = &status.PeerClock{Verdict: "open", Offset: 5, Age: 31e6}
	c.Nodes[0].Report = nil
	c.Judge()
	text := strings.Join(newView(c, nil).lines(0, 0), "\n")
	if !strings.Contains(text, "n2    -    -                 -      silent  -       -      -     silent") || !strings.Contains(text, "No reply from n2 (since 23:59:29 UTC).") {
		t.Errorf("%s", text)
	}
}

// Texts of other machines cannot command the terminal, and the screen is never larger than
// the terminal.
func TestScreenIsCut(t *testing.T) {
	c := answer()
	for i := range 500 {
		c.Nodes = append(c.Nodes, status.Node{Name: "\x1b[2J\n" + fmt.Sprint(i), Instance: fmt.Sprint(i), SID: -1})
		c.SIDs = append(c.SIDs, status.SID{SID: 100 + i, State: "quarantined", Problem: "\x1b]0;x\a" + strings.Repeat("y", 1000)})
	}
	c.Judge()
	c = status.FromProto(status.ToProto(c))
	var m tea.Model = model{}
	for _, msg := range []tea.Msg{tea.WindowSizeMsg{Width: 60, Height: 20}, looked{view: newView(c, nil)}, tea.KeyPressMsg{Code: tea.KeyDown}, looked{err: errors.New("node at\x1b[1m x: gone\nmore"), took: 2 * time.Second}} {
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
