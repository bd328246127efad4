package sqlid

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/userdb"
	"github.com/flakelease/allocator/worker"
)

// TestUses: the watermark is told no time in which a server may make IDs, whatever became of slices, and moves with
// the clock once none may. A number is given back only when no server may use a slice.
func TestUses(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(ms) }
	for _, c := range []struct {
		name, steps string // add, wrote on server a or b, refused, unknown; each slice is 1 s later and is over after 20 s
		now         int64  // ms since the first
		floor       int64  // ms since the first
		only        bool   // no server but a
	}{
		{"none", "", 5000, 4000, true},
		{"on its way", "add", 0, 0, false},
		{"on its way, and none before it counts", "add refused add", 1000, 1000, false},
		{"written", "add a", 900, 0, true},
		{"the next one too", "add a add a", 1900, 1000, true},
		{"the next one on its way", "add a add", 1900, 0, false},
		{"the next ones refused", "add a add refused add refused", 3000, 0, true},
		{"unreachable for longer than the slice lasts", "add a add refused add refused", 20_000, 19_000, true},
		{"refused without end", strings.Repeat("add refused ", 100), 100_000, 99_000, true},
		{"a reply is lost", "add a add unknown add a", 2900, 1000, false},
		{"a reply is lost, and the slice is over", "add a add unknown add a", 21_000, 2000, true},
		{"a second server", "add a add b add b", 2900, 0, false},
		{"a second server, and the first is done", "add a add b add b", 20_000, 2000, false},
		{"the clock is set back", "add refused floor", -5000, 0, true},
		{"the clock was far ahead, and the number is another one", "ahead number", 0, -1000, true},
	} {
		var u uses
		n, from := 0, int64(100_000)
		for _, step := range strings.Fields(c.steps) {
			switch step {
			case "add":
				n = u.add(from, at(from+20_000))
				from += 1000
			case "refused":
				u.refused(n)
			case "a", "b":
				u.wrote(n, int64(step[0]))
			case "floor":
				u.floor(at(from))
			case "ahead":
				u.floor(at(from + 3_600_000))
			case "number":
				u.number()
			}
		}
		now := at(100_000 + c.now)
		if got := u.floor(now) - 100_000; got != c.floor {
			t.Errorf("%s: floor %d, want %d", c.name, got, c.floor)
		}
		if got := u.onlyOn('a', now); got != c.only {
			t.Errorf("%s: only on a: %v", c.name, got)
		}
		if got := u.onlyOn(-1, now); got != (len(u.list) == 0) {
			t.Errorf("%s: only on a server that did not answer: %v", c.name, got)
		}
		if told := u.told; u.floor(at(0)) < told {
			t.Errorf("%s: the floor fell", c.name)
		}
	}
	var u uses // A process that was stopped meanwhile: the slice is over before it is known to be written.
	n := u.add(1, at(20_000))
	u.floor(at(30_000))
	u.wrote(n, 1)
	u.refused(n)
	if !u.onlyOn(-1, at(30_000)) {
		t.Error("in use after its end")
	}
}

// TestShort: a window that is too short for the hold is named; one that is not extended is something else.
func TestShort(t *testing.T) {
	expired := errors.Join(nil, worker.ErrExpired)
	for _, c := range []struct {
		refused, extending error
		setup              bool
	}{{expired, nil, true}, {expired, io.EOF, false}, {worker.ErrLost, nil, false}} {
		err := short(c.refused, c.extending, 20*time.Second)
		if errors.Is(err, userdb.ErrSetup) != c.setup || c.setup && !strings.Contains(err.Error(), "30s at least") {
			t.Errorf("%v, %v: %v", c.refused, c.extending, err)
		}
	}
}
