package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/client/internal/balance"
	"github.com/flakelease/allocator/flake"
)

// Times of lookups.
const (
	resolveEvery       = 30 * time.Second
	minResolveInterval = time.Second // the shortest time between two lookups
	lookupTimeout      = 5 * time.Second
)

// pool keeps the connections to the nodes that a client knows. Which one is asked next is up to
// nodes. Times are counted from the client's start.
type pool struct {
	o     Options
	since func() time.Duration
	ctx   context.Context // ends with the client
	end   context.CancelFunc
	work  sync.WaitGroup // goroutines of the pool

	lookupHost func(context.Context, string) ([]string, error)
	lookups    chan struct{} // has one element while a lookup is requested
	// format is that of the first answer. IDs of nodes with another format are not
	// unique beside these.
	format atomic.Pointer[flake.Format]
	space  atomic.Uint64 // the space of the first answer, once one names it

	mu        sync.Mutex // guards the rest, and the balance.Node of each endpoint
	nodes     balance.Pool[*endpoint]
	wake      chan struct{} // closed and replaced when another node may be asked
	lookupErr error         // nil if the last lookup did not fail
}

func newPool(o Options, since func() time.Duration, lookup func(context.Context, string) ([]string, error)) *pool {
	p := &pool{
		o:          o,
		since:      since,
		lookupHost: lookup,
		lookups:    make(chan struct{}, 1),
		// Clients of a fleet should not all begin with the first node.
		nodes: balance.Pool[*endpoint]{Attempt: o.AttemptTimeout, Turn: uint(rand.Uint32())},
		wake:  make(chan struct{}),
	}
	p.ctx, p.end = context.WithCancel(context.Background())
	return p
}

// start connects to all targets that need no lookup, and looks up the rest in the background. The error
// is one of the options.
func (p *pool) start() error {
	known, names := p.targets()
	err := p.set(known, nil)
	if err == nil && len(names) > 0 { // Options that gRPC rejects are found without a connection.
		var conn *grpc.ClientConn
		if conn, err = p.endpoint(balance.Address{Target: names[0], Addr: "127.0.0.1:1"}).dial(); err == nil {
			err = conn.Close()
		}
	}
	if err != nil {
		p.close()
		return err
	}
	if len(names) > 0 || len(known) > balance.MaxNodes { // The set in use changes.
		p.work.Go(p.resolve)
	}
	return nil
}

// targets returns those that are addresses, and the names to look up.
func (p *pool) targets() (known []balance.Address, names []string) {
	for _, t := range p.o.Targets {
		if host, _, _ := net.SplitHostPort(t); isSocket(t) || net.ParseIP(host) != nil {
			known = append(known, balance.Address{Target: t, Addr: t})
		} else {
			names = append(names, t)
		}
	}
	return known, names
}

func (p *pool) close() {
	p.end()
	p.work.Wait()
}

// resolve looks names up until the client is closed.
func (p *pool) resolve() {
	every := time.NewTimer(0)
	defer every.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-every.C:
		case <-p.lookups:
		}
		found, failed := p.lookup()
		if p.ctx.Err() != nil {
			return
		}
		_ = p.set(found, failed) // lookupErr has the error
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(minResolveInterval):
		}
		if len(failed) > 0 {
			p.lookupSoon()
		}
		every.Reset(resolveEvery)
	}
}

// lookup returns the addresses of all targets, and the error of each target whose
// addresses are not known.
func (p *pool) lookup() (found []balance.Address, failed map[string]error) {
	ctx, cancel := context.WithTimeout(p.ctx, lookupTimeout)
	defer cancel()
	found, names := p.targets()
	failed = map[string]error{}
	var mu sync.Mutex // guards found and failed
	var all sync.WaitGroup
	for _, t := range names {
		all.Go(func() { // concurrently: a name server that hangs delays the others once
			host, port, _ := net.SplitHostPort(t)
			addrs, err := p.lookupHost(ctx, host)
			if err == nil && len(addrs) == 0 { // as with a service that has no ready node just now
				err = fmt.Errorf("lookup %s: there are no addresses", host)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[t] = err
			}
			for _, a := range addrs {
				found = append(found, balance.Address{Target: t, Addr: net.JoinHostPort(a, port)})
			}
		})
	}
	all.Wait()
	return found, failed
}

// set connects to what was found, as far as Choose says, and closes other connections. It leaves out
// addresses that cannot be dialed, and returns the error. It is called by one goroutine at a time.
func (p *pool) set(found []balance.Address, failed map[string]error) (err error) {
	for _, e := range failed {
		err = e
	}
	p.mu.Lock()
	chosen := p.nodes.Choose(found, failed, rand.Shuffle)
	old := p.nodes.Nodes
	p.mu.Unlock()
	var list []*endpoint
	for _, a := range chosen {
		if i := slices.IndexFunc(old, func(e *endpoint) bool { return e.Addr == a.Addr }); i >= 0 {
			list = append(list, old[i])
			continue
		}
		e := p.endpoint(a)
		if failed := e.open(); failed != nil {
			err = failed
			continue
		}
		list = append(list, e)
	}
	p.mu.Lock()
	p.lookupErr = err
	gone := p.nodes.Use(list)
	p.unlock()
	for _, e := range gone {
		e.end()
	}
	return err
}

// unlock ends a change of the nodes, and wakes the calls that wait for one if another may be asked.
func (p *pool) unlock() {
	if p.nodes.Changed() {
		close(p.wake)
		p.wake = make(chan struct{})
	}
	p.mu.Unlock()
}

// pick returns the next endpoint to ask, other than avoid where there is another. If none can be
// asked now it returns nil, after what time one may be, and a channel that is closed when that changes.
func (p *pool) pick(avoid *endpoint) (*endpoint, time.Duration, <-chan struct{}) {
	now := p.since()
	p.mu.Lock()
	defer p.mu.Unlock()
	e, wait := p.nodes.Pick(now, avoid)
	return e, wait, p.wake
}

// connected returns how many nodes there are a connection to.
func (p *pool) connected() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes.Connected()
}

// refusal returns the refusal of a node that is not asked because of it, by any
// call; nil: there is none.
func (p *pool) refusal() (r *Refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err, refusing := p.nodes.Cause(p.since()); refusing {
		errors.As(err, &r)
	}
	return r
}

// forgive has nodes asked again that are not, since the client's last ID was too far
// ahead.
func (p *pool) forgive() {
	p.mu.Lock()
	defer p.unlock()
	p.nodes.Forgive()
}

// lastError returns last or, if that is nil, why there is no endpoint to ask, as far as that is known.
func (p *pool) lastError(last error) error {
	if last != nil {
		return last
	}
	p.mu.Lock()
	err, _ := p.nodes.Cause(p.since())
	list, lookup := p.nodes.Nodes, p.lookupErr
	p.mu.Unlock()
	for _, e := range list {
		if err == nil {
			err = e.connectError()
		}
	}
	return cmp.Or(err, lookup)
}

// lookupSoon requests a lookup of names: an address may have moved.
func (p *pool) lookupSoon() {
	select {
	case p.lookups <- struct{}{}:
	default:
	}
}
