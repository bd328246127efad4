package report

import (
	"math"
	"slices"

	"github.com/flakelease/allocator/internal/clock"
)

func seconds(m clock.Mono) float64 { return float64(m) / 1e9 }

// span is the piece of time [from, to] that a view shows, cut into equal slots.
type span struct{ from, to clock.Mono }

// slot returns the number of the slot of n that t lies in; false outside.
func (s span) slot(t clock.Mono, n int) (int, bool) {
	if t < s.from || t > s.to {
		return 0, false
	}
	return min(int(float64(t-s.from)/float64(s.to-s.from)*float64(n)), n-1), true
}

// width of a slot of n, in seconds.
func (s span) width(n int) float64 { return seconds(s.to-s.from) / float64(n) }

// series is a measured value over time. Of each slot it keeps the first, the
// last, the smallest and the greatest value, so that its size is bounded and no
// peak is lost. Values from before the span are kept as what it begins with, and
// the first one after it as where the line goes.
type series struct {
	span
	slots  []extremes
	before *point
	after  *point
	open   bool // the last thing before the span was a value, not a gap
}

type point struct {
	t clock.Mono
	v float64
}

type extremes struct {
	first, last, lo, hi point
	n                   int
	cut                 bool // a gap follows
}

// pieces is into how many slots a line is cut, two pixels each.
const pieces = 520

func newSeries(s span) *series { return &series{span: s, slots: make([]extremes, pieces)} }

// add takes the value at a time; times do not fall.
func (s *series) add(t clock.Mono, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		s.gap(t)
		return
	}
	p := point{t, v}
	i, ok := s.slot(t, len(s.slots))
	switch {
	case t < s.from:
		s.before, s.open = &p, true
		return
	case !ok:
		if s.after == nil {
			s.after = &p
		}
		return
	}
	x := &s.slots[i]
	if x.n == 0 {
		x.first, x.lo, x.hi = p, p, p
	}
	if v < x.lo.v {
		x.lo = p
	}
	if v > x.hi.v {
		x.hi = p
	}
	x.last, x.cut = p, false
	x.n++
}

// gap says that nothing is known from a time on.
func (s *series) gap(t clock.Mono) {
	i, ok := s.slot(t, len(s.slots))
	switch {
	case t < s.from:
		s.before, s.open = nil, false
	case !ok:
		if s.after == nil {
			s.after = &point{t, math.NaN()}
		}
	default:
		for ; i >= 0; i-- {
			if s.slots[i].n > 0 || s.slots[i].cut {
				s.slots[i].cut = true
				return
			}
		}
		s.before, s.open = nil, false
	}
}

// lines returns the points to join, a list for each piece between gaps.
func (s *series) lines() (out [][]point) {
	var line []point
	if s.before != nil && s.open {
		line = append(line, *s.before)
	}
	for _, x := range s.slots {
		if x.n > 0 {
			mid := []point{x.lo, x.hi}
			if x.lo.t > x.hi.t {
				mid[0], mid[1] = mid[1], mid[0]
			}
			for _, p := range []point{x.first, mid[0], mid[1], x.last} {
				if n := len(line); n == 0 || line[n-1] != p {
					line = append(line, p)
				}
			}
		}
		if x.cut && len(line) > 0 {
			out, line = append(out, line), nil
		}
	}
	if s.after != nil && !math.IsNaN(s.after.v) && len(line) > 0 {
		line = append(line, *s.after)
	}
	if len(line) > 0 {
		out = append(out, line)
	}
	return out
}

// reach returns the smallest and the greatest value shown.
func (s *series) reach() (lo, hi float64) {
	for i, line := range s.lines() {
		for j, p := range line {
			if i == 0 && j == 0 {
				lo, hi = p.v, p.v
			}
			lo, hi = min(lo, p.v), max(hi, p.v)
		}
	}
	return lo, hi
}

// tally counts something by slot.
type tally struct {
	span
	slots []float64
	any   bool
}

// coarse is into how many slots counts are cut, four pixels each.
const coarse = 260

func newTally(s span) *tally { return &tally{span: s, slots: make([]float64, coarse)} }

func (c *tally) add(t clock.Mono, n float64) {
	if i, ok := c.slot(t, len(c.slots)); ok {
		c.slots[i] += n
		c.any = c.any || n > 0
	}
}

// rate returns the count of a slot by second.
func (c *tally) rate(i int) float64 { return c.slots[i] / c.width(len(c.slots)) }

// peak returns the greatest rate.
func (c *tally) peak() (top float64) {
	for i := range c.slots {
		top = max(top, c.rate(i))
	}
	return top
}

// track is a state over time.
type track struct{ segments []segment }

type segment struct {
	from, to    clock.Mono // to is −1 while it lasts
	class, text string
}

// set says which state holds from a time on.
func (k *track) set(t clock.Mono, class, text string) {
	if n := len(k.segments); n > 0 {
		last := &k.segments[n-1]
		if last.class == class && last.text == text {
			return
		}
		last.to = t
	}
	k.segments = append(k.segments, segment{t, -1, class, text})
}

// Outcomes of calls.
const (
	answered = iota
	refused
	unclear
	outcomes
)

// latencies keeps how long calls took: of each slot and outcome a few points,
// the quickest and the slowest among them, and of each wider slot a histogram.
type latencies struct {
	span
	cells [outcomes][]thinned
	bins  []histogram
	n     int64
}

// quarters is into how many slots quantiles are cut, eight pixels each.
const quarters = 130

func newLatencies(s span) *latencies {
	l := &latencies{span: s, bins: make([]histogram, quarters)}
	for i := range l.cells {
		l.cells[i] = make([]thinned, coarse)
	}
	return l
}

// add takes a call by when it ended.
func (l *latencies) add(t clock.Mono, took float64, outcome int) {
	i, ok := l.slot(t, coarse)
	if !ok {
		return
	}
	l.cells[outcome][i].add(point{t, took})
	j, _ := l.slot(t, quarters)
	l.bins[j].add(took)
	l.n++
}

// thinned is some of many points: each stride-th, and the smallest and greatest.
type thinned struct {
	lo, hi    point
	kept      []point
	n, stride int
}

// keep bounds the points of one cell.
const keep = 6

func (p *thinned) add(x point) {
	if p.n == 0 {
		p.lo, p.hi, p.stride = x, x, 1
	}
	if x.v < p.lo.v {
		p.lo = x
	}
	if x.v > p.hi.v {
		p.hi = x
	}
	if p.n%p.stride == 0 {
		if len(p.kept) == keep {
			half := p.kept[:0]
			for i := 0; i < keep; i += 2 {
				half = append(half, p.kept[i])
			}
			p.kept = half
			p.stride *= 2
		}
		if p.n%p.stride == 0 {
			p.kept = append(p.kept, x)
		}
	}
	p.n++
}

// points returns what is shown, each once.
func (p *thinned) points() []point {
	if p.n == 0 {
		return nil
	}
	out := slices.Clone(p.kept)
	for _, x := range []point{p.lo, p.hi} {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

// histogram counts values in steps of 5 %, from 10 µs to 50 s.
type histogram struct {
	counts []uint32
	n      int64
	max    float64
}

const (
	smallest = 10e-6
	stepOf   = 1.05
	buckets  = 316
)

func (h *histogram) add(v float64) {
	if h.counts == nil {
		h.counts = make([]uint32, buckets)
	}
	i := int(math.Log(max(v, smallest)/smallest) / math.Log(stepOf))
	h.counts[min(max(i, 0), buckets-1)]++
	h.n++
	h.max = max(h.max, v)
}

// quantile returns the value that a share of all does not pass, to within 5 %,
// and the greatest exactly.
func (h *histogram) quantile(q float64) float64 {
	rank, seen := int64(math.Ceil(q*float64(h.n))), int64(0)
	for i, c := range h.counts {
		if seen += int64(c); seen >= rank && c > 0 {
			if seen == h.n && q == 1 {
				return h.max
			}
			return min(smallest*math.Pow(stepOf, float64(i)+.5), h.max)
		}
	}
	return h.max
}
