//go:build !linux

package respserver

import "net"

// loop is of Linux alone.
type loop struct{}

func (s *Server) stopLoops() {}

func (s *Server) adopt(net.Conn, int64) bool { return false }
