package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/flake"
)

// Mode says how calls become requests. The zero Mode is Coalesce.
type Mode uint8

// The modes; the package comment compares them.
const (
	Coalesce Mode = iota
	Direct
	Prefetch
)

var modeNames = []string{"coalesce", "direct", "prefetch"}

// String returns the mode's name in lower case.
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// Defaults of Options.
const (
	// DefaultTimeout is longer than a rolling restart of a small cluster leaves
	// any caller without a node.
	DefaultTimeout = 10 * time.Second
	// DefaultAttemptTimeout is ten times the longest that a node holds a request
	// back.
	DefaultAttemptTimeout = time.Second
	// DefaultMaxAge is the age of a prefetched ID that sorting by ID survives.
	DefaultMaxAge = time.Second
	// DefaultResolveEvery is how often names of targets are looked up.
	DefaultResolveEvery = 30 * time.Second
)

// maxBlock is the most IDs of one request that any node grants.
const maxBlock = 1_000_000

// Resolver looks up the addresses of a host. *net.Resolver is one.
type Resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// Options say how a client works. Targets is required; every other field may be
// left at zero.
type Options struct {
	// Targets are gRPC addresses of nodes, each host:port. A name stands for all
	// of its addresses. At most 16 are connected to at a time; others take the
	// places of those that are not reached.
	Targets []string
	Mode    Mode

	// Unordered lets the client's IDs come in any order. It saves nothing but
	// waits for nodes whose clocks are behind.
	Unordered bool
	// After makes every ID greater than this one: the order of an earlier client
	// goes on.
	After flake.ID

	// Timeout bounds how long a call is tried, whatever its context allows. 0
	// means DefaultTimeout; negative is no bound: calls whose contexts have none
	// either, and Close, which lets them finish, then wait for a node for good.
	Timeout time.Duration
	// AttemptTimeout is how long a node that does not answer is waited for before
	// another is asked; 0 means DefaultAttemptTimeout.
	AttemptTimeout time.Duration

	// MaxAge is how old an ID of Prefetch may be when it is given; 0 means
	// DefaultMaxAge. Older ones are dropped and counted.
	MaxAge time.Duration
	// MaxPrefetch is the largest block of Prefetch; 0 means 1,000,000, the most
	// that a node grants. Blocks are as small as demand allows.
	MaxPrefetch int

	// TLS is how nodes are verified, and what they are shown; nil is plain text.
	TLS *tls.Config
	// Token, if set, returns the bearer token of a request. It is called for every
	// request or stream, and must be safe for concurrent use.
	Token func(context.Context) (string, error)
	// TokenFile, if set, holds the bearer token. It is read again when it changes.
	TokenFile string
	// PlaintextToken allows a token without TLS, for networks that encrypt by
	// themselves. Otherwise New returns an error.
	PlaintextToken bool

	// DialOptions come after the client's own, for interceptors and the handlers
	// of OpenTelemetry.
	DialOptions []grpc.DialOption
	// Resolver looks up names; nil means net.DefaultResolver.
	Resolver Resolver
	// ResolveEvery is how often names are looked up again; 0 means
	// DefaultResolveEvery. A connection that fails has them looked up at once.
	ResolveEvery time.Duration
}

// withDefaults checks o and fills it in. The error names the field.
func (o Options) withDefaults() (Options, error) {
	if len(o.Targets) == 0 {
		return o, errors.New("client: option Targets: is empty: name the gRPC address of a node, such as localhost:9000")
	}
	o.Targets = slices.Clone(o.Targets)
	for _, t := range o.Targets {
		host, port, err := net.SplitHostPort(t)
		if err != nil || host == "" || port == "" {
			return o, fmt.Errorf("client: option Targets: %.80q is not host:port", t)
		}
	}
	switch {
	case int(o.Mode) >= len(modeNames):
		return o, fmt.Errorf("client: option Mode: there is no %v", o.Mode)
	case o.After < 0:
		return o, fmt.Errorf("client: option After: %d is negative", o.After)
	case o.AttemptTimeout < 0:
		return o, fmt.Errorf("client: option AttemptTimeout: %v is negative", o.AttemptTimeout)
	case o.MaxAge < 0:
		return o, fmt.Errorf("client: option MaxAge: %v is negative", o.MaxAge)
	case o.MaxPrefetch < 0 || o.MaxPrefetch > maxBlock:
		return o, fmt.Errorf("client: option MaxPrefetch: %d is not within 0 to %d", o.MaxPrefetch, maxBlock)
	case o.ResolveEvery < 0:
		return o, fmt.Errorf("client: option ResolveEvery: %v is negative", o.ResolveEvery)
	case o.Token != nil && o.TokenFile != "":
		return o, errors.New("client: options Token and TokenFile: set one of them")
	case (o.Token != nil || o.TokenFile != "") && o.TLS == nil && !o.PlaintextToken:
		return o, errors.New("client: option TLS: is required with a token, which anybody could read otherwise; set PlaintextToken if the network encrypts")
	}
	setDefault(&o.Timeout, DefaultTimeout)
	setDefault(&o.AttemptTimeout, DefaultAttemptTimeout)
	setDefault(&o.MaxAge, DefaultMaxAge)
	setDefault(&o.ResolveEvery, DefaultResolveEvery)
	setDefault(&o.MaxPrefetch, maxBlock)
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	return o, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
