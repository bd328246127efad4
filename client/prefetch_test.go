package client_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// ages notes when a fake issued what.
type ages struct {
	mu     sync.Mutex // guards blocks
	blocks []aged
}

type aged struct {
	first, last flake.ID
	at          time.Time
}

// of returns when an ID was issued.
func (a *ages) of(id flake.ID) (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.blocks {
		if b.first <= id && id <= b.last {
			return b.at, true
		}
	}
	return time.Time{}, false
}

// TestPrefetchedIDsAreFresh: a call that begins at t gets no ID that was issued before
// t − MaxAge. Some pauses are longer than MaxAge, so that blocks become stale.
func TestPrefetchedIDsAreFresh(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const maxAge = 20 * time.Millisecond
	var a ages
	f := newFake(t, 1)
	f.act(func(context.Context, int64, *pb.AllocateRequest) act {
		return act{mangle: func(r *pb.AllocateResponse) { // only looks
			a.mu.Lock()
			defer a.mu.Unlock()
			first := flake.ID(r.First)
			a.blocks = append(a.blocks, aged{first, first + flake.ID(int64(r.Count-1)*r.Stride), time.Now()})
		}}
	})
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Prefetch, MaxAge: maxAge, Timeout: time.Minute})
	w := &callLog{}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 100 {
				if rnd.IntN(3) == 0 {
					time.Sleep(time.Duration(rnd.IntN(int(2 * maxAge))))
				}
				from := time.Now()
				var b client.Block
				err := w.call(func() (_ client.Block, err error) {
					if rnd.IntN(2) == 0 {
						b, err = one(c.Next(t.Context()))
					} else {
						b, err = c.Block(t.Context(), 1+rnd.IntN(3))
					}
					return b, err
				})
				if err != nil {
					t.Error(err)
					return
				}
				at, ok := a.of(b.First)
				if !ok {
					t.Errorf("%v was never issued", b.First)
				}
				// The node's moment is after the request was sent, from which the client counts.
				if age := from.Sub(at); age > maxAge {
					t.Errorf("an ID was %v old", age)
				}
			}
		})
	}
	wg.Wait()
	w.finish(t, true, 400)
	if s := c.Stats(); s.Stale == 0 {
		t.Errorf("nothing grew stale: %+v", s)
	}
}

// TestPrefetchAfterSuspend: what was fetched before the machine was suspended is older
// than MaxAge when it wakes, although its monotonic clock was stopped.
func TestPrefetchAfterSuspend(t *testing.T) {
	f := newFake(t, 1)
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Prefetch, MaxAge: time.Hour})
	var suspended atomic.Int64
	began := time.Now()
	client.SetBootClock(c, func() time.Duration { return time.Minute + time.Since(began) + time.Duration(suspended.Load()) })
	ask := map[string]func() (flake.ID, error){
		"Next":  func() (flake.ID, error) { return c.Next(t.Context()) },
		"Block": func() (flake.ID, error) { b, err := c.Block(t.Context(), 1); return b.First, err },
	}
	for name, next := range ask {
		for range 20 {
			if _, err := next(); err != nil {
				t.Fatal(err)
			}
		}
		before := c.Stats().Stale
		woken := wordOf(time.Now().Add(time.Second)) << 5
		time.Sleep(time.Second + 10*time.Millisecond)
		suspended.Add(int64(2 * time.Hour))
		time.Sleep(10 * time.Millisecond) // the monotonic clock runs for longer before a suspended process goes on
		for range 3 {
			if id, err := next(); err != nil || int64(id) < woken {
				t.Fatalf("%s: %v, %v: fetched before the suspend, of %v", name, id, err, flake.ID(woken))
			}
		}
		if n := c.Stats().Stale - before; n == 0 {
			t.Errorf("%s: nothing was counted as stale", name)
		}
	}
}

// TestPrefetchedOrderSurvivesLargeBlocks: a request above the largest that is prefetched gets a block of
// its own, and later IDs are greater.
func TestPrefetchedOrderSurvivesLargeBlocks(t *testing.T) {
	f := newFake(t, 1)
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Prefetch})
	client.LimitPrefetch(c, 50)
	var last flake.ID
	for i := range 200 {
		b, err := c.Block(t.Context(), 1+i*7%120)
		if err != nil {
			t.Fatal(err)
		}
		if b.First <= last {
			t.Fatalf("call %d: %v after %v", i, b.First, last)
		}
		last = b.Last()
		if i%20 == 19 {
			last += 10 << 20
			c.Observe(last)
		}
	}
}
