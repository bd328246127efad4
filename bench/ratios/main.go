// Command ratios measures all cases of package bench in turns and prints how
// ours compare with the others, and whether the project's goals are met. It
// exits with 1 if one is missed.
//
// Each round runs every case once and briefly, so that whatever else the machine
// does in a while hits them alike, and misses some rounds of each. What a
// neighbour does can only add time: the ratio of two cases is that of their least
// times. The median of the rounds' own ratios stands beside it; where the two
// differ much, the machine was busy, and more rounds help.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/flakelease/allocator/bench"
)

func main() {
	rounds := flag.Int("rounds", 200, "how often each case is measured")
	slice := flag.Duration("slice", 2*time.Millisecond, "how long one measurement takes")
	only := flag.String("only", "", "measure only groups whose name has this in it")
	flag.Parse()
	if *rounds < 1 || *slice <= 0 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if !run(*rounds, *slice, *only) {
		os.Exit(1)
	}
}

func run(rounds int, slice time.Duration, only string) bool {
	var cases []bench.Case
	for _, c := range bench.Cases() {
		if strings.Contains(c.Group, only) {
			cases = append(cases, c)
		}
	}
	counts := make([]int, len(cases))
	for i, c := range cases {
		counts[i] = calibrate(c.Run, slice)
	}
	took := make([][]float64, len(cases)) // nanoseconds an operation, by case and round
	for range rounds {
		for i, c := range cases {
			start := time.Now()
			c.Run(counts[i])
			took[i] = append(took[i], float64(time.Since(start))/float64(counts[i]))
		}
	}
	print(cases, took)
	return goals(cases, took)
}

// calibrate returns how many operations fill a slice of time.
func calibrate(run func(int), slice time.Duration) int {
	for n := 1; ; n *= 4 {
		start := time.Now()
		run(n)
		if d := time.Since(start); d >= slice/8 {
			return max(1, int(float64(n)*float64(slice)/float64(d)))
		}
	}
}

// ours returns the index of our first case of a group, or -1.
func ours(cases []bench.Case, group string) int {
	return slices.IndexFunc(cases, func(c bench.Case) bool {
		return c.Group == group && strings.HasPrefix(c.Library, bench.Ours)
	})
}

func print(cases []bench.Case, took [][]float64) {
	fmt.Printf("%s, %s/%s, GOMAXPROCS %d, %d rounds\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), len(took[0]))
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	group := ""
	for i, c := range cases {
		if c.Group != group {
			group = c.Group
			fmt.Fprintf(w, "%s\tmin ns\tmedian\tmax\tours/theirs\t\n", group)
		}
		lo, mid, hi := spread(took[i])
		ratio := ""
		if !strings.HasPrefix(c.Library, bench.Ours) {
			ratio = fmt.Sprintf("%.2f", least(took[ours(cases, group)])/least(took[i]))
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%s\t\n", c.Library, lo, mid, hi, ratio)
	}
	w.Flush()
}

// goals prints each goal and reports whether all that were measured are met.
func goals(cases []bench.Case, took [][]float64) bool {
	all := true
	fmt.Println()
	for _, g := range bench.Goals {
		mine := ours(cases, g.Group)
		peer := slices.IndexFunc(cases, func(c bench.Case) bool { return c.Group == g.Group && c.Library == g.Peer })
		if mine < 0 || peer < 0 {
			continue
		}
		ratio := least(took[mine]) / least(took[peer])
		_, mid, _ := spread(divide(took[mine], took[peer]))
		verdict := "met   "
		if ratio > g.Most {
			verdict, all = "missed", false
		}
		fmt.Printf("%s  %s: %.3f of %s (median of rounds %.3f), at most %.3f\n", verdict, g.Group, ratio, g.Peer, mid, g.Most)
	}
	return all
}

// divide returns a/b, round by round.
func divide(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

func least(values []float64) float64 { return slices.Min(values) }

// spread returns the least, the median and the greatest of values.
func spread(values []float64) (lo, mid, hi float64) {
	v := slices.Sorted(slices.Values(values))
	return v[0], (v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[len(v)-1]
}
