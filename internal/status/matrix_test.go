package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// drawn is a matrix with one character for each state.
func drawn(m Matrix) string {
	signs := map[string]string{
		MatrixSelf: "\\", MatrixUnknown: "?", MatrixNone: "-", MatrixSilent: "x",
		MatrixFar: "F", MatrixSlow: "s", MatrixUnsure: "u", MatrixAgree: ".",
	}
	var b strings.Builder
	for _, row := range m.Nodes {
		for _, c := range row.Cells {
			b.WriteString(signs[c.State])
		}
		b.WriteString(" ")
	}
	return strings.TrimSpace(b.String())
}

// measuring is a cluster of nodes n1, n2, …: the clock of each is ahead by so many ms, and each
// measures each other exactly, with a round trip of 1 ms. n1 answers.
type measuring struct {
	report clock.Report
	others map[string]map[string]Measured
}

func newMeasuring(ahead ...int) measuring {
	m := measuring{others: map[string]map[string]Measured{}}
	m.report.Gate.Verdict.Limit = 250
	for i, at := range ahead {
		if i > 0 {
			m.report.Peers = append(m.report.Peers, clock.PeerReport{
				Name:     fmt.Sprintf("n%d", i+1),
				Instance: fmt.Sprintf("i%d", i+1),
				Fresh:    true,
				Offset:   time.Duration(at-ahead[0]) * time.Millisecond,
				Error:    500 * time.Microsecond,
				RTT:      time.Millisecond,
				Stats:    clock.PeerStats{Samples: 1},
			})
		}
		row := map[string]Measured{}
		for j, other := range ahead {
			if i != j {
				row[fmt.Sprintf("i%d", j+1)] = Measured{Fresh: true, Offset: int64(other-at) * 1000, Error: 500, RTT: 1000}
			}
		}
		if i > 0 {
			m.others[fmt.Sprintf("i%d", i+1)] = row
		}
	}
	return m
}

func (m measuring) matrix() Matrix { return matrixOf("n1", "i1", m.report, m.others) }

// TestMatrix: a wrong clock is a row and a column, whoever has it, and a bad path is one cell.
func TestMatrix(t *testing.T) {
	for name, tc := range map[string]struct {
		ahead  []int
		change func(*measuring)
		want   string
	}{
		"all agree":           {[]int{0, 1, -1, 2}, nil, `\... .\.. ..\. ...\`},
		"one is wrong":        {[]int{0, 1, 1000, 2}, nil, `\.F. .\F. FF\F ..F\`},
		"it is the one asked": {[]int{-1000, 0, 1, 2}, nil, `\FFF F\.. F.\. F..\`},
		"a slow path": {[]int{0, 0, 0, 0}, func(m *measuring) {
			m.others["i2"]["i4"] = Measured{Fresh: true, RTT: 40_000, Error: 20_000}
		}, `\... .\.s ..\. ...\`},
		"a slow and coarse path": {[]int{0, 0, 0, 0}, func(m *measuring) {
			m.others["i2"]["i4"] = Measured{Fresh: true, RTT: 800_000, Error: 400_000}
		}, `\... .\.s ..\. ...\`},
		"all paths are slow": {[]int{0, 0, 0}, func(m *measuring) {
			m.report.Peers[0].RTT, m.report.Peers[1].RTT = 90*time.Millisecond, 90*time.Millisecond
			for _, row := range m.others {
				for to, c := range row {
					c.RTT = 90_000
					row[to] = c
				}
			}
		}, `\.. .\. ..\`},
		"too coarse": {[]int{0, 0, 0}, func(m *measuring) {
			m.others["i3"]["i1"] = Measured{Fresh: true, Offset: 249_000, Error: 1001, RTT: 1000}
			m.others["i3"]["i2"] = Measured{Fresh: true, Offset: -251_000, Error: 1000, RTT: 1000}
		}, `\.. .\. uu\`},
		"a broken path": {[]int{0, 0, 0}, func(m *measuring) {
			m.others["i2"]["i3"] = Measured{Offset: 9_000_000, RTT: 900_000}
		}, `\.. .\x ..\`},
		"never measured":  {[]int{0, 0, 0}, func(m *measuring) { delete(m.others["i2"], "i3") }, `\.. .\- ..\`},
		"it says nothing": {[]int{0, 0, 0}, func(m *measuring) { delete(m.others, "i2") }, `\.. ?\? ..\`},
		"nor of the one asked": {[]int{0, 0, 0}, func(m *measuring) {
			m.others["i1"] = map[string]Measured{"i2": {Fresh: true, Offset: 9_000_000}}
			m.report.Peers[1].Stats.Samples = 0
		}, `\.- .\. ..\`},
		"alone": {[]int{0}, nil, `\`},
	} {
		m := newMeasuring(tc.ahead...)
		if tc.change != nil {
			tc.change(&m)
		}
		if got := drawn(m.matrix()); got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tc.want)
		}
	}
}

func TestMatrixCell(t *testing.T) {
	m := newMeasuring(0, 1000, 0)
	if got, want := m.matrix().Nodes[1].Cells[2], (MatrixCell{MatrixFar, -1_000_000, 500, 1000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := m.matrix().Nodes[0].Cells[1], (MatrixCell{MatrixFar, 1_000_000, 500, 1000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestMatrixIsBounded: of a large cluster the matrix has the node that answers and those that are
// wrong, whatever their names, and says how many it leaves out.
func TestMatrixIsBounded(t *testing.T) {
	ahead := make([]int, 64)
	ahead[62] = 1000
	m := newMeasuring(ahead...)
	m.report.Gate.Judgement.Falsetickers = []string{"n63"}
	got := m.matrix()
	if len(got.Nodes) != MatrixNodes || len(got.Nodes[0].Cells) != MatrixNodes || got.More != 64-MatrixNodes {
		t.Errorf("%d nodes, %d cells in a row, %d more", len(got.Nodes), len(got.Nodes[0].Cells), got.More)
	}
	names := map[string]bool{}
	for _, n := range got.Nodes {
		names[n.Name] = true
	}
	if !names["n1"] || !names["n63"] || len(names) != MatrixNodes {
		t.Errorf("%v", names)
	}
}
