package history

import (
	"slices"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// asked is what is kept of a call between its invoke and its completion.
type asked struct {
	seq     int64 // The ops seen are numbered from 1; this is the number of the invoke.
	at      clock.Mono
	after   flake.ID
	session string
}

// calls pairs completions with their invokes, by process.
type calls struct {
	seq  int64 // The present op has this number.
	now  clock.Mono
	open map[string]asked
}

// take reports the call that op completes. What has no invoke in the history
// began, for all that is known, when it ended.
func (c *calls) take(op *Op) (a asked, done bool) {
	c.seq++
	c.now = op.Time
	if !op.isCall() {
		return asked{}, false
	}
	if op.Type == Invoke {
		if c.open == nil {
			c.open = map[string]asked{}
		}
		c.open[op.Process] = asked{c.seq, op.Time, op.After, op.Session}
		return asked{}, false
	}
	a, ok := c.open[op.Process]
	if !ok {
		return asked{seq: c.seq, at: op.Time, session: op.Session}, true
	}
	delete(c.open, op.Process)
	return a, true
}

// oldest returns the number of the oldest invoke that waits for its completion,
// or of the present op. A client that never came back does not count forever.
func (c *calls) oldest() int64 {
	out := c.seq
	for _, a := range c.open {
		if a.at >= c.now-grace {
			out = min(out, a.seq)
		}
	}
	return out
}

// highest is the greatest ID completed up to each op, as far back as a call in
// flight may ask.
type highest []mark

type mark struct {
	seq int64
	id  flake.ID
}

// add notes an ID that was completed at seq.
func (h *highest) add(seq int64, id flake.ID) {
	if n := len(*h); n == 0 || (*h)[n-1].id < id {
		*h = append(*h, mark{seq, id})
	}
}

// before returns the greatest ID completed before seq; false if there is none.
func (h highest) before(seq int64) (flake.ID, bool) {
	// Calls are short, so the wanted mark is near the end.
	for i := len(h) - 1; i >= 0; i-- {
		if h[i].seq < seq {
			return h[i].id, true
		}
	}
	return 0, false
}

// forget drops what no call that began at seq or later can ask for.
func (h *highest) forget(seq int64) {
	i := len(*h) - 1
	for i > 0 && (*h)[i].seq >= seq {
		i--
	}
	if i > 0 {
		*h = slices.Delete(*h, 0, i)
	}
}

// forgetEvery is how many ops pass between two calls of forget.
const forgetEvery = 1 << 12
