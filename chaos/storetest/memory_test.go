package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/lease"
)

func newHarness(*testing.T) Harness {
	m := NewMemory(0xc1)
	return Harness{
		Space:   m,
		Put:     m.Put,
		Delete:  func(key string) { m.Delete(key) },
		Expire:  m.Expire,
		Compact: func() {},
	}
}

func TestContract(t *testing.T) { Contract(t, newHarness) }

// started returns an initialized space, and a node that holds sid 1 for ttl.
func started(t *testing.T, ttl time.Duration) (*Memory, *fixture, node) {
	m := NewMemory(0xc1)
	f := &fixture{T: t, ctx: t.Context(), Harness: Harness{Space: m, Put: m.Put}}
	f.init()
	id, err := m.Register(f.ctx, 0, ttl, lease.Registration{Instance: "a"})
	fatal.If(t, err)
	n := node{lease.Holder{Instance: "a"}, id}
	f.apply(f.txn(lease.Acquire, 1, n, f.read(1)))
	return m, f, n
}

func TestLeasesExpireByTheManualClock(t *testing.T) {
	m, f, n := started(t, 1500*time.Millisecond) // rounded up to 2 s
	held := func() bool { return f.read(1).SIDs[1].Holder.Exists() }
	m.Advance(1999 * time.Millisecond)
	if !held() {
		t.Error("the lease ended early")
	}
	fatal.If(t, m.KeepAlive(f.ctx, n.lease))
	m.Advance(1999 * time.Millisecond)
	if !held() {
		t.Error("a renewed lease ended early")
	}
	m.Advance(time.Millisecond)
	if held() || len(f.load().Nodes) != 0 {
		t.Error("the lease's keys outlived it")
	}
	if err := m.KeepAlive(f.ctx, n.lease); !errors.Is(err, lease.ErrLeaseGone) {
		t.Errorf("keep alive: got %v, want ErrLeaseGone", err)
	}
}

// A restored backup hands out revisions again. The value compare must
// distinguish the records of the two histories.
func TestRestoreReusesRevisions(t *testing.T) {
	m, f, n := started(t, time.Minute)
	backup := m.Snapshot()
	v := f.apply(f.txn(lease.Extend, 1, n, f.read(1)))
	m.Restore(backup)
	if now := f.read(1); now.Revision >= v.Revision {
		t.Fatalf("revision after the restore: got %d, want less than %d", now.Revision, v.Revision)
	}
	other := f.apply(f.txn(lease.Extend, 1, n, f.read(1)))
	if a, b := v.SIDs[1].Window, other.SIDs[1].Window; a.Rev != b.Rev || a.Same(b) {
		t.Fatalf("want other bytes at the same revision, got %+v and %+v", a, b)
	}
	f.refuse(f.txn(lease.Extend, 1, n, v), "a record of the history lost")

	m.Advance(59 * time.Second)
	if !f.read(1).SIDs[1].Holder.Exists() {
		t.Error("leases of a backup did not begin anew")
	}
	m.SetCluster(0xc2)
	if got := f.load().Cluster; got != 0xc2 {
		t.Errorf("cluster: got %x, want c2", got)
	}
}

func TestCorruptKeepsTheRevision(t *testing.T) {
	m, f, _ := started(t, time.Minute)
	before := f.read(1)
	m.Corrupt("window/1", "era", "window/9")
	now := f.read(1)
	w := now.SIDs[1].Window
	if !errors.Is(w.Err, lease.ErrChecksum) || w.Rev != before.SIDs[1].Window.Rev || now.Revision != before.Revision {
		t.Errorf("window after corruption: got %+v", w)
	}
	if !errors.Is(now.Era.Err, lease.ErrChecksum) {
		t.Errorf("era after corruption: got %+v", now.Era)
	}
	if raw, ok := m.Raw("window/9"); ok {
		t.Errorf("corruption made a record %q", raw)
	}
}

// Restore and SetCluster break every watch.
func TestWatchBreaksAtARestore(t *testing.T) {
	m, f, _ := started(t, time.Minute)
	backup := m.Snapshot()
	ctx, cancel := context.WithTimeout(f.ctx, wait.Most)
	defer cancel()
	reports := make(chan lease.Watched, 10)
	go m.Watch(ctx, time.Hour, func(w lease.Watched) { reports <- w })
	<-reports
	m.Restore(backup)
	select {
	case w := <-reports:
		if !w.Opened {
			t.Errorf("reported %+v, want that the watch was opened again", w)
		}
	case <-ctx.Done():
		t.Error("nothing was reported")
	}
}
