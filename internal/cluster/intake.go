package cluster

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Bounds of what senders without the key can make this node hold. The library reads a
// sealed stream whole, up to 20 MiB, before it opens it.
const (
	// maxStreams bounds streams that are open at once.
	maxStreams = 64

	// maxStream is how many bytes may come on one stream. 1,024 members with long names
	// and addresses have 1 KiB each.
	maxStream = 1 << 20

	// maxHeld bounds the bytes of all streams together.
	maxHeld = 8 << 20

	// streamTime is how long a message may take to come whole; peers give up after it.
	streamTime = 3 * time.Second
)

// Errors for which the intake ends a stream.
var (
	errTooMany  = errors.New("too many connections, or too many bytes on them")
	errTooSlow  = errors.New("it did not come whole in time")
	errShutdown = errors.New("this node is stopping")
)

// intake bounds the incoming streams. Where one is too many, the source with most of
// them loses its oldest. Those of nodes end within a round trip or two, so idle ones do
// not keep them out.
type intake struct {
	mu   sync.Mutex // It guards what follows, and the fields of streams that say so.
	open []*stream  // They are in the order in which they came.
	held int        // This many bytes came on them.
}

// stream is an accepted connection. The library reads it once it was examined.
type stream struct {
	net.Conn
	from   netip.Prefix
	intake *intake
	rest   io.Reader

	// Guarded by intake.mu.
	held  int
	ended error // The intake closed it for this reason.
}

// admit returns the stream of a connection that was accepted.
func (in *intake) admit(conn net.Conn) *stream {
	s := &stream{Conn: conn, from: source(conn.RemoteAddr()), intake: in}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.open = append(in.open, s)
	if len(in.open) <= maxStreams {
		return s
	}
	open := map[netip.Prefix]int{}
	for _, o := range in.open {
		open[o.from]++
	}
	victim := in.open[0]
	for _, o := range in.open {
		if open[o.from] > open[victim.from] {
			victim = o
		}
	}
	in.end(victim, errTooMany)
	return s
}

// end closes s and forgets it.
func (in *intake) end(s *stream, why error) {
	if s.ended != nil {
		return
	}
	s.ended = why
	_ = s.Conn.Close()
	if i := slices.Index(in.open, s); i >= 0 {
		in.open = slices.Delete(in.open, i, i+1)
		in.held -= s.held
	}
}

// hold counts n bytes more on s. If they are too many, the stream with most of them
// ends. It returns why s ended, if it did.
func (in *intake) hold(s *stream, n int) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	s.held += n
	in.held += n
	for in.held > maxHeld && s.ended == nil {
		in.end(slices.MaxFunc(in.open, func(a, b *stream) int { return cmp.Compare(a.held, b.held) }), errTooMany)
	}
	return s.ended
}

// endAll closes all streams.
func (in *intake) endAll() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.open) > 0 {
		in.end(in.open[0], errShutdown)
	}
}

// end closes s for a reason.
func (s *stream) end(why error) {
	s.intake.mu.Lock()
	defer s.intake.mu.Unlock()
	s.intake.end(s, why)
}

// examine lets the library read s if its beginning is that of a node's message. Else it
// closes s and returns why.
func (s *stream) examine(f *framing) error {
	in := io.LimitReader(counted{s}, maxStream)
	seen, err := f.examine(in)
	s.intake.mu.Lock()
	defer s.intake.mu.Unlock()
	if err != nil {
		s.intake.end(s, err)
	}
	if s.ended != nil {
		return s.ended
	}
	s.rest = io.MultiReader(bytes.NewReader(seen.Bytes()), in)
	return nil
}

// counted reads a stream's connection and counts what comes.
type counted struct{ s *stream }

func (c counted) Read(b []byte) (int, error) {
	n, err := c.s.Conn.Read(b)
	if ended := c.s.intake.hold(c.s, n); ended != nil {
		return 0, ended
	}
	return n, err
}

// Read gives the library what was examined, and what comes behind it.
func (s *stream) Read(b []byte) (int, error) { return s.rest.Read(b) }

// Close is called by the library.
func (s *stream) Close() error {
	s.end(net.ErrClosed)
	return nil
}

// source is what is counted as one sender: an address, or of IPv6 a network of
// 64 bits, which one machine may use all of.
func source(a net.Addr) netip.Prefix {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip := ap.Addr().Unmap().WithZone("")
	p, _ := ip.Prefix(min(ip.BitLen(), 64))
	return p
}
