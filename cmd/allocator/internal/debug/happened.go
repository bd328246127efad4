package debug

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/text"
)

// The page has that many of the latest lines of what happened, each cut to that many bytes.
const maxHappened, maxLine = 200, 600

// happened is an event, or a line of a log.
type happened struct {
	At         time.Time // in UTC, by the clock of that node
	Node, Text string
}

var (
	eventTime = regexp.MustCompile(`"at_unix_ms":([0-9]+)`)
	warning   = regexp.MustCompile(`^time=(\S+) level=(?:WARN|ERROR)\S* (.*)$`)
)

// Happened returns the latest events, and the latest lines of logs of level WARN and above, of all nodes, the
// oldest first. It reads files that have no secrets any more.
func (g *gathering) Happened() (all []happened) {
	for _, n := range g.Nodes {
		add := func(at time.Time, line string) {
			all = append(all, happened{at.UTC(), n.Label, text.Printable(text.Cut(line, maxLine))})
		}
		for line := range bytes.Lines(g.Files[n.Dir+"/events.jsonl"]) {
			m := eventTime.FindSubmatch(line)
			if m == nil {
				continue
			}
			ms, _ := strconv.ParseInt(string(m[1]), 10, 64)
			says := string(bytes.TrimSpace(line)) // Where a secret was removed it may be no JSON any more.
			var e feed.Event
			if json.Unmarshal(line, &e) == nil {
				says = fmt.Sprintf("%s: %s: %s", e.Node, e.Kind, e.Message)
				for _, key := range slices.Sorted(maps.Keys(e.Attributes)) {
					says += fmt.Sprintf(" %s=%q", key, e.Attributes[key])
				}
			}
			add(time.UnixMilli(ms), says)
		}
		for line := range strings.Lines(string(g.Files[n.Dir+"/log.txt"])) {
			m := warning.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil || strings.Contains(line, `" event=`) { // It repeats an event.
				continue
			}
			if at, err := time.Parse(time.RFC3339, m[1]); err == nil {
				add(at, m[2])
			}
		}
	}
	slices.SortStableFunc(all, func(a, b happened) int { return a.At.Compare(b.At) })
	return all[max(len(all)-maxHappened, 0):]
}

// Refused returns how many requests a node has refused, by reason; "": none, or it did not say.
func (g *gathering) Refused(dir string) string {
	var status struct {
		Self struct{ Refused map[string]int64 }
	}
	_ = json.Unmarshal(g.Files[dir+"/status.json"], &status) // Without it there are none.
	var refused []string
	for _, reason := range slices.Sorted(maps.Keys(status.Self.Refused)) {
		if count := status.Self.Refused[reason]; count > 0 {
			refused = append(refused, fmt.Sprintf("%s %d", reason, count))
		}
	}
	return text.Cut(strings.Join(refused, ", "), maxLine)
}
