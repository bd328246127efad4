package httpserver

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
)

// guarded returns h behind the check of what its route requires of callers.
func (h *handler) guarded(n server.Need, next http.HandlerFunc) http.HandlerFunc {
	guard := h.service.Guard()
	if guard == nil || n.Open {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request) {
		began := h.service.Begin()
		caller, err := server.Identify(guard, credentialsOf(r), r.Header["Authorization"])
		if err == nil {
			err = guard.Allow(caller, n.Scope)
		}
		if refusal := h.service.Reject(err, caller, n, began); refusal != nil {
			if errors.Is(err, access.ErrUnauthenticated) {
				connOf(r.Context()).Charge(quota.CostFailure)
			}
			if challenge := challengeOf(err); challenge != "" {
				w.Header().Set("WWW-Authenticate", challenge)
			}
			h.refuse(w, r, problemOf(refusal))
			return
		}
		if n.Surface == server.HTTPEvents || n.Surface == server.HTTPWatermark || n.Surface == server.HTTPWorker {
			r = r.WithContext(context.WithValue(r.Context(), callerKey{}, caller))
		}
		next(w, r)
	}
}

// credentialsOf returns what the connection of r shows of its caller.
func credentialsOf(r *http.Request) access.Credentials {
	return server.CredentialsOf(r.TLS, r.RemoteAddr)
}

// challengeOf returns the value of WWW-Authenticate.
//
// Source: RFC 6750, section 3.
func challengeOf(err error) string {
	const bearer = `Bearer realm="allocator"`
	switch {
	case errors.Is(err, access.ErrUnknownToken):
		return bearer + `, error="invalid_token"`
	case errors.Is(err, access.ErrUnauthenticated):
		return bearer
	case errors.Is(err, access.ErrPermissionDenied):
		return bearer + `, error="insufficient_scope"`
	}
	return ""
}

// costRequest is what a request costs its connection. A valid one pays for it.
const costRequest = 2 * quota.CostFrame

type connKey struct{}

// withConn puts the connection that a request came by into its context.
func withConn(ctx context.Context, nc net.Conn) context.Context {
	if c := quota.Of(nc); c != nil {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// Charge makes the connection of a request pay for the request. One without a valid call
// pays before the request is served: others may be in the buffer already.
func Charge(r *http.Request) {
	c := connOf(r.Context())
	c.Charge(costRequest)
	if !c.Proven() {
		c.Pay()
	}
}

// Pay makes the connection of a request pay n tokens more, and waits until it can.
func Pay(r *http.Request, n int64) {
	c := connOf(r.Context())
	c.Charge(n)
	c.Pay()
}

// Valid says that a request was valid: the caller may make it, and it was not malformed.
func Valid(r *http.Request) { connOf(r.Context()).Valid() }

// connOf returns the connection of a request with context ctx; nil without a quota.
func connOf(ctx context.Context) *quota.Conn {
	c, _ := ctx.Value(connKey{}).(*quota.Conn)
	return c
}

// Counted returns w, whose connection holds what is written until the client has taken it.
func Counted(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if c := connOf(r.Context()); c != nil && r.Method == http.MethodGet { // Nothing else has large answers.
		return &countedWriter{w, c}
	}
	return w
}

type countedWriter struct {
	http.ResponseWriter
	conn *quota.Conn
}

// Write writes, and returns when the kernel has all bytes.
func (c *countedWriter) Write(b []byte) (int, error) {
	held := int64(cap(b))
	c.conn.Hold(held)
	defer c.conn.Hold(-held)
	return c.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (c *countedWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
