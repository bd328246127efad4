package server

import (
	"context"

	"google.golang.org/grpc/mem"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/access"
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

// Route is a pattern of the public API, and what it asks of callers.
type Route struct {
	Pattern string
	Scope   access.Scope
	Open    bool
}

// Routes lists all of them.
func (s *Server) Routes() (out []Route) {
	for _, r := range s.routes() {
		out = append(out, Route{r.pattern, r.need.scope, r.need.open})
	}
	return out
}
