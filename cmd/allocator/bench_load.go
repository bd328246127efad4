package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/flakelease/allocator/flake"
)

// answered is one answer: count IDs from first on, stride apart; or, where a door
// names each ID, a list of them.
type answered struct {
	first  flake.ID
	count  int
	stride int64
	sid    flake.SID
	list   []flake.ID // valid until the door is asked again
}

func (d answered) size() int {
	if d.list != nil {
		return len(d.list)
	}
	return d.count
}

// asker is a caller's way to a node. Only one goroutine uses it.
type asker interface {
	// ask asks for count IDs. The error is a *refusedError, if a node refused.
	ask(ctx context.Context, count int) (answered, error)
	close()
}

// refusedError is a refusal, by whatever door.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "refused: " + e.reason }

// afterFailure is how long a caller waits before it asks again.
const afterFailure = 50 * time.Millisecond

// tallies are the figures of some callers.
type tallies struct {
	mu       sync.Mutex // guards all below
	requests int64
	ids      int64
	refused  map[string]int64
	failed   int64
	failure  error
	latency  *hdrhistogram.Histogram
}

// tallyShards bounds how many histograms there are, of 200 kB each.
const tallyShards = 16

// newLatency returns a histogram of up to a minute, in ns, of three digits.
func newLatency() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Nanoseconds(), 3)
}

// bench is one under way.
type bench struct {
	benchPlan
	start     time.Time // of the warm-up
	measured  time.Time // from when on requests count
	end       time.Time
	tallies   []*tallies
	check     *idCheck // nil: not asked for
	so        atomic.Int64
	due       chan time.Time // of an open loop: when each request is
	abandoned int64          // requests that were due and that nobody began
}

func (p benchPlan) run(ctx context.Context, progress io.Writer) (*benchResult, error) {
	b := &bench{benchPlan: p}
	for range min(p.callers, tallyShards) {
		b.tallies = append(b.tallies, &tallies{refused: map[string]int64{}, latency: newLatency()})
	}
	open, closeAll, err := p.doors(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	if p.check {
		b.check = newIDCheck()
	}
	b.start = time.Now()
	b.measured = b.start.Add(p.warm)
	b.end = b.measured.Add(p.length)
	working, stop := context.WithDeadline(ctx, b.end)
	defer stop()
	// What is under way at the end is finished: it would not be counted else.
	asking, giveUp := context.WithDeadline(ctx, b.end.Add(benchTimeout))
	defer giveUp()

	var all, others sync.WaitGroup
	if p.rate > 0 {
		b.due = make(chan time.Time)
		others.Go(func() { b.pace(working) })
	}
	telling, told := context.WithCancel(context.WithoutCancel(ctx)) // to the last answer
	others.Go(func() { live(telling, progress, 500*time.Millisecond, b.line) })
	if b.check != nil {
		others.Go(func() { b.check.run(telling) })
	}
	for i := range p.callers {
		all.Go(func() {
			d := open(i)
			defer d.close()
			b.call(working, asking, d, b.tallies[i%len(b.tallies)])
		})
	}
	all.Wait()
	took := min(time.Since(b.measured), p.length)
	told()
	stop()
	others.Wait()
	r := b.result(took)
	if r.interrupted = ctx.Err() != nil; r.interrupted && took <= 0 {
		return nil, errInterrupted // nothing was measured yet
	}
	return r, nil
}

// call asks until working ends.
func (b *bench) call(working, asking context.Context, d asker, t *tallies) {
	var last flake.ID // of the answer before: this node's IDs rise, and a client's
	for {
		due, ok := b.next(working)
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(asking, benchTimeout)
		ids, err := d.ask(ctx, b.count)
		cancel()
		took := time.Since(due)
		if err != nil && asking.Err() != nil {
			return // interrupted, and no failure of a node
		}
		if err == nil {
			b.so.Add(int64(ids.size()))
			if b.check != nil {
				last = b.check.add(ids, last)
			}
		} else if b.via != viaSDK { // whose order holds whoever answers
			last = 0 // another process may answer from now on
		}
		if !due.Before(b.measured) && due.Before(b.end) {
			t.add(ids, err, took)
		}
		if _, refused := err.(*refusedError); err != nil && !refused {
			select {
			case <-time.After(afterFailure):
			case <-working.Done():
			}
		}
	}
}

// next returns when the caller's next request is due; false at the end.
func (b *bench) next(working context.Context) (time.Time, bool) {
	if b.due == nil {
		return time.Now(), working.Err() == nil
	}
	due, ok := <-b.due
	return due, ok
}

// pace hands out requests as they come due. It waits for nobody: a request that
// no caller is free for keeps the time it was due at.
func (b *bench) pace(working context.Context) {
	defer close(b.due)
	for i := int64(0); ; i++ {
		due := b.start.Add(time.Duration(float64(i) / b.rate * float64(time.Second)))
		if !due.Before(b.end) {
			return
		}
		sleepUntil(working, due)
		select {
		case b.due <- due:
			continue
		case <-working.Done():
		}
		left := min(time.Since(b.measured), b.length) - max(due.Sub(b.measured), 0)
		b.abandoned = int64(max(left, 0).Seconds() * b.rate)
		return
	}
}

func (t *tallies) add(ids answered, err error, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := err.(type) {
	case nil:
		t.requests++
		t.ids += int64(ids.size())
		_ = t.latency.RecordValue(min(max(took.Nanoseconds(), 1), time.Minute.Nanoseconds()))
	case *refusedError:
		t.refused[e.reason]++
	default:
		t.failed++
		if t.failure == nil {
			t.failure = err
		}
	}
}

// line is the progress so far.
func (b *bench) line() string {
	now := time.Now()
	var requests, refused, failed int64
	sum := newLatency()
	for _, t := range b.tallies {
		t.mu.Lock()
		requests, failed = requests+t.requests, failed+t.failed
		for _, n := range t.refused {
			refused += n
		}
		sum.Merge(t.latency)
		t.mu.Unlock()
	}
	if now.Before(b.measured) {
		return fmt.Sprintf("warming up, %v left: %d IDs", time.Until(b.measured).Round(time.Second), b.so.Load())
	}
	return fmt.Sprintf("%v left: %.0f requests/s, %d IDs, %d refused, %d failed, p50 %v, p99 %v",
		max(time.Until(b.end), 0).Round(time.Second), float64(requests)/now.Sub(b.measured).Seconds(), b.so.Load(), refused, failed,
		shortly(time.Duration(sum.ValueAtQuantile(50))), shortly(time.Duration(sum.ValueAtQuantile(99))))
}

func (b *bench) result(took time.Duration) *benchResult {
	r := &benchResult{plan: b.benchPlan, took: took, refused: map[string]int64{}, latency: newLatency(), late: b.abandoned, check: b.check}
	for _, t := range b.tallies {
		r.requests, r.ids, r.failed = r.requests+t.requests, r.ids+t.ids, r.failed+t.failed
		for reason, n := range t.refused {
			r.refused[reason] += n
		}
		if r.failure == nil {
			r.failure = t.failure
		}
		r.latency.Merge(t.latency)
	}
	return r
}
