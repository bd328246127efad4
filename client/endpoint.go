package client

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client/internal/balance"
	"github.com/flakelease/allocator/internal/wire"
)

// pingEvery finds dead connections that no request is waiting on. Nodes allow a ping in 5 s.
const (
	pingEvery   = 20 * time.Second
	pingTimeout = 5 * time.Second
)

// endpoint is the connection to a node at one address.
type endpoint struct {
	balance.Node // but for Target and Addr, which do not change, pool.mu guards it
	pool         *pool

	conn     atomic.Pointer[grpc.ClientConn]
	end      func() // closes the connection
	requests atomic.Int64
}

func (p *pool) endpoint(a balance.Address) *endpoint {
	return &endpoint{pool: p, Node: balance.Node{Address: a}}
}

// open connects in the background, and keeps connected until end.
func (e *endpoint) open() error {
	conn, err := e.dial()
	if err != nil {
		return err
	}
	e.conn.Store(conn)
	ctx, cancel := context.WithCancel(e.pool.ctx)
	e.end = cancel
	e.pool.work.Go(func() { e.watch(ctx) })
	return nil
}

func (e *endpoint) dial() (*grpc.ClientConn, error) {
	o := e.pool.o
	creds, socket := insecure.NewCredentials(), isSocket(e.Target)
	if o.TLS != nil && !socket {
		creds = credentials.NewTLS(o.TLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.NewCodec())),
		grpc.WithDisableServiceConfig(), // the pool chooses nodes and retries
		grpc.WithIdleTimeout(0),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: 2 * o.AttemptTimeout,
			Backoff: backoff.Config{
				BaseDelay:  50 * time.Millisecond,
				Multiplier: 1.6,
				Jitter:     0.2,
				MaxDelay:   time.Second,
			},
		}),
	}
	if !socket && (o.TLS == nil || o.TLS.ServerName == "") { // a certificate is for the name, not the address
		opts = append(opts, grpc.WithAuthority(e.Target))
	}
	switch {
	case o.Token != nil:
		opts = append(opts, grpc.WithPerRPCCredentials(bearer{o.Token, o.PlaintextToken || socket}))
	case o.TokenFile != "":
		opts = append(opts, grpc.WithPerRPCCredentials(bearer{(&tokenFile{path: o.TokenFile}).get,
			o.PlaintextToken || socket}))
	}
	if socket {
		opts = append(opts, o.DialOptions...)
		// DialOptions may have credentials for the nodes that are reached by the network.
		return grpc.NewClient("unix://"+socketPath(e.Addr), append(opts, grpc.WithTransportCredentials(creds))...)
	}
	return grpc.NewClient("passthrough:///"+strings.ReplaceAll(e.Addr, "%", "%25"), append(opts, o.DialOptions...)...)
}

// watch keeps e connected, and notes whether it is, until ctx ends.
func (e *endpoint) watch(ctx context.Context) {
	conn := e.conn.Load()
	defer func() {
		e.setReady(false)
		_ = conn.Close()
	}()
	for ctx.Err() == nil {
		state := conn.GetState()
		e.setReady(state == connectivity.Ready)
		switch state {
		case connectivity.Idle:
			conn.Connect()
		case connectivity.TransientFailure:
			e.pool.lookupSoon()
		case connectivity.Shutdown: // by ended
			next, err := e.dial()
			if err != nil { // cannot happen: the options are the same as before
				return
			}
			conn = next
			e.conn.Store(conn)
			continue
		}
		conn.WaitForStateChange(ctx, state)
	}
}

func (e *endpoint) setReady(ready bool) {
	e.pool.mu.Lock()
	defer e.pool.unlock()
	e.pool.nodes.Ready(e, ready)
}

// why returns why e was not asked, or nil if it has served since.
func (e *endpoint) why() error {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	return e.Cause()
}

// ended notes how a request over conn ended.
func (e *endpoint) ended(conn *grpc.ClientConn, o balance.Outcome) {
	now := e.pool.since()
	o.Old = e.conn.Load() != conn
	e.pool.mu.Lock()
	replace := e.pool.nodes.Ended(e, now, o)
	e.pool.unlock()
	if replace {
		_ = conn.Close() // watch opens another
	}
}

// connectError returns why e is not connected, or nil if that is not known. It
// sends a request over a connection that is known to be down.
func (e *endpoint) connectError() error {
	conn := e.conn.Load()
	if conn.GetState() != connectivity.TransientFailure {
		return nil
	}
	ctx, cancel := context.WithTimeout(e.pool.ctx, 100*time.Millisecond)
	defer cancel()
	_, err := pb.NewAllocatorServiceClient(conn).Allocate(ctx, &pb.AllocateRequest{Count: 1})
	if err == nil || contextual(err) {
		return nil
	}
	return e.named(err)
}

// named adds the node to an error of gRPC.
func (e *endpoint) named(err error) error { return &attemptError{e.Addr, err} }

// attemptError is the error of an attempt that did not end with a refusal.
type attemptError struct {
	node string
	err  error
}

func (a *attemptError) Error() string {
	message := a.err.Error()
	if s, ok := status.FromError(a.err); ok {
		message = strings.ToLower(s.Code().String()) + ": " + s.Message() + hint(s.Message())
	}
	return a.node + ": " + message
}

// hint says what to change after an answer of something that is no node's gRPC port.
func hint(message string) string {
	switch {
	case strings.Contains(message, "looked like an HTTP/1.1 header"):
		return ": an HTTP/1.1 server answers there: use the node's gRPC port (listen.grpc, 9000 by default)"
	case strings.Contains(message, "unexpected HTTP status code"):
		return ": a proxy or another server answers there, and no node: check the target, and that the proxy passes " +
			"gRPC on"
	}
	return ""
}

func (a *attemptError) Unwrap() error { return a.err }

// contextual reports whether an error of gRPC only says that a context ended.
func contextual(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	c := status.Code(err)
	return c == codes.Canceled || c == codes.DeadlineExceeded
}
