package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
)

// ErrInjected is the error of a call that Faulty failed.
var ErrInjected = errors.New("storetest: injected failure")

// Kind names a call of a Store; each operation of Commit is a kind of its own.
type Kind string

// The kinds besides those of Commit, which KindOf gives.
const (
	Load      Kind = "load"
	Read      Kind = "read"
	PutMark   Kind = "mark"
	Register  Kind = "register"
	Grant     Kind = "grant"
	KeepAlive Kind = "keepalive"
	Revoke    Kind = "revoke"
)

// KindOf returns the kind of a Commit of op.
func KindOf(op lease.Op) Kind { return Kind(op.String()) }

// Outcome of a call.
type Outcome uint8

// The outcomes. All but Pass return ErrInjected to the caller at once.
const (
	Pass       Outcome = iota // the inner store answers
	NotApplied                // the inner store is not called: the request was lost
	Applied                   // the inner store is called: the reply was lost
	Delayed                   // the inner store is called by Deliver: the request was slow
)

// Script decides on the nth call of its kind, counted from 1.
type Script func(kind Kind, n int) Outcome

// At fails the nth call of one kind.
func At(kind Kind, n int, o Outcome) Script {
	return func(k Kind, i int) Outcome {
		if k == kind && i == n {
			return o
		}
		return Pass
	}
}

// Every fails all calls of the given kinds, or of all kinds if none is given.
func Every(o Outcome, kinds ...Kind) Script {
	return func(k Kind, _ int) Outcome {
		for _, kind := range kinds {
			if k == kind {
				return o
			}
		}
		if len(kinds) == 0 {
			return o
		}
		return Pass
	}
}

// Store is what nodes and workers ask of a space.
type Store interface {
	keeper.Store
	Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error)
}

// Faulty is a Store whose calls fail by script. It is safe for concurrent use.
type Faulty struct {
	inner Store

	mu      sync.Mutex // guards the fields below
	script  Script
	calls   map[Kind]int
	delayed []func()
}

// NewFaulty returns inner with failures; a nil script has none.
func NewFaulty(inner Store, script Script) *Faulty {
	return &Faulty{inner: inner, script: script, calls: map[Kind]int{}}
}

// SetScript replaces the script; with nil no call fails. Counts continue.
func (f *Faulty) SetScript(script Script) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = script
}

// Calls returns how many calls of a kind there were, failed ones included.
func (f *Faulty) Calls(kind Kind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[kind]
}

// Deliver makes the delayed calls in their order, and returns how many there were.
// Their results are dropped.
func (f *Faulty) Deliver() int {
	late := f.take()
	for _, call := range late {
		call()
	}
	return len(late)
}

// Drop drops the delayed calls and returns how many there were.
func (f *Faulty) Drop() int { return len(f.take()) }

func (f *Faulty) take() []func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	late := f.delayed
	f.delayed = nil
	return late
}

// do counts a call, and makes it if the script lets it. call stores the results of
// the inner store, which must not be read after an error of do.
func (f *Faulty) do(ctx context.Context, kind Kind, call func(context.Context)) error {
	f.mu.Lock()
	f.calls[kind]++
	n, outcome := f.calls[kind], Pass
	if f.script != nil {
		outcome = f.script(kind, n)
	}
	if outcome == Delayed {
		late := context.WithoutCancel(ctx) // the caller does not wait any more
		f.delayed = append(f.delayed, func() { call(late) })
	}
	f.mu.Unlock()
	if outcome == Pass || outcome == Applied {
		call(ctx)
	}
	if outcome == Pass {
		return nil
	}
	return fmt.Errorf("%w: %s call %d", ErrInjected, kind, n)
}

// Load passes the call on, or fails.
func (f *Faulty) Load(ctx context.Context) (lease.View, error) {
	var v lease.View
	var err error
	if fault := f.do(ctx, Load, func(ctx context.Context) { v, err = f.inner.Load(ctx) }); fault != nil {
		return lease.View{}, fault
	}
	return v, err
}

// Read passes the call on, or fails.
func (f *Faulty) Read(ctx context.Context, sid flake.SID) (lease.View, error) {
	var v lease.View
	var err error
	if fault := f.do(ctx, Read, func(ctx context.Context) { v, err = f.inner.Read(ctx, sid) }); fault != nil {
		return lease.View{}, fault
	}
	return v, err
}

// Commit passes the call on, or fails.
func (f *Faulty) Commit(ctx context.Context, txn lease.Txn) (bool, lease.View, error) {
	var applied bool
	var v lease.View
	var err error
	fault := f.do(ctx, KindOf(txn.Op), func(ctx context.Context) { applied, v, err = f.inner.Commit(ctx, txn) })
	if fault != nil {
		return false, lease.View{}, fault
	}
	return applied, v, err
}

// PutMark passes the call on, or fails.
func (f *Faulty) PutMark(ctx context.Context, txn lease.MarkTxn) (bool, lease.Entry[lease.Mark], error) {
	var applied bool
	var e lease.Entry[lease.Mark]
	var err error
	fault := f.do(ctx, PutMark, func(ctx context.Context) { applied, e, err = f.inner.PutMark(ctx, txn) })
	if fault != nil {
		return false, lease.Entry[lease.Mark]{}, fault
	}
	return applied, e, err
}

// Register passes the call on, or fails.
func (f *Faulty) Register(ctx context.Context, id lease.LeaseID, ttl time.Duration,
	r lease.Registration) (lease.LeaseID, error) {
	var err error
	fault := f.do(ctx, Register, func(ctx context.Context) { id, err = f.inner.Register(ctx, id, ttl, r) })
	if fault != nil {
		return 0, fault
	}
	return id, err
}

// Grant passes the call on, or fails.
func (f *Faulty) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	var id lease.LeaseID
	var err error
	if fault := f.do(ctx, Grant, func(ctx context.Context) { id, err = f.inner.Grant(ctx, ttl) }); fault != nil {
		return 0, fault
	}
	return id, err
}

// KeepAlive passes the call on, or fails.
func (f *Faulty) KeepAlive(ctx context.Context, id lease.LeaseID) error {
	var err error
	if fault := f.do(ctx, KeepAlive, func(ctx context.Context) { err = f.inner.KeepAlive(ctx, id) }); fault != nil {
		return fault
	}
	return err
}

// Revoke passes the call on, or fails.
func (f *Faulty) Revoke(ctx context.Context, id lease.LeaseID) error {
	var err error
	if fault := f.do(ctx, Revoke, func(ctx context.Context) { err = f.inner.Revoke(ctx, id) }); fault != nil {
		return fault
	}
	return err
}

// Watch passes the call on.
func (f *Faulty) Watch(ctx context.Context, progress time.Duration, report func(lease.Watched)) error {
	return f.inner.Watch(ctx, progress, report)
}

// Failed returns the answer to a request that had none but err.
func Failed(a lease.Action, err error) lease.Event {
	switch a.(type) {
	case lease.Load, lease.Read:
		return lease.Loaded{Err: err}
	case lease.Commit:
		return lease.Committed{Err: err}
	case lease.PutMark:
		return lease.Marked{Err: err}
	case lease.Register:
		return lease.Registered{Err: err}
	case lease.KeepAlive:
		return lease.KeptAlive{Err: err}
	case lease.Revoke:
		return lease.Revoked{Err: err}
	}
	panic(fmt.Sprintf("storetest: unknown request %T", a))
}
