package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-sockaddr"
	"github.com/hashicorp/memberlist"
)

// The library's types that whoever carries packets needs: its own import of the
// library stays the only one.
type (
	Transport = memberlist.NodeAwareTransport
	Packet    = memberlist.Packet
	Address   = memberlist.Address
)

// socket is the UDP and TCP transport. memberlist has one, which reads each packet
// into 64 KiB of its own, hands over whatever connects, and has no end for dials
// under way. This one passes on what [framing] and [intake] let through, and drops
// packets after Shutdown: the library still sends while it leaves.
type socket struct {
	tcp       *net.TCPListener
	udp       *net.UDPConn
	advertise netip.AddrPort
	running   context.Context // It ends with Shutdown.
	end       context.CancelFunc
	lines     *lineLog

	framing *framing // It is set by serve.
	intake  intake
	streams chan net.Conn
	packets chan *Packet
	dropped dropped
	working sync.WaitGroup
}

// Listen binds cfg.Bind and returns a transport for [Config.Transport] and the
// ip:port for peers, before a Cluster exists: a node registers its address
// before it knows the pool. Packets wait until the Cluster runs, which then owns
// the transport; one that is never run must be shut down.
//
// Of cfg it uses Bind, Advertise, Keys, Insecure, Local and Logger. It
// returns ErrNoKey.
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
		lines:   lines,
		streams: make(chan net.Conn),
		packets: make(chan *Packet),
	}
	// With port 0 the system gives a port for TCP, and UDP may find it taken.
	for range 10 {
		if err = s.bind(bind); err == nil || bind.Port() != 0 {
			break
		}
	}
	if err == nil {
		err = s.setAdvertised(cfg.Advertise)
	}
	if err != nil {
		if s.tcp != nil {
			_, _ = s.tcp.Close(), s.udp.Close()
		}
		return nil, "", fmt.Errorf("cluster: listen: %w", err)
	}
	s.running, s.end = context.WithCancel(context.Background())
	return s, s.advertise.String(), nil
}

// bind opens both sockets on one port, or none.
func (s *socket) bind(at netip.AddrPort) error {
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	port := tcp.Addr().(*net.TCPAddr).AddrPort().Port()
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), port)))
	if err != nil {
		return errors.Join(err, tcp.Close())
	}
	// A burst is every peer asking at once. The system may allow less.
	for size := receiveBuffer; size > 0 && udp.SetReadBuffer(size) != nil; size /= 2 {
	}
	s.tcp, s.udp = tcp, udp
	return nil
}

// receiveBuffer is what the system is asked to keep of packets that came, in bytes.
const receiveBuffer = 2 << 20

func (s *socket) setAdvertised(advertise string) error {
	bound := s.tcp.Addr().(*net.TCPAddr).AddrPort()
	s.advertise = netip.AddrPortFrom(bound.Addr().Unmap(), bound.Port())
	var err error
	if bound.Addr().IsUnspecified() {
		var private string
		if private, err = sockaddr.GetPrivateIP(); err == nil {
			var ip netip.Addr
			if ip, err = netip.ParseAddr(private); err == nil {
				s.advertise = netip.AddrPortFrom(ip, bound.Port())
			}
		}
	}
	if advertise == "" {
		if err != nil {
			return fmt.Errorf("no address to advertise: the machine has no private address (%w); "+
				"set advertise.gossip", err)
		}
		return nil
	}
	a, err := parseAddress(advertise)
	if err != nil {
		return fmt.Errorf("address to advertise: %w; correct advertise.gossip", err)
	}
	if a.Port() == 0 {
		a = netip.AddrPortFrom(a.Addr(), bound.Port())
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
	to, err := net.ResolveUDPAddr("udp", a.Addr)
	if err != nil {
		return time.Time{}, err
	}
	if _, err = s.udp.WriteTo(b, to); errors.Is(err, net.ErrClosed) && s.running.Err() != nil {
		err = nil
	}
	// memberlist wants the time for a delegate that we do not have.
	return time.Time{}, err
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
	return &dialed{Conn: conn, in: io.LimitReader(conn, maxStream), stop: stop}, nil
}

// dialed is a connection to a peer. Its answer is bounded like a stream.
type dialed struct {
	net.Conn
	in   io.Reader
	stop func() bool
}

func (d *dialed) Read(b []byte) (int, error) { return d.in.Read(b) }

func (d *dialed) Close() error {
	d.stop()
	return d.Conn.Close()
}

// serve passes packets and streams of a space on. Until then they wait in the system.
func (s *socket) serve(f *framing) {
	s.framing = f
	s.working.Go(s.takeStreams)
	s.working.Go(s.takePackets)
}

// StreamCh gives memberlist the streams that were let through.
func (s *socket) StreamCh() <-chan net.Conn { return s.streams }

// PacketCh gives memberlist the packets that were let through.
func (s *socket) PacketCh() <-chan *Packet { return s.packets }

// takeStreams accepts connections.
func (s *socket) takeStreams() {
	for pause := time.Duration(0); ; {
		conn, err := s.tcp.Accept()
		if err != nil {
			// The process may have no more files to open, which may pass.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-s.running.Done():
				return
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		st := s.intake.admit(conn)
		s.working.Go(func() {
			if err := s.let(st); err != nil {
				s.refused(st.from, err)
			}
		})
	}
}

// let passes a stream on that proves to be a peer's in time. Else it closes it and
// returns why.
func (s *socket) let(st *stream) error {
	late := time.AfterFunc(streamTime, func() { st.end(errTooSlow) })
	defer late.Stop()
	if err := st.examine(s.framing); err != nil {
		return err
	}
	select {
	case s.streams <- st:
		return nil
	case <-s.running.Done():
		st.end(errShutdown)
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

// takePackets reads packets.
func (s *socket) takePackets() {
	buf := make([]byte, 64<<10)
	for s.running.Err() == nil {
		n, from, err := s.udp.ReadFrom(buf)
		if err != nil {
			continue // An earlier packet reached nobody, or the socket is closed.
		}
		if !s.framing.passes(buf[:n]) {
			s.dropped[packetInvalid].Add(1)
			continue
		}
		select {
		case s.packets <- &Packet{Buf: slices.Clone(buf[:n]), From: from}:
		case <-s.running.Done():
		}
	}
}

// Shutdown closes the sockets and breaks what was dialled.
func (s *socket) Shutdown() error {
	s.end()
	_, _ = s.tcp.Close(), s.udp.Close() // A second call finds them closed.
	s.intake.endAll()
	s.working.Wait()
	return nil
}
