package keeper_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/dev/devetcd"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/lease/keeper"
)

// TestEveryCallFailsOnEtcd is the walk of package lease's test of that name on a
// real etcd, with real clocks and goroutines: each call of a short life fails
// both ways, and the process goes on, or crashes there and is started again. The
// runs share one etcd, each in a space of its own, and run side by side.
func TestEveryCallFailsOnEtcd(t *testing.T) {
	ctx := context.Background()
	etcd, err := devetcd.Start(ctx, devetcd.Config{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	client, err := etcdstore.Dial(etcdstore.Config{Endpoints: []string{etcd.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })

	points := []struct {
		kind storetest.Kind
		n    int
	}{
		{storetest.Load, 1}, {storetest.Load, 2}, {storetest.Register, 1}, {storetest.KeepAlive, 1}, {storetest.KeepAlive, 2},
		{storetest.KindOf(lease.Acquire), 1}, {storetest.KindOf(lease.Extend), 1}, {storetest.KindOf(lease.Extend), 2},
		{storetest.KindOf(lease.Rehold), 1}, {storetest.KindOf(lease.Release), 1}, {storetest.Revoke, 1},
	}
	// Runs beside each other would starve each other of processor time.
	const atOnce = 12
	slots := make(chan struct{}, atOnce)
	var fired atomic.Int64
	// Not t.Parallel: that runs two at a time on two cores, and these mostly wait.
	var all sync.WaitGroup
	for i, p := range points {
		for _, outcome := range []storetest.Outcome{storetest.NotApplied, storetest.Applied} {
			for _, crash := range []bool{false, true} {
				name := fmt.Sprintf("%s-%d/%d/crash=%v", p.kind, p.n, outcome, crash)
				space := fmt.Sprintf("s%d-%d-%v", i, outcome, crash)
				all.Go(func() {
					t.Run(name, func(t *testing.T) {
						slots <- struct{}{}
						defer func() { <-slots }()
						store, err := etcdstore.New(client, "test", space)
						if err != nil {
							t.Fatal(err)
						}
						store.Timeout = time.Minute // etcd on a busy machine is slow
						if _, _, err := store.Init(ctx, lease.Space{
							Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: space}, 0); err != nil {
							t.Fatal(err)
						}
						if life(t, store, p.kind, p.n, outcome, crash) {
							fired.Add(1)
						}
					})
				})
			}
		}
	}
	all.Wait()
	// Reading back after a fault needs no fault of its own to be planted; all
	// others must have been met.
	if want := int64(4 * len(points)); fired.Load() < want {
		t.Errorf("%d of %d faults were met", fired.Load(), want)
	}
}

// life runs a node through acquiring, extending, losing its lease and stopping,
// beside a second node, and reports whether the fault was met.
func life(t *testing.T, store storetest.Store, kind storetest.Kind, n int, outcome storetest.Outcome, crash bool) bool {
	t.Helper()
	const window = 3 * time.Second
	var mu sync.Mutex
	hist := &history.History{Format: flake.Default}
	begun := time.Now()
	src := clock.NewSystem(clock.SystemConfig{})
	start := func(name string, s keeper.Store) (*bench, *recorder) {
		b := newBench(name, s, src, window)
		r := &recorder{Node: b.node, name: name, start: begun, mu: &mu, hist: hist}
		b.keeper = keeper.New(keeper.Config{
			Machine: machineConfig(name, window), Store: s, Generator: r, Clock: src,
			Logger: slog.New(slog.DiscardHandler), CallTimeout: 5 * time.Second, StopTimeout: 2 * time.Second,
		})
		return b, r
	}

	var met atomic.Bool
	crashed := make(chan struct{})
	var once sync.Once
	faulty := storetest.NewFaulty(store, nil)
	faulty.SetScript(func(k storetest.Kind, i int) storetest.Outcome {
		select {
		case <-crashed:
			return storetest.NotApplied // a dead process sends nothing
		default:
		}
		if k != kind || i != n {
			return storetest.Pass
		}
		met.Store(true)
		if crash {
			once.Do(func() { close(crashed) })
		}
		return outcome
	})

	other, otherRec := start("b", store)
	subject, rec := start("a", faulty)
	ctx, stop := context.WithCancel(context.Background())
	otherCtx, stopOther := context.WithCancel(context.Background())
	defer stop()
	defer stopOther()
	var all sync.WaitGroup
	all.Go(func() { _ = other.keeper.Run(otherCtx) })
	subjectDone := make(chan struct{})
	go func() { defer close(subjectDone); _ = subject.keeper.Run(ctx) }()

	var next *bench
	var nextRec *recorder
	revoked := false
	// On a busy machine a life takes longer until it means anything. Its last two calls come
	// after it was stopped.
	lived := func() bool {
		if kind != storetest.KindOf(lease.Release) && kind != storetest.Revoke &&
			!(met.Load() && (revoked || crash)) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		return hist.IDs() >= 500
	}
	for time.Since(begun) < 2500*time.Millisecond || !lived() && time.Since(begun) < time.Minute {
		otherRec.issue(3)
		select {
		case <-crashed:
			// The process is gone: it issues nothing more, and another starts.
			if next == nil {
				stop()
				subject.node.Seal()
				next, nextRec = start("c", store)
				all.Go(func() { _ = next.keeper.Run(otherCtx) })
			}
			nextRec.issue(5)
		default:
			rec.issue(5)
		}
		if st := subject.keeper.Status(); !revoked && st.Held && time.Since(begun) > 1200*time.Millisecond {
			revoked = true
			_ = store.Revoke(ctx, st.Lease) // behind its back: it must put its key back
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	if crash && met.Load() {
		// Its own stop would be the end of a process that is gone already.
		select {
		case <-crashed:
		default:
			t.Error("the fault was met and the process did not crash")
		}
	}
	<-subjectDone
	stopOther()
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	hist.Hold(t)
	if hist.IDs() < 500 { // some 5,000 on an idle machine
		t.Errorf("%d IDs: too few to mean anything", hist.IDs())
	}
	return met.Load()
}
