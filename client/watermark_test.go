package client_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// marking has a fake answer for watermarks: do returns Unix ms, or why it refuses.
func (f *fake) marking(do func(ctx context.Context, after flake.ID, wait time.Duration) (int64, client.Reason)) {
	answer := func(ctx context.Context, req *pb.GetWatermarkRequest) (*pb.Watermark, client.Reason) {
		at, refused := do(ctx, flake.ID(req.GetAfter()), time.Duration(req.GetWaitMs())*time.Millisecond)
		id, _ := flake.Default.Min(at)
		return &pb.Watermark{UnixMs: at, Int: id.Int64(), LagMs: 5000, NotCovered: []int32{int32(at % 1000)}, BlockedBy: []*pb.WatermarkBlocker{
			{Node: "node-c", Sid: 3, SinceUnixMs: at, Why: "silent", Text: "node-c is silent"},
		}}, refused
	}
	f.marks.Store(&answer)
}

// at returns a time in Unix ms, and the first ID of it.
func at(ms int64) (int64, flake.ID) {
	ms += flake.DefaultEpoch + 1_000_000
	id, _ := flake.Default.Min(ms)
	return ms, id
}

// dialTo returns a client of these nodes.
func dialTo(t *testing.T, nodes ...*fake) *client.Client {
	t.Helper()
	var o client.Options
	for _, f := range nodes {
		o.Targets = append(o.Targets, f.addr)
	}
	return dial(t, o)
}

// TestWatermarkNeverFalls: nodes have read different watermarks, and a client's does not go
// back between them. What holds it back is that of the latest answer.
func TestWatermarkNeverFalls(t *testing.T) {
	t.Parallel()
	high, id := at(2007)
	low, _ := at(5)
	f, n := newFake(t, 1), 0
	f.marking(func(context.Context, flake.ID, time.Duration) (int64, client.Reason) {
		if n++; n == 2 {
			return low, ""
		}
		return high, ""
	})
	c := dialTo(t, f)
	for i, lag := range []time.Duration{5 * time.Second, 2998 * time.Millisecond, 5 * time.Second} {
		w, err := c.Watermark(t.Context())
		fatal.If(t, err)
		if w.UnixMilli != high || w.ID != id || w.Lag != lag || !w.Time().Equal(time.UnixMilli(high)) {
			t.Errorf("%d: %+v", i, w)
		}
		if b := w.BlockedBy; len(b) != 1 || b[0].Node != "node-c" || b[0].SID != 3 || b[0].Why != "silent" {
			t.Errorf("%d: %+v", i, b)
		}
		if !reflect.DeepEqual(w.NotCovered, []flake.SID{7}) {
			t.Errorf("%d: the watermark does not cover %v, by another answer than its own", i, w.NotCovered)
		}
		if !w.Complete(id-1) || w.Complete(id) {
			t.Errorf("%d: an ID is complete if it is below", i)
		}
	}
	for _, passed := range []flake.ID{0, id - 1} {
		if w, err := c.WaitFor(t.Context(), passed); err != nil || w.ID != id || n != 3 {
			t.Errorf("what has passed needs no request: %+v, %v, %d requests", w, err, n)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Watermark(ended); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUnavailable) || n != 3 {
		t.Errorf("with a canceled context: %v, %d requests", err, n)
	}
}

// TestWatermarkOf: nothing of an answer is lost.
func TestWatermarkOf(t *testing.T) {
	ms, id := at(0)
	wide, err := ulid.FromFlake(flake.Default, id, 0)
	fatal.If(t, err)
	got := client.WatermarkOf(&pb.Watermark{
		UnixMs:      ms,
		Int:         id.Int64(),
		Ulid:        wide.String(),
		LagMs:       5,
		Held:        true,
		Conditional: &pb.WatermarkCondition{Node: "a", Sid: 1, UntilUnixMs: 2},
		BlockedBy:   []*pb.WatermarkBlocker{{Node: "b", Sid: -1, SinceUnixMs: 3, Why: "silent", Text: "b is silent"}},
		NotCovered:  []int32{7, 8},
	})
	want := client.Watermark{
		UnixMilli:   ms,
		ID:          id,
		ULID:        wide,
		Lag:         5 * time.Millisecond,
		Held:        true,
		Conditional: &client.WatermarkCondition{Node: "a", SID: 1, Until: time.UnixMilli(2).UTC()},
		BlockedBy: []client.WatermarkBlocker{
			{Node: "b", SID: -1, Since: time.UnixMilli(3).UTC(), Why: "silent", Text: "b is silent"},
		},
		NotCovered: []flake.SID{7, 8},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := client.WatermarkOf(&pb.Watermark{}); !reflect.DeepEqual(got, client.Watermark{}) {
		t.Errorf("%+v of an empty answer", got)
	}
}

// TestWaitFor: a wait goes on from poll to poll until the watermark has passed the ID, and over
// nodes that refuse.
func TestWaitFor(t *testing.T) {
	t.Parallel()
	ms, id := at(0)
	rewound, f := newFake(t, 1), newFake(t, 2)
	rewound.marking(func(context.Context, flake.ID, time.Duration) (int64, client.Reason) {
		return 0, client.HistoryRewound
	})
	n := int64(0)
	f.marking(func(_ context.Context, after flake.ID, wait time.Duration) (int64, client.Reason) {
		if after != id || wait <= 0 || wait > time.Minute {
			t.Errorf("asked for %v in %v", after, wait)
		}
		n++
		return ms - 2 + n, ""
	})
	c := dialTo(t, rewound, f)
	if w, err := c.WaitFor(t.Context(), id); err != nil || w.UnixMilli != ms+1 || n != 3 {
		t.Errorf("%+v, %v after %d polls", w, err, n)
	}
	id = 1 // A node takes 0 for none, and would not wait.
	if _, err := dialTo(t, f).WaitFor(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// TestWaitForEnds: with its context, and then it says who holds the watermark back; at once
// for what no wait helps against; and when the client is closed.
func TestWaitForEnds(t *testing.T) {
	t.Parallel()
	ms, id := at(0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := 0
	never := func(ctx context.Context, _ flake.ID, wait time.Duration) (int64, client.Reason) {
		if wait <= 0 {
			t.Error("asked for an answer at once")
		}
		if asked++; asked == 2 {
			cancel()
		} else if asked == 1 {
			return ms, ""
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		return ms, ""
	}
	f := newFake(t, 1)
	f.marking(never)
	c := dialTo(t, f)
	if _, err := c.WaitFor(ctx, id); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "node-c is silent") {
		t.Errorf("canceled: %v", err)
	}
	if s := c.Stats(); s.Retries != 0 {
		t.Errorf("a wait that ends is no failure of the node: %+v", s)
	}
	f.marking(func(context.Context, flake.ID, time.Duration) (int64, client.Reason) { return 0, client.InvalidID })
	if _, err := c.WaitFor(t.Context(), -5); !errors.Is(err, &client.Refusal{Reason: client.InvalidID}) || strings.Contains(err.Error(), "passed") {
		t.Errorf("a wrong ID: %v", err)
	}
	f.marking(never)
	ended := make(chan error, 1)
	go func() {
		_, err := c.WaitFor(context.Background(), id)
		ended <- err
	}()
	_ = c.Close()
	if err := <-ended; !errors.Is(err, client.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestWatchWatermark: it yields each watermark, and ends with an error.
func TestWatchWatermark(t *testing.T) {
	t.Parallel()
	ms, _ := at(0)
	f, n, err := newFake(t, 1), int64(0), error(nil)
	f.marking(func(_ context.Context, after flake.ID, wait time.Duration) (int64, client.Reason) {
		if n++; n == 4 {
			return 0, client.Unauthenticated
		}
		want, every := flake.ID(0), time.Duration(0)
		if n > 1 {
			want, _ = flake.Default.Min(ms + n - 1)
			every = 5 * time.Second
		}
		if after != want || wait != every {
			t.Errorf("request %d: above %v for %v, want above %v for %v", n, after, wait, want, every)
		}
		return ms + n, ""
	})
	var got []int64
	for w, err := range dialTo(t, f).WatchWatermark(t.Context()) {
		if err != nil {
			if !errors.Is(err, &client.Refusal{Reason: client.Unauthenticated}) {
				t.Error(err)
			}
			got = append(got, -1)
			continue
		}
		got = append(got, w.UnixMilli-ms)
	}
	if len(got) != 4 || got[0] != 1 || got[2] != 3 || got[3] != -1 {
		t.Errorf("%v", got)
	}

	// A node that is asked for more time than there is would count as silent.
	const left = 200 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), left)
	defer cancel()
	f.marking(func(_ context.Context, _ flake.ID, wait time.Duration) (int64, client.Reason) {
		if wait > left/2 {
			t.Errorf("asked for %v, and %v are left", wait, left)
		}
		time.Sleep(wait)
		return ms, ""
	})
	for _, err = range dialTo(t, f).WatchWatermark(ctx) {
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended with %v", err)
	}
}

// TestLowestWatermark: a cut through several spaces is the lowest of theirs, and there is none
// if one space has none.
func TestLowestWatermark(t *testing.T) {
	t.Parallel()
	var clients []*client.Client
	for i := range 3 {
		f := newFake(t, 1)
		f.marking(func(context.Context, flake.ID, time.Duration) (int64, client.Reason) {
			ms, _ := at([]int64{20, 10, 30}[i])
			return ms, ""
		})
		clients = append(clients, dialTo(t, f))
	}
	want, id := at(10)
	if w, err := client.LowestWatermark(t.Context(), clients...); err != nil || w.UnixMilli != want || w.ID != id {
		t.Errorf("%+v, %v", w, err)
	}
	_ = clients[2].Close()
	if _, err := client.LowestWatermark(t.Context(), clients...); !errors.Is(err, client.ErrClosed) {
		t.Error(err)
	}
	if _, err := client.LowestWatermark(t.Context()); err == nil {
		t.Error("no clients have no watermark")
	}
}

// TestWaitForTime: a partition in time is whole once it is whole in each space; a wait that ends before
// says which space holds it open.
func TestWaitForTime(t *testing.T) {
	t.Parallel()
	var clients []*client.Client
	var ends atomic.Pointer[context.CancelFunc] // at the next poll, when an answer is known
	for i := range 2 {
		f := newFake(t, 1)
		steps := int64(0)
		f.marking(func(_ context.Context, _ flake.ID, wait time.Duration) (int64, client.Reason) {
			if end := ends.Load(); end != nil && wait > 0 {
				(*end)()
			}
			steps++
			ms, _ := at(min(steps*[]int64{10, 50}[i], 100))
			return ms, ""
		})
		clients = append(clients, dialTo(t, f))
	}
	reached, _ := at(60)
	if w, err := client.WaitForTime(t.Context(), time.UnixMilli(reached), clients...); err != nil || w.UnixMilli < reached || w.UnixMilli > reached+40 {
		t.Errorf("%+v, %v", w, err)
	}
	if w, err := client.WaitForTime(t.Context(), time.UnixMilli(reached).Add(1), clients...); err != nil || w.UnixMilli <= reached {
		t.Errorf("just after it: %+v, %v", w, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ends.Store(&cancel)
	_, err := client.WaitForTime(ctx, time.UnixMilli(reached+1000), clients...)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "node-c is silent") {
		t.Errorf("a time that is not reached: %v", err)
	}
	if _, err := client.WaitForTime(t.Context(), time.UnixMilli(reached)); err == nil {
		t.Error("no clients have no watermark")
	}
}
