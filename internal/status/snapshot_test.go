package status_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/status"
)

// A snapshot reads etcd at most every two seconds, and shows what was last read, and of
// when, while etcd does not answer.
func TestSnapshot(t *testing.T) {
	env := servertest.New(t)
	view := lease.View{Revision: 9, SIDs: map[flake.SID]lease.SIDRecords{3: {}}, Nodes: []lease.Registration{{Instance: "b", Node: "node-b"}}}
	env.Dir.Set(func(d *servertest.Directory) { d.Hang = true })
	if s := env.Reader.Snapshot(t.Context()); s.Read != 0 || len(s.SIDs) != 0 || s.Self.SID != 7 || s.Self.Now != int64(servertest.Start) || !s.Stale() {
		t.Errorf("before the first read: %+v", s)
	}
	env = servertest.New(t)
	env.Dir.Set(func(d *servertest.Directory) { d.View = view })
	for range 5 {
		if s := env.Reader.Snapshot(t.Context()); s.Read != int64(servertest.Start) || len(s.SIDs) != 1 || len(s.Nodes) != 1 || s.Problem != "" || s.Stale() {
			t.Fatalf("%+v", s)
		}
	}
	env.Dir.Set(func(d *servertest.Directory) {
		if d.Loads != 1 {
			t.Errorf("%d reads", d.Loads)
		}
		d.Err = errors.New("away")
	})
	env.Clock.Advance(10 * time.Second)
	s := env.Reader.Snapshot(t.Context())
	if s.Read != int64(servertest.Start) || s.Self.Now != s.Read+10_000 || len(s.SIDs) != 1 || s.Problem == "" || !s.Stale() {
		t.Errorf("etcd is away: %+v", s)
	}
}

// TestPicturesTakeTurns: of many callers one at a time has its picture made, so that a node with
// two processors has one for IDs.
func TestPicturesTakeTurns(t *testing.T) {
	env := servertest.New(t)
	var making, most atomic.Int32
	r := status.New(status.Config{
		Node: env.Node, Directory: env.Dir, Space: "s",
		Reports: func(bool) map[string]status.Heard {
			most.Store(max(most.Load(), making.Add(1)))
			time.Sleep(5 * time.Millisecond)
			making.Add(-1)
			return nil
		},
	})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			r.Snapshot(t.Context())
			if _, err := r.Cluster(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d pictures were made at once", most.Load())
	}
}
