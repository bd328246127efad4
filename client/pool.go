package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
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
	"github.com/flakelease/allocator/flake"
)

// Paces of the pool.
const (
	// maxEndpoints bounds the nodes that one client connects to. Names with more
	// addresses have some of them used, which differ from client to client.
	maxEndpoints = 16
	// A node that fails is left alone for this long, twice as long each time.
	firstPenalty = 20 * time.Millisecond
	lastPenalty  = time.Second
	// A node that does not answer at all costs callers a whole attempt.
	silentPenalty     = time.Second
	lastSilentPenalty = 15 * time.Second
	// refusedPenalty is for refusals that name no delay, such as DRAINING.
	refusedPenalty = time.Second
	// maxRefusedPenalty is the longest that a refusing node is left alone; by then
	// an operator may have changed something.
	maxRefusedPenalty = 5 * time.Second
	// resolveAgain is the shortest time between two lookups.
	resolveAgain  = time.Second
	lookupTimeout = 5 * time.Second
	// pingEvery finds dead connections that no request is waiting on. Nodes allow
	// a ping in 5 s.
	pingEvery   = 20 * time.Second
	pingTimeout = 5 * time.Second
)

// pool is the nodes that a client knows, and which of them to ask. Time in it is
// counted from the client's start.
type pool struct {
	o     Options
	since func() time.Duration
	ctx   context.Context // ends with the client
	end   context.CancelFunc
	work  sync.WaitGroup // goroutines of the pool

	next atomic.Uint32 // round robin
	list atomic.Pointer[[]*endpoint]
	wake atomic.Pointer[chan struct{}] // closed and replaced when an endpoint changes
	// format is what the first answer said of the space. Nodes of another one give
	// IDs that are not unique beside these.
	format atomic.Pointer[flake.Format]
	look   chan struct{} // has one token while a lookup is asked for

	mu      sync.Mutex // guards changes of list, and lookErr
	lookErr error      // of the last lookup, if it failed
}

func newPool(o Options, since func() time.Duration) *pool {
	p := &pool{o: o, since: since, look: make(chan struct{}, 1)}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.list.Store(new([]*endpoint))
	wake := make(chan struct{})
	p.wake.Store(&wake)
	p.next.Store(rand.Uint32()) // clients of a fleet shall not all begin with the first
	return p
}

// start connects to all that needs no lookup, and lets the rest follow.
func (p *pool) start() error {
	var names bool
	var known []address
	for _, t := range p.o.Targets {
		host, _, _ := net.SplitHostPort(t)
		if net.ParseIP(host) == nil {
			names = true
			continue
		}
		known = append(known, address{t, t})
	}
	err := p.set(known, nil)
	if err == nil && names {
		err = p.dialable()
	}
	if err != nil {
		p.close()
		return err
	}
	if names || len(known) > maxEndpoints { // which of them are used changes, too
		p.work.Go(p.resolve)
	}
	return nil
}

// dialable returns why no address can be dialled with the options, if that is so.
// It connects to nothing.
func (p *pool) dialable() error {
	conn, err := (&endpoint{pool: p, target: p.o.Targets[0], addr: "127.0.0.1:1"}).dial()
	if err != nil {
		return err
	}
	return conn.Close()
}

func (p *pool) close() {
	p.end()
	p.mu.Lock()
	_ = p.update(nil)
	p.mu.Unlock()
	p.work.Wait()
}

// address is where a node is, and the target that it was found under.
type address struct{ target, addr string }

// resolve looks names up until the client is closed.
func (p *pool) resolve() {
	every := time.NewTimer(0)
	defer every.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-every.C:
		case <-p.look:
		}
		found, failed := p.lookup()
		_ = p.set(found, failed) // it is in lookErr
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(resolveAgain):
		}
		if len(failed) > 0 {
			p.lookAgain()
		}
		every.Reset(p.o.ResolveEvery)
	}
}

// lookup returns the addresses of all targets, and the error of each target that
// has none to show.
func (p *pool) lookup() (found []address, failed map[string]error) {
	failed = map[string]error{}
	ctx, cancel := context.WithTimeout(p.ctx, lookupTimeout)
	defer cancel()
	var mu sync.Mutex // guards found and failed
	var all sync.WaitGroup
	for _, t := range p.o.Targets {
		host, port, _ := net.SplitHostPort(t)
		if net.ParseIP(host) != nil {
			mu.Lock()
			found = append(found, address{t, t})
			mu.Unlock()
			continue
		}
		all.Go(func() { // at once: a name server that hangs costs the others' names once
			addrs, err := p.o.Resolver.LookupHost(ctx, host)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				failed[t] = err
			case len(addrs) == 0: // as with a service that has no ready node just now
				failed[t] = fmt.Errorf("lookup %s: there are no addresses", host)
			}
			for _, a := range addrs {
				found = append(found, address{t, net.JoinHostPort(a, port)})
			}
		})
	}
	all.Wait()
	return found, failed
}

// set makes found the pool's endpoints. Those of a target whose lookup failed
// stay: a name server that is away says nothing of the nodes.
func (p *pool) set(found []address, failed map[string]error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil
	}
	p.lookErr = nil
	for _, err := range failed {
		p.lookErr = err
	}
	old := *p.list.Load()
	for _, e := range old {
		if failed[e.target] != nil {
			found = append(found, address{e.target, e.addr})
		}
	}
	if len(found) > maxEndpoints { // keep what is connected
		rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
		slices.SortStableFunc(found, func(a, b address) int { return index(old, a) - index(old, b) })
		found = found[:maxEndpoints]
	}
	err := p.update(found)
	if err != nil {
		p.lookErr = err
	}
	return err
}

// index returns 0 for an address that an endpoint is connected to, else 1.
func index(list []*endpoint, a address) int {
	if slices.ContainsFunc(list, func(e *endpoint) bool { return e.addr == a.addr && e.ready.Load() }) {
		return 0
	}
	return 1
}

// update opens and closes endpoints. An address that cannot be dialled is left out,
// and is the error. p.mu is held.
func (p *pool) update(found []address) (err error) {
	var list []*endpoint
	old := *p.list.Load()
	for _, a := range found {
		same := func(e *endpoint) bool { return e.addr == a.addr }
		if slices.ContainsFunc(list, same) {
			continue
		}
		if i := slices.IndexFunc(old, same); i >= 0 {
			list = append(list, old[i])
			continue
		}
		e := &endpoint{pool: p, target: a.target, addr: a.addr}
		if failed := e.open(); failed != nil {
			err = failed
			continue
		}
		list = append(list, e)
	}
	p.list.Store(&list)
	for _, e := range old {
		if !slices.Contains(list, e) {
			e.end()
		}
	}
	p.changed()
	return err
}

// changed wakes whoever waits for an endpoint.
func (p *pool) changed() {
	wake := make(chan struct{})
	close(*p.wake.Swap(&wake))
}

// pick returns the next endpoint to ask, other than avoid where there is another.
// If none can be asked now it returns nil, after what time one may be, and a
// channel that is closed when something changes.
func (p *pool) pick(avoid *endpoint) (*endpoint, time.Duration, <-chan struct{}) {
	changed := *p.wake.Load() // before the look, so that no change is missed
	list := *p.list.Load()
	now, start := p.since(), uint(p.next.Add(1))
	wait, fallback := time.Second, (*endpoint)(nil)
	for i := range list {
		e := list[(start+uint(i))%uint(len(list))]
		if !e.ready.Load() {
			continue
		}
		switch left := e.left(now); {
		case left > 0:
			wait = min(wait, left)
		case e == avoid:
			fallback = e
		case e.claim(now):
			return e, 0, nil
		}
	}
	if fallback != nil && fallback.claim(now) {
		return fallback, 0, nil
	}
	return nil, wait, changed
}

// refusal returns a refusal for which a node is left alone just now, whoever it was
// that asked; nil: there is none.
func (p *pool) refusal() *Refusal {
	now := p.since()
	for _, e := range *p.list.Load() {
		if said := e.said.Load(); said != nil && time.Duration(e.until.Load()) > now {
			if r := (*Refusal)(nil); errors.As(*said, &r) {
				return r
			}
		}
	}
	return nil
}

// last returns what is known of why there is no endpoint to ask.
func (p *pool) last() error {
	if r := p.refusal(); r != nil {
		return r
	}
	for _, e := range *p.list.Load() {
		if said := e.said.Load(); said != nil {
			return *said
		}
		if err := e.why(); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lookErr
}

// endpoint is a node at one address. A node that fails is not asked until a time,
// which is the circuit breaker: until then others are. After that one call finds
// out whether it serves, and the rest wait for what becomes of that: a thousand
// callers shall not ask a node that refuses a thousand times.
type endpoint struct {
	pool         *pool
	target, addr string

	conn  atomic.Pointer[grpc.ClientConn]
	ready atomic.Bool // connected
	end   func()      // closes the connection

	until atomic.Int64          // not to be asked before, ns since the client's start; 0: it served since
	trial atomic.Int64          // until when a call that finds out has time; 0: there is none
	said  atomic.Pointer[error] // what it did, when until was set; nil: it served since
	fails atomic.Int32          // failures in a row
	mute  atomic.Int64          // since when callers leave unanswered, ns since the client's start; 0: they are answered

	requests, failures, refusals atomic.Int64
}

// open begins to connect, and keeps connected until end.
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
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec())),
		grpc.WithDisableServiceConfig(), // the pool chooses nodes and tries again
		grpc.WithIdleTimeout(0),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: 2 * o.AttemptTimeout,
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
		}),
	}
	if o.TLS == nil || o.TLS.ServerName == "" { // a certificate is for the name, not the address
		opts = append(opts, grpc.WithAuthority(e.target))
	}
	switch {
	case o.Token != nil:
		opts = append(opts, grpc.WithPerRPCCredentials(bearer{o.Token, o.PlaintextToken}))
	case o.TokenFile != "":
		opts = append(opts, grpc.WithPerRPCCredentials(bearer{(&tokenFile{path: o.TokenFile}).get, o.PlaintextToken}))
	}
	return grpc.NewClient("passthrough:///"+strings.ReplaceAll(e.addr, "%", "%25"), append(opts, o.DialOptions...)...)
}

// watch keeps e connected, and ready true to that, until ctx ends.
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
			e.pool.lookAgain()
		case connectivity.Shutdown: // by failed
			next, err := e.dial()
			if err != nil { // it could be dialled before, with the same options
				return
			}
			conn = next
			e.conn.Store(conn)
			continue
		}
		conn.WaitForStateChange(ctx, state)
	}
}

// lookAgain asks for names to be looked up: an address may have moved.
func (p *pool) lookAgain() {
	select {
	case p.look <- struct{}{}:
	default:
	}
}

// served says that e answered with IDs.
func (e *endpoint) served() {
	if e.fails.Load() != 0 || e.until.Load() != 0 || e.mute.Load() != 0 {
		e.fails.Store(0)
		e.until.Store(0)
		e.said.Store(nil)
		e.mute.Store(0)
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

// claim reports whether the caller may ask e, which it then has to do. After e
// failed or refused one call may, until that has ended or run out of time.
func (e *endpoint) claim(now time.Duration) bool {
	if e.until.Load() == 0 {
		return true
	}
	t := e.trial.Load()
	return t <= int64(now) && e.trial.CompareAndSwap(t, int64(now+e.pool.o.AttemptTimeout))
}

// tried ends a trial, whatever came of it, and has those look that waited for it.
func (e *endpoint) tried() {
	if e.trial.Load() != 0 {
		e.trial.Store(0)
		e.pool.changed()
	}
}

// unheard says that a caller's patience ended before e answered. Once nobody has
// been answered for the time of an attempt, that is e's failure.
func (e *endpoint) unheard(conn *grpc.ClientConn) {
	defer e.tried()
	now := int64(e.pool.since())
	if e.mute.CompareAndSwap(0, now) {
		return
	}
	if since := e.mute.Load(); since > 0 && now-since > int64(e.pool.o.AttemptTimeout) && e.mute.CompareAndSwap(since, 0) {
		e.failed(conn, true, e.named(errors.New("no answer to callers of little time")))
	}
}

// refused leaves e alone for as long as it asked for.
func (e *endpoint) refused(r *Refusal) {
	e.refusals.Add(1)
	wait := r.RetryAfter
	if wait <= 0 {
		wait = refusedPenalty
	}
	e.fails.Store(0) // it answers
	e.mute.Store(0)
	e.say(r)
	e.until.Store(int64(e.pool.since() + min(wait, maxRefusedPenalty)))
	e.tried()
}

// say notes why e is left alone.
func (e *endpoint) say(err error) { e.said.Store(&err) }

// failed leaves e alone for a while, since it did not answer over conn. silent says
// that it let an attempt time out; then the connection is not worth keeping either.
// Requests that were under way when another failed say nothing new.
func (e *endpoint) failed(conn *grpc.ClientConn, silent bool, err error) {
	e.failures.Add(1)
	defer e.tried()
	now, until := e.pool.since(), e.until.Load()
	if time.Duration(until) > now || e.conn.Load() != conn {
		return
	}
	first, last := firstPenalty, lastPenalty
	if silent {
		first, last = silentPenalty, lastSilentPenalty
	}
	wait := min(first<<min(e.fails.Load(), 10), last)
	if e.until.CompareAndSwap(until, int64(now+wait)) {
		e.fails.Add(1)
		e.say(err)
		if silent {
			_ = conn.Close() // watch opens another
		}
	}
}

// why returns why e is not connected, or nil if that is not known. It asks for
// IDs over a connection that is known to be down.
func (e *endpoint) why() error {
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

// attemptError is what became of an attempt that no refusal answered.
type attemptError struct {
	node string
	err  error
}

func (a *attemptError) Error() string {
	message := a.err.Error()
	if s, ok := status.FromError(a.err); ok {
		message = strings.ToLower(s.Code().String()) + ": " + s.Message()
	}
	return a.node + ": " + message
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
