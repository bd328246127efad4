package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// Addresses is where a node answers, as host:port.
type Addresses struct {
	GRPC, HTTP, RESP, Admin        string // listened on; "": there is no such door
	AdvertisedGRPC, AdvertisedHTTP string // told to others; "": there is no such door
	Gossip                         string // told to others; "": there is none
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

// PortError says that a node cannot listen where it was told to.
type PortError struct {
	Key  string // the setting that names the address
	Addr string
	Err  error
}

// Error says what to change.
func (e *PortError) Error() string {
	if errors.Is(e.Err, syscall.EADDRINUSE) {
		return fmt.Sprintf("daemon: %s is in use by another process: stop that, or set %s to another address", e.Addr, e.Key)
	}
	return fmt.Sprintf("daemon: %s: %v", e.Key, e.Err)
}

// Unwrap returns the cause.
func (e *PortError) Unwrap() error { return e.Err }

// listen opens the ports that are configured and sets d.addrs. After an error none is open.
func (d *Daemon) listen(ctx context.Context) error {
	var unsaid string
	for _, p := range []struct {
		key, addr, advertise string
		to                   *net.Listener
		bound, advertised    *string
	}{
		{"listen.grpc", d.cfg.Listen.GRPC, d.cfg.Advertise.GRPC, &d.listeners.grpc, &d.addrs.GRPC, &d.addrs.AdvertisedGRPC},
		{"listen.http", d.cfg.Listen.HTTP, d.cfg.Advertise.HTTP, &d.listeners.http, &d.addrs.HTTP, &d.addrs.AdvertisedHTTP},
		{"listen.resp", d.cfg.Listen.RESP, "", &d.listeners.resp, &d.addrs.RESP, &unsaid},
		{"listen.admin", d.cfg.Listen.Admin, "", &d.listeners.admin, &d.addrs.Admin, &unsaid},
	} {
		if p.addr == "" {
			continue
		}
		l, err := d.host.Listen(ctx, "tcp", p.addr)
		if err != nil {
			d.listeners.close()
			return &PortError{Key: p.key, Addr: p.addr, Err: err}
		}
		most := d.cfg.Limit.Connections
		if p.key == "listen.resp" {
			most = 0 // package resp says in words that there is no room
		}
		*p.to = d.security.watch(strings.TrimPrefix(p.key, "listen."), l, most)
		*p.bound, *p.advertised = l.Addr().String(), advertised(p.advertise, l.Addr())
	}
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

// advertised returns the address to tell others: the one configured, else the
// one bound, with the host's name in place of "any address".
func advertised(configured string, bound net.Addr) string {
	if configured != "" {
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
