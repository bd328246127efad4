package operate

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// drained is a node that holds sid 7, and its Drainer.
type drained struct {
	*Drainer
	node    *node.Node
	release func(context.Context) error
	window  error        // of a read of the record
	record  lease.Window // which etcd has
	resumed int
}

func newDrained() *drained {
	d := &drained{release: func(context.Context) error { return nil }}
	d.record = lease.Window{
		Era: 1, Term: 1, Instance: "a-1", Node: "a", Nonce: "n", Base: now, Ceil: now + 5, State: lease.Released, Wall: now,
	}
	d.node = node.New(node.Config{
		Name: "a", Instance: "a-1", Gen: gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch)},
	}, clocktest.NewManual(now), rand.NewPCG(1, 2))
	grant := lease.Grant{SID: 7, Term: 1, Base: now, Ceil: now + 30_000}
	d.node.Begin(grant)
	d.node.Report(lease.Status{Phase: lease.Holding, Held: true, EverHeld: true, Grant: grant})
	d.Drainer = NewDrainer(DrainConfig{
		Node:    d.node,
		Release: func(ctx context.Context) error { return d.release(ctx) },
		Resume:  func() { d.resumed++ },
		Window: func(context.Context, flake.SID) (lease.Entry[lease.Window], error) {
			return lease.NewEntry[lease.Window](1, 0, lease.Encode(d.record)), d.window
		},
	})
	return d
}

// TestDrainStateSurvives: whatever came back from a drain, the node stays drained until an
// undrain, and once it stops for good. What it held at the first drain stays the answer.
func TestDrainStateSurvives(t *testing.T) {
	away := errors.New("etcd is away")
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		d := newDrained()
		refuses, stopped := false, false
		for range 12 {
			switch r.IntN(5) {
			case 0:
				d.release, d.window = func(context.Context) error { return nil }, nil
			case 1:
				d.release = func(context.Context) error { return away }
			case 2:
				d.window = away
			case 3:
				was, err := d.Undrain()
				if stopped != errors.Is(err, ErrStopping) || !stopped && was != refuses {
					t.Fatalf("seed %d: undrained %t, %v; drained %t, stopped %t", seed, was, err, refuses, stopped)
				}
				refuses = stopped
			case 4:
				if r.IntN(4) == 0 {
					d.Stop()
					refuses, stopped = true, true
					break
				}
				got, err := d.Drain(t.Context())
				refuses = true
				if (d.release(t.Context()) != nil || d.window != nil) != errors.Is(err, ErrNotReleased) {
					t.Fatalf("seed %d: %+v, %v", seed, got, err)
				}
				if want := (Drained{Held: true, SID: 7, Term: 1, Released: true, Ceil: now + 5}); err == nil && got != want {
					t.Fatalf("seed %d: %+v", seed, got)
				}
				d.node.Report(lease.Status{Phase: lease.Seeking, Idle: true}) // It holds nothing any more.
			}
			closed := false
			select {
			case <-d.Draining():
				closed = true
			default:
			}
			if ready := d.node.Ready(); refuses != closed || refuses != (ready != nil && ready.Reason == node.Draining) {
				t.Fatalf("seed %d: it should refuse: %t; Draining is closed: %t; it says %v", seed, refuses, closed, ready)
			}
			if !refuses {
				d.node.Report(lease.Status{Phase: lease.Holding, Held: true, Grant: lease.Grant{SID: 7, Term: 1, Base: now, Ceil: now + 30_000}})
			}
		}
	}
}

// TestWhatADrainFinds: a sid is released if its record says so, or if another holder has it by now, and
// not because nobody asked.
func TestWhatADrainFinds(t *testing.T) {
	released := Drained{Held: true, SID: 7, Term: 1, Released: true, Ceil: now + 5}
	for _, tc := range []struct {
		name   string
		change func(*drained)
		want   Drained
	}{
		{"released", func(*drained) {}, released},
		{"held", func(d *drained) { d.record.State = lease.Active }, Drained{Held: true, SID: 7, Term: 1}},
		{"of another instance", func(d *drained) { d.record.Instance = "b" }, Drained{Held: true, SID: 7, Term: 1}},
		{"held by another since", func(d *drained) { d.record.Term, d.record.Instance = 2, "b" },
			Drained{Held: true, SID: 7, Term: 1, Released: true}},
		{"held by itself since", func(d *drained) { d.record.Term, d.record.State = 2, lease.Active },
			Drained{Held: true, SID: 7, Term: 1, Released: true}},
		{"unreadable", func(d *drained) { d.record.State = "lent" }, Drained{Held: true, SID: 7, Term: 1}},
		{"without a sid", func(d *drained) { d.node.Report(lease.Status{Phase: lease.Standby}) }, Drained{}},
	} {
		d := newDrained()
		tc.change(d)
		if got, err := d.Drain(t.Context()); err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v", tc.name, got, err)
		}
	}
	d := newDrained()
	if _, err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Undrain(); err != nil {
		t.Fatal(err)
	}
	d.node.Report(lease.Status{Phase: lease.Holding, Held: true, Grant: lease.Grant{SID: 9, Term: 4, Base: now, Ceil: now + 30_000}})
	d.record.Term = 4
	if got, err := d.Drain(t.Context()); err != nil || got.SID != 9 || got.Term != 4 || !got.Released {
		t.Errorf("a second drain: %+v, %v", got, err)
	}
}

// A drain goes on without its caller; calls meanwhile share it; an undrain ends it.
func TestDrainIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrained()
		began, finish := 0, make(chan struct{})
		d.release = func(ctx context.Context) error {
			began++
			select {
			case <-finish:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		ended := make(chan error, 9)
		drain := func(ctx context.Context) {
			go func() {
				_, err := d.Drain(ctx)
				ended <- err
			}()
			synctest.Wait()
		}
		first, leave := context.WithCancel(t.Context())
		drain(first)
		leave()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the caller who left: %v", err)
		}
		drain(t.Context())
		if began != 1 {
			t.Errorf("drained %d times", began)
		}
		if was, err := d.Undrain(); !was || err != nil || d.resumed != 1 {
			t.Errorf("undrained: %t, %v, resumed %d times", was, err, d.resumed)
		}
		if err := <-ended; !errors.Is(err, ErrUndone) {
			t.Errorf("the drain that was undone: %v", err)
		}
		if r := d.node.Ready(); r != nil {
			t.Errorf("afterwards: %v", r)
		}
		drain(t.Context())
		time.Sleep(drainTimeout + time.Second)
		if err := <-ended; !errors.Is(err, ErrNotReleased) {
			t.Errorf("etcd never answered: %v", err)
		}
		if r := d.node.Ready(); r == nil || r.Reason != node.Draining {
			t.Errorf("after a drain that failed: %v", r)
		}
	})
}

// The plans of a node carry out what the calls do.
func TestPlansOfANode(t *testing.T) {
	d := newDrained()
	o := New(Config{Drainer: d.Drainer, GRPC: "h:9000"})
	for _, p := range []Plan{o.Drain(), o.Drain(), o.Undrain(), o.Undrain()} {
		if _, err := o.Do(t.Context(), p); err != nil {
			t.Errorf("%s: %v", p.Title, err)
		}
		if got := d.node.Stats().Draining; got != (p.Action == Drain) {
			t.Errorf("after %s it drains: %t", p.Title, got)
		}
	}
	if got := o.Drain().Command; got != "allocator admin drain --addr h:9000" {
		t.Error(got)
	}
}
