package netswitch

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// Proto is a protocol over IP.
type Proto uint8

// The protocols that have ports.
const (
	TCP Proto = 6
	UDP Proto = 17
)

// Match selects the packets of a fault. The zero value selects all.
type Match struct {
	Proto Proto    // 0: any
	Ports []uint16 // one of them is at either end; none: any. Later fragments of a packet have no ports
}

// packet is an IPv4 packet as far as the switch reads it.
type packet struct {
	data     []byte
	src, dst [4]byte
	proto    Proto
	header   int // bytes of the IP header
	whole    bool
	from, to uint16 // ports; 0 where there are none
	payload  int    // offset of what a program sent; len(data): nothing
}

// parse reads a packet; ok is false for what is no whole IPv4 packet.
func parse(data []byte) (p packet, ok bool) {
	if len(data) < 20 || data[0]>>4 != 4 {
		return packet{}, false
	}
	p = packet{data: data, header: int(data[0]&15) * 4, proto: Proto(data[9]), payload: len(data)}
	if total := int(binary.BigEndian.Uint16(data[2:])); p.header < 20 || total != len(data) || p.header > total {
		return packet{}, false
	}
	copy(p.src[:], data[12:])
	copy(p.dst[:], data[16:])
	const offsetAndMore = 0x3fff
	fragment := binary.BigEndian.Uint16(data[6:]) & offsetAndMore
	p.whole = fragment == 0
	if fragment&0x1fff != 0 {
		return p, true // this fragment has no ports
	}
	switch body := data[p.header:]; {
	case p.proto == TCP && len(body) >= 20:
		p.from, p.to = binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:])
		p.payload = min(p.header+int(body[12]>>4)*4, len(data))
	case p.proto == UDP && len(body) >= 8:
		p.from, p.to = binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:])
		p.payload = p.header + 8
	}
	return p, true
}

// admits reports whether m is about p.
func (m Match) admits(p packet) bool {
	if m.Proto != 0 && m.Proto != p.proto {
		return false
	}
	return len(m.Ports) == 0 || p.from != 0 && (slices.Contains(m.Ports, p.from) || slices.Contains(m.Ports, p.to))
}

// corrupt turns one bit behind the IP header over, and leaves the checksum wrong.
func (p packet) corrupt(r *rand.Rand) bool {
	if p.header >= len(p.data) {
		return false
	}
	p.data[p.header+r.IntN(len(p.data)-p.header)] ^= 1 << r.IntN(8)
	return true
}

// forge turns one bit of what a program sent over and repairs the checksum, so
// that no kernel notices. It does so to whole packets of TCP and UDP.
func (p packet) forge(r *rand.Rand) bool {
	if !p.whole || p.payload >= len(p.data) || p.from == 0 {
		return false
	}
	p.data[p.payload+r.IntN(len(p.data)-p.payload)] ^= 1 << r.IntN(8)
	p.sum()
	return true
}

// sum writes the checksum of a whole packet of TCP or UDP (RFC 9293, RFC 768).
func (p packet) sum() {
	body, at := p.data[p.header:], 16
	if p.proto == UDP {
		at = 6
	}
	binary.BigEndian.PutUint16(body[at:], 0)
	sum := add(0, p.src[:])
	sum = add(sum, p.dst[:])
	sum += uint32(p.proto) + uint32(len(body))
	sum = add(sum, body)
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	checksum := ^uint16(sum)
	if checksum == 0 && p.proto == UDP {
		checksum = 0xffff // zero would mean that there is none
	}
	binary.BigEndian.PutUint16(body[at:], checksum)
}

// add adds the 16-bit words of b. A packet has fewer than 2^15 of them, so 32 bits
// do not overflow.
func add(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}
