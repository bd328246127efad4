package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// TestNextAfter: an ID of NextAfter exceeds after, and later ones of the client exceed it.
func TestNextAfter(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			f := newFake(t, 1)
			c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode})
			last := flake.ID(0)
			for i := range 50 {
				after := last
				if i%2 == 0 {
					after = flake.ID(wordOf(time.Now().Add(20*time.Millisecond)) << 5)
				}
				id, err := c.NextAfter(t.Context(), after)
				if err != nil || id <= after || id <= last || c.Last() < id {
					t.Fatalf("%v after %v and %v: %v; the last is %v", id, after, last, err, c.Last())
				}
				if last, err = c.Next(t.Context()); err != nil || last <= id {
					t.Fatalf("%v after %v: %v", last, id, err)
				}
			}
			if n := c.Stats().IDs; n != 100 {
				t.Errorf("%d IDs are counted", n)
			}
		})
	}
}

// TestNextAfterOfAnother: an after that another client was given exceeds the IDs that this
// one took, and need not exceed those that it holds (I6).
func TestNextAfterOfAnother(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			f := newFake(t, 1)
			c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode, MaxAge: time.Hour})
			for i := range 200 {
				id, err := c.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				after := id + (c.Last()-id)*flake.ID(i%5)/4
				if id, err = c.NextAfter(t.Context(), after); err != nil || id <= after {
					t.Fatalf("%v after %v: %v", id, after, err)
				}
			}
		})
	}
}

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

// TestNextAfterWaits: nodes whose clocks are behind after are asked again when the
// shortest of their delays is over.
func TestNextAfterWaits(t *testing.T) {
	t.Parallel()
	const delay = 100 * time.Millisecond
	f, g := newFake(t, 1), newFake(t, 2)
	open := time.Now().Add(time.Hour)
	for _, f := range []*fake{f, g} {
		f.act(func(context.Context, int64, *pb.AllocateRequest) act {
			if time.Now().Before(open) {
				return act{refuse: client.AfterTooFar, retry: delay}
			}
			return act{}
		})
	}
	c := dial(t, client.Options{Targets: []string{f.addr, g.addr}, Timeout: time.Minute})
	connected(t, c, 2)
	began := time.Now()
	open = began.Add(delay)
	if _, err := c.NextAfter(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if took, n := time.Since(began), f.asked.Load()+g.asked.Load(); took < delay || n > 5 {
		t.Errorf("served after %v and %d requests", took, n)
	}

	open = time.Now().Add(time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), delay/4)
	defer cancel()
	if _, err := c.NextAfter(ctx, flake.ID(wordOf(time.Now().Add(time.Second))<<5)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's time is over: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.NextAfter(t.Context(), 1<<62); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestBlockAfter: a block exceeds after as an ID of NextAfter does, also where after lies in a block
// that was prefetched, and later IDs exceed the block.
func TestBlockAfter(t *testing.T) {
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
				if err != nil || b.Count != 1+i%7 || b.First <= after || b.First <= last {
					t.Fatalf("%v after %v and %v: %v", b, after, last, err)
				}
				last = b.Last()
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
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Prefetch, MaxAge: time.Hour, MaxPrefetch: 64})
	if b, ok := c.Prefetched(1); ok {
		t.Fatalf("%v before any request", b)
	}
	last, err := c.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
	until(t, "the next block is there", func() bool {
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

// TestPrefetchedAfter: it gives what is there if that is above after, and else changes nothing.
func TestPrefetchedAfter(t *testing.T) {
	f := newFake(t, 1)
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Prefetch, MaxAge: time.Hour, MaxPrefetch: 64})
	if _, err := c.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	last, ok := c.Prefetched(1)
	if !ok {
		t.Fatal("nothing is there after the first ID")
	}
	next := last.First + flake.ID(last.Stride)
	if b, ok := c.PrefetchedAfter(1, next); ok {
		t.Errorf("%v after %v, which was not given yet", b, next)
	}
	got, ok := c.PrefetchedAfter(2, last.First)
	if !ok || got.First != next || got.Count != 2 {
		t.Errorf("%v, %v after %v", got, ok, last)
	}
}

// TestRenewEarly: calls that come seldom wait for no node, where without the option they do.
func TestRenewEarly(t *testing.T) {
	const maxAge, slow = 400 * time.Millisecond, 60 * time.Millisecond
	for _, early := range []bool{false, true} {
		f := newFake(t, 1)
		f.act(func(context.Context, int64, *pb.AllocateRequest) act {
			time.Sleep(slow)
			return act{}
		})
		c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Prefetch, MaxAge: maxAge, RenewEarly: early})
		waited := -1 // The first call has to.
		for range 8 {
			began := time.Now()
			if _, err := c.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			if time.Since(began) > slow/2 {
				waited++
			}
			time.Sleep(maxAge * 3 / 4)
		}
		if early && waited > 1 || !early && waited < 3 { // Once the test itself may have been late.
			t.Errorf("early %v: %d of 7 calls waited", early, waited)
		}
	}
}
