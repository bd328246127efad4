package respserver

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sock is a connection of a loop, whose thread owns all but the fields of mu.
type sock struct {
	*conn
	loop *loop
	nc   net.Conn // what is closed with it: the quota's connection

	served   bool               // add was called
	armed    uint32             // events that epoll reports, besides the end
	draining bool               // nothing more is read
	full     bool               // the last read took all that it had room for: a pipeline may go on
	pause    time.Duration      // for which it is not read, since its source has no tokens; 0: none
	held     []byte             // was read and is not answered yet
	unsent   []byte             // was not written yet
	cancel   context.CancelFunc // ends the job under way; nil: there is none

	closing atomic.Bool // Close was called
	mu      sync.Mutex
	fd      int
	gone    bool // fd is closed
}

// sock is a net.Conn for package quota, which closes it and asks for its addresses.
var _ net.Conn = (*sock)(nil)

// Close makes the loop close the connection soon, and does not wait for it.
func (k *sock) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.gone {
		k.closing.Store(true)
		_ = unix.Shutdown(k.fd, unix.SHUT_RDWR) // Epoll reports that.
	}
	return nil
}

// release closes the descriptor.
func (k *sock) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gone = true
	_ = unix.Close(k.fd)
}

// SetLinger is that of a net.TCPConn.
func (k *sock) SetLinger(seconds int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone {
		return net.ErrClosed
	}
	return unix.SetsockoptLinger(k.fd, unix.SOL_SOCKET, unix.SO_LINGER,
		&unix.Linger{Onoff: 1, Linger: int32(seconds)})
}

// LocalAddr returns the address of this end.
func (k *sock) LocalAddr() net.Addr { return k.local }

// RemoteAddr returns the address of the client.
func (k *sock) RemoteAddr() net.Addr { return k.remote }

// Only the loop reads and writes, and deadlines are the server's.
func (k *sock) Read([]byte) (int, error)         { return 0, net.ErrClosed }
func (k *sock) Write([]byte) (int, error)        { return 0, net.ErrClosed }
func (k *sock) SetDeadline(time.Time) error      { return net.ErrClosed }
func (k *sock) SetReadDeadline(time.Time) error  { return net.ErrClosed }
func (k *sock) SetWriteDeadline(time.Time) error { return net.ErrClosed }

func (k *sock) abort() { _ = k.nc.Close() }

func (k *sock) drain() { k.loop.post(func() { k.loop.drain(k) }) }

// rawRead and rawWrite never block, so the scheduler need not know of them.
func rawRead(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)))
	return int(n), errno
}

func rawWrite(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)))
	return int(n), errno
}
