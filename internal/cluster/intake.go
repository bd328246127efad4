package cluster

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
)

// Bounds of what senders without the key can make this node hold. memberlist
// reads a sealed stream whole, up to 20 MiB, before it opens it, and believes the
// number of members that a stream in clear begins with. So it is given only
// streams whose seal was opened here, or in clear whose beginning was checked.
const (
	maxStreams = 64      // open at once
	maxFromOne = 32      // of them from one address: all nodes may run on one machine
	maxStream  = 1 << 20 // bytes that may come on one: 1,024 members with announcements of 1 KiB
	maxHeld    = 8 << 20 // bytes of all of them
	maxMembers = 4096    // in one message: a fleet, and the processes it was before a restart
	memberSize = 128     // bytes that the library allocates for each before it reads one
	maxHeader  = 128     // bytes of what stands before the members

	// streamTime is how long a message may take to come whole; peers give up after it.
	streamTime = 3 * time.Second

	// maxPacket is the longest datagram of a peer, in bytes: memberlist's own
	// 1,200, a label of 255, and the seal.
	maxPacket = 1500
)

// The kinds of memberlist's messages that are handled here.
const (
	kindLabel     = 244
	kindSealed    = 10
	kindProbe     = 0
	kindAck       = 2
	kindState     = 6
	kindCompound  = 7
	kindPacked    = 9
	kindChecksum  = 12
	kindError     = 13
	sealVersion   = 1 // of the protocol that this binary speaks
	checksumBytes = 5 // with its kind
)

// Errors for which a stream or packet is dropped.
var (
	errNothing  = errors.New("nothing was sent") // a port check
	errLabel    = errors.New("the label is of another space, or there is none")
	errClear    = errors.New("it is not encrypted")
	errSealed   = errors.New("it is encrypted, and this node has no key")
	errSeal     = errors.New("no key of this node opens it")
	errKind     = errors.New("nodes send no such message")
	errTooLong  = errors.New("it is longer than nodes need")
	errTooMany  = errors.New("too many connections, or too many bytes on them")
	errTooSlow  = errors.New("it did not come whole in time")
	errShutdown = errors.New("this node is stopping")
)

// seal is what the messages of one space are checked with.
type seal struct {
	label string
	ring  *memberlist.Keyring // nil: messages are in clear

	mu      sync.Mutex             // guards ciphers
	ciphers map[string]cipher.AEAD // by key
}

// intake bounds the incoming streams. Where one is too many, the source with most
// streams loses its oldest that has proved nothing: those of nodes prove
// themselves within a round trip, and newer ones are not kept out by idle ones.
type intake struct {
	mu   sync.Mutex // guards what follows, and the fields of streams that say so
	open []*stream  // in the order they came
	held int        // bytes that came on them
}

// stream is one connection of a peer, as memberlist is given it.
type stream struct {
	net.Conn
	from   netip.Prefix
	intake *intake       // nil: dialled by this node
	check  func() error  // before the first Read of memberlist; nil: was done
	rest   io.Reader     // what memberlist reads
	left   int           // bytes that may still come
	closed func()        // called by Close; may be nil
	gone   chan struct{} // closed when the intake closes it

	// Guarded by intake.mu.
	held   int
	proven bool  // its seal was opened
	ended  error // why the intake closed it
}

// admit returns the stream of a connection that was accepted.
func (in *intake) admit(conn net.Conn) *stream {
	s := &stream{Conn: conn, from: source(conn.RemoteAddr()), intake: in, left: maxStream, gone: make(chan struct{})}
	in.mu.Lock()
	defer in.mu.Unlock()
	of := map[netip.Prefix]int{}
	most := s.from
	for _, o := range in.open {
		of[o.from]++
		if of[o.from] > of[most] {
			most = o.from
		}
	}
	switch {
	case of[s.from] >= maxFromOne:
		in.shed(s, func(o *stream) bool { return o.from == s.from })
	case len(in.open) >= maxStreams:
		in.shed(s, func(o *stream) bool { return o.from == most })
	}
	if s.ended == nil {
		in.open = append(in.open, s)
	}
	return s
}

// shed ends the oldest stream of those that has proved nothing, else s.
func (in *intake) shed(s *stream, of func(*stream) bool) {
	for _, o := range in.open {
		if of(o) && !o.proven {
			in.end(o, errTooMany)
			return
		}
	}
	in.end(s, errTooMany)
}

// end closes s and forgets it.
func (in *intake) end(s *stream, why error) {
	if s.ended != nil {
		return
	}
	s.ended = why
	close(s.gone)
	_ = s.Conn.Close()
	for i, o := range in.open {
		if o == s {
			in.open = append(in.open[:i], in.open[i+1:]...)
			in.held -= s.held
			return
		}
	}
}

// hold counts n bytes more on s. If they are too many, the stream with most of
// those that have proved nothing ends. It returns why s ended, if it did.
func (in *intake) hold(s *stream, n int) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	s.held += n
	in.held += n
	for in.held > maxHeld && s.ended == nil {
		worst := s
		for _, o := range in.open {
			if !o.proven && (worst.proven || o.held > worst.held) {
				worst = o
			}
		}
		in.end(worst, errTooMany)
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

// why returns why the intake closed s, or err.
func (s *stream) why(err error) error {
	s.intake.mu.Lock()
	defer s.intake.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	return err
}

// end closes s for a reason.
func (s *stream) end(why error) {
	s.intake.mu.Lock()
	defer s.intake.mu.Unlock()
	s.intake.end(s, why)
}

// Read gives memberlist what was checked, and what comes behind it.
func (s *stream) Read(b []byte) (int, error) {
	if s.check != nil {
		check := s.check
		s.check = nil
		if err := check(); err != nil {
			s.rest = broken{err}
		}
	}
	return s.rest.Read(b)
}

// Close is called by memberlist.
func (s *stream) Close() error {
	if s.closed != nil {
		s.closed()
	}
	if s.intake == nil {
		return s.Conn.Close()
	}
	s.end(net.ErrClosed)
	return nil
}

// broken is what is read from a stream that was refused.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

// wire reads s's connection within its bounds.
type wire struct{ s *stream }

func (w wire) Read(b []byte) (int, error) {
	if w.s.left == 0 {
		return 0, errTooLong
	}
	n, err := w.s.Conn.Read(b[:min(len(b), w.s.left)])
	w.s.left -= n
	if w.s.intake != nil {
		if ended := w.s.intake.hold(w.s, n); ended != nil {
			return 0, ended
		}
	}
	return n, err
}

// examine reads the beginning of s: the label, if s was accepted, and a message
// sealed with one of the keys, or without keys the header of one in clear. What
// it read is read again by memberlist.
//
// It returns errNothing if the connection ended before the first byte, and else
// why the stream is refused.
func (s *stream) examine(of *seal) error {
	var seen bytes.Buffer
	in := io.TeeReader(wire{s}, &seen)
	if s.intake != nil {
		label := make([]byte, 2+len(of.label))
		if n, err := io.ReadFull(in, label[:2]); n == 0 {
			return errNothing
		} else if err != nil {
			return errLabel
		}
		if label[0] != kindLabel || int(label[1]) != len(of.label) {
			return errLabel
		}
		if _, err := io.ReadFull(in, label[2:]); err != nil {
			return err
		}
		if string(label[2:]) != of.label {
			return errLabel
		}
	}
	var kind [1]byte
	if _, err := io.ReadFull(in, kind[:]); err != nil {
		return err
	}
	if of.ring == nil {
		if kind[0] == kindSealed {
			return errSealed
		}
		if err := s.examineMessage(kind[0], in); err != nil {
			return err
		}
		s.rest = io.MultiReader(&seen, wire{s})
		return nil
	}
	if kind[0] != kindSealed {
		return errClear
	}
	head := append(kind[:], make([]byte, 4)...)
	if _, err := io.ReadFull(in, head[1:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if size > int64(s.left) {
		return errTooLong
	}
	// The buffer grows with what comes, not by what is announced.
	before := seen.Len()
	if _, err := io.CopyN(io.Discard, in, size); err != nil {
		return err
	}
	plain, err := of.open(seen.Bytes()[before:], append(head, of.label...))
	if err != nil {
		return err
	}
	if s.intake != nil {
		s.intake.mu.Lock()
		s.proven = true
		s.intake.mu.Unlock()
	}
	if err := s.examineMessage(plain[0], bytes.NewReader(plain[1:])); err != nil {
		return err
	}
	s.rest = &seen
	return nil
}

// examineMessage checks the kind of a message, and of a list of members how many
// there are: the library allocates for all of them at once.
func (s *stream) examineMessage(kind byte, in io.Reader) error {
	switch {
	case kind == kindState:
	case kind == kindProbe && s.intake != nil, kind == kindAck && s.intake == nil, kind == kindError && s.intake == nil:
		return nil
	default:
		return fmt.Errorf("%w: kind %d", errKind, kind)
	}
	var header struct{ Nodes, UserStateLen int }
	if err := codec.NewDecoder(io.LimitReader(in, maxHeader), &codec.MsgpackHandle{}).Decode(&header); err != nil {
		return fmt.Errorf("%w: %w", errKind, err)
	}
	if header.Nodes < 0 || header.Nodes > maxMembers || header.UserStateLen != 0 {
		return fmt.Errorf("%w: %d members, state of %d bytes", errTooLong, header.Nodes, header.UserStateLen)
	}
	if s.intake != nil {
		return s.intake.hold(s, header.Nodes*memberSize)
	}
	return nil
}

// open returns what is sealed in msg: a version, a nonce, and the ciphertext of
// AES-GCM. It returns errSeal if no key fits, or nothing was sealed.
func (of *seal) open(msg, additional []byte) ([]byte, error) {
	for _, key := range of.ring.GetKeys() {
		gcm, err := of.prepared(key)
		if err != nil {
			return nil, err
		}
		if n := 1 + gcm.NonceSize(); len(msg) > n && msg[0] == sealVersion {
			if plain, err := gcm.Open(nil, msg[1:n], msg[n:], additional); err == nil && len(plain) > 0 {
				return plain, nil
			}
		}
	}
	return nil, errSeal
}

// prepared returns the cipher of a key, which costs more to make than to use.
func (of *seal) prepared(key []byte) (cipher.AEAD, error) {
	of.mu.Lock()
	defer of.mu.Unlock()
	if gcm := of.ciphers[string(key)]; gcm != nil {
		return gcm, nil
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	if len(of.ciphers) >= 2*maxKeys || of.ciphers == nil { // keys were changed
		of.ciphers = map[string]cipher.AEAD{}
	}
	of.ciphers[string(key)] = gcm
	return gcm, nil
}

// opens reports whether a packet has the label and is sealed with one of the keys, or
// is in clear and has nothing to unpack. memberlist says so of each one that it
// cannot open, and prepares every key again for each.
func (of *seal) opens(b []byte) bool {
	head := 2 + len(of.label)
	if len(b) < head || b[0] != kindLabel || string(b[2:head]) != of.label || int(b[1]) != len(of.label) {
		return false
	}
	if of.ring == nil {
		return !packed(b[head:])
	}
	_, err := of.open(b[head:], []byte(of.label))
	return err == nil
}

// packed reports whether a message in clear has something to unpack: 1 KiB of it
// can become 600 KiB, and nodes send none.
func packed(b []byte) bool {
	if len(b) >= checksumBytes && b[0] == kindChecksum {
		b = b[checksumBytes:]
	}
	if len(b) == 0 || b[0] != kindCompound {
		return len(b) > 0 && b[0] == kindPacked
	}
	if len(b) < 2 {
		return false
	}
	n := int(b[1])
	lengths := b[2:]
	if len(lengths) < 2*n {
		return false // the library drops it
	}
	parts := lengths[2*n:]
	for i := range n {
		size := int(binary.BigEndian.Uint16(lengths[2*i:]))
		if size > len(parts) {
			return false
		}
		if size > 0 && (parts[0] == kindPacked || parts[0] == kindCompound) {
			return true
		}
		parts = parts[size:]
	}
	return false
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
