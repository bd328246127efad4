package embed_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/embed"
)

// TestWatermark: a program with its own node waits until nothing below an ID of its can appear,
// and is not left waiting when it closes the node.
func TestWatermark(t *testing.T) {
	c := newSpace(t)
	settings := map[string]string{"watermark.interval": "500ms"}
	other, cfg := program(c, "other"), program(c, "shop")
	other.Settings, cfg.Settings = settings, settings
	open(t, other) // It confirms the clock of the first.
	a := open(t, cfg)
	id, err := a.Next(t.Context())
	fatal.If(t, err)
	var w client.Watermark
	wait.Until(t, "a watermark is read", func() bool {
		w, err = a.WaitFor(t.Context(), id)
		return !errors.Is(err, &client.Refusal{Reason: client.Starting})
	})
	if err != nil || !w.Complete(id) {
		t.Fatalf("%+v, %v", w, err)
	}
	if next, err := a.Next(t.Context()); err != nil || w.Complete(next) {
		t.Errorf("%v was issued below %+v: %v", next, w, err)
	}
	if later, err := a.Watermark(); err != nil || later.UnixMilli < w.UnixMilli {
		t.Errorf("%+v after %+v, %v", later, w, err)
	}
	if _, err := a.WaitFor(t.Context(), -5); !errors.Is(err, &client.Refusal{Reason: client.InvalidID}) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.WaitFor(ctx, id+1<<50); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := a.WaitFor(context.Background(), id+1<<50)
		ended <- err
	}()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, embed.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
