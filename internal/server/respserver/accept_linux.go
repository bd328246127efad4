package respserver

import (
	"net"
	"sync/atomic"
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

// maxAccepts is how many connections a loop accepts before it looks at the others.
const maxAccepts = 16

// listening is a socket whose connections the loops accept by themselves.
type listening struct {
	fd    int
	quota *quota.Listener
	local net.Addr // nil: each connection of TCP has its own
	loops atomic.Int32
	done  chan struct{} // closed when no loop accepts any more
}

// listen has the loops accept the connections of l, until unlisten. It returns nil for a listener that
// needs package net: one with TLS, without a quota, or not of a socket.
func (s *Server) listen(l net.Listener) *listening {
	q, ok := l.(*quota.Listener)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.startLoops(); s.closing || len(s.loops) == 0 {
		return nil
	}
	a := &listening{quota: q, done: make(chan struct{})}
	var err error
	switch base := q.Listener.(type) {
	case *net.TCPListener:
		a.fd, err = takeTCP(base)
	case *unixsocket.Listener:
		a.local = base.UnixListener.Addr()
		a.fd, err = base.Take()
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	a.loops.Store(int32(len(s.loops)))
	for _, loop := range s.loops {
		loop.post(func() {
			loop.listening = a
			loop.accepts(true)
		})
	}
	s.listening = a
	return a
}

// takeTCP returns the socket of l, which is closed for package net.
func takeTCP(l *net.TCPListener) (fd int, err error) {
	if fd, err = unixsocket.Duplicate(l); err == nil {
		err = l.Close()
	}
	return fd, err
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
	loops, a := s.loops, s.listening
	s.mu.Unlock()
	if a == nil {
		return
	}
	for _, l := range loops {
		l.post(func() {
			l.accepts(false)
			l.listening = nil
			if a.loops.Add(-1) == 0 {
				_ = unix.Close(a.fd)
				close(a.done)
			}
		})
	}
}

// accepts has epoll report new connections, or no longer. With several loops each is reported to one of them.
func (l *loop) accepts(yes bool) {
	if l.listening == nil {
		return
	}
	op, fd := unix.EPOLL_CTL_DEL, l.listening.fd
	if yes {
		op = unix.EPOLL_CTL_ADD
	}
	event := &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE, Fd: int32(fd)}
	if err := unix.EpollCtl(l.epoll, op, fd, event); err != nil && yes {
		l.s.log.Error("no RESP connection is accepted, since epoll refused the listener", "error", err)
	}
}

// accept accepts connections that wait. After an error it pauses: most likely no descriptors are left.
func (l *loop) accept() {
	for range maxAccepts {
		fd, from, err := unix.Accept4(l.listening.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			l.pause = 0
			l.take(fd, from)
			accepted(fd)
		case unix.EAGAIN:
			return
		case unix.EINTR, unix.ECONNABORTED:
		default:
			l.pause = min(max(2*l.pause, 5*time.Millisecond), time.Second)
			l.s.log.Warn("accept of a RESP connection failed", "error", err, "pause", l.pause)
			l.accepts(false)
			time.AfterFunc(l.pause, func() { l.post(func() { l.accepts(true) }) })
			return
		}
	}
}

// accepted is called with each connection, served or not. Tests change it.
var accepted = func(fd int) {}

// take begins to serve a connection, if it has a place.
func (l *loop) take(fd int, from unix.Sockaddr) {
	a, k := l.listening, &sock{fd: fd, loop: l}
	local, remote := a.local, net.Addr(nil)
	if local != nil {
		remote = unixsocket.PeerOf(fd)
	} else {
		setTCP(fd)
		own, _ := unix.Getsockname(fd) // It fails for no connection.
		local, remote = tcpAddr(own), tcpAddr(from)
	}
	k.conn = l.s.newConn(l.s.accepted.Add(1), local, remote, nil, &l.kit)
	k.shell = k
	q := a.quota.Admit(k)
	if q == nil {
		if refusal := a.quota.Refusal(); len(refusal) > 0 {
			_, _ = rawWrite(fd, refusal)
		}
		k.release()
		return
	}
	k.quota, k.nc = q, q
	if !l.s.add(k.conn) {
		k.release()
		_ = q.Close()
		return
	}
	l.add(k)
}

// tcpAddr returns an address of the kernel as package net has it.
func tcpAddr(a unix.Sockaddr) net.Addr {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: a.Addr[:], Port: a.Port}
	case *unix.SockaddrInet6:
		zone := ""
		if a.ZoneId != 0 {
			if i, err := net.InterfaceByIndex(int(a.ZoneId)); err == nil {
				zone = i.Name
			}
		}
		return &net.TCPAddr{IP: a.Addr[:], Port: a.Port, Zone: zone}
	}
	return &net.TCPAddr{}
}
