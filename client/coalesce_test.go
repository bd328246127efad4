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

// TestWaitingCallersShare: callers that come while a request is under way share the
// next one.
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
	w := &callLog{}
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

// TestSmallLimit: a cluster that grants less than callers request together serves
// them all, and refuses only a caller that requests too many alone.
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
			w := &callLog{}
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

// TestLostAfterReplaced: requests that a replaced stream did not answer are sent on
// the next stream, even if no later call comes.
func TestLostAfterReplaced(t *testing.T) {
	for _, end := range []string{"lost", "refused"} {
		t.Run(end, func(t *testing.T) {
			a, b := newFake(t, 1), newFake(t, 2)
			release := make(chan struct{}, 2) // an answer each
			a.act(func(context.Context, int64, *pb.AllocateRequest) act {
				<-release
				if end == "refused" {
					return act{refuse: client.Draining}
				}
				return act{lose: true}
			})
			b.always(act{refuse: client.NoSID, retry: 100 * time.Millisecond})
			c := dial(t, client.Options{Targets: []string{a.addr, b.addr}, AttemptTimeout: time.Minute, Timeout: time.Minute})
			ended := make(chan error, 2)
			call := func() { _, err := c.Next(context.Background()); ended <- err }
			go call()
			until(t, "a is asked", func() bool { return a.asked.Load() == 1 })
			b.always(act{})
			go a.grpc.GracefulStop() // it wants to close, and answers what is under way
			until(t, "a closes", func() bool { return nodeStats(c, a.addr).State != "ready" })
			until(t, "b may be asked", func() bool { n := nodeStats(c, b.addr); return n.State == "ready" && n.Backoff == 0 })
			before := nodeStats(c, b.addr).Requests
			go call() // finds that, and has the stream replaced
			until(t, "b gets the stream", func() bool { return nodeStats(c, b.addr).Requests > before })
			time.Sleep(100 * time.Millisecond) // until the new stream is in use
			// Of refused batches, the second finds the new stream idle again.
			for range 2 {
				release <- struct{}{}
				select {
				case err := <-ended:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(20 * time.Second):
					t.Fatal("a caller waits without a request")
				}
			}
		})
	}
}

func nodeStats(c *client.Client, addr string) client.NodeStats {
	for _, n := range c.Stats().Nodes {
		if n.Address == addr {
			return n
		}
	}
	return client.NodeStats{}
}
