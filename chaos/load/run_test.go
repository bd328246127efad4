package load

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/dev/duplicates"
)

func ms(n int) flake.ID { return flake.ID(n) << 20 }

// blockAt is a block of n IDs of the layout scalable.
func blockAt(first flake.ID, n int) client.Block {
	return client.Block{First: first, Count: n, Stride: 32}
}

// workerOf returns a worker that sends n requests to f.
func workerOf(n int, f Func) Worker {
	return Worker{Targets: []Target{{Client: f}}, Counts: []int{10}, Observe: limited(n)}
}

// limited observes n requests, and then ends the worker.
func limited(n int) func(Target, Request) (func(client.Block, error) error, error) {
	return func(Target, Request) (func(client.Block, error) error, error) {
		if n--; n < 0 {
			return nil, errors.New("enough")
		}
		return func(client.Block, error) error { return nil }, nil
	}
}

// TestOutcomesAreCounted: refusals are counted by reason, failures apart, and
// neither is a latency.
func TestOutcomesAreCounted(t *testing.T) {
	n := 0
	r := New(Plan{Check: true, Workers: []Worker{workerOf(20, func(context.Context, Request) (client.Block, error) {
		switch n++; n % 10 {
		case 0:
			return client.Block{}, errors.New("cut off")
		case 2, 4, 6, 8:
			return client.Block{}, &client.Refusal{Reason: client.NoSID}
		}
		return blockAt(ms(n), 10), nil
	})}}).Run(t.Context())
	if r.Requests != 10 || r.IDs != 100 || r.Refused["NO_SID"] != 8 || r.Failed != 2 || r.Failure == nil || r.Latency.TotalCount() != 10 ||
		*r.Check != (duplicates.Checks{Checked: 100}) {
		t.Errorf("%+v, %+v", r, r.Check)
	}
}

// TestWarmUp: requests before the measured time do not count, but their IDs are
// checked.
func TestWarmUp(t *testing.T) {
	for begins, want := range map[time.Duration]int64{-time.Minute: 5, time.Minute: 0} {
		n := 0
		r := New(Plan{Check: true, Length: time.Hour, Workers: []Worker{workerOf(5, func(context.Context, Request) (client.Block, error) {
			n++
			return blockAt(ms(n), 10), nil
		})}})
		r.measured = time.Now().Add(begins)
		if got := r.Run(t.Context()); got.Requests != want || got.IDs != 10*want || got.Check.Checked != 50 {
			t.Errorf("measured from %v on: %+v", begins, got)
		}
	}
}

// TestSample: one request of so many is timed, and all are counted.
func TestSample(t *testing.T) {
	r := New(Plan{Sample: 8, Workers: []Worker{workerOf(24, func(context.Context, Request) (client.Block, error) { return client.Block{Count: 1}, nil })}}).Run(t.Context())
	if r.Requests != 24 || r.Latency.TotalCount() != 3 {
		t.Errorf("%d requests, %d timed", r.Requests, r.Latency.TotalCount())
	}
}

// TestWorkerFailsOver: a worker stays with a target until that refuses or fails,
// goes on to the next, and carries its order along.
func TestWorkerFailsOver(t *testing.T) {
	var asked []string
	var after []flake.ID
	next := ms(1)
	target := func(name string) Target {
		return Target{name, Func(func(_ context.Context, r Request) (client.Block, error) {
			asked, after = append(asked, name), append(after, r.After)
			if len(asked) == 1 || len(asked) == 4 {
				return client.Block{}, &client.Refusal{Reason: client.Draining}
			}
			next += ms(1)
			return blockAt(next, r.Count), nil
		})}
	}
	New(Plan{Workers: []Worker{{Targets: []Target{target("a"), target("b")}, Counts: []int{1, 2}, Ordered: true, Observe: limited(5)}}}).Run(t.Context())
	if !slices.Equal(asked, []string{"a", "b", "b", "b", "a"}) || !slices.Equal(after, []flake.ID{0, 0, ms(2) + 32, ms(3), ms(3)}) {
		t.Errorf("asked %q, after %v", asked, after)
	}
}

// TestOrderIsChecked: an answer that is not above what was requested breaks the
// contract, and is out of order.
func TestOrderIsChecked(t *testing.T) {
	w := workerOf(3, func(context.Context, Request) (client.Block, error) { return blockAt(ms(5), 1), nil })
	w.Ordered = true
	r := New(Plan{Workers: []Worker{w}, Check: true}).Run(t.Context())
	if r.Requests != 1 || r.Failed != 2 || !errors.Is(r.Failure, ErrContract) || r.Check.OutOfOrder != 2 || r.Check.Duplicates != 2 {
		t.Errorf("%+v, %+v", r, r.Check)
	}
}

// TestFinish: requests that are under way when the context ends are finished, or
// cut off and not counted.
func TestFinish(t *testing.T) {
	for _, finish := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		w := workerOf(5, func(ctx context.Context, _ Request) (client.Block, error) {
			cancel()
			return blockAt(ms(5), 1), ctx.Err()
		})
		r := New(Plan{Workers: []Worker{w}, Finish: finish, Timeout: time.Minute}).Run(ctx)
		if want := map[bool]int64{true: 1}[finish]; r.Requests != want || r.Failed != 0 {
			t.Errorf("finish %v: %+v", finish, r)
		}
	}
}

// TestDueTimes: at a fixed rate the latency of a request counts from when it was due, also if no worker was free then.
func TestDueTimes(t *testing.T) {
	n := 0
	w := workerOf(20, func(context.Context, Request) (client.Block, error) {
		if n++; n == 1 {
			time.Sleep(50 * time.Millisecond)
		}
		return blockAt(ms(n), 10), nil
	})
	r := New(Plan{Rate: 1000, Length: time.Hour, Workers: []Worker{w}}).Run(t.Context())
	if r.Requests != 20 || r.Latency.Min() < (30*time.Millisecond).Nanoseconds() { // The last was due after 19 ms.
		t.Errorf("%d requests, the fastest in %v", r.Requests, time.Duration(r.Latency.Min()))
	}
}

// TestNotStarted: requests that no worker was free for until the end, and that the measured time has, are counted.
func TestNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := Worker{Counts: []int{1}, Targets: []Target{{Client: Func(func(ctx context.Context, _ Request) (client.Block, error) {
			<-ctx.Done()
			return client.Block{}, ctx.Err()
		})}}}
		for _, p := range []Plan{
			{Length: 11 * time.Second},
			{Length: 8 * time.Second, WarmUp: 3 * time.Second},
		} {
			p.Workers, p.Rate, p.Timeout = []Worker{w}, 10, time.Minute
			got, want := New(p).Run(t.Context()), int64(p.Length.Seconds()*p.Rate)
			if got.NotStarted < want-1 || got.NotStarted > want || got.Requests != 0 {
				t.Errorf("%+v: %d requests, %d not started, want about %d", p, got.Requests, got.NotStarted, want)
			}
		}
	})
}

func TestSleepUntil(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, 0, 100 * time.Microsecond, 5 * time.Millisecond} {
		at := time.Now().Add(d)
		if sleepUntil(context.Background(), at); time.Now().Before(at) {
			t.Errorf("%v: returned too early", d)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if sleepUntil(ctx, began.Add(time.Hour)); time.Since(began) > time.Minute {
		t.Error("slept on after its context had ended")
	}
}
