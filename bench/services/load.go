package services

import (
	"context"
	"fmt"
	"time"

	"github.com/flakelease/allocator/chaos/load"
	"github.com/flakelease/allocator/client"
)

// An Op is one request, or several sent together, and all answers to it. It
// returns the number of IDs. ErrRefused is counted apart from failures, and its
// time is no latency.
type Op func() (ids int, err error)

// ErrRefused is the error of an Op that a node refused with ENTROPY_OVERFLOW: more
// was requested than the format has.
var ErrRefused error = &client.Refusal{Reason: client.EntropyOverflow}

// A Caller is one of the callers of a case, with any connection of its own.
type Caller struct {
	Do    Op
	Close func() // nil: nothing to close
}

// A Sample is what was measured of one case in one round.
type Sample struct {
	IDs      float64       // a second
	Requests float64       // a second
	P50, P99 time.Duration // time of one Op
	Refused  float64       // share of Ops
	CPU      time.Duration // processor time that the servers used for each request
}

// measure runs all callers for warm and then for slice. One of every so many Ops
// is timed. cpu returns the processor time the servers have used.
func measure(ctx context.Context, callers []Caller, perOp, every int, warm, slice time.Duration,
	cpu func() time.Duration) (Sample, error) {
	p := load.Plan{Workers: workersOf(callers), WarmUp: warm, Length: slice, Sample: every}
	ended := make(chan *load.Result, 1)
	run := load.New(p)
	go func() { ended <- run.Run(ctx) }()
	time.Sleep(warm)
	used := cpu()
	time.Sleep(slice)
	used = cpu() - used
	r := <-ended
	refused, _ := r.Refusals()
	ops := r.Requests + refused
	switch {
	case ctx.Err() != nil:
		return Sample{}, ctx.Err()
	case r.Failure != nil:
		return Sample{}, r.Failure
	case ops == 0:
		return Sample{}, fmt.Errorf("services: no answer in %v", slice)
	}
	return Sample{
		IDs:      float64(r.IDs) / slice.Seconds(),
		Requests: float64(ops*int64(perOp)) / slice.Seconds(),
		P50:      time.Duration(r.Latency.ValueAtQuantile(50)),
		P99:      time.Duration(r.Latency.ValueAtQuantile(99)),
		Refused:  float64(refused) / float64(ops),
		CPU:      used / time.Duration(ops*int64(perOp)),
	}, nil
}

// workersOf returns the callers as the workers of a load.
func workersOf(callers []Caller) (out []load.Worker) {
	for _, c := range callers {
		out = append(out, load.Worker{
			Counts: []int{1},
			Targets: []load.Target{{
				Client: load.Func(func(context.Context, load.Request) (client.Block, error) {
					ids, err := c.Do()
					return client.Block{Count: ids}, err
				}),
			}},
		})
	}
	return out
}
