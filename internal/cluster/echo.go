package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
)

// Messages are one datagram each. The first byte is the version: a message of
// another version is dropped whole, so that a later format may change anything
// behind it. All integers are big-endian.
//
//	ping  version kind from:16 nonce:8 t1:8
//	pong  version kind instance:16 nonce:8 t1:8 hold:8 raw:8 issuing-raw:8 wall-raw:8
//	      kernel:1 verdict:1 sid:4 term:8 era:8 cluster:8 revision:8
//	      ceiling:8 length:1 node:length
//	ask     version kind from:16 nonce:8 t1:8
//	report  version kind instance:16 nonce:8 said
const (
	echoVersion = 1

	kindPing = 1
	kindPong = 2

	kindAsk    = 3
	kindReport = 4

	pingSize    = 2 + 16 + 8 + 8
	pongMinimum = pingSize + 4*8 + 1 + 1 + 4 + 5*8 + 1 // with an empty node name

	// headSize is that of the version, the kind, the instance and the nonce.
	headSize = 2 + 16 + 8
	// maxMessage bounds what is decoded, in bytes: a pong with the longest name. With the seal and a label of 100
	// bytes the datagram fits the smallest MTU of IPv6.
	maxMessage = pongMinimum + 255
	// maxNode is the length of a DNS name, which pods are named by.
	maxNode = 253
)

const (
	// maxRoundTrip is the longest echo that counts: a slower one bounds the
	// peer's clock worse than the threshold it is compared with.
	maxRoundTrip = time.Second

	maxRaw     = 1 << 60                   // ns: 36 years of uptime
	maxDelta   = math.MaxInt64 - maxRaw    // ns: the year 2225, and no sum with a raw clock overflows
	maxSID     = 1<<22 - 1                 // The widest layout has 22 bits of sid.
	maxCeiling = clock.Millis(1) << 45     // ms: 1970 to beyond the last flake of any epoch
	maxVerdict = clock.State(1<<4 - 1)     // room for states of later versions
	maxRecord  = int64(math.MaxInt64) >> 8 // terms, eras, revisions: more than can be written in a lifetime
)

// kernels are the kernel's answers as sent, by their place. A later version's is
// taken for none.
var kernels = [...]clock.Sync{clock.SyncUnknown, clock.Synchronized, clock.Unsynchronized}

// ping asks a peer for its clocks.
type ping struct {
	From  uuid.UUID
	Nonce uint64
	T1    int64 // sender's raw clock when it sent this; comes back unchanged
}

// pong answers a ping.
type pong struct {
	Instance uuid.UUID
	Node     string
	Nonce    uint64
	T1       int64
	Hold     time.Duration // between receiving the ping and reading Clocks
	Clocks   clock.Snapshot
	Status   agreement.Status
}

// Errors of decode. The message is to be dropped and counted.
var (
	errVersion   = errors.New("cluster: message of another version")
	errMalformed = errors.New("cluster: malformed message")
)

// appendPing appends p's message to b.
func appendPing(b []byte, p ping) []byte {
	b = append(b, echoVersion, kindPing)
	b = append(b, p.From[:]...)
	b = binary.BigEndian.AppendUint64(b, p.Nonce)
	return binary.BigEndian.AppendUint64(b, uint64(p.T1))
}

// appendPong appends p's message to b. It returns errMalformed for a p that
// decode would refuse: a wrong reading is better noticed here than by every peer.
func appendPong(b []byte, p pong) ([]byte, error) {
	if err := p.check(); err != nil {
		return b, err
	}
	u64 := binary.BigEndian.AppendUint64
	b = append(b, echoVersion, kindPong)
	b = append(b, p.Instance[:]...)
	b = u64(b, p.Nonce)
	b = u64(b, uint64(p.T1))
	b = u64(b, uint64(p.Hold))
	b = u64(b, uint64(p.Clocks.Raw))
	b = u64(b, uint64(p.Clocks.Issuing))
	b = u64(b, uint64(p.Clocks.Wall))
	s := p.Status
	b = append(b, byte(slices.Index(kernels[:], p.Clocks.Kernel)))
	b = append(b, byte(s.Verdict))
	b = binary.BigEndian.AppendUint32(b, uint32(int32(s.SID)))
	b = u64(b, uint64(s.Term))
	b = u64(b, uint64(s.Era))
	b = u64(b, s.Cluster)
	b = u64(b, uint64(s.Revision))
	b = u64(b, uint64(s.Ceiling))
	b = append(b, byte(len(p.Node)))
	return append(b, p.Node...), nil
}

// decode reads a message: the result is a ping, pong, ask or report. It keeps no reference to b.
//
// It returns errVersion or errMalformed; the result is then nil.
func decode(b []byte) (any, error) {
	if len(b) == 0 || len(b) > maxMessage {
		return nil, fmt.Errorf("%w: %d bytes", errMalformed, len(b))
	}
	if b[0] != echoVersion {
		return nil, fmt.Errorf("%w: %d, this binary speaks %d", errVersion, b[0], echoVersion)
	}
	if len(b) < headSize {
		return nil, fmt.Errorf("%w: %d bytes", errMalformed, len(b))
	}
	kind, r := b[1], reader(b[2:])
	switch kind {
	case kindPing, kindAsk:
		if len(b) != pingSize {
			return nil, fmt.Errorf("%w: ping of %d bytes", errMalformed, len(b))
		}
		p := ping{From: r.uuid(), Nonce: r.u64(), T1: r.i64()}
		if err := p.check(); err != nil {
			return nil, err
		}
		if kind == kindAsk {
			return ask(p), nil
		}
		return p, nil
	case kindReport:
		return report{Instance: r.uuid(), Nonce: r.u64(), Said: bytes.Clone(r)}, nil
	case kindPong:
		if len(b) < pongMinimum || len(b) != pongMinimum+int(b[pongMinimum-1]) {
			return nil, fmt.Errorf("%w: pong of %d bytes", errMalformed, len(b))
		}
		p := pong{Instance: r.uuid(), Nonce: r.u64(), T1: r.i64(), Hold: time.Duration(r.i64())}
		p.Clocks = clock.Snapshot{Raw: r.i64(), Issuing: r.i64(), Wall: r.i64()}
		if k := int(r.u8()); k < len(kernels) {
			p.Clocks.Kernel = kernels[k]
		}
		p.Status = agreement.Status{
			Verdict: clock.State(r.u8()), SID: int(int32(r.u32())),
			Term: r.i64(), Era: r.i64(), Cluster: r.u64(), Revision: r.i64(), Ceiling: clock.Millis(r.i64()),
		}
		p.Node = string(r[1:])
		if err := p.check(); err != nil {
			return nil, err
		}
		return p, nil
	}
	return nil, fmt.Errorf("%w: kind %d", errMalformed, kind)
}

func (p ping) check() error {
	if p.T1 < 0 || p.T1 > maxRaw {
		return fmt.Errorf("%w: t1 %d", errMalformed, p.T1)
	}
	return nil
}

// check holds every field to what a working node can say, so that nothing
// behind it needs to fear an overflow.
func (p pong) check() error {
	bad := func(what string, v any) error { return fmt.Errorf("%w: %s %v", errMalformed, what, v) }
	c, s := p.Clocks, p.Status
	switch {
	case p.T1 < 0 || p.T1 > maxRaw:
		return bad("t1", p.T1)
	case p.Hold < 0 || p.Hold > maxRoundTrip:
		return bad("hold", p.Hold)
	case c.Raw < 0 || c.Raw > maxRaw:
		return bad("raw clock", c.Raw)
	case !within(c.Issuing, maxDelta):
		return bad("issuing clock", c.Issuing)
	case !within(c.Wall, maxDelta):
		return bad("wall clock", c.Wall)
	case !slices.Contains(kernels[:], c.Kernel):
		return bad("kernel status", uint8(c.Kernel))
	case s.Verdict > maxVerdict:
		return bad("verdict", uint8(s.Verdict))
	case s.SID < -1 || s.SID > maxSID:
		return bad("sid", s.SID)
	case s.Term < 0 || s.Term > maxRecord:
		return bad("term", s.Term)
	case s.Era < 0 || s.Era > maxRecord:
		return bad("era", s.Era)
	case s.Revision < 0 || s.Revision > maxRecord:
		return bad("revision", s.Revision)
	case s.Ceiling < 0 || s.Ceiling > maxCeiling:
		return bad("ceiling", int64(s.Ceiling))
	case !validNode(p.Node):
		return bad("node name of length", len(p.Node))
	}
	return nil
}

func within(v, limit int64) bool { return -limit <= v && v <= limit }

// validNode reports whether s can name a node: 1–253 visible ASCII characters.
// The names come from other machines and end in logs.
func validNode(s string) bool {
	if len(s) == 0 || len(s) > maxNode {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// reader takes integers off the front of a message whose length was checked.
type reader []byte

func (r *reader) take(n int) []byte {
	b := (*r)[:n]
	*r = (*r)[n:]
	return b
}

func (r *reader) uuid() uuid.UUID { return uuid.UUID(r.take(16)) }
func (r *reader) u8() byte        { return r.take(1)[0] }
func (r *reader) u32() uint32     { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64     { return binary.BigEndian.Uint64(r.take(8)) }
func (r *reader) i64() int64      { return int64(r.u64()) }
