package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// methods are all that give IDs.
var methods = map[string]func(context.Context, *client.Client) error{
	"Next":      func(ctx context.Context, c *client.Client) error { _, err := c.Next(ctx); return err },
	"NextAfter": func(ctx context.Context, c *client.Client) error { _, err := c.NextAfter(ctx, 1<<60); return err },
	"NextN":     func(ctx context.Context, c *client.Client) error { return c.NextN(ctx, make([]flake.ID, 3)) },
	"Block":     func(ctx context.Context, c *client.Client) error { _, err := c.Block(ctx, 3); return err },
	"NextULID":  func(ctx context.Context, c *client.Client) error { _, err := c.NextULID(ctx); return err },
	"NextULIDs": func(ctx context.Context, c *client.Client) error { return c.NextULIDs(ctx, make([]ulid.ID, 3)) },
}

// TestEndedContext: a call whose context has ended asks nobody, and returns the context's error alone.
// One of a client that was closed returns ErrClosed.
func TestEndedContext(t *testing.T) {
	for _, mode := range modes {
		f := newFake(t, 1)
		c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode})
		connected(t, c, 1)
		fatal.If(t, methods["Next"](t.Context(), c))
		asked := f.asked.Load()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for name, call := range methods {
			err := call(ended, c)
			if !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUnavailable) ||
				mode != client.Prefetch && f.asked.Load() > asked { // which asks in the background
				t.Errorf("%s, %v: %v after %d requests", name, mode, err, f.asked.Load()-asked)
			}
		}
		c.Close()
		for name, call := range methods {
			if err := call(t.Context(), c); !errors.Is(err, client.ErrClosed) {
				t.Errorf("%s, %v, closed: %v", name, mode, err)
			}
		}
	}
}

// TestRefusedCalls: each method passes a refusal on, also one of a count that names no smaller one.
func TestRefusedCalls(t *testing.T) {
	for _, mode := range modes {
		for _, limit := range []string{"", "x", "0", "-1", "3", "1000000"} {
			f := newFake(t, 1)
			f.limit = limit
			f.always(act{refuse: client.InvalidCount})
			c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode, Timeout: time.Minute})
			for name, call := range methods {
				if err := call(t.Context(), c); !errors.Is(err, &client.Refusal{Reason: client.InvalidCount}) {
					t.Errorf("%s, %v, limit %q: %v", name, mode, limit, err)
				}
			}
		}
	}
}

// TestNextAfterOfBefore: an after below what the client was given costs no request of its own.
func TestNextAfterOfBefore(t *testing.T) {
	f := newFake(t, 1)
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Prefetch})
	first, err := c.Next(t.Context())
	fatal.If(t, err)
	asked := f.asked.Load()
	for range 100 {
		id, err := c.NextAfter(t.Context(), first)
		if err != nil || id <= first {
			t.Fatal(id, err)
		}
	}
	if n := f.asked.Load() - asked; n > 20 {
		t.Errorf("%d requests for 100 IDs", n)
	}
}
