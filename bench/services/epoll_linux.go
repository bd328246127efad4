package services

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// echoEpoll is echo on one thread that waits by epoll for connections to read from,
// as Redis does: the minimum that a server can do, without the Go runtime's
// scheduler.
func echoEpoll(l filer) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f, err := l.File()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	listening := int(f.Fd())
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(ep) }()
	watch := func(fd int) error {
		if err := unix.SetNonblock(fd, true); err != nil {
			return err
		}
		return unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	}
	if err := watch(listening); err != nil {
		return err
	}
	events, buf := make([]unix.EpollEvent, 128), make([]byte, 16<<10)
	for {
		n, err := unix.EpollWait(ep, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, e := range events[:n] {
			if fd := int(e.Fd); fd == listening {
				if c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC); err == nil {
					_ = unix.SetsockoptInt(c, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
					if err := watch(c); err != nil {
						_ = unix.Close(c)
					}
				}
			} else if got, err := unix.Read(fd, buf); err == nil && got > 0 {
				_, _ = unix.Write(fd, buf[:got]) // so little that it never blocks
			} else if err != unix.EAGAIN {
				_ = unix.Close(fd)
			}
		}
	}
}
