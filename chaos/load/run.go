package load

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/dev/duplicates"
)

// failurePause is how long a worker waits after a request that failed, other than
// by a refusal, before the next.
const failurePause = 50 * time.Millisecond

// Target is a node, or a cluster, that a worker asks.
type Target struct {
	Name   string
	Client Client
}

// Worker is one caller.
type Worker struct {
	// Targets has at least one element. The worker stays with one until that
	// refuses or fails, and then goes on to the next.
	Targets []Target
	First   int   // index of the target to begin with
	Counts  []int // IDs to request, in turn
	// Ordered makes each request ask for IDs above all that the worker had before.
	Ordered bool
	Pause   time.Duration // pause between an answer and the next request
	Backoff time.Duration // pause after each target in turn has refused

	// Observe, if set, is called before each request; what it returns is called
	// with the outcome. An error of either ends the worker.
	Observe func(t Target, r Request) (done func(client.Block, error) error, err error)
}

// Plan says what a run does.
type Plan struct {
	Workers []Worker
	Rate    float64       // requests a second of all workers together; 0: closed loop
	WarmUp  time.Duration // time that is not measured
	Length  time.Duration // measured; 0: until the context ends
	Timeout time.Duration // for one request; 0: none
	Check   bool          // check the IDs
	// Finish lets requests finish that are under way when the context ends. Else
	// they are cut off and not counted.
	Finish bool
	// Sample is how many requests of a worker share one clock read, for requests
	// that take less time than the read: one of so many has its latency recorded.
	// 0 is 1. It has no effect on an open loop.
	Sample int
}

// Run is a plan that is carried out once.
type Run struct {
	plan Plan

	measured   time.Time // requests that begin from then on count
	end        time.Time // no request begins at or after it; zero: there is no end
	due        chan time.Time
	shards     []*shard
	checker    *duplicates.Checker
	notStarted int64 // pace's
}

// shard holds the counters of some workers.
type shard struct {
	mu       sync.Mutex // guards all below
	requests int64
	ids      int64
	refused  map[string]int64
	failed   int64
	failure  error
	latency  *hdrhistogram.Histogram
}

// maxShards bounds the number of histograms, of 200 kB each.
const maxShards = 16

// newHistogram returns a histogram of up to a minute, in ns, of three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Nanoseconds(), 3)
}

// New returns a run of p, whose clock starts now.
func New(p Plan) *Run {
	r := &Run{plan: p, measured: time.Now().Add(p.WarmUp)}
	if p.Length > 0 {
		r.end = r.measured.Add(p.Length)
	}
	if p.Check {
		r.checker = duplicates.NewChecker()
	}
	if p.Rate > 0 {
		r.due = make(chan time.Time)
	}
	for range min(len(p.Workers), maxShards) {
		r.shards = append(r.shards, &shard{refused: map[string]int64{}, latency: newHistogram()})
	}
	return r
}

// Run sends requests until the plan's time is over or ctx ends, and returns what
// was measured. Clients stay open.
func (r *Run) Run(ctx context.Context) *Result {
	working, stop := ctx, context.CancelFunc(func() {})
	if !r.end.IsZero() {
		working, stop = context.WithDeadline(ctx, r.end)
	}
	defer stop()
	requests := ctx
	if r.plan.Finish {
		requests = context.WithoutCancel(ctx)
	}
	var workers, others sync.WaitGroup
	if r.due != nil {
		others.Go(func() { r.pace(working) })
	}
	checking, checked := context.WithCancel(context.WithoutCancel(ctx)) // ends after the last answer
	if r.checker != nil {
		others.Go(func() { r.checker.Run(checking) })
	}
	for i := range r.plan.Workers {
		workers.Go(func() { r.work(working, requests, &r.plan.Workers[i], r.shards[i%len(r.shards)]) })
	}
	workers.Wait()
	checked()
	stop()
	others.Wait()
	return r.result()
}

// work sends the requests of one worker until working ends.
func (r *Run) work(working, requests context.Context, w *Worker, s *shard) {
	var last flake.ID // the greatest so far
	var due time.Time
	target, refusals := w.First%len(w.Targets), 0
	for n := 0; ; n++ {
		sampled := r.due != nil || r.plan.Sample < 2 || n%r.plan.Sample == 0
		if sampled {
			var ok bool
			if due, ok = r.next(working); !ok {
				return
			}
		} else if working.Err() != nil {
			return
		}
		t := w.Targets[target]
		req := Request{Count: w.Counts[n%len(w.Counts)]}
		if w.Ordered {
			if shared, ok := t.Client.(interface{ Last() flake.ID }); ok {
				last = max(last, shared.Last())
			}
			req.After = last
		}
		b, err, ended := r.request(requests, w, t, req, last)
		if ended || err != nil && requests.Err() != nil {
			return // cut off: no failure of a node
		}
		var took time.Duration
		if sampled {
			took = time.Since(due)
		}
		if err == nil {
			last = max(last, b.Last())
		} else if !w.Ordered {
			last = 0 // another process may answer from now on
		}
		s.add(b, err, took, sampled, r.counts(due))

		pause, outcome := w.Pause, OK
		if err == nil {
			refusals = 0
		} else {
			outcome, _ = OutcomeOf(err)
			target, refusals = (target+1)%len(w.Targets), refusals+1
			switch pause = 0; {
			case refusals%len(w.Targets) != 0:
			case outcome == Refused:
				pause = w.Backoff
			default:
				pause = max(w.Backoff, failurePause)
			}
		}
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-working.Done():
			}
		}
	}
}

// request sends one request of a worker whose IDs so far go up to last, checks the
// answer and has it observed. ended means that the observer wants no more.
func (r *Run) request(ctx context.Context, w *Worker, t Target, req Request,
	last flake.ID) (b client.Block, err error, ended bool) {
	var done func(client.Block, error) error
	if w.Observe != nil {
		if done, err = w.Observe(t, req); err != nil {
			return b, err, true
		}
	}
	if r.plan.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.plan.Timeout)
		defer cancel()
	}
	b, err = t.Client.Allocate(ctx, req)
	if err == nil && r.checker != nil {
		r.checker.Add(b, last)
	}
	if err == nil && req.After > 0 && b.First <= req.After {
		err = fmt.Errorf("%w: %v is not above %v, as requested", ErrContract, b.First, req.After)
	}
	if err != nil {
		b = client.Block{}
	}
	if done != nil {
		ended = done(b, err) != nil
	}
	return b, err, ended
}

// counts reports whether a request that was due then is measured.
func (r *Run) counts(due time.Time) bool {
	return !due.Before(r.measured) && (r.end.IsZero() || due.Before(r.end))
}

// next returns when the worker's next request is due; false at the end.
func (r *Run) next(working context.Context) (time.Time, bool) {
	if r.due == nil {
		return time.Now(), working.Err() == nil
	}
	due, ok := <-r.due
	return due, ok
}

// pace hands out requests as they come due. It does not wait for workers: a
// request that none is free for keeps the time it was due at.
func (r *Run) pace(working context.Context) {
	defer close(r.due)
	start := r.measured.Add(-r.plan.WarmUp)
	for i := int64(0); ; i++ {
		due := start.Add(time.Duration(float64(i) / r.plan.Rate * float64(time.Second)))
		if !r.end.IsZero() && !due.Before(r.end) {
			return
		}
		sleepUntil(working, due)
		select {
		case r.due <- due:
			continue
		case <-working.Done():
		}
		late := min(time.Since(due), time.Since(r.measured))
		if !r.end.IsZero() {
			late -= max(time.Since(r.end), 0)
		}
		r.notStarted = int64(max(late, 0).Seconds() * r.plan.Rate)
		return
	}
}

func (s *shard) add(b client.Block, err error, took time.Duration, sampled, counts bool) {
	outcome, reason := OutcomeOf(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil && (outcome == Broken || outcome == Unknown) {
		s.failure = err
	}
	switch {
	case !counts:
	case outcome == OK:
		s.requests++
		s.ids += int64(b.Count)
		if sampled {
			_ = s.latency.RecordValue(min(max(took.Nanoseconds(), 1), time.Minute.Nanoseconds()))
		}
	case outcome == Refused:
		s.refused[reason]++
	default:
		s.failed++
	}
}

// Result is what a run has measured. Failure and Check are of the whole run;
// all else is of requests that were due in the measured time.
type Result struct {
	Requests   int64 // answered with IDs
	IDs        int64
	Refused    map[string]int64
	Failed     int64 // requests without an answer, or with a broken one
	Failure    error // the first of a worker
	NotStarted int64 // requests that were due and that no worker was free for
	Latency    *hdrhistogram.Histogram
	Check      *duplicates.Checks // nil: not requested
}

// Refusals returns the sum over all reasons, and the reasons in order.
func (r *Result) Refusals() (sum int64, reasons []string) {
	for _, n := range r.Refused {
		sum += n
	}
	return sum, slices.Sorted(maps.Keys(r.Refused))
}

// result returns what was measured, once all workers have ended.
func (r *Run) result() *Result {
	out := &Result{Refused: map[string]int64{}, NotStarted: r.notStarted, Latency: newHistogram()}
	for _, s := range r.shards {
		out.Requests, out.IDs, out.Failed = out.Requests+s.requests, out.IDs+s.ids, out.Failed+s.failed
		for reason, n := range s.refused {
			out.Refused[reason] += n
		}
		if out.Failure == nil {
			out.Failure = s.failure
		}
		out.Latency.Merge(s.latency)
	}
	if r.checker != nil {
		c := r.checker.Checks()
		out.Check = &c
	}
	return out
}
