package agreement

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestLapsedUpToMost: nodes that lapsed count up to the most that were registered at one
// time, newest first. Each list is "registered / lapsed", a second after the one before.
func TestLapsedUpToMost(t *testing.T) {
	const minute = "+"
	later := strings.Repeat(minute+" ", 11)
	for name, tc := range map[string]struct {
		lists string // separated by commas; minute lets one pass
		want  string // the others that count, in the order of names
	}{
		"one after the other":      {"me a b, me a b p, me a b / p, me a b q / p, me a b / p q, me a b r / p q, me a b / p q r", "a b r"},
		"at one time":              {"me a b, me a b p q r, me a b / p q r", "a b p q r"},
		"two at a time":            {"me a b, me a b p q, me a b / p q, me a b r / p q, me a b / p q r", "a b p r"},
		"others cut off":           {"me a b, me / a b", "a b"},
		"one by one":               {"me a b, me a / b, me / a b", "a b"},
		"one is back":              {"me a b, me / a b, me a / b", "a b"},
		"given back":               {"me a b, me a, me", ""},
		"in place of a given back": {"me a b, me a, me a c, me a / c", "a c"},
		"before the first list":    {"me a / p q", "a p q"},
		"between two lists":        {"me, me / p q", "p q"},
		"from one list to another": {"me p, me q / p, me / p q", "p q"},
		"most is long ago":         {"me a b p q, me a b, " + later + ", me a b r, me a b / r", "a b r"},
		"most is very long ago":    {"me a b p q, me a b, " + later + ", me a b r, " + later + ", me a b / r s", "a b r s"},
		"self is not registered":   {"a b, a / b", "a b"},
		"without gossip":           {"me a x- y-, me a, me a p, me a / p, me a q / p, me a / p q", "a q"},
		"one left for another":     {"me a b p, me a b q, me a b / q, me a b r / q, me a b / q r", "a b q r"},
		"two sids of one":          {"me a b, me a / b b", "a b"},
	} {
		d := newDesk()
		wall := clock.Millis(0)
		first := map[string]clock.Millis{}
		for list := range strings.SplitSeq(tc.lists, ",") {
			d.now += time.Second
			d.now += time.Duration(strings.Count(list, minute)) * time.Minute
			wall = clock.Millis(d.now / time.Millisecond)
			if strings.Contains(list, minute) {
				continue
			}
			registered, lapsed, _ := strings.Cut(list, "/")
			s := lease.Status{Listed: true}
			for _, n := range strings.Fields(registered) {
				n, without := strings.CutSuffix(n, "-")
				r := lease.Registration{Node: n, Instance: lease.Instance(n), Gossip: n}
				if without {
					r.Gossip = ""
				}
				s.Nodes = append(s.Nodes, r)
			}
			for i, n := range strings.Fields(lapsed) {
				if first[n] == 0 {
					first[n] = wall
				}
				s.Lapsed = append(s.Lapsed, lease.Lapsed{Node: n, Instance: lease.Instance(n), Wall: first[n], Rev: int64(i)})
			}
			d.m.Step(d.reading(), LeaseChanged{s})
		}
		var got []string
		for _, v := range d.m.Voters() {
			got = append(got, v.Name)
		}
		if got := strings.Join(got, " "); got != tc.want {
			t.Errorf("%s: %q count, want %q", name, got, tc.want)
		}
	}
}

// TestLapsedBeforeTheFirstList: to a process that starts records say who lived at one time.
func TestLapsedBeforeTheFirstList(t *testing.T) {
	lived := func(name string, started, wall clock.Millis) lease.Lapsed {
		return lease.Lapsed{Node: name, Started: started, Wall: wall}
	}
	for name, tc := range map[string]struct {
		lapsed []lease.Lapsed
		want   int // besides the two that are registered
	}{
		"nobody":                    {nil, 0},
		"one after the other":       {[]lease.Lapsed{lived("p", 1, 3), lived("q", 4, 6), lived("r", 7, 9)}, 1},
		"in another order":          {[]lease.Lapsed{lived("r", 7, 9), lived("p", 1, 3), lived("q", 4, 6)}, 1},
		"at one time":               {[]lease.Lapsed{lived("p", 1, 9), lived("q", 2, 9), lived("r", 3, 9)}, 3},
		"one beside two in turn":    {[]lease.Lapsed{lived("p", 1, 9), lived("q", 2, 4), lived("r", 5, 7)}, 2},
		"for a moment":              {[]lease.Lapsed{lived("p", 1, 4), lived("q", 4, 9)}, 2},
		"two sids of one":           {[]lease.Lapsed{lived("p", 1, 9), lived("p", 1, 9)}, 1},
		"registered again":          {[]lease.Lapsed{lived("a", 1, 9), lived("q", 1, 9)}, 1},
		"started nobody knows when": {[]lease.Lapsed{lived("p", 0, 3), lived("q", 0, 6), lived("r", 0, 9)}, 3},
		"one of these":              {[]lease.Lapsed{lived("p", 1, 3), lived("q", 4, 6), lived("r", 0, 9)}, 2},
		"a clock was set back":      {[]lease.Lapsed{lived("p", 1, 3), lived("q", 9, 6)}, 2},
	} {
		var m most
		if got := m.registered(0, map[string]bool{"me": true, "a": true}, tc.lapsed); got != 2+tc.want {
			t.Errorf("%s: %d, want %d", name, got, 2+tc.want)
		}
		if got := m.registered(1, map[string]bool{"me": true, "a": true}, tc.lapsed); got != 2+tc.want {
			t.Errorf("%s, a list later: %d, want %d", name, got, 2+tc.want)
		}
	}
}

// TestMostWithinTenMinutes: a number of names counts for as long as a node that lapsed.
func TestMostWithinTenMinutes(t *testing.T) {
	var m most
	names := func(n int) map[string]bool {
		out := map[string]bool{}
		for i := range n {
			out[fmt.Sprint(i)] = true
		}
		return out
	}
	m.registered(0, names(5), nil)
	for _, tc := range []struct {
		at   time.Duration
		want int
	}{{time.Second, 5}, {time.Second + lapsedFor, 5}, {time.Second + lapsedFor + 1, 2}} {
		if got := m.registered(clock.Mono(tc.at), names(2), nil); got != tc.want {
			t.Errorf("after %v: %d, want %d", tc.at, got, tc.want)
		}
	}
}

// TestMostForgets: what is remembered of numbers of names is bounded by the most.
func TestMostForgets(t *testing.T) {
	var m most
	for i := range 1000 {
		names := map[string]bool{}
		for j := range 1 + i*7%50 {
			names[fmt.Sprint(j)] = true
		}
		for range 3 {
			m.registered(clock.Mono(i)*clock.Mono(time.Second/4), names, nil)
		}
		if len(m.levels) > 51 {
			t.Fatalf("%d levels", len(m.levels))
		}
	}
}
