package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker"
)

// start is the first time of every clock, and the floor of the first era.
const start clock.Millis = 1_800_000_000_000

const window = time.Minute

var space = lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "pool-1"}

type (
	storeKind    = storetest.Kind
	storeOutcome = storetest.Outcome
)

const (
	pass       = storetest.Pass
	notApplied = storetest.NotApplied
	delayed    = storetest.Delayed
)

// env is a space in memory, a node that serves calls on it, and a clock.
type env struct {
	t      testing.TB
	mem    *storetest.Memory
	faulty *storetest.Faulty
	clock  *clocktest.Manual
	cfg    worker.Config
	closed *node.Refusal
	sent   []string // requests to the store
}

func newEnv(t testing.TB, seed uint64) *env {
	t.Helper()
	e := &env{t: t, mem: storetest.NewMemory(7), clock: clocktest.NewManual(start)}
	e.faulty = storetest.NewFaulty(e.mem, nil)
	if _, _, err := e.mem.Init(t.Context(), space, start); err != nil {
		t.Fatal(err)
	}
	e.cfg = config(seed)
	return e
}

// config returns the configuration of a node that has sids 16 to 19 for workers.
func config(seed uint64) worker.Config {
	rnd := rand.New(rand.NewPCG(seed, 1))
	return worker.Config{
		SIDs: lease.SIDRange{From: 16, To: 20}, Bounds: lease.Bounds{Window: window, WorkerWindow: window, MaxSkew: 250 * time.Millisecond, MaxLead: 250 * time.Millisecond},
		Nonce: func() string { return fmt.Sprintf("%x", rnd.Uint64()) }, Random: rnd.IntN,
	}
}

// status is what a node knows that has read the store now.
func (e *env) status() lease.Status {
	v, err := e.mem.Load(context.Background())
	fatal.If(e.t, err)
	return lease.Status{Space: v.Config.Value, Era: v.Era.Value, Cluster: v.Cluster, Revision: v.Revision}
}

// anyTime is the limit of a machine that knows of no record.
func anyTime() lease.Limit { return lease.Limit{Extend: math.MaxInt64, Acquire: math.MaxInt64} }

func (e *env) known() worker.Knowledge {
	return worker.Knowledge{Status: e.status(), Limit: anyTime(), Closed: e.closed}
}

// ask carries out one request to the store.
func ask(store storetest.Store, a worker.Action) worker.Answer {
	ctx := context.Background()
	var out worker.Answer
	switch a := a.(type) {
	case worker.List:
		out.View, out.Err = store.Load(ctx)
	case worker.Read:
		out.View, out.Err = store.Read(ctx, a.SID)
	case worker.TakeLease:
		out.Lease, out.Err = store.Grant(ctx, a.TTL)
	case worker.KeepAlive:
		out.Err = store.KeepAlive(ctx, a.Lease)
	case worker.Commit:
		_, out.View, out.Err = store.Commit(ctx, a.Txn)
	default:
		panic(fmt.Sprintf("not a request: %T", a))
	}
	return out
}

// call runs a call to its end.
func (e *env) call(req worker.Request) worker.Action {
	c := worker.NewCall(e.cfg, req)
	act := c.Step(e.clock.Now(), e.known(), worker.Answer{})
	for {
		switch a := act.(type) {
		case worker.Done:
			e.revoke(a.Revoke)
			return a
		case worker.Refused:
			e.revoke(a.Revoke)
			return a
		}
		e.sent = append(e.sent, show(act))
		a := ask(e.faulty, act)
		act = c.Step(e.clock.Now(), e.known(), a)
	}
}

func (e *env) revoke(id lease.LeaseID) {
	if id != 0 {
		_ = e.faulty.Revoke(context.Background(), id)
	}
}

// pass lets time pass, for the clock and for leases.
func (e *env) pass(d time.Duration) {
	e.clock.Advance(d)
	e.mem.Advance(d)
}

// secret returns the secret of a name in a test.
func secret(name string) string { return strings.Repeat("0", worker.MinSecret-len(name)) + name }

func acquire(name string) worker.Acquire {
	return worker.Acquire{Name: "w-" + name, Secret: secret(name), Owner: "shop", Quota: 100}
}

// acquired runs an acquisition that must succeed.
func (e *env) acquired(name string) worker.Worker {
	e.t.Helper()
	return e.done(acquire(name)).Worker
}

func (e *env) done(req worker.Request) worker.Done {
	e.t.Helper()
	d, ok := e.call(req).(worker.Done)
	if !ok {
		e.t.Fatalf("%T was refused: %v", req, e.call(req))
	}
	return d
}

// refused runs a call that must be refused for that reason.
func (e *env) refused(req worker.Request, want node.Reason) *node.Refusal {
	e.t.Helper()
	r, ok := e.call(req).(worker.Refused)
	if !ok || !errors.Is(r.Refusal, &node.Refusal{Reason: want}) {
		e.t.Fatalf("%T: got %+v, want %s", req, r.Refusal, want)
	}
	return r.Refusal
}

func show(a worker.Action) string {
	at := func(m clock.Millis) string { return fmt.Sprint(int64(m - start)) }
	switch a := a.(type) {
	case worker.List:
		if a.Fresh {
			return "list fresh"
		}
		return "list"
	case worker.Read:
		return fmt.Sprintf("read sid=%d", a.SID)
	case worker.TakeLease:
		return fmt.Sprintf("take a lease of %v", a.TTL)
	case worker.KeepAlive:
		return fmt.Sprintf("keep alive lease %d", a.Lease)
	case worker.Commit:
		w := a.Txn.Window
		return fmt.Sprintf("%v sid=%d term=%d since=%s window=[%s,%s) %s on lease %d over revision %d", a.Txn.Op, a.Txn.SID, w.Term, at(w.Since), at(w.Base), at(w.Ceil),
			w.State, a.Txn.Lease, a.Txn.Seen.Window.Rev)
	case worker.Refused:
		return fmt.Sprintf("REFUSED %s: %s", a.Refusal.Reason, a.Refusal.Message) + revoke(a.Revoke)
	case worker.Done:
		if a.Worker == (worker.Worker{}) {
			return fmt.Sprintf("RELEASED, reusable from %s", at(a.Reusable)) + revoke(a.Revoke)
		}
		w := a.Worker
		return fmt.Sprintf("WORKER %s %q [%s,%s), extend at %s", w.Handle.ID(), w.Name, at(w.NotBefore), at(w.NotAfter), at(w.ExtendAt)) + revoke(a.Revoke)
	}
	return fmt.Sprintf("%T", a)
}

func revoke(id lease.LeaseID) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("; revoke lease %d", id)
}
