// Command ratios measures all cases of package bench in turns and prints how
// ours compare with the others, and whether the project's goals are met. It
// exits with 1 if one is missed.
//
// Each round runs every case once and briefly, so that other load on the machine
// affects them alike, and leaves some rounds of each alone. Other load can only
// add time: the ratio of two cases is that of their minimum times. The median of
// the ratios of all rounds is printed beside it; if the two differ much, the
// machine was busy, and more rounds help.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/flakelease/allocator/bench"
)

func main() {
	rounds := flag.Int("rounds", 200, "number of measurements of each case")
	slice := flag.Duration("slice", 2*time.Millisecond, "duration of one measurement")
	only := flag.String("only", "", "measure only groups whose name contains this")
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
	times := bench.Measure(cases, rounds, slice)
	fmt.Printf("%s, %s/%s, GOMAXPROCS %d, %d rounds\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH,
		runtime.GOMAXPROCS(0), rounds)
	times.Tables(os.Stdout)
	fmt.Println("| | goal | got | | |\n|---|---|--:|--:|---|")
	times.GoalRows(os.Stdout)
	for _, v := range times.Judge() {
		if v.Measured && !v.Met {
			return false
		}
	}
	return true
}
