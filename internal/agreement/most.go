package agreement

import (
	"maps"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// most is how many names were registered at one time within the last lapsedFor.
type most struct {
	names  map[string]bool // They were registered at the latest list.
	lapsed map[string]bool // They had lapsed then.
	// levels are numbers of names, each smaller than the one before, with the time of the list
	// that showed so many last.
	levels []level
}

type level struct {
	names int
	until clock.Mono
}

// registered takes a list of the names with gossip that are registered and of the nodes that
// have lapsed, and returns the most that were registered at one time.
//
// What was between two lists is not known: all names of both may have been there at one
// time, and those of nodes that have lapsed since without ever being seen. To the first list
// that applies to those who are registered: of others records say how long they lived.
func (m *most) registered(now clock.Mono, names map[string]bool, lapsed []lease.Lapsed) int {
	together := maps.Clone(names)
	maps.Copy(together, m.names)
	seen := map[string]bool{}
	for _, l := range lapsed {
		seen[l.Node] = true
		if !m.lapsed[l.Node] {
			together[l.Node] = true
		}
	}
	n := len(together)
	if m.names == nil {
		n = len(names) + atOneTime(names, lapsed)
	}
	m.names, m.lapsed = names, seen
	m.push(level{n, now})
	for now.Sub(m.levels[0].until) > lapsedFor {
		m.levels = m.levels[1:]
	}
	return m.levels[0].names
}

// push puts a level behind those that are higher.
func (m *most) push(l level) {
	for n := len(m.levels); n > 0 && m.levels[n-1].names <= l.names; n-- {
		m.levels = m.levels[:n-1]
	}
	m.levels = append(m.levels, l)
}

// atOneTime returns how many names of nodes that have lapsed lived at one time, by their own
// clocks. One whose start is not known may have lived with all that ended before it. Those in
// names are left out.
func atOneTime(names map[string]bool, lapsed []lease.Lapsed) (n int) {
	for _, end := range lapsed { // The most live together when the first of them ends.
		with := map[string]bool{}
		for _, l := range lapsed {
			unknown := l.Started > l.Wall
			if !names[l.Node] && end.Wall <= l.Wall && (unknown || l.Started <= end.Wall) {
				with[l.Node] = true
			}
		}
		n = max(n, len(with))
	}
	return n
}
