package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/wait"
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
	wait.Until(t, "all wait", func() bool { return waiting("client.(*coalescer).take(") == callers })
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
			wait.Until(t, "a is asked", func() bool { return a.asked.Load() == 1 })
			b.always(act{})
			go a.grpc.GracefulStop() // it wants to close, and answers what is under way
			wait.Until(t, "a closes", func() bool { return nodeStats(c, a.addr).State != "ready" })
			wait.Until(t, "b may be asked", func() bool { n := nodeStats(c, b.addr); return n.State == "ready" && n.Backoff == 0 })
			before := nodeStats(c, b.addr).Requests
			go call() // finds that, and has the stream replaced
			wait.Until(t, "b gets the stream", func() bool { return nodeStats(c, b.addr).Requests > before })
			wait.Until(t, "it is in use", func() bool { return client.StreamTo(c) == b.addr })
			// Of refused batches, the second finds the new stream idle again.
			for range 2 {
				release <- struct{}{}
				select {
				case err := <-ended:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(wait.Most):
					t.Fatal("a caller waits without a request")
				}
			}
		})
	}
}

// TestWrongNumber: an answer with the number of another request is not used, neither as
// IDs nor as a refusal, and counts as a failure of the node.
func TestWrongNumber(t *testing.T) {
	for _, by := range []int64{-1, 1, 1 << 40} {
		for _, refuse := range []client.Reason{"", client.InvalidID} {
			t.Run(fmt.Sprint(by, refuse), func(t *testing.T) {
				bad, good := newFake(t, 1), newFake(t, 2)
				var wrong atomic.Int64 // answers
				bad.act(func(_ context.Context, number int64, _ *pb.AllocateRequest) act {
					if number%3 != 0 { // so that right answers come before and after
						return act{}
					}
					wrong.Add(1)
					return act{refuse: refuse, renumber: by, mangle: func(r *pb.AllocateResponse) { r.Sid = 3; r.First ^= 1 ^ 3 }}
				})
				good.act(func(context.Context, int64, *pb.AllocateRequest) act {
					return act{refuse: client.Draining, retry: time.Millisecond}
				})
				c := dial(t, client.Options{Targets: []string{bad.addr, good.addr}})
				connected(t, c, 2)
				wait.Until(t, "ten wrong answers", func() bool {
					b, err := c.Block(t.Context(), 1)
					if err != nil {
						t.Fatal(err)
					}
					if b.SID == 3 {
						t.Fatalf("%v was answered to another request", b)
					}
					return wrong.Load() >= 10
				})
				if n := nodeStats(c, bad.addr); n.Failures < wrong.Load() {
					t.Errorf("%d failures were counted, of %d wrong answers", n.Failures, wrong.Load())
				}
			})
		}
	}
}

// TestAnswersOfAStreamRise: an answer below the one before it is not used, although it
// exceeds what its request asked for.
func TestAnswersOfAStreamRise(t *testing.T) {
	for _, unordered := range []bool{true, false} {
		t.Run(fmt.Sprint("unordered=", unordered), func(t *testing.T) {
			f := newFake(t, 1)
			first, second := make(chan struct{}), make(chan struct{})
			f.act(func(_ context.Context, number int64, _ *pb.AllocateRequest) act {
				switch number {
				case 1:
					close(first)
					<-second // two requests are under way: both ask for IDs above 0
				case 2:
					return act{mangle: func(r *pb.AllocateResponse) { r.First -= 1000 << 20; r.Sid = 3; r.First ^= 1 ^ 3 }}
				}
				return act{}
			})
			c := dial(t, client.Options{Targets: []string{f.addr}, Unordered: unordered, AttemptTimeout: time.Minute, Timeout: time.Minute})
			answers := make(chan client.Block, 2)
			call := func() {
				b, err := c.Block(context.Background(), 1)
				if err != nil {
					t.Error(err)
				}
				answers <- b
			}
			go call()
			<-first
			go call()
			wait.Until(t, "two requests", func() bool { return client.UnderWay(c) == 2 })
			close(second)
			for range 2 {
				if b := <-answers; b.SID == 3 {
					t.Errorf("%v is below the answer before it", b)
				}
			}
			if n := nodeStats(c, f.addr); n.Failures != 1 {
				t.Errorf("%d failures of the node were counted, want 1", n.Failures)
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

// TestReplacedStreamsEnd: a stream that was replaced ends with its last answer. A node
// allows 16 on a connection.
func TestReplacedStreamsEnd(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1)
	f.act(func(_ context.Context, number int64, _ *pb.AllocateRequest) act {
		if number%2 == 1 { // then another stream is opened
			return act{refuse: client.NoSID, retry: time.Millisecond}
		}
		return act{}
	})
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Coalesce, Timeout: time.Minute})
	for range 20 {
		if _, err := c.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "one stream is open", func() bool { return f.open.Load() <= 1 })
}
