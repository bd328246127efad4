package sim_test

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/sim"
	"github.com/flakelease/allocator/chaos/tier"
)

var (
	seeds   = flag.Uint64("seeds", 0, "how many seeds to run; 0: as many as the tier has time for")
	first   = flag.Uint64("first", 1, "seed of the first; 0 draws one and prints it")
	single  = flag.Uint64("seed", 0, "run this one alone; with -v, trace all of it")
	minutes = flag.Float64("minutes", 0, "simulated minutes of faults in each; 0: one and a half to six and a half, as drawn")
	all     = flag.Bool("all", false, "continue when a seed has failed")
	mode    = flag.String("mode", "", "everything, unclocked or tampered; empty: as drawn")
	hashTo  = flag.String("hashes", "", "write the hash of each seed to this file, to compare two versions of the code")
)

func options() sim.Options {
	return sim.Options{Mode: sim.Mode(*mode), Virtual: time.Duration(*minutes * float64(time.Minute))}
}

// replay returns the command that plays a seed again, and the link that shows it in a browser.
func replay(seed uint64, mode sim.Mode, minutes float64) string {
	cmd := fmt.Sprintf("go test ./chaos/sim -run 'TestSim$' -v -seed %d -mode %s", seed, mode)
	if minutes != 0 {
		cmd += fmt.Sprintf(" -minutes %g", minutes)
	}
	virtual := time.Duration(minutes * float64(time.Minute))
	return "replay: " + cmd + "\n" + link(seed, sim.Options{Mode: mode, Virtual: virtual})
}

// link returns the link that shows a run in a browser.
func link(seed uint64, o sim.Options) string {
	out := fmt.Sprintf("see it: make play, and open bin/play/index.html#seed=%d&mode=%s", seed, o.Mode)
	if o.Mode == sim.Calm {
		out += fmt.Sprintf("&nodes=%d&sids=%d", o.Nodes, o.SIDs)
	}
	if o.Virtual != 0 {
		out += fmt.Sprintf("&minutes=%g", o.Virtual.Minutes())
	}
	for i, a := range o.Acts {
		out += []string{"&acts=", ";"}[min(i, 1)] + a.String()
	}
	return out
}

// TestReplay: whoever is told of a seed that failed gets a command and a link that play it.
func TestReplay(t *testing.T) {
	for _, tc := range []struct {
		minutes float64
		want    string
	}{
		{0, "replay: go test ./chaos/sim -run 'TestSim$' -v -seed 17 -mode everything\nsee it: make play, and open bin/play/index.html#seed=17&mode=everything"},
		{0.5, "replay: go test ./chaos/sim -run 'TestSim$' -v -seed 17 -mode everything -minutes 0.5\nsee it: make play, and open bin/play/index.html#seed=17&mode=everything&minutes=0.5"},
	} {
		if got := replay(17, sim.Everything, tc.minutes); got != tc.want {
			t.Errorf("%v minutes: got\n%s\nwant\n%s", tc.minutes, got, tc.want)
		}
	}
	o := sim.Options{Mode: sim.Calm, Nodes: 4, SIDs: 3, Virtual: 8 * time.Minute, Acts: []sim.Act{
		{At: 12 * time.Second, Kind: sim.Kill, Host: "n1", For: time.Second}, {At: 20 * time.Second, Kind: sim.Recover},
	}}
	const want = "see it: make play, and open bin/play/index.html#seed=17&mode=calm&nodes=4&sids=3&minutes=8&acts=kill:12s:n1:1s;recover:20s::"
	if got := link(17, o); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// How many seeds of a mode must have reached its points, and those that are rare.
const enough, enoughForRare = 20, 400

// tally is what the seeds of a run came to.
type tally struct {
	sync.Mutex // guards all
	played     map[sim.Mode]int
	points     map[sim.Mode]*sim.Points
	seeds      map[sim.Mode]*sim.Points // how many reached each
	events     int
	ids        int
	virtual    time.Duration
	danger     map[sim.Mode]*history.Danger
	failed     bool
	hashes     []string // a line for each seed
}

func (c *tally) add(r sim.Result) {
	c.Lock()
	defer c.Unlock()
	c.played[r.Mode]++
	if c.points[r.Mode] == nil {
		c.points[r.Mode], c.seeds[r.Mode], c.danger[r.Mode] = &sim.Points{}, &sim.Points{}, &history.Danger{}
	}
	c.danger[r.Mode].Add(r.Danger)
	c.points[r.Mode].Add(r.Points)
	for p, n := range r.Points {
		c.seeds[r.Mode][p] += min(n, 1)
	}
	c.events += r.Events
	c.ids += r.IDs
	c.virtual += r.Virtual
	c.failed = c.failed || len(r.Violations) > 0
	c.hashes = append(c.hashes, fmt.Sprintf("%12d %s %016x", r.Seed, r.Mode, r.Hash))
}

// over reports that a seed failed: one is enough to analyze.
func (c *tally) over() bool {
	c.Lock()
	defer c.Unlock()
	return c.failed && !*all
}

// TestSim runs seeds. No claim may break in any of them; and a run that never
// was in one of the situations that matter has not shown that it holds there.
func TestSim(t *testing.T) {
	if *single != 0 {
		o := options()
		if testing.Verbose() {
			o.Trace = os.Stdout
		}
		r := sim.Run(*single, o)
		t.Logf("seed %d, %s: hash %016x, %d events, %d IDs, %v", r.Seed, r.Mode, r.Hash, r.Events, r.IDs, r.Virtual)
		for _, v := range r.Violations {
			t.Error(v)
		}
		return
	}
	from := *first
	if from == 0 {
		from = rand.Uint64N(1 << 40)
	}
	if *seeds == 0 {
		*seeds = uint64(tier.Of(t, "seeds", 8, 80, 2000))
	}
	t.Logf("seeds %d to %d", from, from+*seeds-1)
	c := &tally{played: map[sim.Mode]int{}, points: map[sim.Mode]*sim.Points{}, seeds: map[sim.Mode]*sim.Points{}, danger: map[sim.Mode]*history.Danger{}}
	began := time.Now()
	t.Run("shards", func(t *testing.T) {
		const shards = 4
		for shard := range uint64(shards) {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				for seed := from + shard; seed < from+*seeds && !c.over(); seed += shards {
					r := sim.Run(seed, options())
					c.add(r)
					if len(r.Violations) > 0 {
						history.Violated(t, r.Violations[0].Claim, "seed %d, %s, after %v: %v\n%s\n%s", seed, r.Mode,
							time.Since(began).Round(time.Millisecond), r.Violations[0], replay(r.Seed, r.Mode, *minutes), sim.Explain(r, options(), 40))
					}
				}
			})
		}
	})
	took := time.Since(began)
	if *hashTo != "" {
		slices.Sort(c.hashes)
		if err := os.WriteFile(*hashTo, []byte(strings.Join(c.hashes, "\n")+"\n"), 0o644); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d seeds, %d events, %d IDs, %v of simulated time in %v: %.1f seeds/s, %.0f events/s, %.1f simulated hours a second",
		*seeds, c.events, c.ids, c.virtual.Round(time.Second), took.Round(time.Millisecond),
		float64(*seeds)/took.Seconds(), float64(c.events)/took.Seconds(), c.virtual.Hours()/took.Seconds())
	for _, m := range sim.Modes {
		if c.points[m] == nil || t.Failed() {
			continue
		}
		var reached []string
		for p, n := range c.points[m] {
			reached = append(reached, fmt.Sprintf("%v %d in %d", sim.Point(p), n, c.seeds[m][p]))
		}
		t.Logf("%s, %d seeds; situations, how often and in how many seeds: %s", m, c.played[m], strings.Join(reached, ", "))
		t.Logf("%s, claims in danger: %v", m, *c.danger[m])
		missing := slices.DeleteFunc(c.points[m].Missing(m), func(p sim.Point) bool { return p.Rare() && c.played[m] < enoughForRare })
		if len(missing) > 0 && c.played[m] >= enough {
			t.Errorf("unknown: %d seeds of mode %s never reached %v", c.played[m], m, missing)
		}
	}
}

// TestSameSeedSameRun plays seeds twice: all that happens is the seed's.
func TestSameSeedSameRun(t *testing.T) {
	hashes := map[uint64]bool{}
	n := tier.Of(t, "seeds", 3, 4, 16)
	for seed := range uint64(n) {
		o := sim.Options{Virtual: time.Minute}
		a := sim.Run(seed, o)
		o.Trace = io.Discard // to trace a run must not change it
		b := sim.Run(seed, o)
		if a.Hash != b.Hash || a.Events != b.Events || a.IDs != b.IDs || !slices.Equal(a.Violations, b.Violations) {
			t.Errorf("seed %d: hash %016x with %d events, then %016x with %d", seed, a.Hash, a.Events, b.Hash, b.Events)
		}
		hashes[a.Hash] = true
	}
	if len(hashes) != n {
		t.Errorf("%d seeds have %d hashes", n, len(hashes))
	}
}
