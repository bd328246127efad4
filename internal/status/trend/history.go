package trend

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

const (
	// Every is the time between two samples.
	Every = status.WorkTime
	// samples are kept of the cluster: those of an hour.
	samples = int(time.Hour / Every)
	// lineSamples are kept of each node: those of 15 minutes.
	lineSamples = int(15 * time.Minute / Every)
	// MaxNodes is how many nodes have a line of their own. All count for the cluster.
	MaxNodes = 1024
	// maxClocks is how many nodes have a line of their clock: twice as many as a node compares its clock with.
	maxClocks = 64
	// maxName bounds the bytes of a name or an instance that is kept.
	maxName = 256
)

// History has samples of the cluster. The zero value is empty. It takes at most 3.3 MB, most of it for
// lines of 1,024 nodes and for what they held.
type History struct {
	next   int // The next sample has this index, and is the oldest one if the ring is full.
	full   bool
	ring   [samples]sample
	turn   int // Lines have their next value at this index.
	nodes  map[string]*line
	clocks int // nodes that have a line of their clock

	stretches []*Stretch // as they began
}

// sample is the cluster at one time.
type sample struct {
	at      clock.Millis
	rate    int64 // -1: not known
	refused [node.NumReasons]uint32
	p50     uint32
	p99     uint32
	write   uint32
	left    uint32 // ms of the window of the node that answers, and 1; 0: it holds no sid
}

// line is a node over time.
type line struct {
	name  string
	now   *Stretch              // the latest one
	last  clock.Millis          // when it was last in a sample
	rates [lineSamples]uint32   // each by one more than it is; 0: not known
	clock *[lineSamples]float32 // ms from the cluster's time; NaN: not known, nil: it never was
}

// Add takes the cluster at a time. Samples come every Every; what is between two of them is
// not seen, except for refusals and latencies, which are of the time since the last one.
func (h *History) Add(at clock.Millis, c status.Cluster) {
	s := sample{at: at}
	if h.nodes == nil {
		h.nodes = map[string]*line{}
	}
	for _, l := range h.nodes {
		l.rates[h.turn] = 0
		if l.clock != nil {
			l.clock[h.turn] = unknown
		}
	}
	terms := terms(c)
	for _, n := range c.Nodes {
		l := h.line(at, n)
		if l == nil {
			continue
		}
		h.stretch(at, l, n, terms[held{n.SID, n.Instance}])
		if n.Report != nil {
			l.rates[h.turn] = clamp(n.Report.Rate) + 1
		}
		h.offset(l, c.Self, n)
	}
	h.forget(at)
	total := c.Total()
	for _, reason := range node.Reasons {
		s.refused[reason] = clamp(total.Work.Refused[reason.String()])
	}
	s.rate, s.write = max(0, total.Rate), clamp(total.Work.Write)
	if len(c.Nodes) == 0 || slices.ContainsFunc(c.Nodes, unreported) {
		s.rate = -1 // The sum of the others would look as if less had been issued.
	}
	s.p50, s.p99 = clamp(total.Work.P50), clamp(total.Work.P99)
	if c.Self.SID >= 0 {
		s.left = clamp(c.Self.Left()) + 1
	}
	h.ring[h.next] = s
	h.next = (h.next + 1) % samples
	h.full = h.full || h.next == 0
	h.turn = (h.turn + 1) % lineSamples
	for instance, l := range h.nodes {
		if at-l.last > clock.MillisOf(15*time.Minute) {
			delete(h.nodes, instance)
			if l.clock != nil {
				h.clocks--
			}
		}
	}
}

// unreported reports whether a node answers, and what it issues is not known: its report was lost, or has not come yet.
func unreported(n status.Node) bool { return n.Report == nil && n.Clock != nil && n.Clock.Fresh }

// line returns the line of a node, with the state that it has now; nil if there is no room.
func (h *History) line(at clock.Millis, n status.Node) *line {
	l := h.nodes[n.Instance]
	if l == nil {
		if len(h.nodes) >= MaxNodes || len(n.Instance) > maxName {
			return nil
		}
		l = &line{name: n.Label()}
		l.name = l.name[:min(len(l.name), maxName)]
		h.nodes[n.Instance] = l
	}
	l.last = at
	return l
}

// unknown is an offset that is not known.
var unknown = float32(math.NaN())

// offset takes how far the clock of a node is from the cluster's time, or from that of the node that answers while
// that is not known.
func (h *History) offset(l *line, self status.Self, n status.Node) {
	if n.Clock == nil || !n.Clock.Fresh || self.Clock == nil || n.Clock.Self && !self.Clock.Known {
		return
	}
	if l.clock == nil {
		if h.clocks >= maxClocks {
			return
		}
		h.clocks++
		l.clock = new([lineSamples]float32)
		for i := range l.clock {
			l.clock[i] = unknown
		}
	}
	l.clock[h.turn] = float32(n.Clock.Offset-self.Clock.Offset) / 1000
}

// clamp returns n as a number of 32 bits without a sign, or the nearest one.
func clamp(n int64) uint32 { return uint32(min(max(n, 0), 1<<32-2)) }

// Course is how the cluster was. Lists have a value for each of Times, the oldest first.
type Course struct {
	Times []int64 `json:"times_unix_ms"`
	// Rate is the sum of what nodes reported; nil: there was none, or it lacked a node that answered.
	Rate []*int64 `json:"ids_per_second"`
	// Refused has how many requests a second were refused, by each reason that there was.
	Refused map[string][]float64 `json:"refused_per_second"`
	// P50, P99 and Write are those of the node that had the longest; nil: there were none.
	P50   []*uint32 `json:"p50_us"`
	P99   []*uint32 `json:"p99_us"`
	Write []*uint32 `json:"etcd_write_us"`
	// Left is what was left of the window of the node that answers, in ms; nil: it held no sid.
	Left  []*uint32 `json:"window_left_ms"`
	Nodes []Line    `json:"nodes"`
}

// Line is the rate of a node in the last 15 minutes, the oldest value first; nil: not known.
type Line struct {
	Instance string   `json:"instance"`
	Name     string   `json:"name"`
	Rate     []*int64 `json:"ids_per_second"`
}

// Clock is how far a node's clock was from the cluster's time in the last 15 minutes, in ms, the oldest value first;
// nil: not known.
type Clock struct {
	Instance, Name string
	Offsets        []*float64
}

// Clocks returns those that are known by name, and the times of their values.
func (h *History) Clocks() (times []int64, out []Clock) {
	known := h.known()
	known = known[max(0, len(known)-lineSamples):]
	for _, at := range known {
		times = append(times, int64(h.ring[at].at))
	}
	for instance, l := range h.nodes {
		if l.clock == nil {
			continue
		}
		c := Clock{instance, l.name, make([]*float64, len(known))}
		for i := range known {
			v := float64(l.clock[(h.turn-len(known)+i+lineSamples)%lineSamples])
			if !math.IsNaN(v) {
				c.Offsets[i] = &v
			}
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Clock) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Instance, b.Instance))
	})
	return times, out
}

// each is how many samples of a node one value of its Line has, the mean of those known.
const each = 3

// Course returns what is known of the last time up to span.
func (h *History) Course(span time.Duration) Course {
	c := Course{
		Times: []int64{}, Rate: []*int64{}, Refused: map[string][]float64{},
		P50: []*uint32{}, P99: []*uint32{}, Write: []*uint32{}, Left: []*uint32{}, Nodes: []Line{},
	}
	known := h.known()
	known = known[max(0, len(known)-int(span/Every)):]
	for i, at := range known {
		s := &h.ring[at]
		c.Times, c.Rate = append(c.Times, int64(s.at)), append(c.Rate, nil)
		if rate := s.rate; rate >= 0 {
			c.Rate[i] = &rate
		}
		c.P50, c.P99 = append(c.P50, some(s.p50)), append(c.P99, some(s.p99))
		c.Write = append(c.Write, some(s.write))
		if c.Left = append(c.Left, some(s.left)); s.left > 0 {
			*c.Left[i]--
		}
		for _, reason := range node.Reasons {
			if s.refused[reason] == 0 {
				continue
			}
			list := c.Refused[reason.String()]
			if list == nil {
				list = make([]float64, len(known))
				c.Refused[reason.String()] = list
			}
			list[i] = float64(s.refused[reason]) / Every.Seconds()
		}
	}
	for instance, l := range h.nodes {
		c.Nodes = append(c.Nodes, Line{instance, l.name, h.rates(l, min(len(h.known()), lineSamples))})
	}
	slices.SortFunc(c.Nodes, func(a, b Line) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Instance, b.Instance))
	})
	return c
}

// known returns the indexes of the samples, the oldest first.
func (h *History) known() (out []int) {
	if h.full {
		for i := h.next; i < samples; i++ {
			out = append(out, i)
		}
	}
	for i := range h.next {
		out = append(out, i)
	}
	return out
}

// rates returns the values of l of the last samples.
func (h *History) rates(l *line, last int) []*int64 {
	out := []*int64{}
	for from := h.turn - last; from < h.turn; from += each {
		sum, n := int64(0), int64(0)
		for i := from; i < min(from+each, h.turn); i++ {
			if v := l.rates[(i+lineSamples)%lineSamples]; v > 0 {
				sum, n = sum+int64(v)-1, n+1
			}
		}
		if n == 0 {
			out = append(out, nil)
			continue
		}
		mean := sum / n
		out = append(out, &mean)
	}
	return out
}

// some returns nil for 0.
func some(n uint32) *uint32 {
	if n == 0 {
		return nil
	}
	return &n
}
