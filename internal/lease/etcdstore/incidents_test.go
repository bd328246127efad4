package etcdstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// The tests of this file replay how systems of others came to issue one ID twice,
// on a real etcd; docs/INCIDENTS.md has the whole list.

const someTime clock.Millis = 1_769_904_000_000

// newRoot returns a root that no test has used, not this one either in a run before.
func newRoot() string { return fmt.Sprint("incident-", spaces.Add(1)) }

// named returns the space of a name in the shared etcd, initialized.
func named(t *testing.T, root, name, pool string) (*Store, lease.View) {
	t.Helper()
	client, err := Dial(Config{Endpoints: []string{shared.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s, err := New(client, root, name)
	if err != nil {
		t.Fatal(err)
	}
	_, v, err := s.Init(timeout(t, time.Minute), lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: pool}, someTime)
	if err != nil {
		t.Fatal(err)
	}
	return s, v
}

// claim registers a process and tries to acquire a sid by a view.
func claim(t *testing.T, s *Store, v lease.View, sid flake.SID, who string) bool {
	t.Helper()
	ctx := timeout(t, time.Minute)
	id, err := s.Register(ctx, 0, time.Minute, lease.Registration{Instance: lease.Instance(who), Node: who})
	if err != nil {
		t.Error(err)
		return false
	}
	applied, _, err := s.Commit(ctx, lease.Txn{
		Op: lease.Acquire, SID: sid, Seen: v.SIDs[sid], Config: v.Config, Era: v.Era, Lease: id,
		Holder: lease.Holder{Instance: lease.Instance(who), Node: who},
		Window: lease.Window{Era: 1, Term: v.SIDs[sid].Window.Value.Term + 1, Instance: lease.Instance(who), Node: who, Nonce: who,
			Base: someTime, Ceil: someTime + 30_000, State: lease.Active, Wall: someTime},
	})
	if err != nil {
		t.Error(err)
	}
	return applied
}

// T31: two clusters share an etcd. With a name each, they see nothing of each
// other, be one name the beginning of the other; with one name they are one space,
// in which a sid is taken once. There is no name under which nobody looks.
func TestT31SharedEtcd(t *testing.T) {
	t.Run("T31 two names", func(t *testing.T) {
		root, stores := newRoot(), map[string]*Store{}
		views := map[string]lease.View{}
		for _, name := range []string{"eu", "eu1", "eu-1", "eu.1"} {
			stores[name], views[name] = named(t, root, name, "pool-"+name)
		}
		for name, s := range stores {
			if !claim(t, s, views[name], 0, "of-"+name) {
				t.Errorf("%s: sid 0 is taken by another space", name)
			}
		}
		for name, s := range stores {
			v, err := s.Load(timeout(t, time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			if len(v.SIDs) != 1 || len(v.Nodes) != 1 || v.SIDs[0].Holder.Value.Node != "of-"+name || v.Config.Value.Pool != "pool-"+name {
				t.Errorf("%s sees %+v", name, v)
			}
		}
	})
	t.Run("T31 one name", func(t *testing.T) {
		root := newRoot()
		one, before := named(t, root, "shared", "pool-one")
		two, v := named(t, root, "shared", "pool-two")
		if v.Config.Value.Pool != "pool-one" {
			t.Errorf("the second to initialize finds %+v", v.Config.Value)
		}
		if !claim(t, one, before, 0, "one") || claim(t, two, v, 0, "two") {
			t.Error("one space gave sid 0 to both")
		}
	})
}
