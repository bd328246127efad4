package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/bench/services"
)

const (
	// quietLoad is the load average of a processor up to which a machine counts as quiet. What
	// compiled the programs just before is in it.
	quietLoad = 0.5
	// quietSpread is by how much a fixed amount of work may take longer once than another time.
	quietSpread = 1.25
)

// unfit returns why the numbers of a run are none to publish: nobody could measure them
// again, or other programs took part in them.
func unfit(commit, load string, processors int, spins []time.Duration) (because []string) {
	if commit == "unknown" || strings.HasSuffix(commit, "-dirty") {
		because = append(because, fmt.Sprintf("the commit is %q: commit or remove the changes", commit))
	}
	if v, err := strconv.ParseFloat(load, 64); err != nil || v > quietLoad*float64(processors) {
		because = append(because,
			fmt.Sprintf("the load average was %s on %d processors when it began, more than %.1f: end other "+
				"programs, or wait a minute", load, processors, quietLoad*float64(processors)))
	}
	if len(spins) == 0 {
		return append(because, "the machine was not tried")
	}
	if s := float64(slices.Max(spins)) / float64(slices.Min(spins)); s > quietSpread {
		because = append(because, fmt.Sprintf("the same work took %v once and %v another time: other programs, or the "+
			"host of a virtual machine, took the processors", slices.Min(spins), slices.Max(spins)))
	}
	return because
}

// spins times a fixed amount of work on all processors at once, several times.
func spins() (took []time.Duration) {
	const times, work = 20, 20_000_000
	for range times {
		began := time.Now()
		var all sync.WaitGroup
		for i := range runtime.GOMAXPROCS(0) {
			all.Go(func() {
				x := uint64(i + 1)
				for range work {
					x ^= x << 13
					x ^= x >> 7
					x ^= x << 17
				}
				if x == 0 { // Never, and the compiler does not know.
					panic(x)
				}
			})
		}
		all.Wait()
		took = append(took, time.Since(began))
	}
	return took
}

// numbers is what is kept of a run.
type numbers struct {
	Began   time.Time
	Commit  string
	Load    string
	Machine []string
	Built   string
	Spins   []time.Duration
	Rounds  int
	Slice   time.Duration
	Cases   map[string][]services.Sample // by case, a sample for each round
	Curves  []services.Curve
	// InProcess has the nanoseconds of an operation, by case, in each round.
	InProcess map[string][]float64
}

// keep writes the numbers to a file of the directory, whose name has the time and the commit.
func (r *report) keep(dir string) error {
	n := numbers{
		Began:     r.began.UTC(),
		Commit:    commit(),
		Load:      r.load,
		Machine:   []string{cpuModel(), fmt.Sprint(runtime.NumCPU()), memory(), kernel()},
		Built:     r.builtWith(),
		Spins:     r.spins,
		Rounds:    r.rounds,
		Slice:     r.slice,
		Cases:     map[string][]services.Sample{},
		Curves:    r.curves,
		InProcess: map[string][]float64{},
	}
	for _, c := range r.results {
		n.Cases[c.ID()] = c.Samples
	}
	for i, c := range r.times.Cases {
		n.InProcess[c.Group+": "+c.Library] = r.times.Took[i]
	}
	text, err := json.MarshalIndent(n, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := r.began.UTC().Format("20060102-150405") + "-" + n.Commit + ".json"
	return os.WriteFile(filepath.Join(dir, name), text, 0o644)
}
