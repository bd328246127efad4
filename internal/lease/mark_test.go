package lease_test

import (
	"testing"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestPriors: whoever acquires a sid that was not given back keeps in its record up to where the mark waits
// for the owners before. One that told no floor is not waited for.
func TestPriors(t *testing.T) {
	before := lease.Prior{Floor: 20, Ceil: 30, Node: "z"}
	for name, tc := range map[string]struct {
		window lease.Window
		at     clock.Millis
		want   lease.Prior
		rests  clock.Millis
	}{
		"a node":                         {lease.Window{State: lease.Active, Node: "a", Floor: 40, Ceil: 50}, 10, lease.Prior{Floor: 40, Ceil: 50, Node: "a"}, 0},
		"a worker with floors":           {lease.Window{State: lease.Active, Node: "w", Floor: 40, Ceil: 50, Worker: true}, 10, lease.Prior{Floor: 40, Ceil: 50, Node: "w"}, 0},
		"with one before it":             {lease.Window{State: lease.Active, Node: "w", Floor: 40, Ceil: 50, Worker: true, Prior: before}, 10, lease.Prior{Floor: 20, Ceil: 50, Node: "w"}, 0},
		"with one that the mark passed":  {lease.Window{State: lease.Active, Node: "w", Floor: 40, Ceil: 50, Worker: true, Prior: before}, 30, lease.Prior{Floor: 40, Ceil: 50, Node: "w"}, 0},
		"passed by the mark":             {lease.Window{State: lease.Active, Node: "w", Floor: 40, Ceil: 50, Worker: true}, 50, lease.Prior{}, 0},
		"given back":                     {lease.Window{State: lease.Released, Node: "w", Floor: 50, Ceil: 50, Worker: true, Prior: before}, 10, before, 0},
		"a worker without floors":        {lease.Window{State: lease.Active, Node: "w", Ceil: 50, Worker: true}, 60, lease.Prior{Uncovered: 50, Worker: "w"}, 49},
		"such a one, passed by a clock":  {lease.Window{State: lease.Active, Node: "w", Ceil: 50, Worker: true}, 60, lease.Prior{}, 50},
		"such a one, given back":         {lease.Window{State: lease.Released, Node: "w", Ceil: 50, Worker: true}, 10, lease.Prior{}, 0},
		"such a one, with one before it": {lease.Window{State: lease.Active, Node: "w", Ceil: 50, Worker: true, Prior: before}, 10, lease.Prior{Floor: 20, Ceil: 30, Node: "z", Uncovered: 50, Worker: "w"}, 0},
		"a node after such a one": {lease.Window{State: lease.Active, Node: "a", Floor: 60, Ceil: 70, Prior: lease.Prior{Uncovered: 50, Worker: "w"}}, 55,
			lease.Prior{Floor: 60, Ceil: 70, Node: "a", Uncovered: 50, Worker: "w"}, 0},
	} {
		if got := tc.window.Priors(lease.Mark{At: tc.at, Rests: lease.Blocker{Ceil: tc.rests}}); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

// TestMarkSays: a raise is written where it says anything new, and only there.
func TestMarkSays(t *testing.T) {
	m := lease.Mark{Era: 1, At: 5, Uncovered: "1", Rests: lease.Blocker{Node: "a"}, Blocked: []lease.Blocker{{Node: "b"}}}
	for name, change := range map[string]func(*lease.Mark){
		"era":       func(m *lease.Mark) { m.Era = 2 },
		"at":        func(m *lease.Mark) { m.At = 6 },
		"uncovered": func(m *lease.Mark) { m.Uncovered = "" },
		"rests":     func(m *lease.Mark) { m.Rests.Ceil = 1 },
		"blocked":   func(m *lease.Mark) { m.Blocked = nil },
	} {
		next := m
		if change(&next); !next.Says(m) {
			t.Errorf("%s: says nothing new", name)
		}
	}
	same := m
	same.Nonce, same.Wall, same.Node, same.Blocked = "n", 9, "z", []lease.Blocker{{Node: "b"}}
	if same.Says(m) {
		t.Error("who wrote it is no news")
	}
}

// TestPasses: time alone ends what some causes wait for.
func TestPasses(t *testing.T) {
	for why, want := range map[lease.BlockWhy]bool{
		lease.BlockedVanished: true, lease.BlockedReplaced: true, lease.BlockedEra: true,
		lease.BlockedSilent: false, lease.BlockedWorker: false, lease.BlockedUnreadable: false,
		lease.BlockedDowntime: false,
	} {
		if got := (lease.Blocker{Why: why}).Passes(); got != want {
			t.Errorf("%s: %v", why, got)
		}
	}
}
