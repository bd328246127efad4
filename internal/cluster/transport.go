package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
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
// advertises, in that it passes on only what the bounds of [intake] let through,
// and in that its Shutdown ends dials that are under way and drops packets: the
// library still sends while it leaves, and logs each as an error.
type socket struct {
	*memberlist.NetTransport
	advertise netip.AddrPort
	running   context.Context // ends with Shutdown
	end       context.CancelFunc
	lines     *lineLog

	of      seal          // set before ready is closed
	ready   chan struct{} // a Cluster takes the streams and packets
	intake  intake
	streams chan net.Conn
	packets chan *Packet
	dropped dropped

	closing sync.Once
	stopped chan struct{} // the sockets are closed
	working sync.WaitGroup
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
	s := &socket{
		lines: lines, ready: make(chan struct{}), stopped: make(chan struct{}),
		streams: make(chan net.Conn), packets: make(chan *Packet),
	}
	s.running, s.end = context.WithCancel(context.Background())
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
	s.working.Go(s.takeStreams)
	s.working.Go(s.takePackets)
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
	if errors.Is(err, net.ErrClosed) && s.running.Err() != nil {
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
	conn, err := d.DialContext(s.running, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(s.running, func() { _ = conn.Close() })
	st := &stream{Conn: conn, left: maxStream, closed: func() { stop() }}
	st.check = func() error { return st.examine(s.of) } // of the answer
	return st, nil
}

// open lets packets and streams of a space through.
func (s *socket) open(of seal) {
	s.of = of
	close(s.ready)
}

// StreamCh gives memberlist the streams that were let through.
func (s *socket) StreamCh() <-chan net.Conn { return s.streams }

// PacketCh gives memberlist the packets that were let through.
func (s *socket) PacketCh() <-chan *Packet { return s.packets }

// takeStreams takes the connections that were accepted.
func (s *socket) takeStreams() {
	for {
		select {
		case conn := <-s.NetTransport.StreamCh():
			st := s.intake.admit(conn)
			s.working.Go(func() {
				if err := s.let(st); err != nil {
					st.end(err)
					s.refused(st.from, st.why(err))
				}
			})
		case <-s.stopped:
			return
		}
	}
}

// let passes a stream on that proves to be a peer's in time.
func (s *socket) let(st *stream) error {
	late := time.AfterFunc(streamTime, func() { st.end(errTooSlow) })
	defer late.Stop()
	select {
	case <-s.ready:
	case <-st.gone:
		return st.why(nil)
	}
	if err := st.examine(s.of); err != nil {
		return err
	}
	select {
	case s.streams <- st:
		return nil
	case <-s.running.Done():
		return errShutdown
	}
}

// refused counts a stream that was refused, and says so at most once a minute.
func (s *socket) refused(from netip.Prefix, why error) {
	var reason fault
	switch {
	case errors.Is(why, errNothing), errors.Is(why, errShutdown):
		return
	case errors.Is(why, errTooMany):
		reason = streamLimit
	case errors.Is(why, errTooSlow):
		reason = streamTimeout
	default:
		reason = streamInvalid
	}
	s.dropped[reason].Add(1)
	s.lines.refused(faultNames[reason], from.Addr().String(), why)
}

// takePackets takes the packets that came.
func (s *socket) takePackets() {
	select {
	case <-s.ready:
	case <-s.running.Done():
	}
	for {
		select {
		case p := <-s.NetTransport.PacketCh():
			if s.running.Err() != nil {
				continue
			}
			if len(p.Buf) > maxPacket || s.of.ring == nil && packed(p.Buf) {
				s.dropped[packetInvalid].Add(1)
				continue
			}
			p.Buf = slices.Clone(p.Buf) // it was read into 64 KiB, and may wait in a queue
			select {
			case s.packets <- p:
			case <-s.running.Done():
			}
		case <-s.stopped:
			return
		}
	}
}

// Shutdown closes the sockets and breaks what was dialled.
func (s *socket) Shutdown() error {
	var err error
	s.closing.Do(func() {
		s.end()
		err = s.NetTransport.Shutdown() // what its listeners still hand over is taken until stopped
		close(s.stopped)
		s.intake.endAll()
		s.working.Wait()
	})
	return err
}
