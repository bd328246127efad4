package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Times are the nanoseconds an operation of each case took, by case and round.
type Times struct {
	Cases []Case
	Took  [][]float64
}

// Measure runs every case once and briefly in each round.
func Measure(cases []Case, rounds int, slice time.Duration) Times {
	counts := make([]int, len(cases))
	for i, c := range cases {
		counts[i] = calibrate(c.Run, max(slice, c.Minimum))
	}
	took := make([][]float64, len(cases))
	for range rounds {
		for i, c := range cases {
			start := time.Now()
			c.Run(counts[i])
			took[i] = append(took[i], float64(time.Since(start))/float64(counts[i]))
		}
	}
	return Times{cases, took}
}

// calibrate returns how many operations fill a slice of time.
func calibrate(run func(int), slice time.Duration) int {
	for n := 1; ; n *= 4 {
		start := time.Now()
		run(n)
		if d := time.Since(start); d >= slice/4 {
			return max(1, int(float64(n)*float64(slice)/float64(d)))
		}
	}
}

// ours returns the index of our first case of a group, or -1.
func (t Times) ours(group string) int {
	return slices.IndexFunc(t.Cases, func(c Case) bool {
		return c.Group == group && strings.HasPrefix(c.Library, Ours)
	})
}

// Tables writes all times as Markdown, a table a group.
func (t Times) Tables(w io.Writer) {
	group := ""
	for i, c := range t.Cases {
		if c.Group != group {
			if group != "" {
				fmt.Fprintln(w)
			}
			group = c.Group
			fmt.Fprintf(w, "### %s\n\n", strings.ToUpper(group[:1])+group[1:])
			fmt.Fprintln(w, "| | ns, min | median | max | ours ÷ theirs |")
			fmt.Fprintln(w, "|---|--:|--:|--:|--:|")
		}
		lo, mid, hi := spread(t.Took[i])
		ratio := "–"
		if at := t.ours(group); at >= 0 && !strings.HasPrefix(c.Library, Ours) {
			ratio = fmt.Sprintf("%.2f", slices.Min(t.Took[at])/slices.Min(t.Took[i]))
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", c.Library, nanos(lo), nanos(mid), nanos(hi), ratio)
	}
	fmt.Fprintln(w)
}

func nanos(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// A Verdict is the result of a run for a goal.
type Verdict struct {
	Goal
	Measured bool
	Got      float64 // ratio of the minimum times
	Median   float64 // median of the rounds' ratios
	Met      bool
}

// Judge compares the times with the goals.
func (t Times) Judge() []Verdict {
	list := make([]Verdict, 0, len(Goals))
	for _, g := range Goals {
		v := Verdict{Goal: g}
		mine := t.ours(g.Group)
		if g.Case != "" {
			mine = slices.IndexFunc(t.Cases, func(c Case) bool { return c.Group == g.Group && c.Library == g.Case })
		}
		peer := slices.IndexFunc(t.Cases, func(c Case) bool { return c.Group == g.Group && c.Library == g.Peer })
		switch {
		case mine < 0 || peer < 0 && g.Peer != "":
		case g.Peer == "":
			v.Measured, v.Got = true, slices.Min(t.Took[mine])
			_, v.Median, _ = spread(t.Took[mine])
		default:
			v.Measured, v.Got = true, slices.Min(t.Took[mine])/slices.Min(t.Took[peer])
			_, v.Median, _ = spread(divide(t.Took[mine], t.Took[peer]))
		}
		v.Met = v.Measured && v.Got <= g.Max
		list = append(list, v)
	}
	return list
}

// GoalRows writes a row of a Markdown table for each goal.
func (t Times) GoalRows(w io.Writer) {
	for _, v := range t.Judge() {
		goal, got, mid := fmt.Sprintf("≤ %.2f × %s", v.Max, v.Peer), fmt.Sprintf("%.2f ×", v.Got),
			fmt.Sprintf("%.2f × in the median", v.Median)
		if v.Peer == "" {
			goal, got, mid = fmt.Sprintf("≤ %.0f ns", v.Max), fmt.Sprintf("%.0f ns", v.Got),
				fmt.Sprintf("%.0f ns in the median", v.Median)
		}
		name, verdict := v.Group, "met"
		if v.Case != "" {
			name += ": " + v.Case
		}
		switch {
		case !v.Measured:
			got, mid, verdict = "–", "–", "not measured"
		case !v.Met:
			verdict = fmt.Sprintf("**missed by %.0f %%**", 100*(v.Got/v.Max-1))
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", name, goal, got, mid, verdict)
	}
}

// divide returns a/b, round by round.
func divide(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

// spread returns the minimum, the median and the maximum of values.
func spread(values []float64) (lo, mid, hi float64) {
	v := slices.Sorted(slices.Values(values))
	return v[0], (v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[len(v)-1]
}
