package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// The library's types that whoever carries packets needs: its own import of the
// library stays the only one.
type (
	Transport = memberlist.NodeAwareTransport
	Packet    = memberlist.Packet
	Address   = memberlist.Address
)

// socket is memberlist's UDP and TCP transport. It differs in what address it
// advertises, and in that its Shutdown ends dials that are under way and drops
// packets: the library still sends while it leaves, and logs each as an error.
type socket struct {
	*memberlist.NetTransport
	advertise netip.AddrPort
	dialling  context.Context // ends with Shutdown
	end       context.CancelFunc
	lines     *lineLog
}

// Listen binds cfg.Bind and returns a transport for [Config.Transport] and the
// ip:port for peers, before a Cluster exists: a node registers its address
// before it knows the pool. Packets wait until the Cluster runs, which then owns
// the transport; one that is never run must be shut down.
//
// Of cfg it uses Bind, Advertise, KeyFile, Insecure, Local and Logger. It
// returns ErrNoKey, reading no key.
func Listen(cfg Config) (Transport, string, error) {
	cfg = cfg.withDefaults()
	return listen(cfg, newLineLog(cfg.Logger, rawOf(cfg.Local)))
}

func listen(cfg Config, lines *lineLog) (Transport, string, error) {
	cfg.Transport = nil
	if err := cfg.validateListen(); err != nil {
		return nil, "", err
	}
	bind, err := parseAddress(cfg.Bind)
	if err != nil {
		return nil, "", fmt.Errorf("cluster: Bind: %w", err)
	}
	s := &socket{lines: lines}
	s.dialling, s.end = context.WithCancel(context.Background())
	// With port 0 the system gives a port for TCP, and UDP may find it taken.
	for range 10 {
		s.NetTransport, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{bind.Addr().String()}, BindPort: int(bind.Port()), Logger: s.lines.logger(),
		})
		if err == nil || bind.Port() != 0 {
			break
		}
	}
	if err != nil {
		s.end()
		return nil, "", fmt.Errorf("cluster: listen: %w", err)
	}
	if err := s.setAdvertised(cfg.Advertise); err != nil {
		_ = s.Shutdown()
		return nil, "", err
	}
	return s, s.advertise.String(), nil
}

func (s *socket) setAdvertised(advertise string) error {
	ip, port, err := s.NetTransport.FinalAdvertiseAddr("", 0)
	if err == nil {
		addr, _ := netip.AddrFromSlice(ip)
		s.advertise = netip.AddrPortFrom(addr.Unmap(), uint16(port))
	}
	if advertise == "" {
		if err != nil {
			return fmt.Errorf("cluster: no address to advertise: %w; set advertise.gossip", err)
		}
		return nil
	}
	a, err := parseAddress(advertise)
	if err != nil {
		return fmt.Errorf("cluster: Advertise: %w", err)
	}
	if a.Port() == 0 {
		a = netip.AddrPortFrom(a.Addr(), uint16(s.GetAutoBindPort()))
	}
	s.advertise = a
	return nil
}

// FinalAdvertiseAddr returns the address that Listen settled.
func (s *socket) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return net.IP(s.advertise.Addr().AsSlice()), int(s.advertise.Port()), nil
}

// WriteTo sends a packet to addr.
func (s *socket) WriteTo(b []byte, addr string) (time.Time, error) {
	return s.WriteToAddress(b, Address{Addr: addr})
}

// WriteToAddress sends a packet to a peer, and none after Shutdown.
func (s *socket) WriteToAddress(b []byte, a Address) (time.Time, error) {
	at, err := s.NetTransport.WriteToAddress(b, a)
	if errors.Is(err, net.ErrClosed) && s.dialling.Err() != nil {
		return at, nil
	}
	return at, err
}

// DialTimeout connects to addr.
func (s *socket) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return s.DialAddressTimeout(Address{Addr: addr}, timeout)
}

// DialAddressTimeout connects to a peer; the connection breaks with Shutdown.
func (s *socket) DialAddressTimeout(a Address, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	conn, err := d.DialContext(s.dialling, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	return &dialled{Conn: conn, stop: context.AfterFunc(s.dialling, func() { _ = conn.Close() })}, nil
}

// Shutdown closes the sockets and breaks what was dialled.
func (s *socket) Shutdown() error {
	s.end()
	// It waits for its listeners, and one of them may be handing over a packet
	// that nobody takes, if this never ran.
	done := make(chan struct{})
	var taking sync.WaitGroup
	taking.Go(func() {
		for {
			select {
			case <-s.PacketCh():
			case conn := <-s.StreamCh():
				_ = conn.Close()
			case <-done:
				return
			}
		}
	})
	err := s.NetTransport.Shutdown()
	close(done)
	taking.Wait()
	return err
}

// dialled is a connection that forgets about the shutdown once it is closed.
type dialled struct {
	net.Conn
	stop func() bool
}

func (d *dialled) Close() error {
	d.stop()
	return d.Conn.Close()
}
