//go:build !linux

package respserver

import "net"

// loop is of Linux alone.
type loop struct{}

func (s *Server) listen(net.Listener) <-chan struct{} { return nil }

func (s *Server) unlisten() {}

func (s *Server) stopLoops() {}
