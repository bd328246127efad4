package grpcserver

import (
	"context"

	"google.golang.org/grpc/mem"

	"github.com/flakelease/allocator/internal/wire"
)

var testCodec = codec{wire.NewCodec()}

// ServeAllocate serves a unary request without a connection, and returns the bytes of
// the answer.
func ServeAllocate(s *Server, ctx context.Context, request []byte) ([]byte, error) {
	in := mem.BufferSlice{mem.SliceBuffer(request)}
	read := func(m any) error { return testCodec.Unmarshal(in, m) }
	res, err := serveAllocate(allocatorService{s: s}, ctx, read, nil)
	if err != nil {
		return nil, err
	}
	out, err := testCodec.Marshal(res)
	if err != nil {
		return nil, err
	}
	return out[0].ReadOnlyData(), nil
}

// ScopedMethods returns the methods that require a scope.
func ScopedMethods() map[string]bool {
	all := map[string]bool{}
	for name, m := range methods {
		if !m.Open {
			all[name] = true
		}
	}
	return all
}
