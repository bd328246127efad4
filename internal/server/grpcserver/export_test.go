package grpcserver

import (
	"context"

	"google.golang.org/grpc/mem"

	"github.com/flakelease/allocator/internal/wire"
)

// Serving is what the health service reports.
func Serving(s *Server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving
}

// CheckHealth is a turn of Run.
func CheckHealth(s *Server) { s.checkHealth() }

var codec = wire.NewCodec()

// ServeAllocate serves a unary request without a connection, and returns the bytes of
// the answer.
func ServeAllocate(s *Server, ctx context.Context, request []byte) ([]byte, error) {
	in := mem.BufferSlice{mem.SliceBuffer(request)}
	read := func(m any) error { return codec.Unmarshal(in, m) }
	res, err := serveAllocate(allocatorService{s: s}, ctx, read, nil)
	if err != nil {
		return nil, err
	}
	out, err := codec.Marshal(res)
	if err != nil {
		return nil, err
	}
	return out[0].ReadOnlyData(), nil
}
