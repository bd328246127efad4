package services

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Tables writes the results as Markdown, a table a group.
func Tables(w io.Writer, results []Result) {
	for _, group := range []string{
		Single, Pipelined, RedisBenchmark, RedisBenchmarkPipelined, RedisThreads, RedisSocket, RedisSocketPipelined,
		SDK, Blocks,
	} {
		var first *Result
		for i := range results {
			r := &results[i]
			if r.Group != group {
				continue
			}
			ids, mode := r.spread(Sample.ids), r.Mode
			if first == nil {
				first = r
				fmt.Fprintf(w, "### %s\n\n", sentence(group))
				fmt.Fprintln(w, "| | server CPU, µs a request | IDs/s, median | min | max | × the first row | p50 µs "+
					"| p99 µs | refused | steps |")
				fmt.Fprintln(w, "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|")
			}
			if mode == "" {
				mode = "–"
			}
			refused := 0.0
			for _, s := range r.Samples {
				refused = max(refused, s.Refused)
			}
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %.2f | %s | %s | %s | %s |\n", r.Name,
				micros(r.spread(Sample.cpu).Median), Count(ids.Median), Count(ids.Min), Count(ids.Max),
				ids.Median/first.spread(Sample.ids).Median,
				micros(r.spread(Sample.p50).Median), micros(r.spread(Sample.p99).Median), share(refused), mode)
		}
		if first != nil {
			fmt.Fprintln(w)
		}
	}
}

// GoalRows writes a row of a Markdown table for each goal.
func GoalRows(w io.Writer, results []Result) {
	for _, g := range Goals {
		v := Judge(g, results)
		goal, got, verdict := Count(g.AtLeast)+" IDs/s", Count(v.Got.Median)+" IDs/s", "met"
		spread := fmt.Sprintf("%s … %s", Count(v.Got.Min), Count(v.Got.Max))
		if g.Peer != "" {
			goal, got = fmt.Sprintf("≥ %.2f × %s", g.AtLeast, g.Peer), fmt.Sprintf("%.2f ×", v.Got.Median)
			spread = fmt.Sprintf("%.2f … %.2f", v.Got.Min, v.Got.Max)
		}
		if g.CPU > 0 {
			goal = fmt.Sprintf("processor time ≤ %.2f × %s", g.CPU, g.Peer)
		}
		if g.P99 > 0 {
			goal += fmt.Sprintf(", p99 ≤ %g ×", g.P99)
			got += fmt.Sprintf(", p99 %s µs against %s", micros(float64(v.Ours)), micros(float64(v.Theirs)))
		}
		switch {
		case !v.Measured:
			got, spread, verdict = "–", "–", "not measured"
		case v.Got.Median < g.AtLeast:
			verdict = fmt.Sprintf("**missed by %.1f %%**", 100*(1-v.Got.Median/g.AtLeast))
		case v.Got.Median > g.CPU && g.CPU > 0:
			verdict = fmt.Sprintf("**missed by %.1f %%**", 100*(v.Got.Median/g.CPU-1))
		case !v.Met:
			verdict = "**missed: p99**"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", g.Case, goal, got, spread, verdict)
	}
}

// sentence begins s with a capital.
func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// Count formats a number with a space between thousands.
func Count(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteString(" ")
		}
		b.WriteRune(d)
	}
	return b.String()
}

// micros writes a time given in ns.
func micros(ns float64) string {
	switch us := ns / float64(time.Microsecond); {
	case us == 0:
		return "–"
	case us < 10:
		return fmt.Sprintf("%.2f", us)
	case us < 100:
		return fmt.Sprintf("%.1f", us)
	default:
		return Count(us)
	}
}

func share(v float64) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}
