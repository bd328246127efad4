package client_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
)

// Callers that come while a request is under way share the next one.
func TestWaitingCallersShare(t *testing.T) {
	f := newFake(t, 1)
	release := make(chan struct{})
	var mu sync.Mutex
	var counts []int32
	f.act(func(_ context.Context, _ int64, req *pb.AllocateRequest) act {
		<-release
		mu.Lock()
		defer mu.Unlock()
		counts = append(counts, req.Count)
		return act{}
	})
	c := dial(t, client.Options{Targets: []string{f.addr}, AttemptTimeout: time.Minute, Timeout: time.Minute})
	w := &crowd{}
	var wg sync.WaitGroup
	const callers = 200
	for range callers {
		wg.Go(func() {
			if err := w.call(func() (client.Block, error) { return one(c.Next(t.Context())) }); err != nil {
				t.Error(err)
			}
		})
	}
	until(t, "all ask", func() bool { return w.ticks.Load() == callers })
	time.Sleep(50 * time.Millisecond) // after its tick, each has a few instructions to go
	close(release)
	wg.Wait()
	w.finish(t, true, callers)
	mu.Lock()
	defer mu.Unlock()
	total := int32(0)
	for _, n := range counts {
		total += n
	}
	if total != callers || len(counts) > 10 {
		t.Errorf("%d IDs in requests of %d", total, counts)
	}
}

// A cluster that grants less than callers ask for together serves them all the
// same, and refuses only who asks for too many alone.
func TestSmallLimit(t *testing.T) {
	f := newFake(t, 1)
	limit := func(_ context.Context, _ int64, req *pb.AllocateRequest) act {
		time.Sleep(time.Millisecond)
		if req.Count > 100 {
			return act{refuse: client.InvalidCount}
		}
		return act{}
	}
	f.act(limit)
	f.limit = "100"
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode})
			w := &crowd{}
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					for n := range 20 {
						if err := w.call(func() (client.Block, error) { return c.Block(t.Context(), 10+(i+n)%91) }); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Go(func() {
				if _, err := c.Block(t.Context(), 101); !errors.Is(err, &client.Refusal{Reason: client.InvalidCount}) {
					t.Errorf("101 IDs: %v", err)
				}
			})
			wg.Wait()
			w.finish(t, true, 400)
		})
	}
}
