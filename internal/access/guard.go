package access

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/text"
)

// Errors of Identify and Allow. Nothing has changed after one of them.
var (
	// ErrUnauthenticated says that the caller is unknown. The errors below wrap it and name
	// the reason.
	ErrUnauthenticated = errors.New("access: unauthenticated")
	ErrNoToken         = fmt.Errorf("%w: no token was sent", ErrUnauthenticated)
	ErrMalformed       = fmt.Errorf("%w: the token is malformed", ErrUnauthenticated)
	ErrUnknownToken    = fmt.Errorf("%w: the token is not in the token file", ErrUnauthenticated)
	ErrStale           = fmt.Errorf("%w: the token file could not be read for too long", ErrUnauthenticated)

	// ErrPermissionDenied says that the caller's token lacks the scope.
	ErrPermissionDenied = errors.New("access: permission denied")
)

// LimitedError says that the caller exceeds its rate limit.
type LimitedError struct {
	RetryAfter time.Duration // until a call would be allowed
	Failures   bool          // the limit is that of wrong tokens from the caller's address
}

// Error names the delay before a retry.
func (e *LimitedError) Error() string {
	return fmt.Sprintf("access: rate limited: retry after %v", e.RetryAfter)
}

// Credentials are what a caller sends. The zero value has none.
type Credentials struct {
	Token       string     // without the word Bearer; "": none
	Certificate string     // name in the verified client certificate; "": none
	URIs        []*url.URL // That certificate has these URIs, which may contain scopes.
	Address     netip.Addr // The connection comes from it; it may be invalid.
	User        string     // It comes over a Unix socket from this user, such as uid:1000; "": it does not.
}

// Caller is an identified client. It stays valid for as long as the connection or
// stream it was made for: Allow notices when its token is removed from the file.
// Only a nil Guard allows the zero value, and not Admin.
type Caller struct {
	client client
	scopes scopes
	tokens *Tokens           // with its token; nil: none was required
	sum    [sha256.Size]byte // It is the SHA-256 of the token; zero without one.
}

// Name returns the caller's name for a log: of the token, else of the
// certificate, else the address or the local user. It is no secret.
func (c Caller) Name() string {
	if c.client.name != "" || !c.client.addr.IsValid() {
		return c.client.name
	}
	return c.client.addr.String()
}

// Kind returns what identified the caller: token, certificate, address or user.
func (c Caller) Kind() string { return kindNames[c.client.kind] }

// Program returns the caller that is the program around a node, by the node's name. It calls
// no listener.
func Program(name string) Caller { return Caller{client: client{kind: byProgram, name: name}} }

// Owner returns the caller as records name whoever acquired a worker: a token's name,
// else "cert:", "ip:", "unix:" or "embed:" and the name of the certificate, the address, the user or
// the name of the program's node. It has at most 64 bytes, and whole characters; certificates whose names
// begin alike are then one owner.
func (c Caller) Owner() string {
	owner := c.client.name
	switch c.client.kind {
	case byCertificate:
		owner = "cert:" + owner
	case byAddress:
		owner = "ip:" + c.client.addr.String()
	case byUser:
		owner = "unix:" + owner
	case byProgram:
		owner = "embed:" + owner
	}
	return text.Cut(owner, maxOwner)
}

// client is the key of a rate limit.
type client struct {
	kind kind
	name string       // A token, a certificate, a program or a local user has this name; "" for an address.
	addr netip.Prefix // an IPv4 address, or the /64 of an IPv6 address
}

type kind uint8

const (
	byAddress kind = iota
	byCertificate
	byToken
	byProgram
	byUser
)

var kindNames = [...]string{"address", "certificate", "token", "program", "user"}

// maxOwner is lease.MaxOwner.
const maxOwner = 64

// OpenAdmin is who has the scope Admin without a token or a certificate that grants it. It
// has no effect where tokens are required.
type OpenAdmin uint8

// The values of OpenAdmin.
const (
	OpenToLoopback OpenAdmin = iota // callers on this machine
	OpenToNobody
	OpenToAll
)

// Config is what a Guard enforces. Its zero value leaves Issue, Read and Worker to everybody, and
// Admin to callers on this machine.
type Config struct {
	Tokens *Tokens // nil: no token is needed
	// Certificates is set if every client has a verified certificate, and the scopes in it
	// count.
	Certificates bool
	OpenAdmin    OpenAdmin
	// Rate is the maximum number of calls per second of each client, and that of calls at
	// once after a pause. 0: no limit.
	Rate int
	// Now is required with Rate. nil: wrong tokens are not counted.
	Now func() clock.Mono
}

// Limit of wrong tokens from one address: those that a program with an old token may send
// while somebody corrects it, and no load for the node.
const (
	failureRate  = 10 // a second
	failureBurst = 100
)

// Guard allows or refuses calls. A nil Guard has the zero Config. Its methods are
// safe for concurrent use, hold no lock for longer than a read of a map, and
// allocate nothing for an allowed call.
type Guard struct {
	openAdmin OpenAdmin

	tokens   atomic.Pointer[Tokens]
	limit    *limiter // nil: none
	failures *limiter // It limits wrong tokens by address; nil: nothing does.
}

// New returns a Guard, or nil for a zero Config: then listeners need not ask for each
// Issue and Read.
func New(cfg Config) *Guard {
	if cfg.Tokens == nil && cfg.Rate == 0 && !cfg.Certificates && cfg.OpenAdmin == OpenToLoopback {
		return nil
	}
	g := &Guard{openAdmin: cfg.OpenAdmin}
	g.tokens.Store(cfg.Tokens)
	if cfg.Rate > 0 {
		g.limit = newLimiter(cfg.Rate, cfg.Rate, cfg.Now)
	}
	if cfg.Tokens != nil && cfg.Now != nil {
		g.failures = newLimiter(failureRate, failureBurst, cfg.Now)
	}
	return g
}

// SetTokens replaces the tokens of a Guard that requires tokens. Callers with a revoked
// token are rejected from now on, on open connections too.
func (g *Guard) SetTokens(t *Tokens) { g.tokens.Store(t) }

// NeedsToken reports whether callers must send a token.
func (g *Guard) NeedsToken() bool { return g != nil && g.tokens.Load() != nil }

// Identify returns the caller with credentials c. If tokens are required, they alone count:
// a certificate opens the connection, and an address on this machine may be that of a
// proxy. Without tokens, a caller has the scopes in its certificate; one without a
// certificate, or without scopes in it, has Issue, Read and Worker, and Admin as OpenAdmin allows.
//
// Identify costs a hash and a lookup, and does not count for the rate limit.
//
// It returns ErrNoToken, ErrMalformed, ErrUnknownToken or ErrStale. A token that is not
// accepted counts for the address it came from, if that is known. Above the limit of wrong
// tokens it returns a *LimitedError instead: the listener should close the connection. An
// accepted token is accepted all the same, since others may share the address.
func (g *Guard) Identify(c Credentials) (Caller, error) {
	if g == nil {
		return open(c, OpenToLoopback), nil
	}
	if t := g.tokens.Load(); t != nil {
		if c.Token == "" {
			return Caller{}, ErrNoToken
		}
		if !wellFormed(c.Token) {
			return Caller{}, g.failed(c, ErrMalformed)
		}
		var text [maxToken]byte // on the stack, where a conversion would allocate
		sum := sha256.Sum256(text[:copy(text[:], c.Token)])
		e := t.find(&sum)
		switch {
		case t.stale:
			return Caller{}, ErrStale
		case e == nil:
			return Caller{}, g.failed(c, ErrUnknownToken)
		}
		return Caller{client: client{kind: byToken, name: e.name}, scopes: e.scopes, tokens: t, sum: sum}, nil
	}
	return open(c, g.openAdmin), nil
}

// open returns the caller with credentials c where no token is required.
func open(c Credentials, admin OpenAdmin) Caller {
	who := Caller{client: c.from()}
	if c.Certificate != "" {
		who.client = client{kind: byCertificate, name: c.Certificate}
		if set, ok := certificateScopes(c.URIs); ok {
			who.scopes = set
			return who
		}
	}
	who.scopes = 1<<Issue | 1<<Read | 1<<Worker
	if admin == OpenToAll || admin == OpenToLoopback && c.Address.Unmap().IsLoopback() {
		who.scopes = allScopes
	}
	return who
}

// from returns the client that a connection alone shows.
func (c Credentials) from() client {
	if c.User != "" {
		return client{kind: byUser, name: c.User}
	}
	return client{kind: byAddress, addr: Network(c.Address)}
}

// failed counts a token that was not accepted because of err, and returns the error for
// the caller.
func (g *Guard) failed(c Credentials, err error) error {
	if g.failures == nil || c.User == "" && !c.Address.IsValid() {
		return err
	}
	if wait := g.failures.take(c.from()); wait > 0 {
		return &LimitedError{RetryAfter: wait, Failures: true}
	}
	return err
}

// Network returns the key of an address: a client with one IPv6 address usually has a
// whole /64.
func Network(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 64
	if a.Is4() {
		bits = 32
	}
	p, err := a.Prefix(bits)
	if err != nil { // not an address: all such callers are one client
		return netip.Prefix{}
	}
	return p
}

// Allow allows one call of c, for any number of IDs, and counts it for the client's rate
// limit. A rejected call does not count.
//
// It returns the errors of May, or else a *LimitedError.
func (g *Guard) Allow(c Caller, s Scope) error {
	who, err := g.may(c, s)
	if err != nil || g == nil || g.limit == nil {
		return err
	}
	if wait := g.limit.take(who); wait > 0 {
		return &LimitedError{RetryAfter: wait}
	}
	return nil
}

// Workers returns how many workers c may hold, if its token says that, else byDefault.
func (g *Guard) Workers(c Caller, byDefault int) int {
	if g == nil {
		return byDefault
	}
	if t := g.tokens.Load(); t != nil {
		if e := t.find(&c.sum); e != nil && e.workers != 0 {
			return e.workers
		}
	}
	return byDefault
}

// May is Allow without the rate limit. It returns ErrUnknownToken if the caller's token
// was revoked, ErrStale if that is unknown, or else ErrPermissionDenied.
func (g *Guard) May(c Caller, s Scope) error {
	_, err := g.may(c, s)
	return err
}

// may is May, and returns the key of the rate limit.
func (g *Guard) may(c Caller, s Scope) (client, error) {
	if g == nil && s != Admin {
		return client{}, nil
	}
	if g == nil {
		return c.client, c.scopes.check(s)
	}
	if t := g.tokens.Load(); t != c.tokens && t != nil {
		if c.tokens == nil {
			return client{}, ErrNoToken
		}
		e := t.find(&c.sum)
		switch {
		case t.stale:
			return client{}, ErrStale
		case e == nil:
			return client{}, ErrUnknownToken
		}
		c.scopes, c.client.name = e.scopes, e.name
	}
	return c.client, c.scopes.check(s)
}
