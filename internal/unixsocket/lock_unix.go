//go:build unix

package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"syscall"
)

// acquire takes the lock of a socket.
func acquire(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: %w: use a directory that this process may write, such as /run/allocator", ErrOwner,
			err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: create the directory first", err)
	case err != nil:
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, inUse(path[:len(path)-len(".lock")])
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// ours reports whether the user of this process owns a file. The root user may remove any.
func ours(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	me := os.Geteuid()
	return ok && (int(st.Uid) == me || me == 0)
}

// refused reports whether nobody listens.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

func groupID(name string) (string, error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return "", err
	}
	return g.Gid, nil
}
