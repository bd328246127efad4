package unixsocket

import (
	"context"
	"net"
	"syscall"
)

// listenClosed opens a socket that nobody may connect to. Linux gives a socket's file the mode of
// the socket's own inode, less the umask.
//
// Source: Linux, net/unix/af_unix.c, unix_bind_bsd.
func listenClosed(ctx context.Context, path string) (*net.UnixListener, error) {
	cfg := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = syscall.Fchmod(int(fd), 0) })
		if err != nil {
			return err
		}
		return failed
	}}
	l, err := cfg.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// peerOf asks the kernel who connected.
func peerOf(c *net.UnixConn) (p Peer) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			p = Peer{UID: int(cred.Uid), PID: int(cred.Pid), Known: true}
		}
	}) // An error leaves the peer unknown.
	return p
}
