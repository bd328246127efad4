package keeper_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/node"
)

// bubbleClock runs with the time of a synctest bubble, which starts in the year
// 2000, before any epoch.
type bubbleClock struct{ origin time.Time }

func (c bubbleClock) Now() clock.Reading {
	d := time.Since(c.origin)
	return clock.Reading{
		Wall: clock.Millis(flake.DefaultEpoch+1_000_000) + clock.MillisOf(d),
		Mono: clock.Mono(d),
	}
}

// bench is a keeper on a store, with the node it serves.
type bench struct {
	keeper *keeper.Keeper
	node   *node.Node
	name   string
}

func machineConfig(name string, window time.Duration) lease.Config {
	return lease.Config{
		Registration:   lease.Registration{Instance: lease.Instance(name), Node: name, Version: "test"},
		Format:         flake.Default,
		Bounds:         lease.Bounds{Window: window, MaxSkew: 250 * time.Millisecond, MaxLead: 250 * time.Millisecond},
		ExtendEvery:    window / 6,
		TTL:            max(2*time.Second, window/2),
		KeepAliveEvery: max(500*time.Millisecond, window/10),
		ReloadEvery:    window / 3,
		RetryAfter:     min(250*time.Millisecond, window/20),
		Nonce:          rand.Text,
		Jitter:         func(most time.Duration) time.Duration { return mathrand.N(max(most, 1)) },
	}
}

func newBench(name string, store keeper.Store, src clock.Source, window time.Duration) *bench {
	return newLogged(name, store, src, window, slog.New(slog.DiscardHandler))
}

func newLogged(name string, store keeper.Store, src clock.Source, window time.Duration, log *slog.Logger) *bench {
	n := node.New(node.Config{
		Name: name, Instance: lease.Instance(name), MaxWait: 0, MaxSkew: 250 * time.Millisecond,
		Gen: gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250, MaxStep: 255},
	}, src, gen.Random())
	return &bench{name: name, node: n, keeper: keeper.New(keeper.Config{
		Machine: machineConfig(name, window), Store: store, Generator: n, Clock: src,
		Logger: log, CallTimeout: time.Second, StopTimeout: 3 * time.Second,
	})}
}

// run runs f beside the keeper, then stops the keeper and returns its error.
func (b *bench) run(f func()) error {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.keeper.Run(ctx) }()
	f()
	stop()
	return <-done
}

func (b *bench) reason() node.Reason {
	_, err := b.node.Next(context.Background(), 1, 0)
	var r *node.Refusal
	if errors.As(err, &r) {
		return r.Reason
	}
	return 0
}

func initialized(t *testing.T) *storetest.Memory {
	t.Helper()
	mem := storetest.NewMemory(1)
	initialize(t, mem)
	return mem
}

func initialize(t *testing.T, mem *storetest.Memory) {
	t.Helper()
	_, _, err := mem.Init(context.Background(), lease.Space{
		Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}, 0)
	fatal.If(t, err)
}

// pass lets bubble time go by, and the store's leases with it.
func pass(mem *storetest.Memory, d time.Duration) {
	const stride = 100 * time.Millisecond
	for ; d > 0; d -= stride {
		time.Sleep(stride)
		mem.Advance(stride)
		synctest.Wait()
	}
}

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := initialized(t)
		b := newBench("n1", mem, bubbleClock{time.Now()}, 30*time.Second)
		if got := b.reason(); got != node.Starting {
			t.Errorf("before the first window: got %q, want STARTING", got)
		}
		var last clock.Millis
		err := b.run(func() {
			pass(mem, time.Second)
			if got := b.reason(); got != 0 {
				t.Errorf("a second after the start: refused with %s", got)
			}
			first := b.node.Stats().Ceil
			pass(mem, time.Minute)
			if got := b.node.Stats().Ceil - first; got < 55_000 || got > 65_000 {
				t.Errorf("the ceiling rose by %d ms in a minute", got)
			}
			if got := b.keeper.Status(); got.Phase != lease.Holding || got.Pool.Held != 1 {
				t.Errorf("status %+v", got)
			}
			id, _ := b.node.Next(context.Background(), 1, 0)
			last = clock.Millis(flake.Default.UnixMilli(id.First))
		})
		fatal.If(t, err)
		v, _ := mem.Load(context.Background())
		w := v.SIDs[0].Window.Value
		if w.State != lease.Released || w.Ceil != last+1 {
			t.Errorf("left behind %+v, want released at %d", w, last+1)
		}
		if len(v.Nodes) != 0 || v.SIDs[0].Holder.Exists() {
			t.Errorf("left behind nodes %v, holder %v", v.Nodes, v.SIDs[0].Holder)
		}
		if got := b.reason(); got != node.NoSID {
			t.Errorf("after the end: got %q, want NO_SID", got)
		}
		if s := b.keeper.Stats(); s.Calls[keeper.OpKeepAlive].Calls < 15 || s.Calls["extend"].Calls < 10 {
			t.Errorf("calls: %+v", s.Calls)
		}
	})
}

// hanging is a store that never answers until its caller gives up.
type hanging struct {
	keeper.Store
	mu   sync.Mutex // guards hang
	hang bool
}

func (h *hanging) set(hang bool) { h.mu.Lock(); h.hang = hang; h.mu.Unlock() }

func (h *hanging) wait(ctx context.Context) error {
	h.mu.Lock()
	hang := h.hang
	h.mu.Unlock()
	if !hang {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (h *hanging) Load(ctx context.Context) (lease.View, error) {
	if err := h.wait(ctx); err != nil {
		return lease.View{}, err
	}
	return h.Store.Load(ctx)
}

func (h *hanging) Read(ctx context.Context, sid flake.SID) (lease.View, error) {
	if err := h.wait(ctx); err != nil {
		return lease.View{}, err
	}
	return h.Store.Read(ctx, sid)
}

func (h *hanging) Commit(ctx context.Context, txn lease.Txn) (bool, lease.View, error) {
	applied, v, err := h.Store.Commit(ctx, txn) // applied, and the answer is slow
	if e := h.wait(ctx); e != nil {
		return false, lease.View{}, e
	}
	return applied, v, err
}

func (h *hanging) KeepAlive(ctx context.Context, id lease.LeaseID) error {
	if err := h.wait(ctx); err != nil {
		return err
	}
	return h.Store.KeepAlive(ctx, id)
}

// TestGivesUpSealed: the keeper stops while it does not know what became of a write,
// and the store does not answer. It gives up after its own deadline, and nothing is
// issued afterwards, though the window is not used up. The log says that the sid was not
// given back.
func TestGivesUpSealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := initialized(t)
		store := &hanging{Store: mem}
		log, out := keeper.Lines()
		b := newLogged("n1", store, bubbleClock{time.Now()}, 30*time.Second, log)
		err := b.run(func() {
			pass(mem, 7*time.Second)
			store.set(true)
			pass(mem, 8*time.Second)
			if got := b.reason(); got != 0 {
				t.Errorf("with a window and no store: %s", got)
			}
		})
		fatal.If(t, err)
		if got := b.reason(); got != node.NoSID {
			t.Errorf("after the end: got %q, want NO_SID", got)
		}
		const want = `level=WARN msg="release of the sid timed out: the sid is free when its lease expires" timeout=3s`
		if got := out.String(); strings.Count(got, want) != 1 {
			t.Errorf("logged\n%s", got)
		}
	})
}
