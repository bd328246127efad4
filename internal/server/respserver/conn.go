package respserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/server/resp"
)

// Sizes of a connection's buffers, in bytes.
const (
	// minIn has room for a pipeline of 240 requests for one ID, and for a token.
	minIn = 4 << 10
	// maxOut bounds one write, and so what the node holds for a client that does not
	// read: 819 IDs.
	maxOut = 16 << 10
	minOut = 1 << 10
)

// conn is one connection without its I/O: bytes of requests go into advance, and the
// answers are in out. It reads and writes nothing and never waits. A shell owns it, which
// is a goroutine or a loop, except for the fields that name another owner.
type conn struct {
	s             *Server
	id            int64
	local, remote net.Addr
	quota         *quota.Conn // nil: none
	shell         shell
	kit           *kit

	out   []byte // answers that are not written yet
	need  need   // what advance will return
	quit  bool   // close after out is written
	proto int    // version of the protocol: 2 or 3
	name  string // from CLIENT SETNAME or HELLO

	creds           access.Credentials // without a token
	caller          access.Caller      // valid if unauthenticated is nil
	unauthenticated *node.Refusal      // why the caller is not identified

	pending     int           // requests for one ID that are not answered yet
	pendingForm server.Form   // All pending requests ask for this form.
	single      bool          // the pending requests cannot share a block: each is answered by itself
	began       clock.Mono    // when the first of them was asked for
	late        *node.Refusal // answer to the request after the pending ones; nil: none
	rest        gen.Block     // IDs of an answer that are not in out yet
	restForm    server.Form
	job         job  // valid if need is needJob
	refused     bool // the node refused a request of this pipeline: the rest does not wait

	// progress is odd while out is being written, else even. It grows with each write,
	// so it changes when the client sends a request or reads an answer. Server.sweep
	// reads it.
	progress atomic.Uint64
	seen     uint64 // progress at the last sweep; guarded by Server.mu
	idle     int    // sweeps since progress changed; guarded by Server.mu
}

// kit is what a conn uses while it advances and holds nothing in between: one for all
// connections of a loop.
type kit struct {
	req    resp.Reader
	random [512]byte // for wide IDs; random[:unused] is not used yet
	unused int
}

// shell does the I/O of a conn. Both methods are safe for concurrent use and do not wait.
type shell interface {
	abort() // closes the connection without a reply
	drain() // ends the connection as soon as all that was read is answered
}

// need is what a conn needs before it can go on.
type need uint8

const (
	needInput need = iota // out has to be written, and then more bytes read
	needRoom              // out has to be written
	needJob               // out has to be written, and then the job done
	needEnd               // out has to be written, and the connection closed
)

// job is a part of a request that may wait. run is called once and touches nothing of the
// conn. Then the owner of the conn calls done.
type job struct {
	run  func(context.Context)
	done func()
}

func (s *Server) newConn(id int64, local, remote net.Addr, q *quota.Conn, k *kit) *conn {
	creds := server.CredentialsOf(nil, remote.String())
	return &conn{s: s, id: id, local: local, remote: remote, quota: q, kit: k, creds: creds}
}

// reset sets the connection to its first state, as if the client had just connected.
func (c *conn) reset() {
	c.proto, c.name = 2, ""
	c.caller, c.unauthenticated = c.s.identify(c.creds)
}

// pipelineEnded says that all that had arrived was read.
func (c *conn) pipelineEnded() { c.refused = false }

// advance answers the complete requests at the start of in. It returns the length of those
// it has done with, and what it needs to go on: it is then called again with the bytes after
// them, and more where it needs input. If it needs anything else, the next request is
// untouched.
func (c *conn) advance(in []byte) (n int, _ need) {
	const plain = "*1\r\n$7\r\nID.NEXT\r\n"
	c.need = needInput
	// Nearly always nothing has been begun.
	if (c.pending > 0 || c.single || c.late != nil || c.rest.Count > 0) && !c.finish() {
		return 0, c.need
	}
	for n < len(in) && !c.quit {
		// The form of nearly all requests.
		if b := in[n:]; len(b) >= len(plain) && string(b[:len(plain)]) == plain && c.unauthenticated == nil {
			if c.enqueue(server.Flake) {
				n += len(plain)
			}
		} else {
			k, err := c.kit.req.Next(b)
			if c.unauthenticated != nil && err == nil && (k == 0 && len(b) >= minIn || k > minIn) {
				err = errUnauthenticated
			}
			if err != nil {
				if c.ready() {
					c.out = resp.AppendError(c.out, "ERR", err.Error())
					c.need = needEnd
				}
				return n, c.need
			}
			if k == 0 {
				break
			}
			if len(c.kit.req.Args) == 0 {
				c.quota.Charge(quota.CostFrame)
				n += k
			} else if c.do(c.kit.req.Args) {
				n += k
			}
		}
		if c.need != needInput {
			return n, c.need
		}
	}
	if c.settle() && c.quit {
		c.need = needEnd
	}
	return n, c.need
}

// errUnauthenticated bounds the memory of an unauthenticated connection. There is room
// for a token.
var errUnauthenticated = resp.ProtocolError(fmt.Sprintf("request above %d bytes without a token", minIn))

// finish goes on with what an earlier call has begun, and reports whether all of it is
// answered.
func (c *conn) finish() bool {
	return c.appendRest() && c.settle() && c.refuseLate()
}

// wants makes advance return, and returns false: with it those end that cannot go on.
func (c *conn) wants(n need) bool {
	c.need = n
	return false
}

// room reports whether out has room for n bytes, at most maxOut. If not, nothing must be
// issued for them until out is written.
func (c *conn) room(n int) bool {
	return len(c.out)+n <= maxOut || c.wants(needRoom)
}

// ready reports whether a request can be answered now: all before it are answered, and
// there is room for an error.
func (c *conn) ready() bool { return c.settle() && c.room(resp.MaxError+2) }

// do answers one request. It returns false if it has done nothing with it yet.
func (c *conn) do(args [][]byte) bool {
	cmd := lookup(args[0])
	http := len(args) == 3 && bytes.HasPrefix(args[2], []byte("HTTP/1."))
	if cmd == nil && (http || fromBrowser(args[0])) {
		if !c.settle() {
			return false
		}
		c.s.logHTTP.Do(func() {
			c.s.log.Warn("RESP connection closed: it sent an HTTP request, possibly a web page's",
				"source", c.remote.String())
		})
		c.s.service.NotFound(server.RESPOther, c.s.service.Begin())
		if http {
			c.out = append(c.out, server.NotHTTP("the port for Redis clients (listen.resp)")...)
		}
		c.quit = true
		return true
	}
	if cmd != nil && cmd.issues != nil && c.unauthenticated == nil {
		if !cmd.accepts(len(args)) {
			return c.malformed("%s has %d arguments: %s", cmd.name, len(args)-1, cmd.use)
		}
		return cmd.issues(c, args)
	}
	if !c.ready() {
		return false
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
	return true
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

// fail answers with a refusal, for which there is room, and counts it for its surface.
func (c *conn) fail(on server.Surface, err error) {
	c.quota.Charge(quota.CostFrame)
	c.s.service.Done(on, err, c.s.service.Begin())
	c.refuse(err)
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
