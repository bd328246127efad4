package archtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
)

// docs/reference/ids.md says of each layout what the code does.
func TestLayoutsTable(t *testing.T) {
	parts := strings.Split(read(t, "docs/reference/ids.md"), "<!-- layouts -->\n")
	if len(parts) != 3 {
		t.Fatal("docs/reference/ids.md has no table of layouts")
	}
	lines := strings.Split(strings.TrimSpace(parts[1]), "\n")
	want := slices.Clone(lines[:2]) // the head
	for _, name := range flake.Layouts() {
		l, err := flake.ParseLayout(name)
		fatal.If(t, err)
		if l.SIDBits() == 0 {
			continue // offline generators only
		}
		order := "sequence, sid"
		if l.SIDFirst() {
			order = "sid, sequence"
		}
		day := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.DateOnly) }
		want = append(want, fmt.Sprintf("| `%s` | %d/%d/%d | %s | %d ms | %s | %s | %s | %s |", name,
			l.TimeBits(), l.SIDBits(), l.SequenceBits(), order, l.Unit(), thousands(l.Holders()), thousands(1<<l.SequenceBits()),
			day(l.Epoch()), day(l.Epoch()+(l.MaxTimestamp()+1)*l.Unit())))
	}
	if got, want := strings.Join(lines, "\n"), strings.Join(want, "\n"); got != want {
		t.Errorf("docs/reference/ids.md has\n%s\nwant\n%s", got, want)
	}
}

// thousands writes n with a comma between each three digits.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
