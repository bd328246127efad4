package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/flakelease/allocator/internal/clock"
)

// classes of faults that have a colour of their own.
var classes = []string{"process", "clock", "etcd", "network", "data", "cluster"}

func className(class string) string {
	if class == "records" {
		return "data"
	}
	if slices.Contains(classes, class) {
		return class
	}
	return "other"
}

// draw makes the pictures.
func (c *content) draw(whole, close *view) {
	if c.lines == 0 {
		c.Notes = append(c.Notes, "history.jsonl is empty: nothing is drawn.")
		return
	}
	c.Whole = whole.picture("The whole run: faults, etcd's leader, answers, latency, and a lane for each node")
	if whole.skipped > 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("Only %d nodes have lanes.", mostNodes))
	}
	if whole.dropped > 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("Only the first %d strikes are drawn; %d are not.", mostFaults, whole.dropped))
	}
	if whole.hidden > 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("%d strikes are drawn as bands without a label, for want of room.", whole.hidden))
	}
	if close == nil {
		return
	}
	c.Close = close.picture("200 ms on each side of the first violation")
	c.Near = close.near.rows()
	c.NearCount = len(c.Near) - 1
	c.NearLeft = close.near.left
}

// picture draws a view from top to bottom on one axis of time.
func (v *view) picture(label string) *chart {
	c := newChart(label, v.span)
	slices.SortStableFunc(v.faults, func(a, b *band) int { return cmp.Compare(a.from, b.from) })
	y := v.labels(c, 6)
	y = v.axis(c, y)
	top := y
	// Bands lie behind all that follows: they are put there once its height is known.
	bands := len(c.Shapes)
	y = v.etcd(c, y)
	if v.near == nil {
		y = v.answers(c, y)
	}
	y = v.latency(c, y)
	for _, n := range v.nodes {
		y = v.lane(c, n, y)
	}
	var back chart
	back.span = c.span
	v.bands(&back, top-18, y)
	c.Shapes = slices.Insert(c.Shapes, bands, back.Shapes...)
	if v.near != nil {
		x := c.x(v.near.at)
		c.path("M"+px(x)+" "+px(top-18)+"V"+px(y), "violation")
	}
	y = v.axis(c, y)
	c.Height = int(y + 6)
	return c
}

// labels names the faults above the axis, in as few rows as they need.
func (v *view) labels(c *chart, y float64) float64 {
	rows := packing{most: 16}
	for _, b := range v.faults {
		if b.from > c.to || b.until(c.to) < c.from {
			continue
		}
		x, stop := c.x(b.from), c.to
		if b.stop >= 0 {
			stop = b.stop
		}
		w := max(c.x(stop)-x, 2)
		words := b.name
		for i, t := range b.targets {
			if i == 2 || i == 1 && len(b.targets) > 2 {
				words += "…"
				break
			}
			words += " " + t
		}
		switch {
		case b.verdict == "fail":
			words += " ✗"
		case b.verdict == "unknown" || b.fired < 0:
			words += " ?"
		}
		words = clip(words, 34)
		wide := textWidth(words) + 8
		from := min(x, right-wide)
		row := rows.put(from, max(x+w, from+wide, c.x(b.until(c.to))), 3)
		if row < 0 {
			v.hidden++
			continue
		}
		ry := y + float64(row)*rowHigh
		title := b.title()
		if settled := c.x(b.until(c.to)); settled > x+w {
			c.rect(x+w, ry+11, settled-x-w, 2, "settle "+className(b.class), title+"; its effects may last until here")
		}
		c.rect(x, ry, w, 13, "fault "+className(b.class)+unseen(b), title)
		if b.fired >= c.from && b.fired <= c.to {
			fx := c.x(b.fired)
			c.path("M"+px(fx)+" "+px(ry)+"v13", "fired "+className(b.class))
		}
		c.text(from+4, ry+10, "label", words)
	}
	return y + float64(len(rows.ends))*rowHigh
}

func unseen(b *band) string {
	if b.fired < 0 {
		return " unseen"
	}
	return ""
}

func (b *band) title() string {
	words := []string{fmt.Sprintf("#%d %s", b.id, b.name)}
	if b.amount != "" {
		words[0] += " " + b.amount
	}
	if len(b.targets) > 0 {
		words = append(words, "on "+clip(strings.Join(b.targets, " "), 120))
	}
	words = append(words, at(b.from, b.stop))
	if b.effect != "" {
		words = append(words, "seen: "+b.effect)
	} else {
		words = append(words, "no effect was seen")
	}
	if b.verdict != "" {
		words = append(words, "verdict: "+clip(b.verdict, 20))
	}
	return strings.Join(words, "; ")
}

// axis writes the times.
func (v *view) axis(c *chart, y float64) float64 {
	at, step := ticks(c.From, c.To, 12)
	digits := max(0, int(-math.Floor(math.Log10(max(step, 1e-9)))))
	for _, s := range at {
		x := c.x(clock.Mono(s * 1e9))
		c.path("M"+px(x)+" "+px(y+14)+"v4", "rule")
		text := fmt.Sprintf("%.*f s", digits, s)
		if v.near == nil && c.To > 600 {
			text = fmt.Sprintf("%d:%02d", int(s)/60, int(s)%60)
			if c.To > 3*3600 {
				text = fmt.Sprintf("%d:%02d:%02d", int(s)/3600, int(s)/60%60, int(s)%60)
			}
		}
		c.text(x, y+11, "tick", text)
	}
	c.horizontal(y+18, "rule")
	return y + 18
}

// bands shades the time of each fault through all lanes, and more so where its
// targets are.
func (v *view) bands(c *chart, y, bottom float64) {
	for _, b := range v.faults {
		if b.from > c.to || b.until(c.to) < c.from {
			continue
		}
		stop := c.to
		if b.stop >= 0 {
			stop = b.stop
		}
		x := c.x(b.from)
		w := max(c.x(stop)-x, 1)
		class := className(b.class)
		c.rect(x, y, w, bottom-y, "band "+class, b.title())
		for _, l := range v.lanes {
			if b.hits(l.name) || l.name == "etcd" && (strings.HasPrefix(class, "etcd") || slices.ContainsFunc(b.targets, isMember)) {
				c.rect(x, l.y, w, l.h, "hit "+class, b.title())
			}
		}
	}
}

// isMember tells an etcd member from a node by its name.
func isMember(name string) bool { return len(name) == 2 && name[0] == 'e' }

// gutter names a part at its left.
func gutter(c *chart, y float64, class, text string) {
	c.text(left-8, y, "gutter "+class, clip(text, 15))
}

// scale says at the right what the top of a part stands for.
func scale(c *chart, y float64, text string) { c.text(right+5, y, "scale", text) }

func (v *view) etcd(c *chart, y float64) float64 {
	y += 8
	v.lanes = append(v.lanes, place{"etcd", y - 4, 24})
	gutter(c, y+12, "name", "etcd leader")
	c.strip(&v.leader, y, 16, "")
	return y + 22
}

// answers draws how many calls were answered, refused and of unknown outcome.
func (v *view) answers(c *chart, y float64) float64 {
	const h = 56
	y += 8
	gutter(c, y+12, "name", "calls/s")
	gutter(c, y+26, "", "answered")
	gutter(c, y+39, "bad", "refused")
	gutter(c, y+52, "worse", "unknown")
	total := make([]float64, coarse)
	sums := [outcomes][]float64{}
	for _, o := range []int{unclear, refused, answered} { // from below: what is bad stands on the ground
		sums[o] = make([]float64, coarse)
		for i := range total {
			total[i] += v.calls[o].rate(i)
			if v.calls[o].slots[i] > 0 {
				sums[o][i] = total[i]
			}
		}
	}
	top := max(slices.Max(total), 1)
	at := func(v float64) float64 { return y + h - v/top*h }
	for _, o := range []int{answered, refused, unclear} {
		c.area(sums[o], y+h, at, [...]string{"area answered", "area refused", "area unclear"}[o])
	}
	c.horizontal(y+h, "rule")
	scale(c, y+9, count(top)+"/s")
	return y + h + 6
}

// latency draws single calls as points and quantiles as lines, on a logarithmic
// scale.
func (v *view) latency(c *chart, y float64) float64 {
	h, dots := 150.0, "dots "
	if v.near != nil {
		h, dots = 60, "dots big "
	}
	y += 12
	gutter(c, y+12, "name", "latency")
	lo, hi := 1e-3, 1e-3
	for o := range v.took.cells {
		for _, cell := range v.took.cells[o] {
			if cell.n > 0 {
				lo, hi = min(lo, cell.lo.v), max(hi, cell.hi.v)
			}
		}
	}
	low, high := math.Floor(math.Log10(max(lo, 1e-5))), math.Ceil(math.Log10(max(hi, 2e-3)))
	at := func(v float64) float64 {
		part := (math.Log10(max(v, 1e-9)) - low) / (high - low)
		return y + h - min(max(part, 0), 1)*h
	}
	for d := low; d <= high; d++ {
		c.horizontal(at(math.Pow(10, d)), "rule faint")
		scale(c, at(math.Pow(10, d))+3, lasting(math.Pow(10, d)))
	}
	for o, name := range [...]string{"answered", "refused", "unclear"} {
		var p strings.Builder
		for i := range v.took.cells[o] {
			for _, q := range v.took.cells[o][i].points() {
				p.WriteString("M" + px(c.x(q.t)) + " " + px(at(q.v)) + "h0")
			}
		}
		c.path(p.String(), dots+name)
	}
	quantiles := []struct {
		q    float64
		name string
	}{{1, "max"}, {.99, "p99"}, {.95, "p95"}, {.5, "p50"}}
	for i, q := range quantiles {
		if v.near != nil { // too few calls to rank
			break
		}
		var p pen
		drawing := false
		step := float64(right-left) / quarters
		for j := range v.took.bins {
			b := &v.took.bins[j]
			if b.n == 0 {
				drawing = false
				continue
			}
			x, w := left+float64(j)*step, at(b.quantile(q.q))
			if !drawing {
				p.move(x, w)
			} else {
				p.line(x, w)
			}
			p.line(x+step, w)
			drawing = true
		}
		c.path(p.String(), "quantile q"+q.name)
		if p.String() != "" {
			gutter(c, y+30+float64(i)*14, "key q"+q.name, q.name)
		}
	}
	if v.took.n == 0 {
		c.text((left+right)/2, y+h/2, "tick", "no call ended")
	}
	c.horizontal(y+h, "rule")
	return y + h + 6
}

// place is where a lane lies.
type place struct {
	name string
	y, h float64
}

// lane draws a node: its state, refusals, issued IDs, clock, window and lease,
// and near a violation its calls.
func (v *view) lane(c *chart, n *node, y float64) float64 {
	const rate, wall, lead = 30.0, 40.0, 30.0
	start := y
	c.horizontal(y, "rule")
	y += 7
	gutter(c, y+12, "name", n.name)
	c.strip(&n.state, y, 16, "holding")
	y += 18
	c.strip(&n.gate, y, 4, "")
	y += 7
	if v.near != nil {
		y = v.callBars(c, n, y)
	}

	gutter(c, y+12, "", "IDs/s")
	top := max(n.ids.peak(), 1)
	c.area(rates(n.ids), y+rate, func(v float64) float64 { return y + rate - v/top*rate }, "area issued")
	if n.ids.any {
		scale(c, y+9, count(n.ids.peak())+"/s")
	}
	if n.refused.any {
		gutter(c, y+25, "bad", "refused/s")
		most := n.refused.peak()
		c.area(rates(n.refused), y+rate, func(v float64) float64 { return y + rate - v/most*rate }, "line refused")
		c.text(right+5, y+22, "scale bad", count(most)+"/s")
	}
	c.horizontal(y+rate, "rule faint")
	y += rate + 8

	v.clock(c, n, y, wall)
	y += wall + 8

	gutter(c, y+12, "", "window left")
	gutter(c, y+25, "dashed", "lease left")
	_, high := n.lead.reach()
	_, also := n.lease.reach()
	high = max(high, also, 1)
	height := func(v float64) float64 { return y + lead - min(max(v, 0), high)/high*lead }
	c.curve(n.lead, height, "curve window")
	c.curve(n.lease, height, "curve lease")
	scale(c, y+9, lasting(high))
	c.horizontal(y+lead, "rule faint")
	y += lead + 9
	v.lanes = append(v.lanes, place{n.name, start, y - start})
	return y
}

func rates(t *tally) []float64 {
	out := make([]float64, len(t.slots))
	for i := range out {
		out[i] = t.rate(i)
	}
	return out
}

// reaches are what the scale of a clock may end at, in ms.
var reaches = []float64{10, 100, 1e3, 10e3, 60e3, 600e3, 3600e3, 36e6, 864e5, 864e6, 864e7, 864e9}

// clock draws how far the wall clock was set off, and what the node makes of the
// others. Offsets span from microseconds to hours, so the scale is logarithmic on
// both sides of a linear millisecond.
func (v *view) clock(c *chart, n *node, y, h float64) {
	gutter(c, y+12, "", "wall clock set")
	gutter(c, y+25, "dashed", "offset seen")
	most := 1.0
	for _, s := range []*series{n.wall, n.offset, n.low, n.high} {
		lo, hi := s.reach()
		most = max(most, math.Abs(lo), math.Abs(hi))
	}
	folded := func(v float64) float64 { return math.Copysign(math.Log10(1+math.Abs(v)), v) }
	limit := reaches[len(reaches)-1]
	for _, r := range slices.Backward(reaches) {
		if r >= most {
			limit = r
		}
	}
	high := folded(limit)
	at := func(v float64) float64 { return y + h/2 - min(max(folded(v)/high, -1), 1)*h/2 }
	c.horizontal(at(0), "rule faint")
	if v.setup != nil && v.setup.MaxSkewMs > 0 && folded(float64(v.setup.MaxSkewMs)) < high {
		for _, sign := range []float64{-1, 1} {
			c.horizontal(at(sign*float64(v.setup.MaxSkewMs)), "rule limit")
		}
		c.title(left, y, right-left, h, fmt.Sprintf("dotted: the greatest skew that nodes accept, ±%d ms", v.setup.MaxSkewMs))
	}
	c.between(n.low, n.high, at, "area doubt")
	c.curve(n.offset, at, "curve offset")
	c.curve(n.wall, at, "curve wall")
	full := lasting(limit / 1e3)
	scale(c, y+8, "+"+full)
	scale(c, y+h, "−"+full)
}

// callBars draws calls from begin to end, those that go on at a time above each
// other.
func (v *view) callBars(c *chart, n *node, y float64) float64 {
	const high, gap = 5, 1.5
	if len(n.calls) == 0 {
		return y
	}
	slices.SortStableFunc(n.calls, func(a, b call) int { return cmp.Compare(a.from, b.from) })
	rows := packing{most: 12}
	gutter(c, y+9, "", "calls")
	for _, k := range n.calls {
		x := c.x(max(k.from, c.from))
		w := max(c.x(min(k.to, c.to))-x, 1.5)
		row := rows.put(x, x+w, 1)
		if row < 0 {
			n.more++
			continue
		}
		c.rect(x, y+float64(row)*(high+gap), w, high, [...]string{"call answered", "call refused", "call unclear"}[k.outcome], k.title)
	}
	if n.more > 0 {
		scale(c, y+9, fmt.Sprintf("%d more", n.more))
	}
	return y + max(12, float64(len(rows.ends))*(high+gap)) + 6
}
