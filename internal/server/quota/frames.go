package quota

import (
	"encoding/binary"
	"net"
	"sync"
)

// Bytes that calls over HTTP/2 hold.
const (
	callBytes   = 4 << 10  // An open call holds these for its goroutine and contexts.
	fieldFactor = 16       // Each byte of a header block counts this often: an entry of one byte is a whole field.
	maxFields   = 16 << 10 // All fields of a call together count no more than this.
	messageCost = 128      // Each part of a message holds these besides its bytes.
	maxHeld     = 4 << 20  // A connection whose calls hold more is closed.
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
	f := &framed{Conn: nc, c: c, calls: map[uint32]*call{}, in: reader{skip: preface}}
	c.goAway = f.goAway
	return f
}

// goAway asks the client to open no further call on the connection, and to end it.
func (f *framed) goAway() {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	between := f.out.skip == 0 && f.out.have == 0
	f.mu.Unlock()
	if between {
		_, _ = f.Conn.Write(goAwayFrame)
	}
}

// goAwayFrame is a GOAWAY frame without an error: all calls that were opened are served.
var goAwayFrame = []byte{0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0}

// framed is a connection whose frames are counted.
type framed struct {
	net.Conn
	c *Conn

	writing sync.Mutex // held for each write; locked before mu

	mu       sync.Mutex // guards all below
	in       reader
	out      reader
	calls    map[uint32]*call // open
	last     *call            // The last frame was for this call; nil: none is known.
	free     []*call          // closed
	held     int64            // by calls
	reported int64            // c counts this many of the bytes held.
}

// call is what an open call holds.
type call struct {
	stream   uint32
	fixed    int64 // the call and its fields
	bytes    int64 // The handler has not read these bytes of messages.
	messages int64 // parts of them; an answer on the wire ends one
}

func (c *call) held() int64 { return c.fixed + c.bytes + messageCost*c.messages }

// Read reads, and counts the frames of the client.
func (f *framed) Read(b []byte) (int, error) {
	f.c.Pay()
	if f.c.calls.Load() == 0 {
		b = b[:min(len(b), unprovenRead)]
	}
	n, err := f.Conn.Read(b)
	if n > 0 {
		f.mu.Lock()
		cost := f.receive(b[:n])
		change, tooMuch := f.change(), f.held > maxHeld
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
	f.writing.Lock()
	defer f.writing.Unlock()
	n, err := f.Conn.Write(b)
	if n > 0 {
		f.mu.Lock()
		f.send(b[:n])
		change := f.change()
		f.mu.Unlock()
		f.c.Hold(change)
	}
	return n, err
}

// change returns by how much the bytes held have changed, or 0 while that is little;
// f.mu is held.
func (f *framed) change() int64 {
	change := f.held - f.reported
	if change < step && change > -step {
		return 0
	}
	f.reported = f.held
	return change
}

// call returns an open call, or nil; f.mu is held.
func (f *framed) call(stream uint32) *call {
	if f.last == nil || f.last.stream != stream {
		f.last = f.calls[stream]
	}
	return f.last
}

// receive counts what the client sent, and returns what it costs; f.mu is held.
func (f *framed) receive(b []byte) (cost int64) {
	for {
		h, rest, ok := f.in.next(b)
		if !ok {
			return cost
		}
		cost += CostFrame * (1 + h.length/512)
		f.received(h)
		b = rest
	}
}

// send counts what the server sent; f.mu is held.
func (f *framed) send(b []byte) {
	for {
		h, rest, ok := f.out.next(b)
		if !ok {
			return
		}
		f.sent(h)
		b = rest
	}
}

// received counts a frame of the client; f.mu is held.
func (f *framed) received(h frame) {
	switch h.kind {
	case typeHeaders:
		if f.call(h.stream) == nil {
			var n *call
			if last := len(f.free) - 1; last >= 0 {
				n, f.free = f.free[last], f.free[:last]
			} else {
				n = new(call)
			}
			*n = call{stream: h.stream, fixed: callBytes + min(fieldFactor*h.length, maxFields)}
			f.calls[h.stream], f.last = n, n
			f.held += n.held()
		}
	case typeData:
		if n := f.call(h.stream); n != nil {
			n.bytes += h.length
			n.messages++
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
		if h.kind == typeData {
			f.c.taken.Add(1)
		}
		if h.flags&flagEndStream != 0 {
			f.close(h.stream)
			return
		}
	}
	if h.kind != typeData && h.kind != typeWindowUpdate {
		return
	}
	n := f.call(h.stream)
	if n == nil {
		return
	}
	read := min(n.bytes, int64(h.increment)) // by the handler
	if h.kind == typeData && n.messages > 0 {
		n.messages--
		f.held -= messageCost
	}
	if n.messages == 0 {
		read = n.bytes
	}
	n.bytes -= read
	f.held -= read
}

func (f *framed) close(stream uint32) {
	if n := f.call(stream); n != nil {
		f.held -= n.held()
		delete(f.calls, stream)
		f.last, f.free = nil, append(f.free, n)
	}
}

// frame is the header of a frame.
type frame struct {
	length    int64
	kind      byte
	flags     byte
	stream    uint32
	increment uint32 // Only a WINDOW_UPDATE has an increment.
}

// reader finds the headers of frames in a stream of bytes that arrives in parts.
type reader struct {
	skip int // bytes before the next header
	head [frameHeader + 4]byte
	have int // This many bytes of head are filled.
}

// next reads from b to the header of the next frame, and returns it with the rest of b;
// ok is false if b ends before.
func (r *reader) next(b []byte) (h frame, rest []byte, ok bool) {
	if r.skip > 0 {
		n := min(r.skip, len(b))
		b, r.skip = b[n:], r.skip-n
	}
	if r.have == 0 && len(b) >= len(r.head) { // nearly always
		h, n := parse(b)
		used := min(n, len(b))
		r.skip = n - used
		return h, b[used:], true
	}
	for len(b) > 0 {
		want := frameHeader
		if r.have >= frameHeader {
			want = r.want()
		}
		n := copy(r.head[r.have:want], b)
		b, r.have = b[n:], r.have+n
		if r.have < frameHeader || r.have < r.want() {
			continue
		}
		h, n := parse(r.head[:])
		r.skip, r.have = n-r.have, 0
		return h, b, true
	}
	return frame{}, nil, false
}

// parse returns the frame whose header begins b, and the length of the whole frame.
func parse(b []byte) (frame, int) {
	_ = b[frameHeader+3]
	h := frame{
		length: int64(b[0])<<16 | int64(b[1])<<8 | int64(b[2]), kind: b[3], flags: b[4],
		stream: binary.BigEndian.Uint32(b[5:]) & (1<<31 - 1),
	}
	if h.kind == typeWindowUpdate && h.length == 4 {
		h.increment = binary.BigEndian.Uint32(b[frameHeader:]) & (1<<31 - 1)
	}
	return h, frameHeader + int(h.length)
}

// want is how much of a frame head has to hold: the increment of a WINDOW_UPDATE too.
func (r *reader) want() int {
	if h, _ := parse(r.head[:]); h.kind == typeWindowUpdate && h.length == 4 {
		return len(r.head)
	}
	return frameHeader
}
