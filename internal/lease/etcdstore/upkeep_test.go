package etcdstore

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A snapshot may take as long as its caller lets it, and begins within a minute.
func TestSnapshotBegins(t *testing.T) {
	for name, want := range map[string]struct {
		bytes string
		after time.Duration
		says  string
	}{
		"no byte":  {"", snapshotBegins, "no member began to send it within 1m0s"},
		"one byte": {"a", 10 * time.Minute, "deadline exceeded"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			began := time.Now()
			err := snapshot(ctx, func(ctx context.Context) (io.ReadCloser, error) {
				until := readerFunc(func([]byte) (int, error) {
					<-ctx.Done()
					return 0, ctx.Err()
				})
				return io.NopCloser(io.MultiReader(strings.NewReader(want.bytes), until)), nil
			}, io.Discard)
			if took := time.Since(began); err == nil || !strings.Contains(err.Error(), want.says) || took != want.after {
				t.Errorf("%s: %v after %v, want %q after %v", name, err, took, want.says, want.after)
			}
		})
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
