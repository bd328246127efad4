package services

import (
	"context"
	"fmt"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// atOnce is the number of IDs of a prefetching client in one Op: one ID takes less
// time than counting it.
const atOnce = 64

func sdkCases() (list []Case) {
	for _, c := range []struct {
		name         string
		mode         client.Mode
		callers      int
		perOp, every int
	}{
		{"direct, 64", client.Direct, 64, 0, 0},
		{"coalesced, 64", client.Coalesce, 64, 0, 0},
		{"coalesced, 1,000", client.Coalesce, 1000, 0, 8},
		{"prefetched, 1", client.Prefetch, 1, atOnce, 0},
		{"prefetched, 2", client.Prefetch, 2, atOnce, 0},
	} {
		one := ours(SDK, c.name, onGRPC, nil)
		one.Callers, one.PerOp, one.Every, one.Open = c.callers, c.perOp, c.every, openSDK(c.mode)
		if c.mode == client.Direct {
			one.Mode = draw
		}
		list = append(list, one)
	}
	return list
}

// openSDK lets all callers share one client. Each checks that its IDs rise.
func openSDK(mode client.Mode) func(context.Context, *Env, int) ([]Caller, func(), error) {
	return func(ctx context.Context, e *Env, n int) ([]Caller, func(), error) {
		c, err := client.New(client.Options{Targets: []string{e.Node[0].GRPC}, Mode: mode})
		if err != nil {
			return nil, nil, err
		}
		times := 1
		if mode == client.Prefetch {
			times = atOnce
		}
		callers := make([]Caller, n)
		for i := range callers {
			var last flake.ID
			callers[i] = Caller{
				Do: func() (int, error) {
					for range times {
						id, err := c.Next(ctx)
						if err != nil {
							return 0, err
						}
						if id <= last {
							return 0, fmt.Errorf("services: %v came after %v", id, last)
						}
						last = id
					}
					return times, nil
				},
			}
		}
		return callers, func() { _ = c.Close() }, nil
	}
}
