package netswitch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// place is a namespace and the thread in it.
type place struct {
	work  chan func()
	quit  chan struct{} // closed when the thread is to end
	ended chan struct{} // closed when it does

	mu        sync.Mutex // guards the field below
	namespace *os.File   // nil once closed
}

// Supported returns ErrUnsupported with the reason if no host can be added now.
// Where it does, Enter may help.
func Supported() error {
	h := Host{addr: [4]byte{10, 77, 255, 254}}
	if err := h.open(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return h.close()
}

// Do calls f on a thread inside the host, and returns what it returns. Processes
// that f starts and sockets that it opens are the host's. Calls wait for one
// another.
//
// f must not leave the namespace, nor call Do of the same host.
func (h *Host) Do(f func() error) error {
	done := make(chan error, 1)
	select {
	case <-h.quit:
		return ErrClosed
	default:
	}
	select {
	case h.work <- func() { done <- f() }:
		return <-done
	case <-h.quit:
		return ErrClosed
	}
}

// DialContext connects to an address as a program inside the host would. Names are
// not resolved: there is no resolver in there.
func (h *Host) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	ended := make(chan struct{})
	// A thread for each: a connection that a fault holds up must hold up no other.
	go onOwnThread(func() {
		if err = h.visit(); err != nil {
			err = fmt.Errorf("netswitch: dial from %s: %w", h.Name, err)
			return
		}
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
	}, ended)
	<-ended
	return conn, err
}

// visit takes this thread into the namespace; it has to end there.
func (h *Host) visit() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.namespace == nil {
		return ErrClosed
	}
	return unix.Setns(int(h.namespace.Fd()), unix.CLONE_NEWNET)
}

// open makes the namespace, on a thread of its own, and the device.
func (h *Host) open() error {
	h.work, h.quit, h.ended = make(chan func()), make(chan struct{}), make(chan struct{})
	ready := make(chan error)
	go onOwnThread(func() {
		ready <- h.enter()
		for {
			select {
			case f := <-h.work:
				f()
			case <-h.quit:
				return
			}
		}
	}, h.ended)
	if err := <-ready; err != nil {
		return errors.Join(err, h.close())
	}
	return nil
}

// onOwnThread calls f on a thread that ends with it, and never on the first thread
// of the process: that one cannot end, and /proc takes it for the whole process.
func onOwnThread(f func(), ended chan<- struct{}) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		inner := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(inner)
			defer close(ended)
			f()
		}()
		<-inner
		runtime.UnlockOSThread()
		return
	}
	defer close(ended)
	f()
}

// enter takes this thread into a new namespace and sets its network up.
func (h *Host) enter() (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	if h.namespace, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	return h.connect()
}

// connect opens the TUN device and configures it and the loopback.
func (h *Host) connect() error {
	const name = "tun0"
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	// With IFF_NAPI the kernel takes what we write in its order; without, it takes
	// what each processor has written in that order alone.
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_NAPI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		unix.Close(fd)
		return fmt.Errorf("make a TUN device: %w", err)
	}
	// After TUNSETIFF: before it, the device cannot be polled.
	h.device = os.NewFile(uintptr(fd), "tun of "+h.Name)

	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(sock)
	if err := up(sock, "lo"); err != nil {
		return err
	}
	for _, set := range []struct {
		what uint
		fill func(*unix.Ifreq) error
	}{
		{unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(h.addr[:]) }},
		{unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte{255, 255, 0, 0}) }},
		{unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(mtu); return nil }},
	} {
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := set.fill(r); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(sock, set.what, r); err != nil {
			return fmt.Errorf("configure %s (%#x): %w", name, set.what, err)
		}
	}
	// A longer queue in front of us, where the kernel would drop what we are too
	// slow to read. Root of a user namespace may not ask for it: 500 packets then.
	if r, err := unix.NewIfreq(name); err == nil {
		r.SetUint32(4000)
		_ = unix.IoctlIfreq(sock, unix.SIOCSIFTXQLEN, r)
	}
	return up(sock, name)
}

// up switches an interface of this thread's namespace on.
func up(sock int, name string) error {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(sock, unix.SIOCGIFFLAGS, r); err != nil {
		return fmt.Errorf("flags of %s: %w", name, err)
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(sock, unix.SIOCSIFFLAGS, r); err != nil {
		return fmt.Errorf("switch %s on: %w", name, err)
	}
	return nil
}

// close gives up all that open made, as far as it came.
func (h *Host) close() (err error) {
	close(h.quit)
	<-h.ended
	if h.device != nil {
		err = h.device.Close()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.namespace != nil {
		err = errors.Join(err, h.namespace.Close())
		h.namespace = nil
	}
	return err
}
