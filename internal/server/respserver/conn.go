package respserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

// Sizes of a connection's buffers, in bytes.
const (
	// minIn holds a pipeline of 240 requests for an ID; a longer request makes the
	// buffer grow, and is the last to use it.
	minIn = 4 << 10
	// maxOut is the most that is written at a time, and so what a client that does
	// not read can make the node hold for it: 819 IDs.
	maxOut = 16 << 10
	minOut = 1 << 10
)

// conn is one connection. One goroutine owns it; what others may touch says so.
type conn struct {
	s   *Server
	nc  net.Conn
	id  int64
	ctx context.Context // ends when the connection must, whatever it is at

	in    []byte // what was read and not answered is in[from:to]
	from  int
	to    int
	out   []byte // what was answered and not written
	dead  bool   // nothing more can be written
	quit  bool   // to be closed once out is written
	req   reader
	proto int    // version of the protocol: 2 or 3
	name  string // that the client gave itself

	creds  access.Credentials // without a token
	caller access.Caller      // good if nobody is nil
	nobody *node.Refusal      // why the caller is not known

	waiting   int         // requests for one ID, not yet answered
	waitingAs server.Form // of all of them
	random    [512]byte   // for wide IDs; unused from drawn on
	drawn     int

	// turn is odd while out is being written, even else: it changes whenever the
	// client has asked for something or read the answer. Server.sweep reads it, too.
	turn atomic.Uint64
	seen uint64 // by Server.sweep, guarded by its mutex
	idle int    // sweeps since turn changed, guarded by the same
}

func (s *Server) newConn(nc net.Conn, id int64) *conn {
	c := &conn{s: s, nc: nc, id: id, in: make([]byte, minIn), out: make([]byte, 0, minOut)}
	c.reset()
	return c
}

// reset makes the connection like new, but for who is at the other end.
func (c *conn) reset() {
	c.proto, c.name = 2, ""
	c.caller, c.nobody = c.s.identify(c.creds)
}

// serve answers requests until the client leaves, breaks the protocol or stands
// still for too long, or the server ends the connection.
func (c *conn) serve() {
	if !c.greet() {
		return
	}
	for {
		err := c.answer()
		if err != nil {
			c.out = appendError(c.out, "ERR", err.Error())
		}
		if !c.flush() || c.quit || err != nil {
			return
		}
		if !c.read() {
			return
		}
	}
}

// greet finds out who calls.
func (c *conn) greet() bool {
	if addr, err := netip.ParseAddrPort(c.nc.RemoteAddr().String()); err == nil {
		c.creds.Address = addr.Addr()
	}
	if t, ok := c.nc.(*tls.Conn); ok {
		ctx, cancel := context.WithTimeout(c.ctx, handshakeTimeout)
		defer cancel()
		if err := t.HandshakeContext(ctx); err != nil {
			return false
		}
		state := t.ConnectionState()
		c.creds.Certificate = certs.ClientName(&state)
	}
	c.reset()
	return true
}

// answer answers the complete requests in the buffer. The error ends the
// connection.
func (c *conn) answer() error {
	const plain = "*1\r\n$7\r\nID.NEXT\r\n"
	for !c.dead && !c.quit && c.from < c.to {
		// What nearly all requests of a busy client look like.
		if b := c.in[c.from:c.to]; len(b) >= len(plain) && string(b[:len(plain)]) == plain && c.nobody == nil {
			c.from += len(plain)
			c.wait(0)
			continue
		}
		n, err := c.req.next(c.in[c.from:c.to])
		if err != nil {
			c.settle()
			return err
		}
		if n == 0 {
			if c.nobody != nil && c.to-c.from >= minIn {
				c.settle()
				return errStranger
			}
			break
		}
		c.from += n
		if len(c.req.args) > 0 {
			c.do(c.req.args)
		}
	}
	c.settle()
	return nil
}

// errStranger keeps a connection's memory small until somebody has shown a token,
// for which there is room.
var errStranger = protocolError(fmt.Sprintf("request above %d bytes without a token", minIn))

// read reads what the client has sent next, behind a part of a request that is
// there already. It returns false when there is nothing to come.
func (c *conn) read() bool {
	copy(c.in, c.in[c.from:c.to])
	c.from, c.to = 0, c.to-c.from
	switch {
	case c.to == len(c.in):
		// No more than maxRequest: a request that would need it is an error.
		in := make([]byte, min(2*len(c.in), maxRequest))
		copy(in, c.in)
		c.in = in
	case c.to == 0 && len(c.in) > minIn:
		c.in = make([]byte, minIn)
	}
	n, err := c.nc.Read(c.in[c.to:])
	c.to += n
	return n > 0 || err == nil
}

// flush writes what was answered, and returns false if the connection is no good
// any more.
func (c *conn) flush() bool {
	if c.dead {
		return false
	}
	if len(c.out) == 0 {
		return true
	}
	c.turn.Add(1)
	_, err := c.nc.Write(c.out)
	c.turn.Add(1)
	if c.out = c.out[:0]; cap(c.out) > 2*maxOut { // after an ECHO of what may be long
		c.out = make([]byte, 0, minOut)
	}
	c.dead = err != nil
	return !c.dead
}

// room makes room for n bytes of an answer, n up to maxOut, by writing what is in
// the way. It returns false if the connection is no good any more: then nothing
// must be issued for it.
func (c *conn) room(n int) bool {
	if len(c.out)+n > maxOut {
		return c.flush()
	}
	return !c.dead
}

// do answers one request.
func (c *conn) do(args [][]byte) {
	cmd := lookup(args[0])
	if cmd != nil && cmd.surface == server.RESPIDs && c.nobody == nil {
		if len(args) < cmd.least || cmd.most > 0 && len(args) > cmd.most {
			c.settle()
			c.fail(server.RESPIDs, c.s.api.Malformed("%s has %d arguments: %s", cmd.name, len(args)-1, cmd.use))
			return
		}
		cmd.run(c, args) // which settles what waits, if it does not join it
		return
	}
	c.settle()
	if !c.room(maxError + 2) {
		return
	}
	began := c.s.api.Began()
	if c.nobody == nil && (cmd == nil || !cmd.open && !cmd.reads) {
		c.recognise()
	}
	switch {
	case c.nobody != nil && (cmd == nil || !cmd.open):
		c.s.api.Done(server.RESPOther, 1, c.s.node.Refused(c.nobody), began)
		c.out = appendRefusal(c.out, "NOAUTH", c.nobody)
	case cmd == nil:
		c.s.api.NoCommand(server.RESPOther, began)
		c.unknown(args)
	case len(args) < cmd.least || cmd.most > 0 && len(args) > cmd.most:
		c.s.api.NoCommand(server.RESPOther, began)
		c.out = appendError(c.out, "ERR", "wrong number of arguments for '"+cmd.lower+"' command")
	case cmd.reads && !c.allowed(cmd):
		// allowed has answered.
	default:
		cmd.run(c, args)
		if cmd.surface == server.RESPOther {
			c.s.api.Done(server.RESPOther, 1, nil, began)
		}
	}
}

// recognise makes the caller nobody if its token was struck off since, for the
// commands that need no more than a token.
func (c *conn) recognise() {
	if err := c.s.cfg.Guard.May(c.caller, access.Issue); errors.Is(err, access.ErrUnauthenticated) {
		c.nobody = server.AccessRefusal(err, c.caller, access.Issue)
	}
}

// mayRead reports whether the caller has the scope read.
func (c *conn) mayRead() bool { return c.s.cfg.Guard.May(c.caller, access.Read) == nil }

// allowed asks whether the caller may read, and refuses the command if not.
func (c *conn) allowed(cmd *command) bool {
	r := c.s.allow(c.caller, access.Read)
	if r != nil {
		c.fail(cmd.surface, r)
	}
	return r == nil
}

// fail answers with a refusal that is counted already but for its surface.
func (c *conn) fail(on server.Surface, err error) {
	c.s.api.Done(on, 1, err, c.s.api.Began())
	if c.room(maxError + 2) {
		c.refuse(err)
	}
}

// refuse appends a refusal. Any other error says that the request ended early.
func (c *conn) refuse(err error) {
	if r, ok := errors.AsType[*node.Refusal](err); ok {
		c.out = appendRefusal(c.out, server.ErrorCode(r), r)
		return
	}
	c.out = appendError(c.out, "TRYAGAIN", "the request ended before it was served; nothing was issued")
}
