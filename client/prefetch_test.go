package client_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

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
