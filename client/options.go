package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/flake"
)

// Mode is how calls become requests. The zero Mode is Coalesce.
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
	// DefaultTimeout is longer than a caller is without a node during a rolling
	// restart of a small cluster.
	DefaultTimeout = 10 * time.Second
	// DefaultAttemptTimeout is ten times the longest time that a node delays a
	// request.
	DefaultAttemptTimeout = time.Second
	// DefaultMaxAge keeps prefetched IDs roughly in order of time.
	DefaultMaxAge = time.Second
)

// maxBlock is the maximum number of IDs of one request that any node grants.
const maxBlock = 1_000_000

// Options configure a client. Targets is required; every other field may be
// left at zero.
type Options struct {
	// Targets are gRPC addresses of nodes, each host:port, or unix:/path of a Unix socket. A name
	// stands for all of its addresses. At most 16 are connected to at a time; others replace those
	// that are unreachable.
	Targets []string
	// Mode is how calls become requests.
	Mode Mode

	// Unordered lets the client's IDs come in any order. It only saves waits for
	// nodes whose clocks are behind.
	Unordered bool
	// After makes every ID greater than this one: the order of an earlier client
	// goes on.
	After flake.ID

	// Timeout bounds the duration of a call with its retries, in addition to its
	// context. 0 means DefaultTimeout; negative is no bound: calls whose contexts
	// have no deadline, and Close, which lets them finish, then wait forever for a
	// node.
	Timeout time.Duration
	// AttemptTimeout is the timeout of one attempt, after which another node is
	// asked; 0 means DefaultAttemptTimeout.
	AttemptTimeout time.Duration

	// MaxAge is how old an ID of Prefetch may be when it is given; 0 means
	// DefaultMaxAge. Older ones are dropped and counted. By how much the wall clock is set forward
	// counts as age: the memory may be that of a machine which was saved and resumed.
	MaxAge time.Duration
	// RenewEarly has Prefetch request the next block when the present one has reached half of MaxAge,
	// so that calls which come seldom find IDs too. It costs a request each half of MaxAge while
	// there are calls, and IDs that nobody takes.
	RenewEarly bool

	// TLS verifies nodes, and has the client's certificate if nodes require one; nil
	// is plaintext. Unix sockets have none: the kernel carries their bytes.
	TLS *tls.Config
	// Token, if set, returns the bearer token of a request. It is called for every
	// request or stream, and must be safe for concurrent use.
	Token func(context.Context) (string, error)
	// TokenFile, if set, holds the bearer token. New returns an error if there is no
	// such file. It is reloaded when it changes.
	TokenFile string
	// PlaintextToken allows a token without TLS, for networks that encrypt. Otherwise
	// New returns an error.
	PlaintextToken bool

	// DialOptions come after the client's own, for interceptors and the handlers
	// of OpenTelemetry.
	DialOptions []grpc.DialOption
}

// withDefaults checks o and fills it in. The error names the field.
func (o Options) withDefaults() (Options, error) {
	if len(o.Targets) == 0 {
		return o, errors.New("client: option Targets: is empty: name the gRPC address of a node, such as " +
			"localhost:9000")
	}
	o.Targets = slices.Clone(o.Targets)
	sockets := 0
	for _, t := range o.Targets {
		if isSocket(t) {
			if path := socketPath(t); !strings.HasPrefix(path, "/") || len(path) > maxSocketPath {
				return o, fmt.Errorf("client: option Targets: %.120q is no path of a Unix socket: write unix:/path, "+
					"with an absolute path of at most %d bytes", t, maxSocketPath)
			}
			sockets++
			continue
		}
		host, port, _ := net.SplitHostPort(t) // Both are empty after an error.
		if host == "" || port == "" {
			return o, fmt.Errorf("client: option Targets: %.80q is not host:port", t)
		}
		if n, err := net.LookupPort("tcp", port); err != nil || n == 0 {
			return o, fmt.Errorf("client: option Targets: %.80q: there is no port %.20q: ports are 1 to 65535", t, port)
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
	case o.Token != nil && o.TokenFile != "":
		return o, errors.New("client: options Token and TokenFile: set one of them")
	case (o.Token != nil || o.TokenFile != "") && o.TLS == nil && !o.PlaintextToken && sockets < len(o.Targets):
		return o, errors.New("client: option TLS: is required with a token, since others could read it in " +
			"plaintext; set PlaintextToken if the network encrypts")
	}
	if o.TokenFile != "" {
		if _, err := os.Stat(o.TokenFile); err != nil {
			return o, fmt.Errorf("client: option TokenFile: %w", err)
		}
	}
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.AttemptTimeout = cmp.Or(o.AttemptTimeout, DefaultAttemptTimeout)
	o.MaxAge = cmp.Or(o.MaxAge, DefaultMaxAge)
	return o, nil
}

// maxSocketPath is how many bytes the path of a Unix socket may have.
const maxSocketPath = 107

// isSocket reports whether a target is a Unix socket.
func isSocket(target string) bool { return strings.HasPrefix(target, "unix:") }

// socketPath returns the path of a Unix socket, which may have been written as unix:///path too.
func socketPath(target string) string {
	path := strings.TrimPrefix(target, "unix:")
	if absolute, ok := strings.CutPrefix(path, "//"); ok {
		return absolute
	}
	return path
}
