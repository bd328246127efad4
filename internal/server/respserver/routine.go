package respserver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/server/resp"
)

// routine is the shell of a connection that has a goroutine of its own: one with TLS, and
// all where there is no loop.
type routine struct {
	*conn
	nc   net.Conn
	ctx  context.Context // ends when the connection must end at once
	in   []byte          // in[from:to] was read and is not answered yet
	from int
	to   int
}

// newRoutine returns the shell of nc.
func (s *Server) newRoutine(nc net.Conn, id int64) *routine {
	r := &routine{nc: nc, in: make([]byte, minIn)}
	r.conn = s.newConn(id, nc.LocalAddr(), nc.RemoteAddr(), quota.Of(nc), new(kit))
	r.shell, r.out = r, make([]byte, 0, minOut)
	return r
}

// abort closes the connection from another goroutine, without waiting.
func (r *routine) abort() {
	if t, ok := r.nc.(*tls.Conn); ok {
		_ = t.NetConn().Close()
		return
	}
	_ = r.nc.Close()
}

// drain makes reads end at once. Writes go on, so requests already read are answered.
func (r *routine) drain() { _ = r.nc.SetReadDeadline(time.Unix(0, 1)) }

// serve answers requests until the client leaves, violates the protocol or exceeds a
// timeout, or until the server ends the connection.
func (r *routine) serve() {
	if !r.handshake() {
		return
	}
	for {
		n, need := r.advance(r.in[r.from:r.to])
		r.from += n
		if !r.flush() {
			return
		}
		switch need {
		case needInput:
			if !r.read() {
				return
			}
		case needJob:
			r.job.run(r.ctx)
			r.job.done()
		case needEnd:
			return
		}
	}
}

// handshake does the TLS handshake and identifies the caller.
func (r *routine) handshake() bool {
	if t, ok := r.nc.(*tls.Conn); ok {
		ctx, cancel := context.WithTimeout(r.ctx, handshakeTimeout)
		defer cancel()
		if err := t.HandshakeContext(ctx); err != nil {
			if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok && plain.Conn != nil {
				answerPlain(plain)
			}
			return false
		}
		state := t.ConnectionState()
		r.creds = server.CredentialsOf(&state, r.remote.String())
	}
	r.reset()
	return true
}

// answerPlain answers a client that does not speak TLS, in the protocol of the client.
func answerPlain(e tls.RecordHeaderError) {
	answer := []byte("-ERR this port speaks TLS: connect with it, as redis-cli --tls does\r\n")
	if server.IsHTTP(e.RecordHeader[:]) {
		answer = server.NotHTTP("the port for Redis clients (listen.resp)")
	}
	_, _ = e.Conn.Write(answer) // Nothing was sent before, so there is room for it.
}

// read reads the next bytes of the client, after the part of a request that is already
// in the buffer. It returns false at the end of the connection.
func (r *routine) read() bool {
	if r.to < len(r.in) {
		r.pipelineEnded()
	}
	copy(r.in, r.in[r.from:r.to])
	r.from, r.to = 0, r.to-r.from
	switch {
	case r.to == len(r.in):
		// At most MaxRequest: a longer request is an error.
		in := make([]byte, min(2*len(r.in), resp.MaxRequest))
		copy(in, r.in)
		r.in = in
	case r.to == 0 && len(r.in) > minIn:
		r.in = make([]byte, minIn)
	}
	n, err := r.nc.Read(r.in[r.to:])
	r.to += n
	return n > 0 || err == nil
}

// flush writes out, and returns false if the connection has failed.
func (r *routine) flush() bool {
	if len(r.out) == 0 {
		return true
	}
	r.progress.Add(1)
	_, err := r.nc.Write(r.out)
	r.progress.Add(1)
	if r.out = r.out[:0]; cap(r.out) > 2*maxOut { // after a long ECHO
		r.out = make([]byte, 0, minOut)
	}
	return err == nil
}
