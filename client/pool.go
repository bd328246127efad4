package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/flake"
)

// Limits of the pool.
const (
	// maxEndpoints bounds the nodes that one client connects to. Of names with more
	// addresses some are used, which differ from client to client.
	maxEndpoints = 16
	// minResolveInterval is the shortest time between two lookups.
	minResolveInterval = time.Second
	lookupTimeout      = 5 * time.Second
)

// pool holds the nodes that a client knows, and picks the one to ask. Its times are
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
	// format is that of the first answer. IDs of nodes with another format are not
	// unique beside these.
	format  atomic.Pointer[flake.Format]
	lookups chan struct{} // has one element while a lookup is requested

	mu        sync.Mutex // guards changes of list, and lookupErr
	lookupErr error      // nil if the last lookup did not fail
}

func newPool(o Options, since func() time.Duration) *pool {
	p := &pool{o: o, since: since, lookups: make(chan struct{}, 1)}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.list.Store(new([]*endpoint))
	wake := make(chan struct{})
	p.wake.Store(&wake)
	p.next.Store(rand.Uint32()) // clients of a fleet should not all begin with the first
	return p
}

// start connects to all targets that need no lookup, and looks up the rest in the
// background.
func (p *pool) start() error {
	var names bool
	var known []address
	for _, t := range p.o.Targets {
		host, _, _ := net.SplitHostPort(t)
		if !isSocket(t) && net.ParseIP(host) == nil {
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
	if names || len(known) > maxEndpoints { // The set in use changes.
		p.work.Go(p.resolve)
	}
	return nil
}

// dialable returns an error if no address can be dialed with the options. It does
// not connect.
func (p *pool) dialable() error {
	conn, err := (&endpoint{pool: p, target: p.o.Targets[0], addr: "127.0.0.1:1"}).dial()
	if err != nil {
		return err
	}
	return conn.Close()
}

func (p *pool) close() {
	p.end()
	p.work.Wait()
}

// address is the address of a node, and the target that it was found under.
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
		case <-p.lookups:
		}
		found, failed := p.lookup()
		_ = p.set(found, failed) // lookupErr has the error
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(minResolveInterval):
		}
		if len(failed) > 0 {
			p.lookupSoon()
		}
		every.Reset(p.o.ResolveEvery)
	}
}

// lookup returns the addresses of all targets, and the error of each target whose
// addresses are not known.
func (p *pool) lookup() (found []address, failed map[string]error) {
	failed = map[string]error{}
	ctx, cancel := context.WithTimeout(p.ctx, lookupTimeout)
	defer cancel()
	var mu sync.Mutex // guards found and failed
	var all sync.WaitGroup
	for _, t := range p.o.Targets {
		host, port, _ := net.SplitHostPort(t)
		if isSocket(t) || net.ParseIP(host) != nil {
			mu.Lock()
			found = append(found, address{t, t})
			mu.Unlock()
			continue
		}
		all.Go(func() { // concurrently: a name server that hangs delays the others once
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
// stay: the failure of a name server is none of the nodes.
func (p *pool) set(found []address, failed map[string]error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil
	}
	p.lookupErr = nil
	for _, err := range failed {
		p.lookupErr = err
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
		p.lookupErr = err
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

// update opens and closes endpoints. It leaves out addresses that cannot be dialed,
// and returns the error. p.mu is held.
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

// changed wakes all that wait for an endpoint.
func (p *pool) changed() {
	wake := make(chan struct{})
	close(*p.wake.Swap(&wake))
}

// pick returns the next endpoint to ask, other than avoid where there is another.
// If none can be asked now it returns nil, after what time one may be, and a
// channel that is closed when something changes.
func (p *pool) pick(avoid *endpoint) (*endpoint, time.Duration, <-chan struct{}) {
	changed := *p.wake.Load() // before the list is read, so that no change is missed
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

// connected returns how many nodes there are a connection to.
func (p *pool) connected() (n int) {
	for _, e := range *p.list.Load() {
		if e.ready.Load() {
			n++
		}
	}
	return n
}

// refusal returns the refusal of a node that is not asked because of it, by any
// call; nil: there is none.
func (p *pool) refusal() *Refusal {
	now := p.since()
	for _, e := range *p.list.Load() {
		if cause := e.cause.Load(); cause != nil && time.Duration(e.until.Load()) > now {
			if r := (*Refusal)(nil); errors.As(*cause, &r) {
				return r
			}
		}
	}
	return nil
}

// forgive has nodes asked again that are not, since the client's last ID was too far
// ahead.
func (p *pool) forgive() {
	for _, e := range *p.list.Load() {
		if cause := e.cause.Load(); cause != nil {
			if r := (*Refusal)(nil); errors.As(*cause, &r) && r.Reason == AfterTooFar {
				e.until.Store(0)
				e.cause.CompareAndSwap(cause, nil)
			}
		}
	}
	p.changed()
}

// lastError returns why there is no endpoint to ask, as far as that is known.
func (p *pool) lastError() error {
	if r := p.refusal(); r != nil {
		return r
	}
	for _, e := range *p.list.Load() {
		if cause := e.cause.Load(); cause != nil {
			return *cause
		}
		if err := e.connectError(); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lookupErr
}

// lookupSoon requests a lookup of names: an address may have moved.
func (p *pool) lookupSoon() {
	select {
	case p.lookups <- struct{}{}:
	default:
	}
}
