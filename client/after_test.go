package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// TestOneCallsAfter: an after from the future is refused to the call that has it, once
// every node has said so, and nodes are asked by other calls meanwhile.
func TestOneCallsAfter(t *testing.T) {
	far := flake.ID(wordOf(time.Now().Add(time.Hour)) << 5)
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			f, g := newFake(t, 1), newFake(t, 2)
			for _, f := range []*fake{f, g} {
				f.act(func(_ context.Context, _ int64, req *pb.AllocateRequest) act {
					if req.After >= int64(far) {
						return act{refuse: client.AfterTooFar}
					}
					return act{}
				})
			}
			c := dial(t, client.Options{Targets: []string{f.addr, g.addr}, Mode: mode, Timeout: time.Minute})
			connected(t, c, 2)
			over := pb.NewAllocatorServiceClient(c.Conn())
			for name, call := range map[string]func() error{
				"NextAfter": func() error { _, err := c.NextAfter(t.Context(), far); return err },
				"Conn": func() error {
					_, err := over.Allocate(t.Context(), &pb.AllocateRequest{Count: 1, After: int64(far)})
					return err
				},
			} {
				before := f.asked.Load() + g.asked.Load()
				if err := call(); !errors.Is(err, &client.Refusal{Reason: client.AfterTooFar}) {
					t.Fatalf("%s: %v", name, err)
				}
				if n := f.asked.Load() + g.asked.Load() - before; n != 2 && mode != client.Prefetch {
					t.Errorf("%s: %d requests to two nodes", name, n)
				}
				if n := nodeStats(c, f.addr).Backoff + nodeStats(c, g.addr).Backoff; n > 0 {
					t.Errorf("%s: nodes are not asked for %v because of one call", name, n)
				}
				if _, err := c.Next(t.Context()); err != nil {
					t.Errorf("%s: another call: %v", name, err)
				}
			}
			if c.Last() >= far {
				t.Error("the client goes on from an ID that was refused")
			}
		})
	}
}

// TestAfter: an ID of NextAfter and a block exceed after, whether that is what this client was given, an ID
// between those it holds (I6), or one of another client; and later IDs exceed them.
func TestAfter(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			f := newFake(t, 1)
			c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode, MaxAge: time.Hour})
			var last flake.ID
			for i := range 200 {
				after := last
				switch i % 4 {
				case 1:
					after = last + (c.Last()-last)/2
				case 2:
					after = flake.ID(wordOf(time.Now().Add(20*time.Millisecond)) << 5)
				}
				b, err := c.BlockAfter(t.Context(), 1+i%7, after)
				if err != nil || b.Count != 1+i%7 || b.First <= after || b.First <= last || c.Last() < b.Last() {
					t.Fatalf("%v after %v and %v: %v; the last is %v", b, after, last, err, c.Last())
				}
				after = b.Last() + (c.Last()-b.Last())*flake.ID(i%5)/4
				if last, err = c.NextAfter(t.Context(), after); err != nil || last <= after {
					t.Fatalf("%v after %v: %v", last, after, err)
				}
			}
			for _, n := range []int{0, -1, 1_000_001} {
				if _, err := c.BlockAfter(t.Context(), n, 0); !errors.Is(err, &client.Refusal{Reason: client.InvalidCount}) {
					t.Errorf("%d IDs: %v", n, err)
				}
			}
		})
	}
}

// TestPrefetched: it gives what is there and never waits, the next block when that is there.
func TestPrefetched(t *testing.T) {
	f, second := newFake(t, 1), make(chan struct{})
	f.act(func(_ context.Context, number int64, _ *pb.AllocateRequest) act {
		if number > 1 {
			<-second
		}
		return act{}
	})
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Prefetch, MaxAge: time.Hour})
	if b, ok := c.Prefetched(1); ok {
		t.Fatalf("%v before any request", b)
	}
	last, err := c.Next(t.Context())
	fatal.If(t, err)
	got := 1
	for {
		b, ok := c.Prefetched(9)
		if !ok {
			break
		}
		if b.Count != 9 || b.First <= last {
			t.Fatalf("%v after %v", b, last)
		}
		last, got = b.Last(), got+9
	}
	if got != 64 { // 1 and 7 times 9
		t.Errorf("%d of 64 IDs were given", got)
	}
	close(second)
	wait.Until(t, "the next block is there", func() bool {
		b, ok := c.Prefetched(9)
		if ok && b.First <= last {
			t.Errorf("%v after %v", b, last)
		}
		return ok
	})
	for _, mode := range []client.Mode{client.Direct, client.Coalesce} {
		other := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode})
		if b, ok := other.Prefetched(1); ok {
			t.Errorf("%v in mode %v", b, mode)
		}
	}
}
