//go:build !linux

package respserver

import "net"

// loop and listening are of Linux alone.
type (
	loop      struct{}
	listening struct{ done chan struct{} }
)

func (s *Server) listen(net.Listener) *listening { return nil }

func (s *Server) unlisten() {}

func (s *Server) stopLoops() {}
