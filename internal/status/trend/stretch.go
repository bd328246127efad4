package trend

import (
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/status"
)

// maxStretches are kept of all nodes. It is at least twice MaxNodes, so that each node has the
// latest two.
const maxStretches = 2048

// Stretch is a time in which a node held the same sid in the same term, and did the same. Times
// are those of samples in Unix ms: it began at most Every before From, and ended at most Every
// after Until. It lasts if Until is the time of the latest sample.
type Stretch struct {
	Node     string       `json:"node"`
	Instance string       `json:"instance"`
	SID      int          `json:"sid"`  // -1: none, or it is not known
	Term     int64        `json:"term"` // 0: it is not known
	What     string       `json:"what"` // as status.Node.What has it
	State    status.State `json:"state"`
	From     int64        `json:"from_unix_ms"`
	Until    int64        `json:"until_unix_ms"`
	Ceil     int64        `json:"ceil_unix_ms"` // the latest end of the window; 0: it is not known
}

// held is a sid and who holds it.
type held struct {
	sid      int
	instance string
}

// terms returns those of c.
func terms(c status.Cluster) map[held]int64 {
	out := make(map[held]int64, len(c.SIDs))
	for _, s := range c.SIDs {
		if s.State == status.Held {
			out[held{s.SID, s.Instance}] = s.Term
		}
	}
	return out
}

// stretch goes on with what the node of l did at the sample before, or begins anew. A term of 0
// is not known.
func (h *History) stretch(at clock.Millis, l *line, n status.Node, term int64) {
	s, what, before := l.now, n.What(), h.latest()
	goesOn := s != nil && s.Until == int64(before) && s.SID == n.SID
	if goesOn && term == 0 {
		term = s.Term // It is the last that is known.
	}
	if !goesOn || s.What != what || s.Term != term {
		if len(h.stretches) >= maxStretches {
			ended := slices.IndexFunc(h.stretches, func(s *Stretch) bool { return s.Until < int64(before) })
			h.stretches = slices.Delete(h.stretches, max(0, ended), max(0, ended)+1)
		}
		s = &Stretch{
			Node: l.name, Instance: n.Instance, SID: n.SID, Term: term, What: what, State: n.State, From: int64(at),
		}
		l.now, h.stretches = s, append(h.stretches, s)
	}
	s.Until, s.Ceil = int64(at), max(s.Ceil, n.Ceil)
}

// forget drops stretches that ended more than an hour ago.
func (h *History) forget(at clock.Millis) {
	oldest := int64(at - clock.MillisOf(time.Hour))
	h.stretches = slices.DeleteFunc(h.stretches, func(s *Stretch) bool { return s.Until < oldest })
}

// latest returns the time of the latest sample; 0: there is none.
func (h *History) latest() clock.Millis { return h.ring[(h.next+samples-1)%samples].at }

// Stretches returns those of the last hour, in the order in which they began, and the time of
// the latest sample.
func (h *History) Stretches() (out []Stretch, latest int64) {
	out = []Stretch{}
	for _, s := range h.stretches {
		out = append(out, *s)
	}
	return out, int64(h.latest())
}
