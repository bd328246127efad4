package unixsocket

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
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

// open gives a closed socket its group, unless gid is -1, and its mode. It changes nothing if the file at
// path is another one than made, or no socket of this user: who may write the directory can put a link there.
func open(path string, made os.FileInfo, gid int, mode fs.FileMode) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() || !os.SameFile(info, made) ||
		info.Mode().Type() != fs.ModeSocket {
		return replaced(path)
	}
	if gid >= 0 {
		if err := unix.Fchownat(fd, "", -1, gid, unix.AT_EMPTY_PATH); err != nil {
			return notGiven(&fs.PathError{Op: "chown", Path: path, Err: err})
		}
	}
	// The path leads to the file that is open, wherever it is now. There is no call that changes it without a path.
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
}

// peerOf asks the kernel who connected.
func peerOf(c *net.UnixConn) (p Peer) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}
	}
	_ = raw.Control(func(fd uintptr) { p = PeerOf(int(fd)) }) // An error leaves the peer unknown.
	return p
}

// PeerOf asks the kernel who connected a socket.
func PeerOf(fd int) Peer {
	cred, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil {
		return Peer{}
	}
	return Peer{UID: int(cred.Uid), PID: int(cred.Pid), Known: true}
}
