package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// DefaultLag is how much later than the answers it covers a window's record may be
// seen. Etcd notifies a watcher within milliseconds; the rest is for a busy machine,
// and is less than the time for which faults keep etcd from confirming anything.
const DefaultLag = 2 * time.Second

// Confirmed checks the half of I3 that Reserved cannot see: that a window was
// confirmed before it was used. An answer is held against the windows that were
// seen when it came; one whose window was seen more than a lag later, or not at all,
// used time that was not granted yet, though a later record covers it.
//
// Unlike Reserved it depends on when records were seen, so where the observer was
// late it may blame the cluster for that.
type Confirmed struct {
	findings
	format  flake.Format
	lag     clock.Mono
	windows int64
	answers int64
	granted map[usageKey]*spans // by run, or by node, as in Reserved; never cut
	open    []early             // answers that no window seen so far covers, in order of time
	worst   clock.Mono          // lag of a record that came in time
}

// early is an answer whose window is still to be seen.
type early struct {
	at        clock.Mono
	sid       flake.SID
	run, node string
	first     flake.ID
	from, to  int64 // Unix ms, both inside
}

// NewConfirmed returns the check. A record may be seen up to lag after the answers
// that it covers.
func NewConfirmed(lag time.Duration) *Confirmed {
	return &Confirmed{format: flake.Default, lag: clock.Mono(lag), granted: map[usageKey]*spans{}}
}

// Add takes answers and windows.
func (c *Confirmed) Add(op *Op) {
	if op.Setup != nil {
		c.format = op.Setup.Format()
	}
	for len(c.open) > 0 && op.Time-c.open[0].at > c.lag {
		c.blame(c.open[0])
		c.open = c.open[1:]
	}
	switch {
	case op.isCall() && op.Type == OK:
		c.answers++
		e := early{at: op.Time, sid: c.format.SID(op.Block.First), run: op.who(), node: op.Node, first: op.Block.First}
		e.from, e.to = op.Block.milliseconds(c.format)
		if !c.covers(e) {
			c.open = append(c.open, e)
		}
	case op.Window != nil && !op.Window.Deleted && !op.Window.Unreadable:
		c.grant(op)
	}
}

// grant notes what a window gives. A record of a sid given back gives nothing.
func (c *Confirmed) grant(op *Op) {
	w := op.Window
	c.windows++
	if w.Released || w.Ceil <= w.Base {
		return
	}
	k := usageKey{flake.SID(w.SID), op.who()}
	s := c.granted[k]
	if s == nil {
		s = new(spans)
		c.granted[k] = s
	}
	s.add(w.Base, w.Ceil-1)
	c.open = slices.DeleteFunc(c.open, func(e early) bool {
		covered := c.covers(e)
		if covered {
			c.worst = max(c.worst, op.Time-e.at)
		}
		return covered
	})
}

// covers reports whether the windows seen so far hold all of an answer: those of
// any process, where it is not known whose answer it is.
func (c *Confirmed) covers(e early) bool {
	if e.node == "" {
		_, missing := (spans{{e.from, e.to}}).without(grantedToAny(c.granted, e.sid))
		return !missing
	}
	for _, who := range [...]string{e.run, e.node} {
		if s := c.granted[usageKey{e.sid, who}]; s != nil {
			if _, missing := (spans{{e.from, e.to}}).without(*s); !missing {
				return true
			}
		}
	}
	return false
}

func (c *Confirmed) blame(e early) {
	var have int64 // the latest ceiling seen
	for _, who := range [...]string{e.run, e.node} {
		if s := c.granted[usageKey{e.sid, who}]; s != nil && len(*s) > 0 {
			have = max(have, (*s)[len(*s)-1].to+1)
		}
	}
	c.add("I3", e.at, "%s answered %v of sid %d, up to millisecond %d, when the last ceiling that etcd had "+
		"confirmed to it was %d, and none that covers it was seen in the %v after",
		e.run, e.first, e.sid, e.to, have, time.Duration(c.lag))
}

// Finish returns what was found. Answers at the end of a run, whose window may only
// not have been reported yet, are left to Reserved.
func (c *Confirmed) Finish() Result {
	missing := ""
	switch {
	case c.answers == 0:
		missing = "no IDs were answered"
	case c.windows == 0:
		missing = "etcd's record of windows is not in the history"
		c.findings = findings{} // without windows nothing is held against IDs
	}
	r := c.result("confirmed", "I3",
		fmt.Sprintf("%d answers, their windows seen before or within %v", c.answers, time.Duration(c.lag)), missing)
	r.Measurements = []Measurement{{"latest record", float64(c.worst) / 1e6, "ms"}}
	return r
}
