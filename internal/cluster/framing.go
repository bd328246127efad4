package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
)

// This file is all that the package knows of memberlist's wire format, beside the
// label, which the library itself writes. TestFraming compares it with the bytes that
// the library sends, and docs/decisions/callers.md says why it is needed.

// The kinds of memberlist's messages with which a stream of a node begins.
const (
	kindProbe  = 0
	kindState  = 6
	kindSealed = 10
)

// The kinds that have other messages inside, in packets.
const (
	kindCompound   = 7
	kindCompressed = 9
	kindChecksum   = 12

	// checksumHeader is the length of what stands before a message with a checksum.
	checksumHeader = 1 + 4
)

const (
	// sealedHeader is the length of what stands before a sealed message on a stream:
	// its kind and its size.
	sealedHeader = 1 + 4

	// maxMembers bounds a list of members in clear: the library allocates for as many as
	// the list announces. It is four times the largest layout.
	maxMembers = 4096

	// maxStateHeader is more than the header of a list of members has, in bytes.
	maxStateHeader = 128

	// maxPacket is the longest datagram of a node, in bytes: the library's 1,200, a label
	// of 255, and the seal.
	maxPacket = 1500
)

// Errors for which a stream is refused.
var (
	errNothing = errors.New("nothing was sent") // A port check ends so.
	errLabel   = errors.New("the label is of another space, or there is none")
	errClear   = errors.New("it is not encrypted")
	errSealed  = errors.New("it is encrypted, and this node has no key")
	errSeal    = errors.New("no key of this node opens it")
	errKind    = errors.New("nodes send no such message")
	errTooLong = errors.New("it is longer than nodes need")
)

// framing checks messages of one space before the library reads them.
type framing struct {
	label string
	head  []byte // Each stream and each packet begins with it.
	keys  *Keys  // If nil, messages are in clear.
}

func newFraming(label string, keys *Keys) *framing {
	head, _ := memberlist.AddLabelHeaderToPacket(nil, label) // Validate bounds the label.
	return &framing{label: label, head: head, keys: keys}
}

// examine reads the beginning of a stream from in: with keys a whole message, which
// one of them must open, and in clear the header of a message. It returns what it read.
//
// It returns errNothing if in ended before the first byte, and else why the stream is
// refused.
func (f *framing) examine(in io.Reader) (seen *bytes.Buffer, err error) {
	seen = &bytes.Buffer{}
	in = io.TeeReader(in, seen)
	head := make([]byte, len(f.head)+1)
	if _, err := io.ReadFull(in, head); errors.Is(err, io.EOF) {
		return nil, errNothing
	} else if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(head, f.head) {
		return nil, errLabel
	}
	switch kind := head[len(f.head)]; {
	case f.keys == nil && kind == kindSealed:
		return nil, errSealed
	case f.keys == nil:
		return seen, examineClear(kind, in)
	case kind != kindSealed:
		return nil, errClear
	}
	return seen, f.examineSealed(in, seen)
}

// examineSealed reads a sealed message behind its kind.
func (f *framing) examineSealed(in io.Reader, seen *bytes.Buffer) error {
	header := [sealedHeader]byte{kindSealed}
	if _, err := io.ReadFull(in, header[1:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(header[1:]))
	if size > maxStream {
		return errTooLong
	}
	// The buffer grows with what comes, not by what is announced.
	begin := seen.Len()
	if _, err := io.CopyN(io.Discard, in, size); err != nil {
		return err
	}
	return f.open(seen.Bytes()[begin:], append(header[:], f.label...))
}

// examineClear checks the kind of a message in clear, and the header of a list of members.
func examineClear(kind byte, in io.Reader) error {
	switch kind {
	case kindProbe:
		return nil
	case kindState:
	default:
		return fmt.Errorf("%w: kind %d", errKind, kind)
	}
	h, err := readStateHeader(in)
	if err != nil {
		return fmt.Errorf("%w: %w", errKind, err)
	}
	if h.Nodes < 0 || h.Nodes > maxMembers || h.UserStateLen != 0 {
		return fmt.Errorf("%w: %d members, state of %d bytes", errTooLong, h.Nodes, h.UserStateLen)
	}
	return nil
}

// stateHeader stands before a list of members. The library allocates for both of its
// numbers before it reads what they announce.
type stateHeader struct{ Nodes, UserStateLen int }

func readStateHeader(in io.Reader) (h stateHeader, err error) {
	err = codec.NewDecoder(io.LimitReader(in, maxStateHeader), &codec.MsgpackHandle{}).Decode(&h)
	return h, err
}

// open returns errSeal unless one of the keys opens msg: a version, a nonce, and the
// ciphertext of AES-GCM.
func (f *framing) open(msg, additional []byte) error {
	for _, gcm := range *f.keys.ciphers.Load() {
		n := 1 + gcm.NonceSize()
		if len(msg) < n {
			return errSeal
		}
		if plain, err := gcm.Open(nil, msg[1:n], msg[n:], additional); err == nil && len(plain) > 0 {
			return nil
		}
	}
	return errSeal
}

// passes reports whether the library is given a packet: it has the label and, where nodes
// have keys, one of them opens it. For each packet that it cannot open the library makes
// all ciphers again and formats a line of log, which costs it five times as much.
func (f *framing) passes(packet []byte) bool {
	msg, ok := bytes.CutPrefix(packet, f.head)
	if !ok || len(msg) == 0 || len(packet) > maxPacket {
		return false
	}
	if f.keys == nil {
		return !packed(msg)
	}
	return f.open(msg, []byte(f.label)) == nil
}

// packed reports whether the library would unpack a message of msg more than once, or
// decompress one: the result may be thousands of times as long, and be packed again. Nodes
// send at most one list of messages, with a checksum, and do not compress.
func packed(msg []byte) bool {
	if len(msg) >= checksumHeader && msg[0] == kindChecksum {
		msg = msg[checksumHeader:]
	}
	if len(msg) == 0 || msg[0] != kindCompound {
		return len(msg) > 0 && msg[0] == kindCompressed
	}
	if len(msg) < 2 || len(msg) < 2+2*int(msg[1]) {
		return false // The library drops it.
	}
	lengths, rest := msg[2:2+2*int(msg[1])], msg[2+2*int(msg[1]):]
	for ; len(lengths) > 0; lengths = lengths[2:] {
		n := int(binary.BigEndian.Uint16(lengths))
		if n > len(rest) {
			return false
		}
		if n > 0 && (rest[0] == kindCompound || rest[0] == kindCompressed) {
			return true
		}
		rest = rest[n:]
	}
	return false
}
