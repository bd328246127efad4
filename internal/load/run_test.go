package load

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

func workers(n int, w Worker) (out []Worker) {
	for range n {
		out = append(out, w)
	}
	return out
}

// TestOutcomesAreCounted: refusals are counted by reason, failures apart, and
// neither is a latency.
func TestOutcomesAreCounted(t *testing.T) {
	n := 0
	one := Func(func(context.Context, Request) (client.Block, error) {
		time.Sleep(time.Millisecond)
		switch n++; n % 10 {
		case 0:
			return client.Block{}, errors.New("cut off")
		case 2, 4, 6, 8:
			return client.Block{}, &client.Refusal{Reason: client.NoSID}
		}
		return blockAt(ms(n), 10), nil
	})
	r := New(Plan{Workers: workers(1, Worker{Targets: []Target{{Client: one}}, Counts: []int{10}}), WarmUp: 20 * time.Millisecond, Length: 300 * time.Millisecond, Check: true}).Run(t.Context())
	if r.IDs != 10*r.Requests || r.Requests == 0 || r.Refused["NO_SID"] == 0 || r.Failed == 0 || r.Failure == nil || r.Latency.TotalCount() != r.Requests ||
		r.Took != 300*time.Millisecond || r.Drawn <= r.IDs || r.Check.Checked != r.Drawn || r.Check.Duplicates+r.Check.OutOfOrder != 0 {
		t.Errorf("%+v", r)
	}
}

// TestSample: one request of so many is timed, and all are counted.
func TestSample(t *testing.T) {
	n := 0
	one := Func(func(context.Context, Request) (client.Block, error) { n++; return client.Block{Count: 1}, nil })
	r := New(Plan{Workers: workers(1, Worker{Targets: []Target{{Client: one}}, Counts: []int{1}}), Length: 50 * time.Millisecond, Sample: 8}).Run(t.Context())
	if r.Drawn != int64(n) || r.Latency.TotalCount() < r.Requests/8-1 || r.Latency.TotalCount() > r.Requests/8+1 {
		t.Errorf("%d requests, %d timed, of %d", r.Requests, r.Latency.TotalCount(), n)
	}
}

// TestWorkerFailsOver: a worker stays with a target until that refuses or fails,
// goes on to the next, and carries its order along.
func TestWorkerFailsOver(t *testing.T) {
	var asked []string
	var after []flake.ID
	fails := map[string]bool{"a": true}
	next := ms(1)
	target := func(name string) Target {
		return Target{name, Func(func(_ context.Context, r Request) (client.Block, error) {
			asked, after = append(asked, name), append(after, r.After)
			if fails[name] {
				return client.Block{}, &client.Refusal{Reason: client.Draining}
			}
			next += ms(1)
			return blockAt(next, r.Count), nil
		})}
	}
	ended := errors.New("enough")
	w := Worker{Targets: []Target{target("a"), target("b")}, First: 0, Counts: []int{1, 2}, Ordered: true}
	w.Observe = func(Target, Request) (func(client.Block, error) error, error) {
		if len(asked) == 3 {
			fails["a"], fails["b"] = false, true
		}
		if len(asked) == 5 {
			return nil, ended
		}
		return func(client.Block, error) error { return nil }, nil
	}
	New(Plan{Workers: []Worker{w}}).Run(t.Context())
	if got := asked; len(got) != 5 || got[0] != "a" || got[1] != "b" || got[2] != "b" || got[3] != "b" || got[4] != "a" {
		t.Errorf("asked %q", got)
	}
	if after[0] != 0 || after[1] != 0 || after[2] != ms(2)+32 || after[4] != ms(3) {
		t.Errorf("after %v", after)
	}
}

// TestOrderIsChecked: an answer that is not above what was asked for breaks the
// contract, and is out of order.
func TestOrderIsChecked(t *testing.T) {
	one := Func(func(context.Context, Request) (client.Block, error) { return blockAt(ms(5), 1), nil })
	w := Worker{Targets: []Target{{Client: one}}, Counts: []int{1}, Ordered: true}
	r := New(Plan{Workers: []Worker{w}, Length: 20 * time.Millisecond, Check: true}).Run(t.Context())
	if r.Requests != 1 || r.Failed == 0 || !errors.Is(r.Failure, ErrContract) || r.Check.OutOfOrder != r.Failed {
		t.Errorf("%+v, %+v", r, r.Check)
	}
}

// TestFinish: requests that are under way when the context ends are finished, or
// cut off and not counted.
func TestFinish(t *testing.T) {
	for _, finish := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		one := Func(func(ctx context.Context, _ Request) (client.Block, error) {
			cancel()
			return blockAt(ms(5), 1), ctx.Err()
		})
		r := New(Plan{Workers: workers(1, Worker{Targets: []Target{{Client: one}}, Counts: []int{1}}), Finish: finish, Timeout: time.Minute}).Run(ctx)
		if want := map[bool]int64{true: 1}[finish]; r.Requests != want || r.Failed != 0 {
			t.Errorf("finish %v: %+v", finish, r)
		}
	}
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
