package server

import (
	"context"

	"google.golang.org/grpc/mem"

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

// Services gives tests the service without a connection.
func (s *Server) Services() pb.AllocatorServiceServer { return allocatorService{s: s} }

// Serving is what the health service was last told.
func (s *Server) Serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving
}

// ServeAllocate carries a unary request through all that is ours, without a
// connection, and returns the bytes of the answer.
func (s *Server) ServeAllocate(ctx context.Context, request []byte) ([]byte, error) {
	in := mem.BufferSlice{mem.SliceBuffer(request)}
	read := func(m any) error { return newCodec().Unmarshal(in, m) }
	res, err := serveAllocate(allocatorService{s: s}, ctx, read, nil)
	if err != nil {
		return nil, err
	}
	out, err := newCodec().Marshal(res)
	if err != nil {
		return nil, err
	}
	return out[0].ReadOnlyData(), nil
}
