package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// Addresses are the addresses of a node, as host:port or unix:/path.
type Addresses struct {
	GRPC, HTTP, RESP, Admin        string // listened on; "": no such listener
	AdvertisedGRPC, AdvertisedHTTP string // for other nodes and clients; "": no such listener
	AdvertisedConsole              string // URL for browsers, without a path; "": none
	Gossip                         string // for other nodes; "": gossip is disabled
}

type listeners struct {
	grpc, http, admin net.Listener
	resp              net.Listener // nil: none
}

func (l listeners) close() {
	for _, x := range []net.Listener{l.grpc, l.http, l.admin, l.resp} {
		if x != nil {
			_ = x.Close()
		}
	}
}

// PortError says that a node cannot listen on a configured address.
type PortError struct {
	Key  string // the setting that names the address
	Addr string
	Err  error
}

// Error says what to change.
func (e *PortError) Error() string {
	if errors.Is(e.Err, syscall.EADDRINUSE) {
		return fmt.Sprintf("daemon: %s is in use by another process: stop it, or set %s to another address", e.Addr,
			e.Key)
	}
	if _, ok := errors.AsType[*net.OpError](e.Err); ok && !unixsocket.Is(e.Addr) {
		return fmt.Sprintf("daemon: cannot listen on %s: %v; set %s to an address of this machine", e.Addr, e.Err,
			e.Key)
	}
	return fmt.Sprintf("daemon: %s %s: %v", e.Key, e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *PortError) Unwrap() error { return e.Err }

// open listens at the configured addresses, and puts those that it got into bound. After an error none is open.
func (l *listeners) open(ctx context.Context, listen func(context.Context, string, string) (net.Listener, error),
	s *security, at config.Listen, bound *Addresses) error {
	for _, p := range []struct {
		name, addr string
		to         *net.Listener
		bound      *string
	}{
		{"grpc", at.GRPC, &l.grpc, &bound.GRPC},
		{"http", at.HTTP, &l.http, &bound.HTTP},
		{"resp", at.RESP, &l.resp, &bound.RESP},
		{"admin", at.Admin, &l.admin, &bound.Admin},
	} {
		if p.addr == "" {
			continue
		}
		opened, err := open(ctx, listen, p.addr, at.Socket)
		if err != nil {
			l.close()
			return &PortError{Key: "listen." + p.name, Addr: p.addr, Err: err}
		}
		*p.to, *p.bound = s.listen(p.name, opened), opened.Addr().String()
	}
	return nil
}

// listen opens the configured ports and sets d.addrs. After an error no port is open.
func (d *Daemon) listen(ctx context.Context) error {
	if err := d.listeners.open(ctx, d.host.Listen, d.security, d.cfg.Listen, &d.addrs); err != nil {
		return err
	}
	d.addrs.AdvertisedGRPC = advertised(d.cfg.Advertise.GRPC, d.listeners.grpc)
	d.addrs.AdvertisedHTTP = advertised(d.cfg.Advertise.HTTP, d.listeners.http)
	d.addrs.AdvertisedConsole = d.cfg.AdvertisedConsole(advertised("", d.listeners.admin))
	if d.cfg.Listen.Gossip == "" {
		return nil
	}
	var err error
	d.gossip, d.addrs.Gossip, err = d.host.Gossip(d.gossipConfig())
	if err != nil {
		d.listeners.close()
		return &PortError{Key: "listen.gossip", Addr: d.cfg.Listen.Gossip, Err: err}
	}
	return nil
}

// open listens on a port, by listen, or on a Unix socket.
func open(ctx context.Context, listen func(context.Context, string, string) (net.Listener, error), addr string,
	s config.Socket) (net.Listener, error) {
	if unixsocket.Is(addr) {
		return unixsocket.Listen(ctx, unixsocket.Config{Addr: addr, Mode: s.Mode, Group: s.Group})
	}
	return listen(ctx, "tcp", addr)
}

// advertised returns the address for other nodes and clients: the configured one, else
// the bound one, with the host's name instead of "any address"; "" of a Unix socket and of none.
func advertised(configured string, l net.Listener) string {
	if l == nil {
		return ""
	}
	bound := l.Addr()
	if configured != "" || unixsocket.Is(bound.String()) {
		return configured
	}
	tcp, ok := bound.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return bound.String()
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return net.JoinHostPort(host, fmt.Sprint(tcp.Port))
}
