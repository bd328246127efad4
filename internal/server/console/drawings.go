package console

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

// spark is the rate of a node in the last 15 minutes as lines in a box of 60 × 20.
type spark struct {
	Instance string
	Lines    []string
}

// Sparks returns those of the nodes that the table has.
func (s Snapshot) Sparks() (out []spark) {
	for _, n := range s.Most(s.Worst()) {
		if lines := s.lines[n.Instance]; len(lines) > 0 {
			out = append(out, spark{n.Instance, lines})
		}
	}
	return out
}

// linesOf returns the lines of values, each of which is a pixel; nil is a gap.
func linesOf(values []*int64) (out []string) {
	top := int64(1)
	for _, v := range values {
		if v != nil {
			top = max(top, *v)
		}
	}
	var points []string
	end := func() {
		if len(points) > 1 {
			out = append(out, strings.Join(points, " "))
		}
		points = nil
	}
	for i, v := range values {
		if v == nil {
			end()
			continue
		}
		points = append(points, fmt.Sprintf("%d,%.1f", 60-len(values)+i, 18-float64(*v)*16/float64(top)))
	}
	end()
	return out
}

// cell is a sid of the grid.
type cell struct {
	SID         int
	State, Text string
	Own         bool   // It is that of the node that answers.
	Level       int64  // The window lasts this many hundredths of the longest.
	Title       string // what it says when it is too small for words
}

// denseAbove is how many sids have cells with words.
const denseAbove = 128

// Cells returns each sid of the pool, if they are shown.
func (s Snapshot) Cells() (out []cell) {
	all, err := lease.ParseSIDRange(s.PoolSIDs)
	if !s.Grid || err != nil || s.PoolSIDs == "" {
		return nil
	}
	workers, _ := lease.ParseSIDRange(s.WorkerSIDs) // It is what this node was told, and checked then.
	used, longest := map[int]row{}, s.Longest()
	for _, r := range s.Rows() {
		used[r.SID.SID] = r
	}
	for sid := int(all.From); sid < int(all.To); sid++ {
		r, known := used[sid]
		c := cell{SID: sid, State: "none"}
		if known {
			c.State, c.Own = r.State, r.Instance == s.Self.Instance
			c.Level = min(100, r.Left*100/max(1, longest))
		}
		if (c.State == "none" || c.State == status.Free) && s.WorkerSIDs != "" && workers.Has(flake.SID(sid)) {
			c.State = "worker"
		}
		switch c.State {
		case status.Free, "worker":
			c.Text = c.State
		case "none":
		default:
			c.Text = r.Node
		}
		if int(all.To)-int(all.From) > denseAbove {
			c.Title = fmt.Sprintf("sid %d: %s", sid, c.State)
			if c.State == "none" {
				c.Title = fmt.Sprintf("sid %d: free", sid)
			} else if c.Text != "" && c.Text != c.State {
				c.Title += ", " + c.Text
			}
		}
		out = append(out, c)
	}
	return out
}

// intervals are clocks as intervals on a scale that is linear below 1 ms and logarithmic above. Places are
// percents of its width.
type intervals struct {
	Clocks   []interval
	Marks    []tick
	Majority *stretchOf // nil: it is not known
	Height   int64      // px
}

type interval struct {
	Name, Class     string
	From, At, Until string
	Y               int64
}

type tick struct {
	At, Class, Text string
	Minor           bool // Only a wide screen has room for its text.
}

type stretchOf struct{ From, Width string }

// Intervals returns the clocks that were measured; nil: none was.
func (s Snapshot) Intervals() *intervals {
	k := s.Self.Clock
	if k == nil {
		return nil
	}
	out, wide := &intervals{}, float64(max(k.Limit*2, 10_000))
	type measured struct {
		n            status.Node
		offset, give float64
	}
	var list []measured
	for _, n := range s.Nodes {
		if n.Clock == nil || len(list) == 64 {
			continue
		}
		offset, give := s.offset(n)
		list = append(list, measured{n, float64(offset), float64(give)})
		wide = max(wide, math.Abs(float64(offset))+float64(give))
	}
	if len(list) == 0 {
		return nil
	}
	x := func(us float64) float64 { return 50 + 48*math.Asinh(us/1000)/math.Asinh(wide/1000) }
	at := func(us float64) string { return strconv.FormatFloat(x(us), 'f', 2, 64) }
	if k.Known {
		from := x(float64(-k.Uncertainty))
		out.Majority = &stretchOf{at(float64(-k.Uncertainty)),
			strconv.FormatFloat(max(0.2, x(float64(k.Uncertainty))-from), 'f', 2, 64)}
	}
	for _, us := range []float64{0, 1e3, 1e4, 1e5, 1e6, 1e7, 6e7, 3.6e9} {
		if us > wide {
			break
		}
		name := strconv.FormatFloat(us/1000, 'f', -1, 64) + " ms"
		if us >= 1e6 {
			name = strconv.FormatFloat(us/1e6, 'f', -1, 64) + " s"
		}
		if us == 0 {
			out.Marks = append(out.Marks, tick{at(0), "zero", "0", false})
			continue
		}
		minor := us != 1e5 && us != 1e7 && us != 3.6e9
		out.Marks = append(out.Marks, tick{at(us), "axis", "+" + name, minor}, tick{at(-us), "axis", "−" + name, minor})
	}
	if k.Limit > 0 {
		limit := float64(k.Limit)
		out.Marks = append(out.Marks, tick{At: at(limit), Class: "limit"}, tick{At: at(-limit), Class: "limit"})
	}
	for i, m := range list {
		c := interval{
			Name:  m.n.Label(),
			From:  at(m.offset - m.give),
			At:    at(m.offset),
			Until: at(m.offset + m.give),
			Y:     int64(i*24 + 18),
		}
		switch {
		case m.n.Refusing == node.ClockSkew || m.n.Clock.Falseticker:
			c.Class = "off"
		case !m.n.Clock.Fresh:
			c.Class = "old"
		}
		if m.n.Instance == s.Self.Instance {
			c.Name += " (this)"
		}
		out.Clocks = append(out.Clocks, c)
	}
	out.Height = int64(len(list)*24 + 40)
	return out
}
