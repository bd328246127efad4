// Package broker serves the calls of workers on a node: it carries out what package worker
// decides, on the store. It keeps no state of workers, only what bounds them: a list of the
// space that is at most a second old, and for each client a rate and the acquisitions that
// may still hold a lease.
//
// A caller that leaves does not end its call: the outcome of a write is always found out,
// or left to the next call with the same handle.
package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker"
)

// Store is what workers need of the store of a space; see keeper.Store for what its
// errors mean.
type Store interface {
	Load(ctx context.Context) (lease.View, error)
	Read(ctx context.Context, sid flake.SID) (lease.View, error)
	Commit(ctx context.Context, txn lease.Txn) (applied bool, now lease.View, err error)
	// Grant takes a lease of ttl, whole seconds.
	Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error)
	KeepAlive(ctx context.Context, id lease.LeaseID) error
	Revoke(ctx context.Context, id lease.LeaseID) error
}

// Keeper knows what the node has read, and up to which time it may write ceilings.
type Keeper interface {
	Status() lease.Status
	Limit() lease.Limit
}

// Config is what a Broker needs. All fields are required, but there may be no SIDs for
// workers. CallTimeout bounds one call to the store.
type Config struct {
	SIDs        lease.SIDRange
	Bounds      lease.Bounds
	CallTimeout time.Duration

	Node   *node.Node
	Keeper Keeper
	Store  Store
	Logger *slog.Logger
}

const (
	// wholeCall bounds a call of a worker, over all of its calls to the store.
	wholeCall = 5 * time.Second
	// afterError is the pause before the store is asked again that did not answer.
	afterError = 100 * time.Millisecond
	// revokeTimeout bounds giving a lease back, which would end by itself.
	revokeTimeout = time.Second
	// atOnce is how many calls of workers use the store at a time.
	atOnce = 64
)

// Broker serves workers; nil: there are none. It is safe for concurrent use.
type Broker struct {
	cfg   Config
	core  worker.Config
	slots chan struct{} // Each call under way has one.
	list  list
	owners
}

// New returns a Broker. It asks the store for nothing until it is called.
func New(cfg Config) *Broker {
	b := &Broker{
		cfg:   cfg,
		core:  worker.Config{SIDs: cfg.SIDs, Bounds: cfg.Bounds, Nonce: rand.Text, Random: mathrand.IntN},
		slots: make(chan struct{}, atOnce),
	}
	b.list.load = func() (lease.View, error) {
		ctx, cancel := context.WithTimeout(context.Background(), cfg.CallTimeout)
		defer cancel()
		return cfg.Store.Load(ctx)
	}
	b.list.now = func() clock.Mono { return cfg.Node.Clock().Now().Mono }
	b.owners = owners{window: cfg.Bounds.WorkerWindow, of: map[string]*owner{}}
	return b
}

// Client is who calls: Owner is what access.Caller.Owner returns, and may hold as many
// workers as Quota says.
type Client struct {
	Owner string
	Quota int
}

// Acquire takes a sid for a worker. The request's Secret is the caller's, or empty to be drawn
// here. Given, Owner and Quota are set here.
//
// The errors of Acquire, Extend and Release are *node.Refusals, which are not counted
// yet, or ctx's: then the call goes on without its caller.
func (b *Broker) Acquire(ctx context.Context, c Client, req worker.Acquire) (worker.Worker, error) {
	req.Given, req.Owner, req.Quota = req.Secret != "", c.Owner, c.Quota
	if !req.Given {
		req.Secret = rand.Text()
	}
	if err := b.admit(c); err != nil {
		return worker.Worker{}, err
	}
	now := b.list.now()
	begun, unsettled, ok := b.owners.begin(c, now)
	if !ok {
		return worker.Worker{}, &node.Refusal{
			Reason:     node.WorkerQuota,
			RetryAfter: time.Second,
			Message: fmt.Sprintf("%s has %d acquisitions whose outcome is not known yet, and may hold %d workers",
				lease.Printable(c.Owner), unsettled, c.Quota),
			Metadata: map[string]string{"unsettled": fmt.Sprint(unsettled), "limit": fmt.Sprint(c.Quota)},
		}
	}
	req.Quota -= unsettled
	d, err := b.detach(ctx, func(ctx context.Context) (worker.Done, error) {
		d, left, err := b.run(ctx, req)
		b.owners.end(begun, b.list.now(), left)
		if err == nil {
			b.cfg.Logger.Info("worker acquired", "worker", d.Worker.Handle.ID(), "name", req.Name, "owner", c.Owner,
				"not_before", int64(d.Worker.NotBefore), "not_after", int64(d.Worker.NotAfter))
		}
		return d, err
	})
	return d.Worker, err
}

// Extend moves the end of a worker's interval further, and returns all of it.
func (b *Broker) Extend(ctx context.Context, c Client, req worker.Extend) (worker.Worker, error) {
	if err := b.admit(c); err != nil {
		return worker.Worker{}, err
	}
	d, err := b.detach(ctx, func(ctx context.Context) (worker.Done, error) {
		d, _, err := b.run(ctx, req)
		return d, err
	})
	return d.Worker, err
}

// Release gives a worker's sid back, and returns from when on it may be used again.
func (b *Broker) Release(ctx context.Context, c Client, h worker.Handle, usedUntil clock.Millis) (clock.Millis, error) {
	if err := b.admit(c); err != nil {
		return 0, err
	}
	d, err := b.detach(ctx, func(ctx context.Context) (worker.Done, error) {
		d, _, err := b.run(ctx, worker.Release{Handle: h, UsedUntil: usedUntil})
		if err == nil {
			b.cfg.Logger.Info("worker released", "worker", h.ID(), "owner", c.Owner, "reusable_from", int64(d.Reusable))
		}
		return d, err
	})
	return d.Reusable, err
}

// admit refuses a call for which the store need not be asked.
func (b *Broker) admit(c Client) error {
	if b == nil || b.cfg.SIDs.All() {
		return &node.Refusal{
			Reason:  node.WorkersOff,
			Message: "no sids are set aside for workers: set worker.sid-range on all nodes",
		}
	}
	if wait := b.owners.take(c, b.list.now()); wait > 0 {
		return &node.Refusal{
			Reason:     node.RateLimited,
			RetryAfter: wait,
			Message:    "this client calls for workers too often: extend each at the time that its answer gives",
		}
	}
	return nil
}

// detach runs f to its end, whether or not the caller waits for it.
func (b *Broker) detach(ctx context.Context, f func(context.Context) (worker.Done, error)) (worker.Done, error) {
	type result struct {
		done worker.Done
		err  error
	}
	results := make(chan result, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wholeCall)
		defer cancel()
		d, err := f(ctx)
		results <- result{d, err}
	}()
	select {
	case r := <-results:
		return r.done, r.err
	case <-ctx.Done():
		return worker.Done{}, ctx.Err()
	}
}

// run carries out one call. left says that it was refused, and may have left a lease behind.
func (b *Broker) run(ctx context.Context, req worker.Request) (d worker.Done, left bool, err error) {
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	case <-ctx.Done():
		return worker.Done{}, false, &node.Refusal{
			Reason:     node.EtcdUnavailable,
			RetryAfter: time.Second,
			Message:    "too many calls of workers wait for etcd: send the same call again, to any node",
		}
	}
	c, a := worker.NewCall(b.core, req), worker.Answer{}
	for {
		k := worker.Knowledge{Status: b.cfg.Keeper.Status(), Limit: b.cfg.Keeper.Limit(), Closed: b.cfg.Node.Barred()}
		switch act := c.Step(b.cfg.Node.Clock().Now(), k, a).(type) {
		case worker.Done:
			b.cfg.Node.NoteReserved(act.Worker.NotAfter)
			b.revoke(ctx, act.Revoke)
			return act, false, nil
		case worker.Refused:
			revoked := act.Revoke != 0 && b.revoke(ctx, act.Revoke)
			return worker.Done{}, left && !revoked, act.Refusal
		default:
			a = b.ask(ctx, act)
			if _, ok := act.(worker.TakeLease); ok {
				left = true
			}
		}
		if a.Err != nil && !errors.Is(a.Err, lease.ErrLeaseGone) {
			select {
			case <-time.After(afterError):
			case <-ctx.Done():
			}
		}
	}
}

// ask carries out one request to the store.
func (b *Broker) ask(ctx context.Context, act worker.Action) (a worker.Answer) {
	if l, ok := act.(worker.List); ok {
		a.View, a.Err = b.list.get(ctx, l.Fresh)
		return a
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.CallTimeout)
	defer cancel()
	switch act := act.(type) {
	case worker.Read:
		a.View, a.Err = b.cfg.Store.Read(ctx, act.SID)
	case worker.TakeLease:
		a.Lease, a.Err = b.cfg.Store.Grant(ctx, act.TTL)
	case worker.KeepAlive:
		a.Err = b.cfg.Store.KeepAlive(ctx, act.Lease)
	case worker.Commit:
		_, a.View, a.Err = b.cfg.Store.Commit(ctx, act.Txn)
		if a.Err == nil && act.Txn.Op != lease.Extend { // An extension changes no holder.
			b.list.note(act.Txn.SID, a.View)
		}
	default:
		panic(fmt.Sprintf("broker: unknown action %T", act))
	}
	return a
}

// revoke gives a lease back, and reports whether the store confirmed that; else it ends
// by itself.
func (b *Broker) revoke(ctx context.Context, id lease.LeaseID) bool {
	if id == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	return b.cfg.Store.Revoke(ctx, id) == nil
}
