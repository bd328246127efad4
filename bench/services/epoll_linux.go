package services

import (
	"bytes"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// constantEpoll is the minimum that a server can do in Go: one thread, which waits by epoll for
// connections to read from, as Redis does, and gives each request the same answer, as long as that
// of an ID. The scheduler is not told of reads and writes. It knows no more of requests than that
// each begins with an asterisk and has no other.
func constantEpoll(l filer) error {
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
	answers := bytes.Repeat([]byte(constantAnswer), len(buf))
	for {
		n, err := unix.EpollWait(ep, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, e := range events[:n] {
			fd := int(e.Fd)
			if fd == listening {
				if c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC); err == nil {
					_ = unix.SetsockoptInt(c, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
					if err := watch(c); err != nil {
						_ = unix.Close(c)
					}
				}
				continue
			}
			got, errno := raw(unix.SYS_READ, fd, buf)
			if errno == 0 && got > 0 {
				requests := bytes.Count(buf[:got], []byte{'*'})
				_, _ = raw(unix.SYS_WRITE, fd, answers[:requests*len(constantAnswer)]) // so little that it never blocks
			} else if errno != unix.EAGAIN {
				_ = unix.Close(fd)
			}
		}
	}
}

// constantAnswer is an answer to ID.NEXT.
const constantAnswer = "$13\r\n02MVQDZ9NFSQ0\r\n"

// raw is read or write, which do not block here.
func raw(call uintptr, fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}
