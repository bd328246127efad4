package respserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/quota"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/resp"
)

// Sizes of a connection's buffers, in bytes.
const (
	// minIn has room for a pipeline of 240 requests for one ID. The buffer grows for a
	// longer request, and shrinks after it.
	minIn = 4 << 10
	// maxOut bounds one write, and so what the node holds for a client that does not
	// read: 819 IDs.
	maxOut = 16 << 10
	minOut = 1 << 10
)

// conn is one connection. One goroutine owns it, except for the fields that name
// another owner.
type conn struct {
	s     *Server
	nc    net.Conn
	quota *quota.Conn // nil: none
	id    int64
	ctx   context.Context // ends when the connection must end at once

	in    []byte // in[from:to] was read and is not answered yet
	from  int
	to    int
	out   []byte // answers that are not written yet
	dead  bool   // a write has failed
	quit  bool   // close after out is written
	req   resp.Reader
	proto int    // version of the protocol: 2 or 3
	name  string // from CLIENT SETNAME or HELLO

	creds           access.Credentials // without a token
	caller          access.Caller      // valid if unauthenticated is nil
	unauthenticated *node.Refusal      // why the caller is not identified

	pending     int         // requests for one ID that are not answered yet
	pendingForm server.Form // All pending requests ask for this form.
	refused     bool        // the node refused a request of this pipeline: the rest does not wait
	random      [512]byte   // for wide IDs; random[:unused] is not used yet
	unused      int

	// progress is odd while out is being written, else even. It grows with each write,
	// so it changes when the client sends a request or reads an answer. Server.sweep
	// reads it.
	progress atomic.Uint64
	seen     uint64 // progress at the last sweep; guarded by Server.mu
	idle     int    // sweeps since progress changed; guarded by Server.mu
}

func (s *Server) newConn(nc net.Conn, id int64) *conn {
	c := &conn{s: s, nc: nc, quota: quota.Of(nc), id: id, in: make([]byte, minIn), out: make([]byte, 0, minOut)}
	c.reset()
	return c
}

// reset sets the connection to its first state, as if the client had just connected.
func (c *conn) reset() {
	c.proto, c.name = 2, ""
	c.caller, c.unauthenticated = c.s.identify(c.creds)
}

// serve answers requests until the client leaves, violates the protocol or exceeds a
// timeout, or until the server ends the connection.
func (c *conn) serve() {
	if !c.handshake() {
		return
	}
	for {
		err := c.answer()
		if err != nil {
			c.out = resp.AppendError(c.out, "ERR", err.Error())
		}
		if !c.flush() || c.quit || err != nil {
			return
		}
		if !c.read() {
			return
		}
	}
}

// handshake does the TLS handshake and identifies the caller.
func (c *conn) handshake() bool {
	from := c.nc.RemoteAddr().String()
	c.creds = server.CredentialsOf(nil, from)
	if t, ok := c.nc.(*tls.Conn); ok {
		ctx, cancel := context.WithTimeout(c.ctx, handshakeTimeout)
		defer cancel()
		if err := t.HandshakeContext(ctx); err != nil {
			return false
		}
		state := t.ConnectionState()
		c.creds = server.CredentialsOf(&state, from)
	}
	c.reset()
	return true
}

// answer answers the complete requests in the buffer. The error ends the
// connection.
func (c *conn) answer() error {
	const plain = "*1\r\n$7\r\nID.NEXT\r\n"
	for !c.dead && !c.quit && c.from < c.to {
		// The form of nearly all requests.
		if b := c.in[c.from:c.to]; len(b) >= len(plain) && string(b[:len(plain)]) == plain && c.unauthenticated == nil {
			c.from += len(plain)
			c.enqueue(server.Flake)
			continue
		}
		n, err := c.req.Next(c.in[c.from:c.to])
		if err != nil {
			c.settle()
			return err
		}
		if n == 0 {
			if c.unauthenticated != nil && c.to-c.from >= minIn {
				c.settle()
				return errUnauthenticated
			}
			break
		}
		c.from += n
		if len(c.req.Args) > 0 {
			c.do(c.req.Args)
		}
	}
	c.settle()
	return nil
}

// errUnauthenticated bounds the memory of an unauthenticated connection. There is room
// for a token.
var errUnauthenticated = resp.ProtocolError(fmt.Sprintf("request above %d bytes without a token", minIn))

// read reads the next bytes of the client, after the part of a request that is already
// in the buffer. It returns false at the end of the connection.
func (c *conn) read() bool {
	if c.to < len(c.in) { // all that had arrived fitted into the buffer: the pipeline has ended
		c.refused = false
	}
	copy(c.in, c.in[c.from:c.to])
	c.from, c.to = 0, c.to-c.from
	switch {
	case c.to == len(c.in):
		// At most MaxRequest: a longer request is an error.
		in := make([]byte, min(2*len(c.in), resp.MaxRequest))
		copy(in, c.in)
		c.in = in
	case c.to == 0 && len(c.in) > minIn:
		c.in = make([]byte, minIn)
	}
	n, err := c.nc.Read(c.in[c.to:])
	c.to += n
	return n > 0 || err == nil
}

// flush writes out, and returns false if the connection has failed.
func (c *conn) flush() bool {
	if c.dead {
		return false
	}
	if len(c.out) == 0 {
		return true
	}
	c.progress.Add(1)
	_, err := c.nc.Write(c.out)
	c.progress.Add(1)
	if c.out = c.out[:0]; cap(c.out) > 2*maxOut { // after a long ECHO
		c.out = make([]byte, 0, minOut)
	}
	c.dead = err != nil
	return !c.dead
}

// room makes room in out for n bytes, at most maxOut, by writing if necessary. It
// returns false if the connection has failed: then nothing must be issued for it.
func (c *conn) room(n int) bool {
	if len(c.out)+n > maxOut {
		return c.flush()
	}
	return !c.dead
}

// do answers one request.
func (c *conn) do(args [][]byte) {
	cmd := lookup(args[0])
	if cmd == nil && fromBrowser(args[0]) {
		c.settle()
		c.s.logHTTP.Do(func() {
			c.s.log.Warn("RESP connection closed: it sent an HTTP request, possibly a web page's",
				"source", c.nc.RemoteAddr().String())
		})
		c.s.service.NotFound(server.RESPOther, c.s.service.Begin())
		c.quit = true
		return
	}
	if cmd != nil && cmd.surface == server.RESPIDs && c.unauthenticated == nil {
		if !cmd.accepts(len(args)) {
			c.settle()
			c.fail(server.RESPIDs, c.s.malformed("%s has %d arguments: %s", cmd.name, len(args)-1, cmd.use))
			return
		}
		cmd.run(c, args) // settles the pending requests, or adds one to them
		return
	}
	c.settle()
	if !c.room(resp.MaxError + 2) {
		return
	}
	began, before := c.s.service.Begin(), len(c.out)
	// The answer pays too. A refused command costs once more.
	defer func() { c.quota.Charge(quota.CostFrame * int64(1+max(len(c.out)-before, 0)/512)) }()
	if c.unauthenticated == nil && (cmd == nil || !cmd.open && !cmd.reads) {
		c.recheckToken()
	}
	switch {
	case c.unauthenticated != nil && (cmd == nil || !cmd.open):
		c.s.service.Done(server.RESPOther, c.s.issuer.Refused(c.unauthenticated), began)
		c.out = appendRefusal(c.out, "NOAUTH", c.unauthenticated)
	case cmd == nil:
		c.s.service.NotFound(server.RESPOther, began)
		c.unknown(args)
	case !cmd.accepts(len(args)):
		c.s.service.NotFound(server.RESPOther, began)
		c.out = resp.AppendError(c.out, "ERR", "wrong number of arguments for '"+cmd.lower+"' command")
	case cmd.reads && !c.allowed(cmd):
		// allowed has answered.
	default:
		cmd.run(c, args)
		if cmd.surface == server.RESPOther {
			c.s.service.Done(server.RESPOther, nil, began)
		}
	}
}

// fromBrowser reports whether name begins a line of an HTTP request. A web page can have a
// browser send one to this port, with commands in its body.
//
// Source: Redis, securityWarningCommand.
func fromBrowser(name []byte) bool {
	return resp.EqualFold(name, "POST") || resp.EqualFold(name, "HOST:")
}

// recheckToken makes the connection unauthenticated if its token was revoked, for the
// commands that require a token and no scope.
func (c *conn) recheckToken() {
	if err := c.s.service.Guard().May(c.caller, access.Issue); errors.Is(err, access.ErrUnauthenticated) {
		c.unauthenticated = server.AccessRefusal(err, c.caller, access.Issue)
	}
}

// mayRead reports whether the caller has the scope read.
func (c *conn) mayRead() bool { return c.s.service.Guard().May(c.caller, access.Read) == nil }

// allowed checks whether the caller may read, and answers with the refusal if not.
func (c *conn) allowed(cmd *command) bool {
	r := c.s.allow(c.caller, access.Read)
	if r != nil {
		c.fail(cmd.surface, r)
	}
	return r == nil
}

// fail answers with a refusal, and counts it for its surface.
func (c *conn) fail(on server.Surface, err error) {
	c.quota.Charge(quota.CostFrame)
	c.s.service.Done(on, err, c.s.service.Begin())
	if c.room(resp.MaxError + 2) {
		c.refuse(err)
	}
}

// refuse appends a refusal. Any other error means that the request ended early.
func (c *conn) refuse(err error) {
	if r, ok := errors.AsType[*node.Refusal](err); ok {
		c.out = appendRefusal(c.out, errorCode(r), r)
		return
	}
	c.out = resp.AppendError(c.out, "TRYAGAIN",
		"the request ended before it was served, since the node is stopping; nothing was issued")
}
