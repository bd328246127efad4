package server

import (
	"crypto/tls"
	"errors"
	"net/netip"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// Need is what a method, route or command requires of its caller.
type Need struct {
	Scope   access.Scope
	Open    bool // nothing is required: Scope is ignored
	Surface Surface
}

// CredentialsOf returns what a connection shows of its client: its address, or at a Unix socket its
// user, and a verified certificate. from is the remote address as text; state is nil without TLS.
func CredentialsOf(state *tls.ConnectionState, from string) access.Credentials {
	c := access.Credentials{Certificate: certs.ClientName(state), URIs: certs.ClientURIs(state)}
	if ap, err := netip.ParseAddrPort(from); err == nil {
		c.Address = ap.Addr()
	} else {
		c.User = unixsocket.User(from)
	}
	return c
}

// Identify returns the caller of a call with these Authorization headers, whose connection shows c. Two headers are
// malformed: a proxy may have checked the other one. It returns the errors of access.Bearer and of g.
func Identify(g *access.Guard, c access.Credentials, authorization []string) (caller access.Caller, err error) {
	if g.NeedsToken() {
		switch len(authorization) {
		case 0:
		case 1:
			c.Token, err = access.Bearer(authorization[0])
		default:
			err = access.ErrMalformed
		}
	}
	if err != nil {
		return caller, err
	}
	return g.Identify(c)
}

// Reject returns the refusal of a call that the guard did not let through, and
// counts it; nil for a nil error.
func (s *Service) Reject(err error, caller access.Caller, n Need, began clock.Mono) *node.Refusal {
	if err == nil {
		return nil
	}
	r := s.issuer.Refused(AccessRefusal(err, caller, n.Scope))
	s.Done(n.Surface, r, began)
	return r
}

// AccessRefusal returns the refusal for an error of a guard. It is not counted yet.
func AccessRefusal(err error, caller access.Caller, scope access.Scope) *node.Refusal {
	if limited, ok := errors.AsType[*access.LimitedError](err); ok && limited.Failures {
		return &node.Refusal{Reason: node.RateLimited, RetryAfter: limited.RetryAfter,
			Message: "too many wrong tokens came from this address: correct the token"}
	} else if ok {
		return &node.Refusal{
			Reason:     node.RateLimited,
			RetryAfter: limited.RetryAfter,
			Message: "this client exceeds its limit of requests per second: retry after the delay, or request more " +
				"IDs at a time",
		}
	}
	switch {
	case errors.Is(err, access.ErrPermissionDenied):
		return &node.Refusal{
			Reason:   node.PermissionDenied,
			Message:  denied(caller, scope),
			Metadata: map[string]string{"scope": scope.String()},
		}
	case errors.Is(err, access.ErrNoToken):
		return &node.Refusal{
			Reason:  node.Unauthenticated,
			Message: `no token was sent: send "Authorization: Bearer TOKEN"`,
		}
	case errors.Is(err, access.ErrMalformed):
		return &node.Refusal{
			Reason:  node.Unauthenticated,
			Message: `the credentials are malformed: send one header "Authorization: Bearer TOKEN"`,
		}
	case errors.Is(err, access.ErrStale):
		return &node.Refusal{
			Reason: node.Unauthenticated,
			Message: "the node cannot verify tokens: its token file could not be read for too long; tell its " +
				"operator, and use another node",
		}
	}
	return &node.Refusal{Reason: node.Unauthenticated, Message: "the token is unknown: it is wrong, or it was revoked"}
}

// denied says what to change so that a caller has a scope.
func denied(caller access.Caller, scope access.Scope) string {
	switch caller.Kind() {
	case "token":
		return "the token of " + caller.Name() + " does not have the scope " + scope.String()
	case "certificate":
		return "the certificate of " + caller.Name() + " does not have the scope " + scope.String() +
			": use one with the URI " + access.ScopeURI + scope.String()
	}
	return "calls with scope " + scope.String() +
		" are for clients on the node's own machine, or with a token or certificate of this scope: see " +
		"auth.token-file and auth.open-admin"
}
