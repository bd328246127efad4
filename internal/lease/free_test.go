package lease_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestFree: who acquires a sid chooses between those without a holder.
func TestFree(t *testing.T) {
	record := func(node string, worker bool, ceil clock.Millis) lease.SIDRecords {
		return lease.SIDRecords{Window: lease.Entry[lease.Window]{Rev: 1, Value: lease.Window{Node: node, Worker: worker, Ceil: ceil}}}
	}
	held := record("c", false, 1)
	held.Holder = lease.Entry[lease.Holder]{Rev: 1, Value: lease.Holder{Node: "c"}}
	sids := map[flake.SID]lease.SIDRecords{
		1: record("a", false, 10), 2: record("b", false, 4), 3: held, 4: record("a", true, 4), 5: record("a", false, 11), 6: record("b", false, 1), 7: record("b", false, 20),
	}
	past, later := lease.Free(sids, lease.SIDRange{To: 8}, 10, func(sid flake.SID) bool { return sid == 6 })
	if fmt.Sprint(past, later) != "[0 1 2 4] [5 7]" {
		t.Errorf("past %v, later %v", past, later)
	}
	if got := lease.LastOf("a", false, past, sids); fmt.Sprint(got) != "[1]" {
		t.Errorf("the node a had %v", got)
	}
	if got := lease.LastOf("a", true, past, sids); fmt.Sprint(got) != "[4]" {
		t.Errorf("the worker a had %v", got)
	}
	if got := lease.LastOf("", false, past, sids); len(got) != 0 {
		t.Errorf("nobody had %v", got)
	}
	if got := lease.Lowest(past, sids); got != 0 {
		t.Errorf("%d has the lowest ceiling: 0 was never used", got)
	}
	if got := lease.Lowest(past[2:], sids); got != 2 {
		t.Errorf("%d has the lowest ceiling: 2 and 4 have, and 2 comes first", got)
	}
	if got := lease.Taken(sids, lease.SIDRange{To: 8}, 1); got != "is free: 1 of 8 are held by c, 1 quarantined" {
		t.Error(got)
	}
	for _, sid := range []flake.SID{1, 7} {
		s := sids[sid]
		s.Window.Value.State = lease.Reserved
		sids[sid] = s
	}
	past, later = lease.Free(sids, lease.SIDRange{To: 8}, 10, func(flake.SID) bool { return false })
	if fmt.Sprint(past, later) != "[0 2 4 6] [5]" {
		t.Errorf("with reserved sids: past %v, later %v", past, later)
	}
	if got := lease.Taken(sids, lease.SIDRange{To: 8}, 0); got != "is free: 1 of 8 are held by c, 0 quarantined, 2 reserved" {
		t.Error(got)
	}
}

// TestTaken: people are told a few names, each once.
func TestTaken(t *testing.T) {
	sids := map[flake.SID]lease.SIDRecords{}
	for i := range flake.SID(12) {
		sids[i] = lease.SIDRecords{Holder: lease.Entry[lease.Holder]{Rev: 1, Value: lease.Holder{Node: fmt.Sprintf("n%d\x1b", i%10)}}}
	}
	want := "is free: 12 of 13 are held by n0\ufffd (2), n1\ufffd (2), n2\ufffd, n3\ufffd, n4\ufffd, n5\ufffd, n6\ufffd, n7\ufffd, and 2 more, 0 quarantined"
	if got := lease.Taken(sids, lease.SIDRange{To: 13}, 0); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestDistrust: the records of these sids are not acted on.
func TestDistrust(t *testing.T) {
	era := lease.Era{Number: 2, Floor: 1000}
	b := lease.Bounds{Window: 30 * time.Second, WorkerWindow: time.Minute, MaxSkew: 250 * time.Millisecond, MaxLead: 500 * time.Millisecond}
	for now, want := range map[clock.Millis]clock.Millis{0: 32_000, 5000: 36_000} {
		if got := b.SoundBy(now, era, false); got != want {
			t.Errorf("at %d ceilings are sound up to %d, want %d", now, got, want)
		}
		if got := b.SoundBy(now, era, true); got != want+30_000 {
			t.Errorf("at %d ceilings of workers are sound up to %d, want %d", now, got, want+30_000)
		}
	}
	window := func(w lease.Window) lease.SIDRecords {
		return lease.SIDRecords{Window: lease.Entry[lease.Window]{Rev: 1, Value: w}}
	}
	key := lease.Entry[lease.Holder]{Rev: 1, Value: lease.Holder{Instance: "i"}}
	held, unread, badKey := window(lease.Window{Era: 2, Ceil: 99}), window(lease.Window{}), window(lease.Window{Era: 2})
	held.Holder, badKey.Holder = key, key
	unread.Window.Err, badKey.Holder.Err = lease.ErrChecksum, errors.New("unreadable holder")
	for _, tc := range []struct {
		s    lease.SIDRecords
		want string
	}{
		{lease.SIDRecords{}, ""},
		{window(lease.Window{Era: 2, Ceil: 50}), ""},
		{window(lease.Window{Era: 2, Ceil: 51}), "its ceiling is 1970-01-01T00:00:00Z: a wrong clock wrote it"},
		{window(lease.Window{Era: 2, Ceil: 51, State: lease.Released, Node: lease.Operator, By: "a@b"}), "a@b released it; usable at 1970-01-01T00:00:00Z"},
		{window(lease.Window{Era: 2, Ceil: 50, State: lease.Released, Node: lease.Operator}), ""},
		{window(lease.Window{Era: 2, Ceil: 51, State: lease.Released, Node: "n"}), "its ceiling is 1970-01-01T00:00:00Z: a wrong clock wrote it"},
		{window(lease.Window{Era: 2, Ceil: 51, State: lease.Active, Node: lease.Operator}), "its ceiling is"},
		{held, ""},
		{window(lease.Window{Era: 3}), "its record is of era 3, and this is era 2"},
		{window(lease.Window{Era: 2, State: lease.Quarantined}), "an operator quarantined it"},
		{window(lease.Window{Era: 2, State: lease.Quarantined, By: "a@b\x1b", Reason: "x\x1b"}), "a@b\ufffd quarantined it: x\ufffd"},
		{lease.SIDRecords{Holder: key}, "it has a holder but no window record"},
		{unread, lease.ErrChecksum.Error()},
		{badKey, "unreadable holder"},
	} {
		if got := tc.s.Distrust(era, 50); !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%+v: %q, want %q", tc.s, got, tc.want)
		}
	}
}

// TestShowsTime: which records that are not distrusted are evidence of the time.
func TestShowsTime(t *testing.T) {
	const sound = 1000
	held := lease.Entry[lease.Holder]{Rev: 1, Value: lease.Holder{Instance: "i", Node: "n"}}
	for name, tc := range map[string]struct {
		s    lease.SIDRecords
		want bool
	}{
		"nobody's":                           {lease.SIDRecords{Window: lease.Entry[lease.Window]{Value: lease.Window{Ceil: sound}}}, true},
		"of a wrong clock":                   {lease.SIDRecords{Window: lease.Entry[lease.Window]{Value: lease.Window{Ceil: sound + 1, Gossip: true}}}, false},
		"a live holder's":                    {lease.SIDRecords{Holder: held, Window: lease.Entry[lease.Window]{Value: lease.Window{Ceil: sound}}}, true},
		"a live holder's, later":             {lease.SIDRecords{Holder: held, Window: lease.Entry[lease.Window]{Value: lease.Window{Ceil: sound + 1, Gossip: true}}}, true},
		"the same that compares with nobody": {lease.SIDRecords{Holder: held, Window: lease.Entry[lease.Window]{Value: lease.Window{Ceil: sound + 1}}}, false},
		"a worker's, which a node wrote":     {lease.SIDRecords{Holder: held, Window: lease.Entry[lease.Window]{Value: lease.Window{Ceil: sound, Worker: true}}}, true},
		"reserved by an operator":            {lease.SIDRecords{Window: lease.Entry[lease.Window]{Value: lease.Window{Ceil: 1, State: lease.Reserved}}}, false},
		"an operator's":                      {lease.SIDRecords{Window: lease.Entry[lease.Window]{Value: lease.Window{Ceil: 1, Node: lease.Operator}}}, false},
	} {
		if got := tc.s.ShowsTime(sound); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestDead: the key of a holder is deleted only if nothing was written for a window, by elapsed time, and the
// ceiling has passed by a window and twice the skew, by the clock.
func TestDead(t *testing.T) {
	b := lease.Bounds{Window: 30 * time.Second, WorkerWindow: 60 * time.Second, MaxSkew: 250 * time.Millisecond}
	sound := lease.SIDRecords{
		Window: lease.Entry[lease.Window]{Rev: 1, Value: lease.Window{Instance: "a", State: lease.Active, Ceil: 1000}},
		Holder: lease.Entry[lease.Holder]{Rev: 1, Value: lease.Holder{Instance: "a"}},
	}
	for name, tc := range map[string]struct {
		change    func(*lease.SIDRecords)
		now       clock.Millis
		unchanged time.Duration
		want      bool
	}{
		"dead":                   {func(*lease.SIDRecords) {}, 31_500, 30 * time.Second, true},
		"its ceiling is too new": {func(*lease.SIDRecords) {}, 31_499, time.Hour, false},
		"it has written":         {func(*lease.SIDRecords) {}, 99_999, 30*time.Second - 1, false},
		"a worker's window":      {func(s *lease.SIDRecords) { s.Window.Value.Worker = true }, 99_999, 59 * time.Second, false},
		"a worker":               {func(s *lease.SIDRecords) { s.Window.Value.Worker = true }, 61_500, 60 * time.Second, true},
		"no holder":              {func(s *lease.SIDRecords) { s.Holder = lease.Entry[lease.Holder]{} }, 99_999, time.Hour, false},
		"another's key":          {func(s *lease.SIDRecords) { s.Holder.Value.Instance = "b" }, 99_999, time.Hour, false},
		"quarantined":            {func(s *lease.SIDRecords) { s.Window.Value.State = lease.Quarantined }, 99_999, time.Hour, false},
		"unreadable":             {func(s *lease.SIDRecords) { s.Window.Err = lease.ErrChecksum }, 99_999, time.Hour, false},
	} {
		s := sound
		tc.change(&s)
		if got := b.Dead(s, tc.now, tc.unchanged); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
