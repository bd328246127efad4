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
	"github.com/flakelease/allocator/internal/wire"
)

// Times of an endpoint.
const (
	// A node that fails is not asked for this long, twice as long each time.
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = time.Second
	// A node that does not answer at all costs callers a whole attempt.
	firstTimeoutBackoff = time.Second
	lastTimeoutBackoff  = 15 * time.Second
	// refusedBackoff is for refusals that name no delay, such as DRAINING.
	refusedBackoff = time.Second
	// maxRefusedBackoff is the longest that a refusing node is not asked; by then
	// an operator may have changed something.
	maxRefusedBackoff = 5 * time.Second
	// pingEvery finds dead connections that no request is waiting on. Nodes allow
	// a ping in 5 s.
	pingEvery   = 20 * time.Second
	pingTimeout = 5 * time.Second
)

// endpoint is a node at one address, with a circuit breaker: a node that fails is
// not asked for some time, and others are. After that time one call is the trial
// that shows whether the node serves, and the rest wait for its outcome, so that a
// thousand callers do not ask a refusing node a thousand times.
type endpoint struct {
	pool         *pool
	target, addr string

	conn  atomic.Pointer[grpc.ClientConn]
	ready atomic.Bool // connected
	end   func()      // closes the connection

	until      atomic.Int64          // not to be asked before, ns since the client's start; 0: it served since
	trial      atomic.Int64          // when the trial under way times out; 0: there is none
	cause      atomic.Pointer[error] // why until was set; nil: it served since
	fails      atomic.Int32          // failures in a row
	unanswered atomic.Int64          // since when callers time out, ns since the client's start; 0: they do not

	requests, failures, refusals atomic.Int64
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
	creds, socket := insecure.NewCredentials(), isSocket(e.target)
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
		opts = append(opts, grpc.WithAuthority(e.target))
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
		return grpc.NewClient("unix://"+socketPath(e.addr), append(opts, grpc.WithTransportCredentials(creds))...)
	}
	return grpc.NewClient("passthrough:///"+strings.ReplaceAll(e.addr, "%", "%25"), append(opts, o.DialOptions...)...)
}

// watch keeps e connected and sets ready, until ctx ends.
func (e *endpoint) watch(ctx context.Context) {
	conn := e.conn.Load()
	defer func() {
		e.ready.Store(false)
		_ = conn.Close()
	}()
	for ctx.Err() == nil {
		state := conn.GetState()
		if was := e.ready.Swap(state == connectivity.Ready); was != (state == connectivity.Ready) {
			e.pool.changed()
		}
		switch state {
		case connectivity.Idle:
			conn.Connect()
		case connectivity.TransientFailure:
			e.pool.lookupSoon()
		case connectivity.Shutdown: // by failed
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

// served notes that e answered with IDs.
func (e *endpoint) served() {
	if e.until.Load() != 0 || e.unanswered.Load() != 0 {
		e.fails.Store(0)
		e.until.Store(0)
		e.cause.Store(nil)
		e.unanswered.Store(0)
		e.tried()
	}
}

// left returns for how long from now on e is not to be asked.
func (e *endpoint) left(now time.Duration) time.Duration {
	until := e.until.Load()
	if until == 0 {
		return 0
	}
	return time.Duration(max(until, e.trial.Load())) - now
}

// claim reports whether the caller may ask e, and then has to do so. After e failed
// or refused, one call may: the trial.
func (e *endpoint) claim(now time.Duration) bool {
	if e.until.Load() == 0 {
		return true
	}
	t := e.trial.Load()
	return t <= int64(now) && e.trial.CompareAndSwap(t, int64(now+e.pool.o.AttemptTimeout))
}

// tried ends a trial, with any outcome, and wakes the calls that wait for it.
func (e *endpoint) tried() {
	if e.trial.Load() != 0 {
		e.trial.Store(0)
		e.pool.changed()
	}
}

// callerTimedOut notes that a caller's deadline passed before e answered. If no
// caller was answered for the time of an attempt, that is a failure of e.
func (e *endpoint) callerTimedOut(conn *grpc.ClientConn) {
	defer e.tried()
	now := int64(e.pool.since())
	if e.unanswered.CompareAndSwap(0, now) {
		return
	}
	if since := e.unanswered.Load(); since > 0 && now-since > int64(e.pool.o.AttemptTimeout) &&
		e.unanswered.CompareAndSwap(since, 0) {
		e.failed(conn, true, e.named(errors.New("no answer within the deadlines of callers")))
	}
}

// refused stops asking e for the delay of a refusal.
func (e *endpoint) refused(r *Refusal) {
	e.refusals.Add(1)
	wait := r.RetryAfter
	if wait <= 0 {
		wait = refusedBackoff
	}
	e.fails.Store(0) // it answers
	e.unanswered.Store(0)
	e.setCause(r)
	e.until.Store(int64(e.pool.since() + min(wait, maxRefusedBackoff)))
	e.tried()
}

// setCause notes why e is not asked.
func (e *endpoint) setCause(err error) { e.cause.Store(&err) }

// failed stops asking e for some time, since it did not answer over conn. silent
// means that an attempt timed out; then the connection is closed as well. Failures
// of requests that were under way when another failed are ignored.
func (e *endpoint) failed(conn *grpc.ClientConn, silent bool, err error) {
	e.failures.Add(1)
	defer e.tried()
	now, until := e.pool.since(), e.until.Load()
	if time.Duration(until) > now || e.conn.Load() != conn {
		return
	}
	first, last := firstBackoff, lastBackoff
	if silent {
		first, last = firstTimeoutBackoff, lastTimeoutBackoff
	}
	wait := min(first<<min(e.fails.Load(), 10), last)
	if e.until.CompareAndSwap(until, int64(now+wait)) {
		e.fails.Add(1)
		e.setCause(err)
		if silent {
			_ = conn.Close() // watch opens another
		}
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
func (e *endpoint) named(err error) error { return &attemptError{e.addr, err} }

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
