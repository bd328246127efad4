package respserver

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/internal/server/resp"
)

// maxEvents is how many connections are looked at for each call of epoll.
const maxEvents = 128

// unarmed is the state of a connection that epoll does not know.
const unarmed = ^uint32(0)

// loop is the shell of many connections: one thread, which waits by epoll for those that have
// bytes. A connection has one read, one advance and one write in its turn, none of which
// waits. What a client does not read waits in its sock, and nothing is read of it until then.
//
// All fields but mu and those it guards are the thread's.
type loop struct {
	s      *Server
	epoll  int
	wakeup int // an eventfd
	done   chan struct{}
	ending bool

	listening *listening    // nil: it accepts no connections
	pause     time.Duration // after accept failed

	socks []*sock // by file descriptor
	ready []*sock // They have more to answer, in their next turn.
	turns []*sock // where ready was before
	in    []byte
	out   []byte
	kit   kit

	mu     sync.Mutex
	posted []func() // to be run by the thread
	closed bool     // The thread has ended.
}

// startLoops starts the loops. mu is held.
func (s *Server) startLoops() {
	// A loop can keep a processor busy. The other half is for the rest of the node.
	for !s.closing && len(s.loops) < max(runtime.GOMAXPROCS(0)/2, 1) {
		l := &loop{
			s:    s,
			done: make(chan struct{}),
			in:   make([]byte, resp.MaxRequest+minIn),
			out:  make([]byte, 0, maxOut),
		}
		if err := l.open(); err != nil {
			s.log.Warn("RESP connections have goroutines, since epoll fails", "error", err)
			break
		}
		s.loops = append(s.loops, l)
		go l.run()
	}
}

// stopLoops ends the loops, whose connections have ended, and waits for them.
func (s *Server) stopLoops() {
	s.mu.Lock()
	loops := s.loops
	s.mu.Unlock()
	for _, l := range loops {
		l.post(func() { l.ending = true })
		<-l.done
	}
}

// open opens what the loop waits for.
func (l *loop) open() (err error) {
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if l.wakeup, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, l.wakeup,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(l.wakeup)})
		if err != nil {
			_ = unix.Close(l.wakeup)
		}
	}
	if err != nil {
		_ = unix.Close(l.epoll)
	}
	return err
}

// post has the thread run f soon. It drops f if the loop has ended.
func (l *loop) post(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.posted = append(l.posted, f); len(l.posted) == 1 {
		_, _ = unix.Write(l.wakeup, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // never blocks
	}
}

// run is the thread.
func (l *loop) run() {
	runtime.LockOSThread()
	defer close(l.done)
	var events [maxEvents]unix.EpollEvent
	for !l.ending {
		wait := -1
		if len(l.ready) > 0 {
			wait = 0
		}
		n, err := unix.EpollWait(l.epoll, events[:], wait)
		if err != nil && err != unix.EINTR {
			panic(fmt.Sprintf("respserver: epoll of descriptor %d: %v", l.epoll, err))
		}
		posted, accept := false, false
		for _, e := range events[:max(n, 0)] {
			if int(e.Fd) == l.wakeup {
				posted = true
				continue
			}
			if l.listening != nil && int(e.Fd) == l.listening.fd {
				accept = true
				continue
			}
			// An event of this call may be of a descriptor that another one has closed.
			if k := l.socks[e.Fd]; k != nil {
				l.event(k, e.Events)
			}
		}
		l.ready, l.turns = l.turns[:0], l.ready
		for _, k := range l.turns {
			if !k.gone {
				l.turn(k, k.held)
			}
		}
		clear(l.turns)
		if accept {
			l.accept()
		}
		if posted { // last, since it may reuse descriptors that were closed above
			l.runPosted()
		}
	}
	l.mu.Lock()
	l.closed, l.posted = true, nil
	_ = unix.Close(l.wakeup)
	_ = unix.Close(l.epoll)
	l.mu.Unlock()
}

// runPosted runs what was posted.
func (l *loop) runPosted() {
	var count [8]byte
	l.mu.Lock()
	posted := l.posted
	l.posted = nil
	_, _ = unix.Read(l.wakeup, count[:])
	l.mu.Unlock()
	for _, f := range posted {
		f()
	}
}

// add begins to serve a connection.
func (l *loop) add(k *sock) {
	k.served, k.armed = true, unarmed
	k.reset()
	if len(l.socks) <= k.fd {
		l.socks = slices.Grow(l.socks, k.fd+1-len(l.socks))[:k.fd+1]
	}
	l.socks[k.fd] = k
	l.proceed(k)
}

// arm sets what epoll reports of a connection, besides its end. The end of a TCP connection is a
// reset alone: a client that has left cannot be distinguished from one that sends no more and waits
// for its answers, which it gets.
func (l *loop) arm(k *sock, events uint32) {
	if k.armed == events {
		return
	}
	op := unix.EPOLL_CTL_MOD
	if k.armed == unarmed {
		op = unix.EPOLL_CTL_ADD
	}
	k.armed = events
	err := unix.EpollCtl(l.epoll, op, k.fd, &unix.EpollEvent{Events: events, Fd: int32(k.fd)})
	if err != nil && op == unix.EPOLL_CTL_ADD {
		l.s.logFull.Do(func() { l.s.log.Warn("a RESP connection was closed, since epoll refused it", "error", err) })
		l.close(k)
	}
}

// await reads the connection when it has bytes, and when its source has tokens.
func (l *loop) await(k *sock) {
	if k.pause = k.quota.PayNow(k.pause); k.pause == 0 {
		l.arm(k, unix.EPOLLIN)
		return
	}
	l.arm(k, 0)
	time.AfterFunc(k.pause, func() {
		l.post(func() {
			if !k.gone {
				l.await(k)
			}
		})
	})
}

// event handles what epoll reports of a connection.
func (l *loop) event(k *sock, events uint32) {
	reads := k.armed == unix.EPOLLIN && k.need == needInput
	switch {
	case k.closing.Load(), events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 && !reads:
		l.close(k)
	case reads:
		l.read(k)
	case events&unix.EPOLLOUT != 0 && len(k.unsent) > 0:
		l.write(k)
	}
}

// read reads once, and answers.
func (l *loop) read(k *sock) {
	if k.quota != nil {
		if l.await(k); k.armed != unix.EPOLLIN {
			return
		}
	}
	if !k.full {
		k.pipelineEnded()
	}
	held := copy(l.in, k.held) // part of a request, so there is room for minIn
	k.held = nil
	n, errno := rawRead(k.fd, l.in[held:held+minIn])
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		n = 0
	case n == 0 || errno != 0:
		l.close(k)
		return
	}
	k.full = n == minIn
	l.turn(k, l.in[:held+n])
}

// turn answers what is in a connection's input, which is k.held or l.in, as far as one write
// goes.
func (l *loop) turn(k *sock, in []byte) {
	if k.out == nil {
		k.out = l.out
	}
	n, _ := k.advance(in)
	switch in = in[n:]; {
	case len(in) == 0:
		k.held = nil
	case k.held == nil:
		k.held = slices.Clone(in)
	default:
		k.held = in
	}
	out := k.out
	k.out = nil
	l.out = out[:0] // one for all connections, so it stays as long as the longest answer made it
	if len(out) > 0 {
		sent, errno := rawWrite(k.fd, out)
		switch {
		case errno == unix.EAGAIN || errno == unix.EINTR:
			sent = 0
		case errno != 0:
			l.close(k)
			return
		}
		if sent < len(out) {
			k.unsent = slices.Clone(out[sent:])
			k.progress.Add(1)
			l.arm(k, unix.EPOLLOUT)
			return
		}
		k.progress.Add(2)
	}
	l.proceed(k)
}

// write goes on with the answers that the client had no room for.
func (l *loop) write(k *sock) {
	n, errno := rawWrite(k.fd, k.unsent)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return
	case errno != 0:
		l.close(k)
		return
	}
	if k.unsent = k.unsent[n:]; len(k.unsent) == 0 {
		k.unsent = nil
		k.progress.Add(1)
		l.proceed(k)
	}
}

// proceed does what a connection needs when its answers are written.
func (l *loop) proceed(k *sock) {
	switch k.need {
	case needInput:
		if k.draining {
			l.close(k)
			return
		}
		if k.armed != unix.EPOLLIN {
			l.await(k)
		}
	case needRoom:
		l.ready = append(l.ready, k)
	case needJob:
		l.arm(k, 0)
		ctx, cancel := context.WithCancel(l.s.ctx)
		k.cancel = cancel
		l.s.all.Go(func() {
			k.job.run(ctx)
			l.post(func() { l.finish(k) })
		})
	case needEnd:
		l.close(k)
	}
}

// finish goes on after a job.
func (l *loop) finish(k *sock) {
	if k.gone {
		return
	}
	k.cancel()
	k.cancel = nil
	k.out = l.out
	k.job.done()
	l.turn(k, k.held)
}

// drain closes a connection when all that was read is answered.
func (l *loop) drain(k *sock) {
	k.draining = true
	if k.served && !k.gone && k.need == needInput && len(k.unsent) == 0 {
		l.close(k)
	}
}

// close closes a connection.
func (l *loop) close(k *sock) {
	if k.cancel != nil {
		k.cancel()
	}
	l.socks[k.fd] = nil
	// A child process has the socket too from its fork until it runs another program. For that time
	// epoll would report it by a descriptor that may be another connection's by then.
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, k.fd, nil)
	k.release()
	k.held, k.unsent = nil, nil
	_ = k.nc.Close()
	l.s.remove(k.conn)
}
