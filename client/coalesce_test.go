package client_test

import (
	"context"
	"testing"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
)

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

func nodeStats(c *client.Client, addr string) client.NodeStats {
	for _, n := range c.Stats().Nodes {
		if n.Address == addr {
			return n
		}
	}
	return client.NodeStats{}
}
