package report

import (
	"math"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/internal/clock"
)

// chart is a picture as a list of shapes, from back to front. Escaping is left to
// the template that writes them.
type chart struct {
	Label    string // for those who do not see it
	Width    int
	Height   int
	Shapes   []shape
	From, To float64 // seconds that the plot's sides stand for
	Left     int
	Right    int

	span
}

// shape is one element: a rectangle, a path or a text.
type shape struct {
	Kind       string // rect, path, text
	X, Y, W, H string
	D          string // of a path
	Class      string
	Text       string // of a text
	Title      string // shown while the pointer rests on it
}

// Geometry, in pixels.
const (
	width   = 1200
	left    = 104 // of the plot
	right   = 1136
	letter  = 6.33 // width of a letter in the labels' typeface, 10.5 px high
	rowHigh = 17   // of a row of fault labels
)

func newChart(label string, s span) *chart {
	return &chart{Label: label, Width: width, Left: left, Right: right, From: seconds(s.from), To: seconds(s.to), span: s}
}

// x returns where a time lies, within the plot.
func (c *chart) x(t clock.Mono) float64 {
	part := float64(t-c.from) / float64(c.to-c.from)
	return left + min(max(part, 0), 1)*(right-left)
}

// px writes a coordinate in tenths of a pixel.
func px(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

func (c *chart) rect(x, y, w, h float64, class, title string) {
	c.Shapes = append(c.Shapes, shape{Kind: "rect", X: px(x), Y: px(y), W: px(w), H: px(h), Class: class, Title: title})
}

func (c *chart) text(x, y float64, class, text string) {
	c.Shapes = append(c.Shapes, shape{Kind: "text", X: px(x), Y: px(y), Class: class, Text: text})
}

func (c *chart) path(d, class string) {
	if d != "" {
		c.Shapes = append(c.Shapes, shape{Kind: "path", D: d, Class: class})
	}
}

// title explains an area that has no mark of its own.
func (c *chart) title(x, y, w, h float64, title string) { c.rect(x, y, w, h, "ghost", title) }

// horizontal draws a line across the plot.
func (c *chart) horizontal(y float64, class string) {
	c.path("M"+px(left)+" "+px(y)+"H"+px(right), class)
}

// pen writes the data of a path.
type pen struct {
	b    strings.Builder
	last string
}

func (p *pen) move(x, y float64) { p.to("M", x, y) }
func (p *pen) line(x, y float64) { p.to("L", x, y) }

func (p *pen) to(letter string, x, y float64) {
	at := px(x) + " " + px(y)
	if letter == "L" && at == p.last {
		return
	}
	p.last = at
	p.b.WriteString(letter)
	p.b.WriteString(at)
}

func (p *pen) String() string { return p.b.String() }

// curve draws a series; y says where a value lies. Steps go level to the next
// point, as what is a counter down from a deadline does not.
func (c *chart) curve(s *series, y func(float64) float64, class string) {
	var p pen
	for _, line := range s.lines() {
		for i, q := range line {
			x := c.x(q.t)
			if i == 0 {
				p.move(x, y(q.v))
				if len(line) == 1 {
					p.line(x+1, y(q.v))
				}
				continue
			}
			p.line(x, y(q.v))
		}
	}
	c.path(p.String(), class)
}

// between draws the area between two series of the same times.
func (c *chart) between(a, b *series, y func(float64) float64, class string) {
	var p pen
	over, under := a.lines(), b.lines()
	for i := range min(len(over), len(under)) {
		for j, q := range over[i] {
			if j == 0 {
				p.move(c.x(q.t), y(q.v))
			} else {
				p.line(c.x(q.t), y(q.v))
			}
		}
		for j := len(under[i]) - 1; j >= 0; j-- {
			p.line(c.x(under[i][j].t), y(under[i][j].v))
		}
		p.b.WriteString("Z")
		p.last = ""
	}
	c.path(p.String(), class)
}

// area draws values by slot as a filled outline above base.
func (c *chart) area(values []float64, base float64, y func(float64) float64, class string) {
	var p pen
	step := float64(right-left) / float64(len(values))
	drawing := false
	for i, v := range values {
		x := left + float64(i)*step
		if v == 0 {
			if drawing {
				p.line(x, base)
				p.b.WriteString("Z")
				p.last, drawing = "", false
			}
			continue
		}
		if !drawing {
			p.move(x, base)
			drawing = true
		}
		p.line(x, y(v))
		p.line(x+step, y(v))
	}
	if drawing {
		p.line(right, base)
		p.b.WriteString("Z")
	}
	c.path(p.String(), class)
}

// strip draws a track as boxes with their words in them, where they fit. Boxes
// of what is not plain are at least a pixel wide, and of those that would share
// a pixel the first is drawn.
func (c *chart) strip(k *track, y, h float64, plain string) {
	free := -1.0
	for _, s := range k.segments {
		to := c.to
		if s.to >= 0 {
			to = min(s.to, c.to)
		}
		if s.class == "" || to < c.from || s.from > c.to {
			continue
		}
		x, w := c.x(max(s.from, c.from)), c.x(to)-c.x(max(s.from, c.from))
		if w < 1 {
			if s.class == plain || x < free {
				continue
			}
			w = 1
			free = x + float64(right-left)/coarse
		}
		c.rect(x, y, w, h, "state "+s.class, s.text+" from "+at(s.from, s.to))
		if words := fitting(s.text, w-6); words != "" && h >= 10 {
			c.text(x+3, y+h-4, "in "+s.class, words)
		}
	}
}

// at words a piece of time.
func at(from, to clock.Mono) string {
	if to < 0 {
		return strconv.FormatFloat(seconds(from), 'f', 2, 64) + " s on"
	}
	return strconv.FormatFloat(seconds(from), 'f', 2, 64) + " to " + strconv.FormatFloat(seconds(to), 'f', 2, 64) + " s"
}

// textWidth is how wide a label is. Letters outside Latin ones may be as wide
// as two.
func textWidth(s string) (w float64) {
	for _, r := range s {
		w += letter
		if r >= 0x1100 {
			w += letter
		}
	}
	return w
}

// fitting returns as much of a text as there is room for: all of it, its first
// words, the beginning of its first word, or nothing.
func fitting(s string, room float64) string {
	for {
		if textWidth(s) <= room {
			return s
		}
		i := strings.LastIndexByte(s, ' ')
		if i < 0 {
			break
		}
		s = strings.TrimRight(s[:i], " ·")
	}
	if n := int(room/letter) - 1; n >= 5 && textWidth(clip(s, n)) <= room {
		return clip(s, n)
	}
	return ""
}

// ticks are round values between lo and hi, about n of them.
func ticks(lo, hi float64, n int) (out []float64, step float64) {
	if !(hi > lo) {
		return nil, 0
	}
	step = math.Pow(10, math.Floor(math.Log10((hi-lo)/float64(n))))
	for _, f := range []float64{1, 2, 5, 10} {
		if (hi-lo)/(step*f) <= float64(n) {
			step *= f
			break
		}
	}
	for i := math.Ceil(lo / step); i*step <= hi && len(out) < 50; i++ {
		out = append(out, i*step)
	}
	return out, step
}

// packing puts intervals into rows so that none overlap.
type packing struct {
	ends []float64
	most int
}

// put returns the row for an interval, or -1 if all rows are taken there.
// Intervals come in the order of their beginnings.
func (p *packing) put(from, to, gap float64) int {
	for i, end := range p.ends {
		if end+gap <= from {
			p.ends[i] = to
			return i
		}
	}
	if len(p.ends) == p.most {
		return -1
	}
	p.ends = append(p.ends, to)
	return len(p.ends) - 1
}
