package client_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
)

// These run against real nodes in this process, over loopback: client and server
// share the machine, as in docs/RESULTS.md.

func dial(t testing.TB, o client.Options) *client.Client {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = wait.Most // Tests without another bound are not about it.
	}
	if o.AttemptTimeout == 0 {
		o.AttemptTimeout = 10 * time.Second
	}
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

// callers makes b.N calls from n goroutines, and reports IDs a second and how long
// calls took. One call in sample is timed, since a clock read costs more than the
// fastest calls.
func callers(b *testing.B, n, sample, ids int, call func(caller int) error) {
	b.Helper()
	const share = 64
	var left atomic.Int64
	left.Store(int64(b.N))
	took := make([][]time.Duration, n)
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu(b)
	for i := range n {
		wg.Go(func() {
			for {
				end := left.Add(-share)
				if end <= -share {
					return
				}
				for k := range min(share, share+end) {
					timed := k%int64(sample) == 0 && len(took[i]) < 100_000
					var from time.Time
					if timed {
						from = time.Now()
					}
					if err := call(i); err != nil {
						b.Error(err)
						return
					}
					if timed {
						took[i] = append(took[i], time.Since(from))
					}
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	all := slices.Concat(took...)
	slices.Sort(all)
	b.ReportMetric(float64(b.N)*float64(ids)/b.Elapsed().Seconds(), "IDs/s")
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds()), "p99-ns")
}

// cpu returns the processor time that this process has used, which depends less on
// other load of the machine than elapsed time.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkNext measures single IDs from one client.
func BenchmarkNext(b *testing.B) {
	_, targets := cluster(b, 1)
	for _, mode := range []client.Mode{client.Direct, client.Coalesce, client.Prefetch} {
		sample := 1
		if mode == client.Prefetch {
			sample = 16
		}
		for _, n := range []int{1, 16, 64, 1000} {
			b.Run(fmt.Sprintf("%v/callers=%d", mode, n), func(b *testing.B) {
				c := dial(b, client.Options{Targets: targets, Mode: mode})
				ctx := context.Background()
				if _, err := c.Next(ctx); err != nil {
					b.Fatal(err)
				}
				callers(b, n, sample, 1, func(int) error { _, err := c.Next(ctx); return err })
			})
		}
	}
}

// BenchmarkNextWithDeadline measures the cost of a context that can end.
func BenchmarkNextWithDeadline(b *testing.B) {
	_, targets := cluster(b, 1)
	c := dial(b, client.Options{Targets: targets})
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if _, err := c.Next(ctx); err != nil {
		b.Fatal(err)
	}
	callers(b, 64, 1, 1, func(int) error { _, err := c.Next(ctx); return err })
}

// BenchmarkBlock measures blocks of one client from one node, and of three clients
// from a node each. The capacity of a sid is 32.8 M IDs/s.
func BenchmarkBlock(b *testing.B) {
	for _, tc := range []struct{ nodes, size, callers int }{{1, 1000, 1}, {1, 1000, 16}, {1, 1000, 64}, {1, 100_000, 4}, {3, 100_000, 12}} {
		b.Run(fmt.Sprintf("nodes=%d/size=%d/callers=%d", tc.nodes, tc.size, tc.callers), func(b *testing.B) {
			_, targets := cluster(b, tc.nodes)
			ctx := context.Background()
			var clients []*client.Client
			for _, target := range targets {
				c := dial(b, client.Options{Targets: []string{target}, Timeout: time.Minute})
				if _, err := c.Next(ctx); err != nil {
					b.Fatal(err)
				}
				clients = append(clients, c)
			}
			callers(b, tc.callers, 1, tc.size, func(i int) error {
				_, err := clients[i%len(clients)].Block(ctx, tc.size)
				return err
			})
		})
	}
}

// BenchmarkNextULID measures wide IDs, with their random bits.
func BenchmarkNextULID(b *testing.B) {
	_, targets := cluster(b, 1)
	c := dial(b, client.Options{Targets: targets, Mode: client.Prefetch})
	ctx := context.Background()
	callers(b, 1, 16, 1, func(int) error { _, err := c.NextULID(ctx); return err })
}
