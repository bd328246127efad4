//go:build !linux

package unixsocket

import (
	"context"
	"net"
)

// listenClosed opens a socket. Between this and the change of its mode others may connect if the
// umask and the directory let them.
func listenClosed(ctx context.Context, path string) (*net.UnixListener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// peerOf knows nobody: all who connect are one source.
func peerOf(*net.UnixConn) Peer { return Peer{} }
