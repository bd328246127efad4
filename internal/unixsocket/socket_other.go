//go:build !linux

package unixsocket

import (
	"context"
	"io/fs"
	"net"
	"os"
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

// open gives a socket its group and its mode.
func open(path string, _ os.FileInfo, gid int, mode fs.FileMode) error {
	if gid >= 0 {
		if err := os.Lchown(path, -1, gid); err != nil {
			return notGiven(err)
		}
	}
	return os.Chmod(path, mode)
}

// peerOf knows nobody: all who connect are one source.
func peerOf(*net.UnixConn) Peer { return Peer{} }
