package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// MatrixNodes is how many nodes a Matrix has, whatever the size of the cluster.
const MatrixNodes = 32

// Matrix has the clocks of nodes as each of them measured each other: the one that answers, and
// those by which it judges its clock. A clock that is wrong is far from all others in its row and
// in its column; a path that is slow or broken is one cell, or the two of both directions.
type Matrix struct {
	// Limit is the offset at which clocks disagree, in µs.
	Limit int64       `json:"limit_us"`
	Nodes []MatrixRow `json:"nodes"`
	// More is how many others there are. Those that this node finds wrong are in Nodes first.
	More int `json:"more"`
}

// MatrixRow is one node, and what it measured of each of Matrix.Nodes in their order.
type MatrixRow struct {
	Name     string       `json:"name"`
	Instance string       `json:"instance"`
	Cells    []MatrixCell `json:"cells"`
}

// MatrixCell is one measurement: the issuing clock of the column minus that of the row, ± Error.
// Times are in µs, and 0 in the states MatrixSelf, MatrixNone and MatrixUnknown.
type MatrixCell struct {
	State  string `json:"state"`
	Offset int64  `json:"offset_us"`
	Error  int64  `json:"error_us"`
	RTT    int64  `json:"rtt_us"`
}

// Away writes the offset as people read it, or why there is none.
func (c MatrixCell) Away() string {
	switch c.State {
	case MatrixSelf:
		return ""
	case MatrixUnknown:
		return "?"
	case MatrixNone:
		return "–"
	}
	away, _, _ := strings.Cut(clock.FormatOffset(time.Duration(c.Offset)*time.Microsecond, 0), " ")
	return away
}

// Trip writes the round trip, and the state if it is not that the clocks agree.
func (c MatrixCell) Trip() string {
	trip := (time.Duration(c.RTT) * time.Microsecond).String()
	switch c.State {
	case MatrixSelf, MatrixUnknown, MatrixNone:
		return ""
	case MatrixAgree:
		return trip
	}
	return trip + " " + c.State
}

// The states of a cell. The first that applies is the state.
const (
	MatrixSelf    = "self"    // It is on the diagonal.
	MatrixUnknown = "unknown" // The node of the row has not said what it measured.
	MatrixNone    = "none"    // It was never measured.
	MatrixSilent  = "silent"  // It was measured once, and does not answer lately.
	MatrixFar     = "far"     // The clocks are surely further apart than Limit.
	MatrixSlow    = "slow"    // The round trip took much longer than most do.
	MatrixUnsure  = "unsure"  // The measurement is too coarse to say whether they agree.
	MatrixAgree   = "agree"   // The clocks are surely within Limit.
)

const (
	// slowAbove and slowFactor say what a slow round trip is: above 10 ms, and above ten times
	// the median of all.
	slowAbove  = int64(10_000)
	slowFactor = 10
)

// Measured is the clock of one node as another has measured it, in µs.
type Measured struct {
	Fresh              bool
	Offset, Error, RTT int64
}

// MeasuredOf returns what this node has measured, by the instance measured.
func MeasuredOf(r clock.Report) map[string]Measured {
	out := map[string]Measured{}
	for _, p := range r.Peers {
		if p.Stats.Samples > 0 {
			out[p.Instance] = Measured{p.Fresh, micros(p.Offset), boundMicros(p.Error), micros(p.RTT)}
		}
	}
	return out
}

// Matrix returns the clocks as nodes measured them.
func (r *Reader) Matrix() Matrix {
	self, clocks := r.cfg.Node.Config(), r.clocks()
	var others map[string]map[string]Measured
	if r.cfg.Measured != nil {
		others = r.cfg.Measured()
	}
	return matrixOf(self.Name, string(self.Instance), clocks, others)
}

// matrixOf returns the matrix of a node. others has what other nodes said that they measured, by
// their instance and by the instance measured.
func matrixOf(name, instance string, r clock.Report, others map[string]map[string]Measured) Matrix {
	peers := slices.Clone(r.Peers)
	found := r.Gate.Judgement
	wrong := func(p clock.PeerReport) int {
		if slices.Contains(found.Falsetickers, p.Name) || slices.Contains(found.Disagreeing, p.Name) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(peers, func(a, b clock.PeerReport) int { return cmp.Compare(wrong(a), wrong(b)) })
	m := Matrix{
		Limit: micros(r.Gate.Verdict.Limit.Duration()),
		More:  max(0, len(peers)-(MatrixNodes-1)),
		Nodes: []MatrixRow{{Name: name, Instance: instance}},
	}
	for _, p := range peers[:len(peers)-m.More] {
		m.Nodes = append(m.Nodes, MatrixRow{Name: p.Name, Instance: p.Instance})
	}
	slices.SortFunc(m.Nodes, func(a, b MatrixRow) int { return cmp.Compare(a.Name, b.Name) })

	measured := map[string]map[string]Measured{instance: MeasuredOf(r)}
	for of, list := range others {
		if of != instance {
			measured[of] = list
		}
	}
	var trips []int64
	for i := range m.Nodes {
		row := &m.Nodes[i]
		for _, column := range m.Nodes {
			c, known := measured[row.Instance][column.Instance]
			cell := MatrixCell{Offset: c.Offset, Error: c.Error, RTT: c.RTT}
			switch {
			case row.Instance == column.Instance:
				cell = MatrixCell{State: MatrixSelf}
			case measured[row.Instance] == nil:
				cell.State = MatrixUnknown
			case !known:
				cell.State = MatrixNone
			default:
				trips = append(trips, c.RTT)
				cell.State = m.judge(c)
			}
			row.Cells = append(row.Cells, cell)
		}
	}
	m.markSlow(trips)
	return m
}

// judge returns the state of a measurement, but for slow ones.
func (m Matrix) judge(c Measured) string {
	away := max(c.Offset, -c.Offset)
	switch {
	case !c.Fresh:
		return MatrixSilent
	case m.Limit > 0 && away-c.Error > m.Limit:
		return MatrixFar
	case m.Limit > 0 && away+c.Error > m.Limit:
		return MatrixUnsure
	}
	return MatrixAgree
}

// markSlow marks cells whose round trip is slow beside all trips.
func (m Matrix) markSlow(trips []int64) {
	if len(trips) == 0 {
		return
	}
	slices.Sort(trips)
	slow := max(slowAbove, slowFactor*trips[len(trips)/2])
	for _, row := range m.Nodes {
		for i := range row.Cells {
			if c := &row.Cells[i]; c.RTT > slow && (c.State == MatrixAgree || c.State == MatrixUnsure) {
				c.State = MatrixSlow
			}
		}
	}
}
