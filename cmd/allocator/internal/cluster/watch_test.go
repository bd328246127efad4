package cluster

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/status"
)

// TestScreenIsCut: texts of other machines cannot command the terminal, a screen is never larger than the terminal,
// and it says since when nothing answers.
func TestScreenIsCut(t *testing.T) {
	c := status.Cluster{Space: "default", Read: 1, Self: status.Self{Name: "n1", Instance: "n1", SID: -1},
		Callers: []quota.Caller{{Source: "10.0.0.9", Connections: 30, Streams: 20, Waiting: 10, Bytes: 2048}}}
	for i := range 500 {
		c.Nodes = append(c.Nodes, status.Node{
			Name: "\x1b[2J\n" + fmt.Sprint(i), Instance: fmt.Sprint(i), SID: -1, Report: &status.Report{Rate: 2, Work: status.Work{Refused: map[string]int64{"NO_SID": 5}}},
		})
	}
	c.Judge()
	var rates, b strings.Builder
	fatal.If(t, errors.Join(view{c, true}.print(&rates), view{status.FromProto(status.ToProto(c)), true}.print(&b)))
	if all := rates.String(); !strings.Contains(all, "1000 IDs a second by all nodes; refused: NO_SID 500.0/s") || !strings.Contains(all, "IDS/S  LEAD") ||
		!regexp.MustCompile(`CALLER OF N1 .*\n10\.0\.0\.9 +30 +20 +10 +2\n`).MatchString(all) {
		t.Errorf("no rates or callers in:\n%.600s", all)
	}
	w := watcher{body: strings.Split(b.String(), "\n"), events: []string{"the newest event"}}
	began := time.Now()
	gone := errors.New("node at\x1b[1m x: gone\nmore")
	w.screen(gone, began, 60, 20)
	for _, err := range []error{nil, gone} {
		lines := w.screen(err, began.Add(3*time.Second), 60, 20)
		if len(lines) > 20 || lines[len(lines)-1] != "the newest event" || lines[len(lines)-3] != "… more: allocator status" {
			t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
		}
		for _, l := range lines {
			if n := len([]rune(l)); n > 60 || strings.ContainsAny(l, "\x1b\a") {
				t.Errorf("%d characters: %q", n, l)
			}
		}
		w.screen(gone, began, 60, 20)
	}
	if got := w.screen(gone, began.Add(3*time.Second), 0, 0)[0]; got != "NO ANSWER for 3s, below is what was before: node at\ufffd[1m x: gone" {
		t.Errorf("%q", got)
	}
}
