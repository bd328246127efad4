//go:build unix

package sim_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/sim"
	"github.com/flakelease/allocator/chaos/tier"
)

var (
	campaignFile = flag.String("campaign", "", "file with the state of a campaign, which runs seeds where it stopped; empty: one in bin, in the nightly tier alone")
	campaignFor  = flag.Duration("campaign-for", time.Hour, "how long to run it; 0: until -campaign-seeds")
	campaignMost = flag.Uint64("campaign-seeds", 0, "seeds of the whole campaign; 0: until -campaign-for")
	commit       = flag.String("commit", "", "what is tested, for the failures of a campaign")
)

// campaign is the state of a campaign. It is written after each batch of seeds.
type campaign struct {
	First, Next uint64
	Simulated   time.Duration
	CPU         time.Duration
	Played      map[sim.Mode]int
	Points      map[sim.Mode]map[string]int
	Danger      history.Danger // All seeds are counted together.
	Failures    []failure
}

type failure struct {
	Seed              uint64
	Mode              sim.Mode
	Commit, Violation string
}

func (f failure) String() string {
	return fmt.Sprintf("seed %d, %s: %s\n%s", f.Seed, f.Mode, f.Violation, replay(f.Seed, f.Mode, 0))
}

// batch is how many seeds are played between two writes of the state.
const batch = 64

func loadCampaign(file string) (c campaign, err error) {
	c = campaign{Played: map[sim.Mode]int{}, Points: map[sim.Mode]map[string]int{}}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		c.First = rand.Uint64N(1<<40) + 1
		c.Next = c.First
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	return c, err
}

// save replaces the state in one step, so that whoever ends the campaign leaves a whole one.
func (c *campaign) save(file string) error {
	b, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", b, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func (c *campaign) add(r sim.Result) {
	c.Simulated += r.Virtual
	c.Played[r.Mode]++
	c.Danger.Add(r.Danger)
	points := c.Points[r.Mode]
	if points == nil {
		points = map[string]int{}
		c.Points[r.Mode] = points
	}
	for p, n := range r.Points {
		if n > 0 {
			points[sim.Point(p).String()]++
		}
	}
	if len(r.Violations) > 0 {
		c.Failures = append(c.Failures, failure{r.Seed, r.Mode, *commit, r.Violations[0].String()})
	}
}

func (c *campaign) String() string {
	return fmt.Sprintf("%d seeds from %d on, %d failed, %.1f simulated hours in %v of CPU: %.0f simulated hours a core-hour",
		c.Next-c.First, c.First, len(c.Failures), c.Simulated.Hours(), c.CPU.Round(time.Second), float64(c.Simulated)/float64(c.CPU))
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// play plays the next batch.
func (c *campaign) play() {
	began := cpuTime()
	var results [batch]sim.Result
	var all sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := range next {
				results[i] = sim.Run(c.Next+uint64(i), sim.Options{})
			}
		})
	}
	for i := range batch {
		next <- i
	}
	close(next)
	all.Wait()
	for _, r := range results {
		c.add(r)
	}
	c.Next += batch
	c.CPU += cpuTime() - began
}

// TestCampaign runs seeds for hours, and goes on where an earlier run of it stopped or
// was stopped. It plays all seeds, keeps those that failed, and fails if there are any.
func TestCampaign(t *testing.T) {
	if *campaignFile == "" {
		tier.Nightly(t, "new seeds for an hour")
		*campaignFile = "../../bin/sim-campaign.json"
	}
	c, err := loadCampaign(*campaignFile)
	fatal.If(t, err)
	known := len(c.Failures)
	for began, printed := time.Now(), time.Now(); ; {
		if *campaignFor > 0 && time.Since(began) >= *campaignFor || *campaignMost > 0 && c.Next-c.First >= *campaignMost {
			break
		}
		c.play()
		fatal.If(t, c.save(*campaignFile))
		for _, f := range c.Failures[known:] {
			fmt.Println(f)
		}
		known = len(c.Failures)
		if time.Since(printed) >= time.Minute {
			printed = time.Now()
			fmt.Println(&c)
		}
	}
	fmt.Println(&c)
	t.Logf("claims in danger: %v", c.Danger)
	for _, m := range sim.Modes {
		t.Logf("%s, %d seeds; reached by so many: %v", m, c.Played[m], c.Points[m])
	}
	for _, f := range c.Failures {
		t.Errorf("seed %d, %s, commit %s: %s", f.Seed, f.Mode, f.Commit, f.Violation)
	}
}

// TestCampaignResumes: a campaign that was stopped goes on with the next seed, and its
// sums are those of one that was not. A failure is printed with what repeats and shows it.
func TestCampaignResumes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bin", "campaign.json")
	c, err := loadCampaign(file)
	fatal.If(t, err)
	c.add(sim.Result{Seed: c.Next, Mode: sim.Everything, Virtual: time.Minute, Violations: []sim.Violation{{Claim: "I1", At: -1}}})
	c.Next++
	fatal.If(t, c.save(file))
	again, err := loadCampaign(file)
	if err != nil || again.Next != c.Next || again.First != c.First || again.Simulated != time.Minute || again.Played[sim.Everything] != 1 ||
		len(again.Failures) != 1 || again.Failures[0].Seed != c.First {
		t.Errorf("got %+v, %v, want %+v", again, err, c)
	}
	if got := (failure{Seed: 17, Mode: sim.Unclocked, Violation: "I1: a twin"}).String(); got != "seed 17, unclocked: I1: a twin\n"+replay(17, sim.Unclocked, 0) {
		t.Errorf("it prints %q", got)
	}
	fatal.If(t, os.WriteFile(file, []byte("{"), 0o644))
	if _, err := loadCampaign(file); err == nil {
		t.Error("a damaged state began a new campaign")
	}
}
