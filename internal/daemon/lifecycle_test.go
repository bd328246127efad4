package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLifecycle: parts stop in the reverse order of the start, each before the next one,
// and the step that exceeds its timeout is logged by name.
func TestLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		l := newLifecycle(ctx, slog.New(slog.NewTextHandler(&logged, nil)))
		var ended []string
		part := func(name string, takes time.Duration) {
			l.start(name, time.Second, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(takes)
				ended = append(ended, name)
				return nil
			})
		}
		part("first", 0)
		part("slow", 3*time.Second)
		l.onStop("requests", time.Second, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		part("last", 0)
		cancel()
		<-l.ending.Done()
		if err := l.stop(); err != nil {
			t.Error(err)
		}
		if want := []string{"last", "slow", "first"}; !slices.Equal(ended, want) {
			t.Errorf("stopped %v, want %v", ended, want)
		}
		text := logged.String()
		for step, want := range map[string]int{"step=first": 0, "step=slow": 1, "step=requests": 1, "step=last": 0, "stop step timed out": 2} {
			if n := strings.Count(text, step); n != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", step, n, want, text)
			}
		}
	})
}

// TestPartFails: the failure of a part stops the node and is returned with its name.
func TestPartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLifecycle(t.Context(), slog.New(slog.DiscardHandler))
		l.start("works", time.Second, func(ctx context.Context) error { <-ctx.Done(); return nil })
		broken := errors.New("broken")
		l.serve("fails", func() error { return broken })
		<-l.ending.Done()
		if err := l.stop(); !errors.Is(err, broken) || err.Error() != "fails: broken" {
			t.Errorf("got %v", err)
		}
	})
}
