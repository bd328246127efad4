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

func sdkCases() []Case {
	return []Case{
		{
			Group:   SDK,
			Name:    "this, direct, 64",
			Ours:    true,
			Mode:    draw,
			Callers: 64,
			Servers: grpcNodes(1),
			Open:    openSDK(client.Direct),
		},
		{
			Group:   SDK,
			Name:    "this, coalesced, 64",
			Ours:    true,
			Mode:    sustained,
			Callers: 64,
			Servers: grpcNodes(1),
			Open:    openSDK(client.Coalesce),
		},
		{
			Group:   SDK,
			Name:    "this, coalesced, 1,000",
			Ours:    true,
			Mode:    sustained,
			Callers: 1000,
			Every:   8,
			Servers: grpcNodes(1),
			Open:    openSDK(client.Coalesce),
		},
		{
			Group:   SDK,
			Name:    "this, prefetched, 1",
			Ours:    true,
			Mode:    sustained,
			Callers: 1,
			PerOp:   atOnce,
			Servers: grpcNodes(1),
			Open:    openSDK(client.Prefetch),
		},
		{
			Group:   SDK,
			Name:    "this, prefetched, 2",
			Ours:    true,
			Mode:    sustained,
			Callers: 2,
			PerOp:   atOnce,
			Servers: grpcNodes(1),
			Open:    openSDK(client.Prefetch),
		},
	}
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
