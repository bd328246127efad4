package services

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// An Op is one request, or several sent together, and all answers to it. It
// returns how many IDs came. ErrRefused is no failure: it is counted, and costs
// the time it took.
type Op func() (ids int, err error)

// ErrRefused is the error of an Op that a node refused for want of time: more
// was asked for than the format has.
var ErrRefused = errors.New("services: refused")

// A Caller is one of the callers of a case, with whatever connection is its own.
type Caller struct {
	Do    Op
	Close func() // nil: nothing to close
}

// A Sample is what one slice of one case showed.
type Sample struct {
	IDs      float64       // a second
	Requests float64       // a second
	P50, P99 time.Duration // of one Op
	Refused  float64       // share of Ops
	CPU      time.Duration // of the servers, for each request
}

// Phases of a slice. What began or ended in another than measuring is not counted.
const (
	warming int32 = iota
	measuring
	stopping
)

// load runs all callers for warm and then for slice. every says that one in so
// many Ops is timed. cpu returns the processor time the servers have used.
func load(callers []Caller, perOp, every int, warm, slice time.Duration, cpu func() time.Duration) (Sample, error) {
	var phase atomic.Int32
	type tally struct {
		ops, ids, refused int64
		hist              *hdrhistogram.Histogram
		err               error
	}
	tallies := make([]tally, len(callers))
	var wg sync.WaitGroup
	for i, c := range callers {
		wg.Go(func() {
			t := tally{hist: newHistogram()}
			defer func() { tallies[i] = t }()
			for n := 0; ; n++ {
				before := phase.Load()
				if before == stopping {
					return
				}
				timed := n%every == 0
				var began time.Time
				if timed {
					began = time.Now()
				}
				ids, err := c.Do()
				switch {
				case err != nil && !errors.Is(err, ErrRefused):
					t.err = err
					return
				case before != measuring || phase.Load() != measuring:
					continue
				case err != nil:
					t.refused++
				}
				t.ops++
				t.ids += int64(ids)
				if timed {
					_ = t.hist.RecordValue(time.Since(began).Nanoseconds()) // beyond its range: a minute
				}
			}
		})
	}
	time.Sleep(warm)
	used, start := cpu(), time.Now()
	phase.Store(measuring)
	time.Sleep(slice)
	phase.Store(stopping)
	took := time.Since(start)
	used = cpu() - used
	wg.Wait()
	sum := tally{hist: newHistogram()}
	for _, t := range tallies {
		if t.err != nil {
			return Sample{}, t.err
		}
		sum.ops, sum.ids, sum.refused = sum.ops+t.ops, sum.ids+t.ids, sum.refused+t.refused
		sum.hist.Merge(t.hist)
	}
	if sum.ops == 0 {
		return Sample{}, fmt.Errorf("services: no answer in %v", slice)
	}
	return Sample{
		IDs:      float64(sum.ids) / took.Seconds(),
		Requests: float64(sum.ops*int64(perOp)) / took.Seconds(),
		P50:      time.Duration(sum.hist.ValueAtPercentile(50)),
		P99:      time.Duration(sum.hist.ValueAtPercentile(99)),
		Refused:  float64(sum.refused) / float64(sum.ops),
		CPU:      used / time.Duration(sum.ops*int64(perOp)),
	}, nil
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Nanoseconds(), 2)
}
