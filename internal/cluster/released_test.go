package cluster

import (
	"encoding/hex"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

var released = flag.String("released", "", "write what a release of this version says into testdata/released: docs/RELEASING.md")

// aMessage is a message of a release: what it means, and its bytes as they would be written now.
type aMessage struct {
	kind  string
	bytes []byte
	want  any
}

// messagesOf010 has every kind of message, as it was in 0.1.0.
func messagesOf010(t *testing.T) []aMessage {
	t.Helper()
	id := uuid.MustParse("6f1c2e0a-9b1d-4d7e-8a35-0c4f2b7d9e11")
	p := ping{From: id, Nonce: 0x0102030405060708, T1: 1_000_000_007}
	answer := pong{
		Instance: id, Node: "allocator-3", Nonce: math.MaxUint64, T1: 5, Hold: 31 * time.Microsecond,
		Clocks: clock.Snapshot{Raw: 7_000_000_001, Issuing: 1_789_999_993_123_456_788, Wall: 1_789_999_995_999_999_999, Kernel: clock.Synchronized},
		Status: agreement.Status{Verdict: clock.Skewed, SID: 31, Term: 12, Era: 2, Cluster: 0xcafe, Revision: 88_000, Ceiling: 1_790_000_030_000},
	}
	const now = 1_790_000_000_000
	r := report{Instance: id, Nonce: 9, Said: status.Self{
		Rate: 1000, Lead: -3, Ceil: 1_790_000_030_000, Era: 2, Highest: 1_790_000_030_000, Refusing: node.WindowExhausted, Now: now,
		Work: status.Work{Refused: map[string]int64{"WINDOW_EXHAUSTED": 17}, P50: 210, P99: 900, Write: 2100, Written: now - 4000},
	}.Say()}
	a := announcement{Pool: poolHash("5f7c6c9c-3f0f-4c53-8a11-27e4f7d1a001"), Instance: id}
	encodedPong, err := appendPong(nil, answer)
	fatal.If(t, err)
	return []aMessage{
		{"ping", appendPing(nil, p), p},
		{"pong", encodedPong, answer},
		{"ask", appendAsk(nil, ask(p)), ask(p)},
		{"report", appendReport(nil, r), r},
		{"announcement", a.encode(), a},
	}
}

// What nodes of each release say in gossip is read by this one, and means what it meant: nodes of
// two releases run beside each other during an upgrade.
func TestReleasedMessages(t *testing.T) {
	releases := map[string][]aMessage{"0.1.0": messagesOf010(t)}
	const releasedDir = "../../testdata/released"
	if *released != "" {
		var out strings.Builder
		for _, m := range releases[*released] {
			out.WriteString(m.kind + " " + hex.EncodeToString(m.bytes) + "\n")
		}
		fatal.If(t, os.WriteFile(filepath.Join(releasedDir, *released, "gossip.txt"), []byte(out.String()), 0o644))
	}
	dirs, err := os.ReadDir(releasedDir)
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no releases: %v", err)
	}
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(releasedDir, dir.Name(), "gossip.txt"))
		fatal.If(t, err)
		lines, messages := strings.Split(strings.TrimSpace(string(text)), "\n"), releases[dir.Name()]
		if len(lines) != len(messages) {
			t.Errorf("release %s has %d messages, and the test knows %d", dir.Name(), len(lines), len(messages))
			continue
		}
		for i, line := range lines {
			kind, digits, _ := strings.Cut(line, " ")
			raw, err := hex.DecodeString(digits)
			fatal.If(t, err)
			var got any
			if kind == "announcement" {
				got, err = decodeAnnouncement(raw)
			} else {
				got, err = decode(raw)
			}
			if kind != messages[i].kind || err != nil || !reflect.DeepEqual(got, messages[i].want) {
				t.Errorf("release %s, line %d, a %s: %v\ngot  %+v\nwant %+v", dir.Name(), i+1, kind, err, got, messages[i].want)
			}
		}
	}
}
