package client_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// TestRandomFaults: nodes lose answers, hang, refuse, are slow and close connections,
// while callers of all kinds come, wait and leave. No ID is returned twice, and the
// IDs of each call are above those of calls that had returned.
func TestRandomFaults(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d, for the choices alone", seed)
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			var mu sync.Mutex // guards rnd
			rnd := rand.New(rand.NewPCG(seed, 0))
			pick := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return rnd.IntN(n)
			}
			var targets []string
			for i := range 3 {
				f := newFake(t, flake.SID(i), grpc.KeepaliveParams(keepalive.ServerParameters{
					MaxConnectionAge: 150 * time.Millisecond, MaxConnectionAgeGrace: 300 * time.Millisecond,
				}))
				f.act(func(context.Context, int64, *pb.AllocateRequest) act {
					switch r := pick(200); {
					case r < 8:
						return act{lose: true}
					case r < 12:
						return act{refuse: client.EntropyOverflow, retry: 3 * time.Millisecond}
					case r < 13:
						return act{refuse: client.NoSID, retry: 50 * time.Millisecond}
					case r < 14:
						return act{hang: true}
					case r < 60:
						time.Sleep(time.Duration(pick(10)) * time.Millisecond)
					}
					return act{}
				})
				targets = append(targets, f.addr)
			}
			c := dial(t, client.Options{Targets: targets, Mode: mode, AttemptTimeout: 100 * time.Millisecond, MaxAge: 30 * time.Millisecond, Timeout: time.Minute})
			const enough = 100 // calls
			w, begin := &callLog{}, time.Now()
			more := func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				took := time.Since(begin)
				return took < time.Second || len(w.given) < enough && took < wait.Most
			}
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					for more() {
						err := w.call(func() (client.Block, error) {
							ctx, cancel := context.WithTimeout(t.Context(), time.Duration(pick(60))*time.Millisecond)
							defer cancel()
							switch pick(10) {
							case 0:
								return c.Block(ctx, 1+pick(300))
							case 1:
								ids := make([]flake.ID, 50)
								err := c.NextN(ctx, ids)
								return client.Block{First: ids[0], Count: len(ids), Stride: 32}, err
							}
							return one(c.Next(ctx))
						})
						if err != nil && !errors.Is(err, context.DeadlineExceeded) {
							t.Error(err)
						}
						time.Sleep(time.Duration(pick(3)) * time.Millisecond)
					}
				})
			}
			wg.Wait()
			w.finish(t, true, enough)
		})
	}
}
