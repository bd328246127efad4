package respserver

import (
	"errors"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// Accepting by package net would cost a connection a second descriptor, two registrations with the runtime's
// own epoll and the wake-up of another thread: as much as all that Redis does for a client that connects,
// asks once and leaves.

// Keep-alive of connections, as package net sets it.
const (
	keepAlive       = 15 // seconds until the first probe, and between probes
	keepAliveProbes = 9
)

// maxAccepts is how many connections a loop accepts, or until one is refused, before it serves those that it has. In a
// crowd of 10,000, to look for one that makes room for another takes half a millisecond.
const maxAccepts = 4

// listening is a socket whose connections the loops accept by themselves.
type listening struct {
	fd    int
	quota *quota.Listener
	local net.Addr // nil: each connection of TCP has its own
	loops atomic.Int32
	done  chan struct{} // closed when no loop accepts any more
}

// listen has the loops accept the connections of l, until unlisten. It returns what is closed when none does any
// more, or nil for a listener that needs package net: one with TLS, without a quota, or not of a socket.
func (s *Server) listen(l net.Listener) <-chan struct{} {
	q, ok := l.(*quota.Listener)
	if !ok {
		return nil
	}
	a := &listening{quota: q, done: make(chan struct{})}
	var base socket
	switch l := q.Listener.(type) {
	case *net.TCPListener:
		base = l
	case *unixsocket.Listener: // Its own Close removes the file, later.
		base, a.local = l.UnixListener, l.UnixListener.Addr()
	default:
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.startLoops(); s.closing || len(s.loops) == 0 {
		return nil
	}
	var err error
	if a.fd, err = detach(base); err != nil {
		return nil
	}
	a.loops.Store(int32(len(s.loops)))
	for _, loop := range s.loops {
		loop.post(func() {
			loop.listening = a
			loop.startAccepting()
		})
	}
	return a.done
}

// socket is a socket of package net.
type socket interface {
	syscall.Conn
	io.Closer
}

// detach takes a socket from package net, and returns its descriptor.
func detach(s socket) (fd int, err error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	if controlErr := raw.Control(func(of uintptr) {
		fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0)
	}); controlErr != nil || err != nil {
		return 0, errors.Join(controlErr, err)
	}
	return fd, s.Close()
}

// setTCP gives a connection the options that package net sets. An error leaves it without, as there.
func setTCP(fd int) {
	for _, o := range []struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAlive}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepAlive},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveProbes},
	} {
		_ = unix.SetsockoptInt(fd, o.level, o.name, o.value)
	}
}

// unlisten ends what listen began.
func (s *Server) unlisten() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.loops {
		l.post(func() {
			a := l.listening
			if a == nil {
				return
			}
			l.stopAccepting()
			l.listening = nil
			if a.loops.Add(-1) == 0 {
				_ = unix.Close(a.fd)
				close(a.done)
			}
		})
	}
}

// startAccepting has epoll report new connections. With several loops each is reported to one of them.
func (l *loop) startAccepting() {
	if l.listening == nil {
		return
	}
	fd := l.listening.fd
	event := &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE, Fd: int32(fd)}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, event); err != nil {
		l.pauseAccepting(err)
	}
}

// stopAccepting has epoll report no new connections.
func (l *loop) stopAccepting() {
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, l.listening.fd, nil)
}

// pauseAccepting accepts nothing for a while after an error: most likely no descriptors are left.
func (l *loop) pauseAccepting(err error) {
	l.pause = min(max(2*l.pause, 5*time.Millisecond), time.Second)
	l.s.notAccepted(err, l.pause)
	l.stopAccepting()
	time.AfterFunc(l.pause, func() { l.post(l.startAccepting) })
}

// accept accepts connections that wait.
func (l *loop) accept() {
	for range maxAccepts {
		fd, from, err := unix.Accept4(l.listening.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			l.pause = 0
			taken := l.take(fd, from)
			if accepted(fd); !taken {
				return
			}
		case unix.EAGAIN:
			return
		case unix.EINTR, unix.ECONNABORTED:
		default:
			l.pauseAccepting(err)
			return
		}
	}
}

// accepted is called with each connection, served or not. Tests change it.
var accepted = func(fd int) {}

// take begins to serve a connection, and reports whether it has a place.
func (l *loop) take(fd int, from unix.Sockaddr) bool {
	a, k, remote := l.listening, &sock{fd: fd, loop: l}, tcpAddr(from)
	if a.local != nil {
		remote = unixsocket.PeerOf(fd)
	}
	k.conn = l.s.newConn(l.s.accepted.Add(1), a.local, remote, nil, &l.kit)
	k.shell = k
	q := a.quota.Admit(k)
	if q == nil {
		if refusal := a.quota.Refusal(); len(refusal) > 0 {
			_, _ = rawWrite(fd, refusal)
		}
		k.release()
		return false
	}
	k.quota, k.nc = q, q
	if a.local == nil {
		setTCP(fd)
		own, _ := unix.Getsockname(fd) // It fails for no connection.
		k.local = tcpAddr(own)
	}
	if !l.s.add(k.conn) {
		k.release()
		_ = q.Close()
		return false
	}
	l.add(k)
	return true
}

// tcpAddr returns an address of the kernel. A zone is the number of its interface: the name would take a call.
func tcpAddr(a unix.Sockaddr) net.Addr {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: a.Addr[:], Port: a.Port}
	case *unix.SockaddrInet6:
		zone := ""
		if a.ZoneId != 0 {
			zone = strconv.Itoa(int(a.ZoneId))
		}
		return &net.TCPAddr{IP: a.Addr[:], Port: a.Port, Zone: zone}
	}
	return &net.TCPAddr{}
}
