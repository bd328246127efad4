package client_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/flakelease/allocator/client"
)

func dial(t testing.TB, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// callers runs b.N calls on as many goroutines as n.
func callers(b *testing.B, n int, call func() error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range n {
		wg.Go(func() {
			const share = 64
			for {
				end := left.Add(-share)
				if end <= -share {
					return
				}
				for range min(share, share+end) {
					if err := call(); err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

func BenchmarkNext(b *testing.B) {
	_, targets := cluster(b, 1)
	for _, mode := range []client.Mode{client.Direct, client.Coalesce, client.Prefetch} {
		for _, n := range []int{1, 16, 64, 1000} {
			b.Run(fmt.Sprintf("%v/callers=%d", mode, n), func(b *testing.B) {
				c := dial(b, client.Options{Targets: targets, Mode: mode})
				ctx := context.Background()
				if _, err := c.Next(ctx); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				callers(b, n, func() error { _, err := c.Next(ctx); return err })
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "IDs/s")
			})
		}
	}
}
