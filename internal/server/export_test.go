package server

import pb "github.com/flakelease/allocator/api/allocator/v1"

// Services gives tests the service without a connection.
func (s *Server) Services() pb.AllocatorServiceServer { return allocatorService{s: s} }

// Serving is what the health service was last told.
func (s *Server) Serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving
}
