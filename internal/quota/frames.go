package quota

import (
	"encoding/binary"
	"net"
	"sync"
)

// Bytes that calls over HTTP/2 hold.
const (
	callBytes   = 4 << 10  // of an open call: its goroutine and contexts
	fieldFactor = 16       // of each byte of a header block; an entry of one byte is a whole field
	maxFields   = 16 << 10 // of all fields of a call
	messageCost = 320      // of each message, besides its bytes: the answer that waits to be sent
	maxHeld     = 2 << 20  // of the calls of a connection: beyond it the connection is closed
)

// Types and flags of frames.
//
// Source: RFC 9113, section 6.
const (
	typeData         = 0x0
	typeHeaders      = 0x1
	typeReset        = 0x3
	typeWindowUpdate = 0x8
	flagEndStream    = 0x1

	preface     = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	frameHeader = 9
)

// Frames returns nc, which is c or has TLS on top of c, as a connection that speaks
// HTTP/2 as a server. The frames that pass are counted: those of the client cost
// tokens, and open calls hold memory until their last frame is written.
func (c *Conn) Frames(nc net.Conn) net.Conn {
	return &framed{Conn: nc, c: c, calls: map[uint32]call{}, in: reader{skip: preface}}
}

// framed is a connection whose frames are counted.
type framed struct {
	net.Conn
	c *Conn

	mu    sync.Mutex // guards all below
	in    reader
	out   reader
	calls map[uint32]call // open
	held  int64           // by them
}

// call is what an open call holds.
type call struct {
	fixed    int64 // the call and its fields
	bytes    int64 // of messages that the handler has not read
	messages int64 // that have no answer on the wire
}

func (c call) held() int64 { return c.fixed + c.bytes + messageCost*c.messages }

// Read reads, and counts the frames of the client.
func (f *framed) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if n > 0 {
		f.mu.Lock()
		before, cost := f.held, int64(0)
		f.in.feed(b[:n], func(h frame) {
			cost += CostFrame
			f.received(h)
		})
		change := f.held - before
		tooMuch := f.held > maxHeld
		f.mu.Unlock()
		f.c.Charge(cost)
		f.c.Hold(change)
		if tooMuch {
			f.c.end(Memory)
		}
	}
	return n, err
}

// Write writes, and counts the frames of the server.
func (f *framed) Write(b []byte) (int, error) {
	n, err := f.Conn.Write(b)
	if n > 0 {
		f.mu.Lock()
		before := f.held
		f.out.feed(b[:n], f.sent)
		change := f.held - before
		f.mu.Unlock()
		if change != 0 {
			f.c.Hold(change)
		}
	}
	return n, err
}

// received counts a frame of the client; f.mu is held.
func (f *framed) received(h frame) {
	switch h.kind {
	case typeHeaders:
		if _, open := f.calls[h.stream]; !open {
			n := call{fixed: callBytes + min(fieldFactor*h.length, maxFields)}
			f.calls[h.stream] = n
			f.held += n.held()
		}
	case typeData:
		if n, open := f.calls[h.stream]; open {
			n.bytes += h.length
			n.messages++
			f.calls[h.stream] = n
			f.held += h.length + messageCost
		}
	case typeReset:
		f.close(h.stream)
	}
}

// sent counts a frame of the server; f.mu is held.
func (f *framed) sent(h frame) {
	switch h.kind {
	case typeReset:
		f.close(h.stream)
		return
	case typeHeaders, typeData:
		if h.flags&flagEndStream != 0 {
			f.close(h.stream)
			return
		}
	}
	if h.kind != typeData && h.kind != typeWindowUpdate {
		return
	}
	n, open := f.calls[h.stream]
	if !open {
		return
	}
	before := n.held()
	switch h.kind {
	case typeData: // an answer
		n.messages = max(n.messages-1, 0)
		if n.messages == 0 {
			n.bytes = 0
		}
	case typeWindowUpdate: // the handler has read a part
		n.bytes = max(n.bytes-int64(h.increment), 0)
	}
	f.held += n.held() - before
	f.calls[h.stream] = n
}

func (f *framed) close(stream uint32) {
	if n, open := f.calls[stream]; open {
		f.held -= n.held()
		delete(f.calls, stream)
	}
}

// frame is the header of a frame.
type frame struct {
	length    int64
	kind      byte
	flags     byte
	stream    uint32
	increment uint32 // of a WINDOW_UPDATE
}

// reader finds the headers of frames in a stream of bytes that arrives in parts.
type reader struct {
	skip int // bytes before the next header
	head [frameHeader + 4]byte
	have int // of head
}

// feed reads the next part and calls found for each frame.
func (r *reader) feed(b []byte, found func(frame)) {
	for len(b) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(b))
			b, r.skip = b[n:], r.skip-n
			continue
		}
		want := frameHeader
		if r.have >= frameHeader {
			want = r.want()
		}
		n := copy(r.head[r.have:want], b)
		b, r.have = b[n:], r.have+n
		if r.have < frameHeader || r.have < r.want() {
			continue
		}
		h := frame{
			length: r.length(), kind: r.head[3], flags: r.head[4],
			stream: binary.BigEndian.Uint32(r.head[5:]) & (1<<31 - 1),
		}
		if r.have > frameHeader {
			h.increment = binary.BigEndian.Uint32(r.head[frameHeader:]) & (1<<31 - 1)
		}
		r.skip, r.have = int(h.length)-(r.have-frameHeader), 0
		found(h)
	}
}

func (r *reader) length() int64 {
	return int64(r.head[0])<<16 | int64(r.head[1])<<8 | int64(r.head[2])
}

// want is how much of a frame head has to hold: the increment of a WINDOW_UPDATE too.
func (r *reader) want() int {
	if r.head[3] == typeWindowUpdate && r.length() == 4 {
		return frameHeader + 4
	}
	return frameHeader
}
