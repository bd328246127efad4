package gen

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// An answer is one served call: its place in real time and its block.
type answer struct {
	began, ended int64 // readings of one shared counter
	after        flake.ID
	block        Block
}

// yielding is Random, but now and then lets others run before it answers: in
// the middle of Next, where they do most harm to a generator that can be harmed.
type yielding struct{}

func (yielding) Uint64() uint64 {
	x := Random().Uint64()
	if x%4 == 0 {
		runtime.Gosched()
	}
	return x
}

// A crowd is goroutines that all ask one tenure.
type crowd struct {
	g      *Tenure
	ticks  atomic.Int64 // real time
	now    atomic.Int64 // the clock, in Unix ms
	stop   atomic.Bool
	refuse [16]map[string]int
	served [16][]answer
}

// run lets workers ask calls times each, or until stopped or sealed, while other
// does its part; it returns when all have ended.
func (c *crowd) run(workers, calls int, other func()) {
	var wg sync.WaitGroup
	for w := range workers {
		c.refuse[w] = map[string]int{}
		wg.Go(func() {
			var own flake.ID
			for i := 0; i < calls && !c.stop.Load(); i++ {
				if i%16 == 0 {
					runtime.Gosched() // on one core, others want to get on as well
				}
				n := 1 + (i*7+w)%50
				after := flake.ID(0)
				if i%3 == 0 {
					after = own
				}
				began := c.ticks.Add(1)
				now := clock.Millis(c.now.Load())
				b, err := c.g.Next(now, now, n, after)
				ended := c.ticks.Add(1)
				if err != nil {
					c.refuse[w][reason(err)]++
					if err == ErrSealed {
						return
					}
					runtime.Gosched()
					continue
				}
				own = b.Last()
				c.served[w] = append(c.served[w], answer{began, ended, after, b})
			}
		})
	}
	wg.Go(other)
	wg.Wait()
}

// check returns all answers, oldest first, after checking I1, I2 and I6.
func (c *crowd) check(t *testing.T) []answer {
	t.Helper()
	var all []answer
	for w, s := range c.served {
		for i, a := range s {
			if i > 0 && a.block.First <= s[i-1].block.Last() {
				t.Fatalf("goroutine %d: %+v after %+v", w, a, s[i-1])
			}
			if a.after >= a.block.First {
				t.Fatalf("goroutine %d: %+v is not after %d", w, a.block, a.after)
			}
		}
		all = append(all, s...)
	}
	if len(all) == 0 {
		t.Fatal("nothing was issued")
	}
	byID := slices.SortedFunc(slices.Values(all), func(a, b answer) int { return a.block.First.Compare(b.block.First) })
	for i, a := range byID[1:] {
		if a.block.First <= byID[i].block.Last() {
			history.Violated(t, "I1", "%+v overlaps %+v", a.block, byID[i].block)
			t.FailNow()
		}
	}
	// Largest ID of all calls that had ended when each one began.
	byBegin := slices.SortedFunc(slices.Values(all), func(a, b answer) int { return int(a.began - b.began) })
	byEnd := slices.SortedFunc(slices.Values(all), func(a, b answer) int { return int(a.ended - b.ended) })
	var high flake.ID
	e := 0
	for _, a := range byBegin {
		for ; byEnd[e].ended < a.began; e++ {
			high = max(high, byEnd[e].block.Last())
		}
		if a.block.First <= high {
			history.Violated(t, "I2", "%+v began after %d had been returned", a, high)
			t.FailNow()
		}
	}
	return byBegin
}

func (c *crowd) refused(reason string) (n int) {
	for _, r := range c.refuse {
		n += r[reason]
	}
	return n
}

// Incident T42 (a later batch below an earlier one), docs/INCIDENTS.md.
func TestConcurrent(t *testing.T) {
	for _, cfg := range []Config{
		{MaxLead: 250, MaxStep: 255},
		{MaxLead: 250},
		{MaxLead: 0, MaxStep: 7, Layout: flake.Fleet},
	} {
		c := &crowd{g: tenure(t, cfg, t0, t0+1<<30, yielding{})}
		c.now.Store(int64(t0))
		done := make(chan struct{})
		var clocks sync.WaitGroup
		clocks.Go(func() { // a clock that runs fast and steps back now and then
			for i := 1; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				if c.now.Add(1); i%100 == 0 {
					c.now.Add(-40)
				}
				runtime.Gosched()
			}
		})
		c.run(8, 5000, func() {})
		close(done)
		clocks.Wait()
		c.check(t)
	}
}

// Seal against Next: no ID is issued at or above the ceiling that Seal returns.
//
// Incident T25 (a reset that races an update), docs/INCIDENTS.md.
func TestSealRace(t *testing.T) {
	for round := range 1000 {
		c := &crowd{g: tenure(t, Config{MaxLead: 250, MaxStep: 255}, t0, t0+1<<30, yielding{})}
		c.now.Store(int64(t0))
		var ceiling [2]clock.Millis
		var after int64
		c.run(4, 1<<20, func() {
			for c.ticks.Load() < int64(5+round%100) {
				c.now.Add(1)
				runtime.Gosched()
			}
			var wg sync.WaitGroup
			for i := range ceiling {
				wg.Go(func() { ceiling[i] = c.g.Seal() })
			}
			wg.Wait()
			after = c.ticks.Add(1)
		})
		if ceiling[0] != ceiling[1] {
			t.Fatalf("two seals return %d and %d", ceiling[0], ceiling[1])
		}
		if got := c.refused(ErrSealed.Error()); got != 4 {
			t.Fatalf("%d of 4 goroutines got ErrSealed", got)
		}
		last, ok := c.g.Issued()
		f := flake.Format{Layout: flake.Scalable, Epoch: int64(epoch)}
		if !ok {
			if ceiling[0] != t0 || slices.ContainsFunc(c.served[:], func(s []answer) bool { return len(s) > 0 }) {
				t.Fatalf("ceiling %d with nothing issued", ceiling[0])
			}
			continue
		}
		var high flake.ID
		for _, a := range c.check(t) {
			high = max(high, a.block.Last())
			if a.began > after {
				history.Violated(t, "I3", "%+v was issued after the seal", a)
				t.FailNow()
			}
		}
		if high != last || clock.Millis(f.UnixMilli(high))+1 != ceiling[0] {
			t.Fatalf("last ID issued %d, Issued returns %d, Seal returns %d", high, last, ceiling[0])
		}
	}
}

// Raise against Next: no ID at or above a ceiling that was not set before, and no
// ceiling that goes down.
func TestRaiseRace(t *testing.T) {
	c := &crowd{g: tenure(t, Config{MaxLead: 250, MaxStep: 255}, t0, t0+1, yielding{})}
	c.now.Store(int64(t0))
	ticks := func(n int64) {
		for was := c.ticks.Load(); c.ticks.Load() < was+n; {
			runtime.Gosched()
		}
	}
	var announced [500]int64 // real time from which ceiling t0+i may be used
	c.run(4, 1<<30, func() {
		for i := 2; i < len(announced); i++ {
			c.now.Store(int64(t0) + int64(i) - 1)
			ticks(20) // let them meet the ceiling
			announced[i] = c.ticks.Add(1)
			var wg sync.WaitGroup
			for back := range 3 { // replies come in any order
				wg.Go(func() { c.g.Raise(t0 + clock.Millis(i-back)) })
			}
			wg.Wait()
			if c.g.Ceil() != t0+clock.Millis(i) {
				t.Errorf("ceiling t0%+d, want +%d", c.g.Ceil()-t0, i)
			}
			ticks(20) // and what lies below it
		}
		c.stop.Store(true)
	})
	f := flake.Format{Layout: flake.Scalable, Epoch: int64(epoch)}
	used := map[clock.Millis]bool{}
	for _, a := range c.check(t) {
		ms := clock.Millis(f.UnixMilli(a.block.Last())) - t0
		if ms >= clock.Millis(len(announced))-1 || a.ended < announced[ms+1] {
			history.Violated(t, "I3", "%+v at t0%+d ended at %d, before its ceiling was announced", a, ms, a.ended)
			t.FailNow()
		}
		used[ms] = true
	}
	if n := c.refused(ErrCeiling.Error()); n < 400 || len(used) < 400 {
		t.Errorf("the ceiling was met %d times, and %d of 500 milliseconds used", n, len(used))
	}
}
