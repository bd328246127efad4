package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/records"
	"github.com/flakelease/allocator/internal/lease/repair"
)

const adminNow clock.Millis = 1_800_000_000_000

// held returns a space whose sid 3 a node has taken, twice.
func held(t *testing.T) *Store {
	t.Helper()
	s, ctx := open(t, shared), timeout(t, time.Minute)
	if _, _, err := s.Init(ctx, lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}, adminNow); err != nil {
		t.Fatal(err)
	}
	id, err := s.Register(ctx, 0, time.Minute, lease.Registration{Instance: "i1", Node: "n1"})
	fatal.If(t, err)
	for term := range int64(2) {
		v, err := s.Read(ctx, 3)
		fatal.If(t, err)
		op := lease.Acquire
		if v.SIDs[3].Holder.Exists() {
			op = lease.Reclaim
		}
		ok, _, err := s.Commit(ctx, lease.Txn{
			Op: op, SID: 3, Seen: v.SIDs[3], Config: v.Config, Era: v.Era, Lease: id,
			Holder: lease.Holder{Instance: "i1", Node: "n1"},
			Window: lease.Window{Era: 1, Term: term + 1, Instance: "i1", Node: "n1", Nonce: fmt.Sprint("n", term),
				Base: adminNow, Ceil: adminNow + 30_000, State: lease.Active, Wall: adminNow},
		})
		if err != nil || !ok {
			t.Fatalf("acquire: %t, %v", ok, err)
		}
	}
	return s
}

func survey(t *testing.T, s *Store, sid flake.SID) (lease.View, []repair.Line) {
	t.Helper()
	v, lines, err := s.Survey(timeout(t, time.Minute), sid)
	fatal.If(t, err)
	return v, lines
}

func TestSurvey(t *testing.T) {
	s := held(t)
	ctx := timeout(t, time.Minute)
	if _, err := s.connected.Load().Put(ctx, s.Keys.Ledger(3, 9), "rubbish"); err != nil {
		t.Fatal(err)
	}
	v, lines := survey(t, s, 3)
	if len(lines) != 3 || lines[0].Term != 1 || lines[1].Entry.Value.Since != adminNow || lines[2].Term != 9 || lines[2].Entry.Err == nil {
		t.Errorf("got %+v", lines)
	}
	if !v.SIDs[3].Past || !v.SIDs[3].Holder.Exists() || len(v.Nodes) != 1 || v.Era.Value.Number != 1 {
		t.Errorf("got %+v", v)
	}
	v, lines = survey(t, s, 30) // sid 3's ledger is not sid 30's, and the other way round
	if len(lines) != 0 || v.SIDs[30].Past {
		t.Errorf("got %+v", lines)
	}
}

// Whatever changes between looking and writing, nothing is written.
func TestRepairIsGuarded(t *testing.T) {
	for _, tc := range []struct {
		name   string
		meddle func(s *Store) []clientv3.Op
	}{
		{"config", func(s *Store) []clientv3.Op {
			return []clientv3.Op{clientv3.OpPut(s.Keys.Config(), lease.Encode(lease.Space{Layout: flake.Fleet, Pool: "q"}))}
		}},
		{"era", func(s *Store) []clientv3.Op {
			return []clientv3.Op{clientv3.OpPut(s.Keys.Era(), lease.Encode(lease.Era{Number: 2}))}
		}},
		{"window", func(s *Store) []clientv3.Op { return []clientv3.Op{clientv3.OpPut(s.Keys.Window(3), "rubbish")} }},
		{"window deleted", func(s *Store) []clientv3.Op { return []clientv3.Op{clientv3.OpDelete(s.Keys.Window(3))} }},
		{"holder", func(s *Store) []clientv3.Op { return []clientv3.Op{clientv3.OpDelete(s.Keys.Holder(3))} }},
		{"holder replaced", func(s *Store) []clientv3.Op {
			return []clientv3.Op{clientv3.OpPut(s.Keys.Holder(3), lease.Encode(lease.Holder{Instance: "i2", Node: "n2"}))}
		}},
		{"process came back", func(s *Store) []clientv3.Op { return []clientv3.Op{clientv3.OpPut(s.Keys.Node("gone"), "x")} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := held(t)
			ctx := timeout(t, time.Minute)
			v, lines := survey(t, s, 3)
			w, err := repair.Quarantine(v, len(lines) > 0, 3, "", true, repair.Author{Instance: "op", Nonce: "q", Now: adminNow})
			fatal.If(t, err)
			w.Gone = "gone"
			if _, err := s.connected.Load().Txn(ctx).Then(tc.meddle(s)...).Commit(); err != nil {
				t.Fatal(err)
			}
			before, _ := survey(t, s, 3)
			if err := s.Repair(ctx, w); !errors.Is(err, repair.ErrChanged) {
				t.Fatalf("got %v, want ErrChanged", err)
			}
			after, _ := survey(t, s, 3)
			if !after.SIDs[3].Window.Same(before.SIDs[3].Window) || !after.SIDs[3].Holder.Same(before.SIDs[3].Holder) || after.Revision != before.Revision {
				t.Errorf("something was written: %+v, %+v", before.SIDs[3], after.SIDs[3])
			}
		})
	}
}

// A reservation needs the watermark as it was read, and puts it again: a raise that did not count
// the sid as not covered fails.
func TestReserveComparesTheMark(t *testing.T) {
	s := held(t)
	ctx := timeout(t, time.Minute)
	by := repair.Author{Instance: "op", Nonce: "q", Now: adminNow}
	reserve := func() error {
		t.Helper()
		v, err := s.Load(ctx)
		fatal.If(t, err)
		w, _, err := repair.Reserve(v, 9, "", by)
		fatal.If(t, err)
		next := lease.Mark{Era: 1, At: v.Mark.Value.At + 1, Nonce: fmt.Sprint(v.Revision)}
		raise := lease.MarkTxn{Config: v.Config, Era: v.Era, Seen: v.Mark, Mark: next}
		if by.Nonce == "q" { // The first one meets a raise.
			by.Nonce = "r"
			if applied, _, err := s.PutMark(ctx, raise); !applied || err != nil {
				t.Fatal(applied, err)
			}
			return s.Repair(ctx, w)
		}
		if err := s.Repair(ctx, w); err != nil {
			return err
		}
		if applied, _, err := s.PutMark(ctx, raise); applied || err != nil {
			t.Errorf("a raise from before the reservation: %v, %v", applied, err)
		}
		return nil
	}
	if err := reserve(); !errors.Is(err, repair.ErrChanged) {
		t.Errorf("after a raise: %v", err)
	}
	if err := reserve(); err != nil {
		t.Errorf("as it was read: %v", err)
	}
}

func TestBeginEra(t *testing.T) {
	s := held(t)
	ctx := timeout(t, time.Minute)
	seen, err := s.Load(ctx)
	fatal.If(t, err)
	next := lease.Era{Number: 2, Floor: adminNow + 1, Cluster: seen.Cluster}
	for range 2 { // the second is a sending that the client repeats
		fatal.If(t, s.BeginEra(ctx, seen, next))
	}
	got, err := s.Load(ctx)
	if err != nil || got.Era.Value != next {
		t.Fatalf("got %+v, %v", got.Era, err)
	}
	other := lease.Era{Number: 2, Floor: adminNow + 2, Cluster: seen.Cluster}
	if err := s.BeginEra(ctx, seen, other); !errors.Is(err, repair.ErrChanged) {
		t.Errorf("over an era that was not seen: %v", err)
	}
	// The same revision with another value, as after a restore, and the other way round.
	for _, lie := range []lease.Entry[lease.Era]{
		{Rev: got.Era.Rev, Raw: seen.Era.Raw}, {Rev: seen.Era.Rev, Raw: got.Era.Raw}, {},
	} {
		forged := got
		forged.Era = lie
		if err := s.BeginEra(ctx, forged, other); !errors.Is(err, repair.ErrChanged) {
			t.Errorf("over %+v: %v", lie, err)
		}
	}
	if after, err := s.Load(ctx); err != nil || !after.Era.Same(got.Era) {
		t.Errorf("got %+v, %v", after.Era, err)
	}
}

// With authentication on, the role decides; nothing is written to find out.
func TestRole(t *testing.T) {
	server, err := etcdserver.Start(t.Context(), etcdserver.Alone{NoSync: true})
	fatal.If(t, err)
	defer server.Close()
	ctx := timeout(t, time.Minute)
	root := open(t, server)
	ask := func(user string) (Role, error) {
		t.Helper()
		cfg := Config{Endpoints: []string{server.Endpoint()}}
		if user != "" {
			cfg.Username, cfg.Password = user, "secret"
		}
		client, err := Dial(cfg)
		fatal.If(t, err)
		defer client.Close()
		s := &Store{Timeout: callTimeout}
		s.Space = records.Space{Keys: root.Keys, DB: s}
		s.connected.Store(client)
		return s.Role(ctx)
	}
	if got, err := ask(""); err != nil || got != (Role{Outside: true}) {
		t.Errorf("without authentication: %+v, %v", got, err)
	}
	must := func(_ any, err error) {
		t.Helper()
		fatal.If(t, err)
	}
	prefix := string(root.Keys)
	must(root.connected.Load().RoleAdd(ctx, "root"))
	must(root.connected.Load().RoleAdd(ctx, "nodes"))
	must(root.connected.Load().RoleGrantPermission(ctx, "nodes", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite)))
	for user, role := range map[string]string{"root": "root", "node": "nodes", "nobody": ""} {
		must(root.connected.Load().UserAdd(ctx, user, "secret"))
		if role != "" {
			must(root.connected.Load().UserGrantRole(ctx, user, role))
		}
	}
	must(root.connected.Load().AuthEnable(ctx))
	if got, err := ask("root"); err != nil || got != (Role{Auth: true, Outside: true}) {
		t.Errorf("root: %+v, %v", got, err)
	}
	if got, err := ask("node"); err != nil || got != (Role{Auth: true}) {
		t.Errorf("node: %+v, %v", got, err)
	}
	if got, err := ask(""); err == nil {
		t.Errorf("without a name: %+v", got)
	}
	client, err := Dial(Config{Endpoints: []string{server.Endpoint()}, Username: "root", Password: "secret"})
	fatal.If(t, err)
	defer client.Close()
	if r, err := client.Get(ctx, "/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || r.Count != 0 {
		t.Errorf("keys were written: %v, %v", r, err)
	}
}

func TestMembersAndCompaction(t *testing.T) {
	server, err := etcdserver.Start(t.Context(), etcdserver.Alone{NoSync: true})
	fatal.If(t, err)
	defer server.Close()
	ctx := timeout(t, time.Minute)
	dead := "http://127.0.0.1:1"
	client, err := Dial(Config{Endpoints: []string{server.Endpoint(), dead}})
	fatal.If(t, err)
	defer client.Close()
	s, err := New(client, "test", "members")
	fatal.If(t, err)
	g, err := s.Group()
	fatal.If(t, err)
	list := g.Members(ctx, clock.NewSystem(nil))
	if len(list) != 2 || list[0].Err != nil || list[1].Err == nil || list[1].Endpoint != dead {
		t.Fatalf("got %+v", list)
	}
	if _, members, err := g.List(ctx); err != nil || len(members) != 1 || members[0].ID != list[0].ID {
		t.Errorf("etcd's own list: %+v, %v", members, err)
	}
	v, err := s.Load(ctx)
	if m := list[0]; err != nil || m.Cluster != v.Cluster || !strings.HasPrefix(m.Version, "3.") || !m.Leader || m.Size <= 0 || m.Quota <= 0 || m.Took <= 0 {
		t.Errorf("got %+v, %v", m, err)
	}
	if full, err := g.NoSpace(ctx); err != nil || full {
		t.Errorf("no space: %t, %v", full, err)
	}
	var rev int64
	for range 5 {
		r, err := client.Put(ctx, "k", "v")
		fatal.If(t, err)
		rev = r.Header.Revision
	}
	if got, err := s.Compacted(ctx, 1); err != nil || got {
		t.Errorf("before: %t, %v", got, err)
	}
	if _, err := client.Compact(ctx, rev); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Compacted(ctx, 1); err != nil || !got {
		t.Errorf("after: %t, %v", got, err)
	}
}

// stopped removes members, and answers as the one that was removed.
type stopped struct{ clientv3.Cluster }

func (s stopped) MemberRemove(ctx context.Context, id uint64) (*clientv3.MemberRemoveResponse, error) {
	_, err := s.Cluster.MemberRemove(ctx, id)
	return nil, cmp.Or(err, rpctypes.ErrStopped)
}

// A member that was removed is so also if the answer is lost, and one that is still listed is not.
func TestRemoveMember(t *testing.T) {
	server, err := etcdserver.Start(t.Context(), etcdserver.Alone{NoSync: true})
	fatal.If(t, err)
	defer server.Close()
	ctx := timeout(t, time.Minute)
	g, err := OpenGroup(Config{Endpoints: []string{server.Endpoint()}})
	fatal.If(t, err)
	defer g.Close()
	_, list, err := g.List(ctx)
	fatal.If(t, err)
	id, err := g.Add(ctx, "http://127.0.0.1:1")
	fatal.If(t, err)
	g.client.Cluster = stopped{g.client.Cluster}
	for range 2 {
		if err := g.Remove(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if err := g.Remove(ctx, list[0].ID); err == nil {
		t.Error("the last member is removed")
	}
}

// An act is recorded with the write that it is, or not at all, and ends by itself. What others wrote there is bounded.
func TestActs(t *testing.T) {
	s := held(t)
	ctx := timeout(t, time.Minute)
	act := func(n int) lease.Act {
		return lease.Act{Action: fmt.Sprint("act ", n), By: "alice@db-1", At: adminNow + clock.Millis(n), Nonce: fmt.Sprint(n)}
	}
	acts := func() (out []string) {
		list, err := s.Acts(ctx)
		fatal.If(t, err)
		for _, a := range list {
			out = append(out, a.Action)
		}
		return out
	}
	v, lines := survey(t, s, 3)
	w, err := repair.Quarantine(v, len(lines) > 0, 3, "why", true, repair.Author{Instance: "op", Nonce: "q", Now: adminNow})
	fatal.If(t, err)
	w.Act = act(1)
	fatal.If(t, s.Repair(ctx, w))
	w.Window.Nonce, w.Act = "late", act(2)
	if err := s.Repair(ctx, w); !errors.Is(err, repair.ErrChanged) {
		t.Errorf("an old view: %v", err)
	}
	if err := s.BeginEra(ctx, v, lease.Era{Number: 2, Floor: adminNow}, act(3)); err != nil {
		t.Error(err)
	}
	if err := s.AcceptTime(ctx, v, lease.AcceptedTime{Era: 1, Until: 1, Nonce: "n"}, act(4)); !errors.Is(err, repair.ErrChanged) {
		t.Errorf("an old era: %v", err)
	}
	if err := s.Record(ctx, act(5)); err != nil {
		t.Error(err)
	}
	if got := acts(); fmt.Sprint(got) != "[act 1 act 3 act 5]" {
		t.Error(got)
	}
	c := s.connected.Load()
	r, err := c.Get(ctx, string(s.Keys)+"act/", clientv3.WithPrefix())
	fatal.If(t, err)
	for _, kv := range r.Kvs {
		ttl, err := c.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
		if err != nil || ttl.TTL <= 0 || ttl.TTL > 3600 {
			t.Errorf("%s: %v, %v", kv.Key, ttl, err)
		}
	}
	for n := range 2 * lease.MaxActs {
		one, id := act(100+n), "x"
		if n%2 == 1 {
			one.Reason, id = strings.Repeat("x", 4096), strings.Repeat("x", 10_000)
		}
		if _, err := c.Put(ctx, fmt.Sprintf("%sact/%020d-%s", s.Keys, one.At, id), lease.Encode(one)); err != nil {
			t.Fatal(err)
		}
	}
	if got := acts(); len(got) != lease.MaxActs || got[0] != "act 164" || !strings.HasPrefix(got[1], "a record that cannot be read") {
		t.Error(got)
	}
	list, err := s.Acts(ctx)
	for _, a := range list {
		if err != nil || len(lease.Encode(a)) > 1024 {
			t.Errorf("%.2000v, %v", a, err)
		}
	}
	if v, err := s.Load(ctx); err != nil || v.Era.Value.Number != 2 { // The protocol does not see acts.
		t.Errorf("%+v, %v", v.Era, err)
	}
}
