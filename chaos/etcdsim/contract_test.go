package etcdsim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/netsim"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// etcd is the real one or ours.
type etcd struct {
	dial   func(t *testing.T) *clientv3.Client
	spaces *atomic.Int32
}

// both are the etcds that the contract is tested on, by name.
var both = map[string]etcd{}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		theirs, err := etcdserver.Start(context.Background(), etcdserver.Alone{NoSync: true, Run: member.Run{Log: "text"}})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer theirs.Close()
		network := netsim.New(0)
		ours := etcdsim.New(func() (net.Listener, error) { return network.Listen("etcd:2379") })
		defer ours.Close()
		if err := ours.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		both["real"] = etcd{spaces: new(atomic.Int32), dial: dialler(etcdstore.Config{Endpoints: []string{theirs.Endpoint()}})}
		both["sim"] = etcd{spaces: new(atomic.Int32), dial: dialler(etcdstore.Config{
			Endpoints: []string{"http://etcd:2379"},
			Options:   []grpc.DialOption{grpc.WithContextDialer(network.Dialer("client"))},
		})}
		return m.Run()
	}())
}

func dialler(cfg etcdstore.Config) func(t *testing.T) *clientv3.Client {
	return func(t *testing.T) *clientv3.Client {
		t.Helper()
		client, err := etcdstore.Dial(cfg)
		fatal.If(t, err)
		t.Cleanup(func() { client.Close() })
		return client
	}
}

// TestStoreContract: etcdstore works on ours as its own tests show that it does on the real one.
func TestStoreContract(t *testing.T) {
	e := both["sim"]
	storetest.Contract(t, func(t *testing.T) storetest.Harness {
		client := e.dial(t)
		space := fmt.Sprintf("space-%d", e.spaces.Add(1))
		s, err := etcdstore.New(client, "contract", space)
		fatal.If(t, err)
		prefix := "/contract/" + space + "/"
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		t.Cleanup(cancel)
		check := func(err error) {
			if err != nil {
				t.Helper()
				t.Fatal(err)
			}
		}
		return storetest.Harness{
			Space:  s,
			Put:    func(key, raw string) { _, err := client.Put(ctx, prefix+key, raw); check(err) },
			Delete: func(key string) { _, err := client.Delete(ctx, prefix+key); check(err) },
			Expire: func(id lease.LeaseID) { _, err := client.Revoke(ctx, clientv3.LeaseID(id)); check(err) },
			Compact: func() {
				v, err := s.Load(ctx)
				check(err)
				_, err = client.Compact(ctx, v.Revision)
				check(err)
			},
		}
	})
}

// scenario is what one etcd does with a list of requests: what each answers, with
// revisions counted from the first, so that two of them can be compared.
type scenario struct {
	t     *testing.T
	ctx   context.Context
	c     *clientv3.Client
	p     string // prefix of its keys
	start int64
	lines []string
}

func (s *scenario) k(key string) string { return s.p + key }

// rev counts a revision from the scenario's first.
func (s *scenario) rev(r int64) int64 {
	if r == 0 {
		return 0
	}
	return r - s.start
}

func (s *scenario) say(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *scenario) kvs(kvs []*mvccpb.KeyValue) (out []string) {
	for _, kv := range kvs {
		out = append(out, fmt.Sprintf("%s=%s c%d m%d v%d leased:%v", kv.Key[len(s.p):], kv.Value,
			s.rev(kv.CreateRevision), s.rev(kv.ModRevision), kv.Version, kv.Lease != 0))
	}
	return out
}

func (s *scenario) get(what string, key string, opts ...clientv3.OpOption) {
	r, err := s.c.Get(s.ctx, key, opts...)
	if err != nil {
		s.say("%s: %v", what, err)
		return
	}
	s.say("%s: at %d count %d more %v %v", what, s.rev(r.Header.Revision), r.Count, r.More, s.kvs(r.Kvs))
}

func (s *scenario) put(key, value string, opts ...clientv3.OpOption) {
	r, err := s.c.Put(s.ctx, s.k(key), value, opts...)
	if err != nil {
		s.say("put %s: %v", key, err)
		return
	}
	s.say("put %s: at %d", key, s.rev(r.Header.Revision))
}

func (s *scenario) del(key string, opts ...clientv3.OpOption) {
	r, err := s.c.Delete(s.ctx, s.k(key), opts...)
	fatal.If(s.t, err)
	s.say("delete %s: at %d deleted %d %v", key, s.rev(r.Header.Revision), r.Deleted, s.kvs(r.PrevKvs))
}

func (s *scenario) txn(what string, cmps []clientv3.Cmp, then, els []clientv3.Op) {
	r, err := s.c.Txn(s.ctx).If(cmps...).Then(then...).Else(els...).Commit()
	if err != nil {
		s.say("%s: %v", what, err)
		return
	}
	s.say("%s: %v at %d", what, r.Succeeded, s.rev(r.Header.Revision))
	for _, op := range r.Responses {
		switch op := op.Response.(type) {
		case *etcdserverpb.ResponseOp_ResponseRange:
			s.say("  get %d %v", op.ResponseRange.Count, s.kvs(op.ResponseRange.Kvs))
		case *etcdserverpb.ResponseOp_ResponsePut:
			s.say("  put")
		case *etcdserverpb.ResponseOp_ResponseDeleteRange:
			s.say("  delete %d", op.ResponseDeleteRange.Deleted)
		}
	}
}

func (s *scenario) grant(ttl int64) clientv3.LeaseID {
	s.t.Helper()
	r, err := s.c.Grant(s.ctx, ttl)
	fatal.If(s.t, err)
	s.say("grant %d: %d", ttl, r.TTL)
	return r.ID
}

// alive renews a lease with one message, and says what etcd answers.
func (s *scenario) alive(id clientv3.LeaseID) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	stream, err := clientv3.RetryLeaseClient(s.c).LeaseKeepAlive(ctx)
	fatal.If(s.t, err)
	fatal.If(s.t, stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(id)}))
	r, err := stream.Recv()
	fatal.If(s.t, err)
	s.say("keep alive: TTL %d, its own ID %v", r.TTL, r.ID == int64(id))
}

// events reads n events of a watch, by batch.
func (s *scenario) events(what string, w clientv3.WatchChan, n int) {
	for n > 0 {
		select {
		case r, ok := <-w:
			if !ok || r.Err() != nil {
				s.say("%s: ended, %v, compacted %d", what, r.Err(), s.rev(r.CompactRevision))
				return
			}
			for _, ev := range r.Events {
				prev := ""
				if ev.PrevKv != nil {
					prev = fmt.Sprint(s.kvs([]*mvccpb.KeyValue{ev.PrevKv}))
				}
				s.say("%s: %v %v %s", what, ev.Type, s.kvs([]*mvccpb.KeyValue{ev.Kv}), prev)
				n--
			}
		case <-s.ctx.Done():
			s.t.Fatalf("%s: %d events more were expected", what, n)
		}
	}
}

var scenarios = map[string]func(*scenario){
	"revisions": func(s *scenario) {
		s.put("a", "1")
		s.put("a", "2")
		s.put("b", "")
		s.del("nothing")
		s.get("all", s.p, clientv3.WithPrefix())
		s.get("none", s.k("zzz"))
		s.get("old", s.k("a"), clientv3.WithRev(s.start+1))
		s.get("first", s.k("a"), clientv3.WithRev(s.start))
		s.get("future", s.k("a"), clientv3.WithRev(s.start+1_000_000))
		s.del("a")
		s.del("a")
		s.put("a", "3") // a new life
		s.get("again", s.k("a"))
		s.get("before", s.k("a"), clientv3.WithRev(s.start+4))
		s.get("empty key", "")
	},
	"ranges": func(s *scenario) {
		for i, key := range []string{"x/3", "x/1", "x/2", "x", "xx", "x0"} {
			s.put(key, fmt.Sprint(9-i))
		}
		s.get("prefix", s.k("x/"), clientv3.WithPrefix())
		s.get("range", s.k("x/1"), clientv3.WithRange(s.k("x/3")))
		s.get("count", s.k("x"), clientv3.WithPrefix(), clientv3.WithCountOnly())
		s.get("limit", s.k("x"), clientv3.WithPrefix(), clientv3.WithLimit(2))
		s.get("down", s.k("x/"), clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
		s.get("by value", s.k("x"), clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByValue, clientv3.SortAscend))
		s.get("latest", s.k("x"), clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithLimit(1))
		s.get("keys", s.k("x/"), clientv3.WithPrefix(), clientv3.WithKeysOnly())
		s.del("x/1", clientv3.WithRange(s.k("x/3")), clientv3.WithPrevKV())
		s.del("x", clientv3.WithPrefix())
		s.get("gone", s.p, clientv3.WithPrefix())
	},
	"compares": func(s *scenario) {
		s.put("a", "1")
		s.put("a", "2")
		id := s.grant(60)
		s.put("held", "h", clientv3.WithLease(id))
		for _, key := range []string{"a", "absent"} {
			k := s.k(key)
			for _, op := range []string{"=", "!=", "<", ">"} {
				for what, c := range []clientv3.Cmp{
					clientv3.Compare(clientv3.Value(k), op, "2"),
					clientv3.Compare(clientv3.Value(k), op, ""),
					clientv3.Compare(clientv3.CreateRevision(k), op, 0),
					clientv3.Compare(clientv3.CreateRevision(k), op, s.start+1),
					clientv3.Compare(clientv3.ModRevision(k), op, 0),
					clientv3.Compare(clientv3.ModRevision(k), op, s.start+2),
					clientv3.Compare(clientv3.Version(k), op, 2),
					clientv3.Compare(clientv3.LeaseValue(k), op, 0),
				} {
					r, err := s.c.Txn(s.ctx).If(c).Commit()
					fatal.If(s.t, err)
					s.say("%s, compare %d, %s: %v", key, what, op, r.Succeeded)
				}
			}
		}
		s.txn("lease", []clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(s.k("held")), "=", int64(id))}, nil, nil)
		s.txn("other lease", []clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(s.k("held")), "=", int64(id)+1)}, nil, nil)
		none := clientv3.Compare(clientv3.CreateRevision(s.k("q/")), "=", 0).WithPrefix()
		s.txn("range absent", []clientv3.Cmp{none}, nil, nil)
		s.put("q/1", "")
		s.txn("range present", []clientv3.Cmp{none}, nil, nil)
		later := clientv3.Compare(clientv3.CreateRevision(s.p), ">", s.start+1).WithPrefix()
		s.txn("not all of a range", []clientv3.Cmp{later}, nil, nil)
	},
	"transactions": func(s *scenario) {
		a, b := s.k("a"), s.k("b")
		yes := clientv3.Compare(clientv3.CreateRevision(a), "=", 0)
		s.txn("read your writes", []clientv3.Cmp{yes},
			[]clientv3.Op{clientv3.OpGet(a), clientv3.OpPut(a, "1"), clientv3.OpGet(a), clientv3.OpPut(b, "2"),
				clientv3.OpGet(s.p, clientv3.WithPrefix()), clientv3.OpGet(s.p, clientv3.WithPrefix(), clientv3.WithCountOnly())}, nil)
		s.txn("else", []clientv3.Cmp{yes}, []clientv3.Op{clientv3.OpPut(a, "no")}, []clientv3.Op{clientv3.OpGet(a), clientv3.OpDelete(b), clientv3.OpGet(b)})
		s.txn("reads only", nil, []clientv3.Op{clientv3.OpGet(a)}, nil)
		s.txn("deletes nothing", nil, []clientv3.Op{clientv3.OpDelete(b)}, nil)
		s.txn("twice", nil, []clientv3.Op{clientv3.OpPut(a, "x"), clientv3.OpPut(a, "y")}, nil)
		s.txn("twice in the branch not taken", []clientv3.Cmp{yes}, []clientv3.Op{clientv3.OpPut(a, "x"), clientv3.OpPut(a, "y")}, nil)
		s.txn("put and delete", nil, []clientv3.Op{clientv3.OpPut(a, "x"), clientv3.OpDelete(s.p, clientv3.WithPrefix())}, nil)
		s.txn("delete a range beside", nil, []clientv3.Op{clientv3.OpPut(s.k("c/9"), "x"), clientv3.OpDelete(s.k("c/"), clientv3.WithRange(s.k("c/5")))}, nil)
		s.txn("no such lease", nil, []clientv3.Op{clientv3.OpPut(b, "first"), clientv3.OpPut(a, "x", clientv3.WithLease(1))}, nil)
		s.txn("no such lease, not taken", []clientv3.Cmp{yes}, []clientv3.Op{clientv3.OpPut(a, "x", clientv3.WithLease(1))}, nil)
		s.txn("future", nil, []clientv3.Op{clientv3.OpPut(b, "x"), clientv3.OpGet(a, clientv3.WithRev(s.start+1_000_000))}, nil)
		many := make([]clientv3.Op, 129)
		for i := range many {
			many[i] = clientv3.OpGet(a)
		}
		s.txn("too many", nil, many, nil)
		s.txn("no key", nil, []clientv3.Op{clientv3.OpPut("", "x")}, nil)
		s.get("all", s.p, clientv3.WithPrefix())
	},
	"leases": func(s *scenario) {
		s.put("loose", "", clientv3.WithLease(12345))
		id, other := s.grant(60), s.grant(60)
		s.alive(id)
		s.alive(1)
		s.put("b", "1", clientv3.WithLease(id))
		s.put("a", "1", clientv3.WithLease(id))
		s.put("moved", "1", clientv3.WithLease(id))
		s.put("moved", "2", clientv3.WithLease(other))
		s.put("freed", "1", clientv3.WithLease(id))
		s.put("freed", "2")
		s.put("gone", "1", clientv3.WithLease(id))
		s.del("gone")
		left, err := s.c.TimeToLive(s.ctx, id, clientv3.WithAttachedKeys())
		fatal.If(s.t, err)
		slices.SortFunc(left.Keys, bytes.Compare) // etcd has them in no order
		s.say("granted %d, keys %q", left.GrantedTTL, trim(left.Keys, s.p))
		before, err := s.c.Get(s.ctx, s.k("a"))
		fatal.If(s.t, err)
		w := s.c.Watch(s.ctx, s.p, clientv3.WithPrefix(), clientv3.WithRev(before.Header.Revision+1), clientv3.WithPrevKV())
		if _, err := s.c.Revoke(s.ctx, id); err != nil {
			s.t.Fatal(err)
		}
		s.events("revoked", w, 2)
		s.get("after", s.p, clientv3.WithPrefix())
		_, err = s.c.Revoke(s.ctx, id)
		s.say("revoke again: %v", err)
		s.alive(id)
		gone, err := s.c.TimeToLive(s.ctx, id)
		s.say("time to live: %d, %v", gone.TTL, err)
		empty := s.grant(60)
		all, err := s.c.Leases(s.ctx)
		fatal.If(s.t, err)
		s.say("listed: %v, and not what is gone: %v", has(all, empty), !has(all, id))
		_, err = s.c.Revoke(s.ctx, empty)
		s.say("revoke an empty one: %v", err)
		s.get("no revision for it", s.k("a"))
	},
	"expiry": func(s *scenario) {
		id := s.grant(1)
		s.put("a", "1", clientv3.WithLease(id))
		w := s.c.Watch(s.ctx, s.p, clientv3.WithPrefix())
		s.events("expired", w, 1)
		s.alive(id)
		s.get("after", s.k("a"))
	},
	"watches": func(s *scenario) {
		s.put("a", "1")
		s.txn("batch", nil, []clientv3.Op{clientv3.OpPut(s.k("z"), "1"), clientv3.OpPut(s.k("b"), "1"), clientv3.OpDelete(s.k("a"))}, nil)
		s.put("other", "1")
		s.put("b", "2")
		s.events("from the first", s.c.Watch(s.ctx, s.p, clientv3.WithPrefix(), clientv3.WithRev(s.start+1)), 6)
		s.events("from the second, one key", s.c.Watch(s.ctx, s.k("b"), clientv3.WithRev(s.start+2), clientv3.WithPrevKV()), 2)
		s.events("deletions", s.c.Watch(s.ctx, s.p, clientv3.WithPrefix(), clientv3.WithRev(s.start+1), clientv3.WithFilterPut()), 1)
		now := s.c.Watch(s.ctx, s.p, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		r := <-now
		s.say("created %v at %d", r.Created, s.rev(r.Header.Revision))
		future := s.c.Watch(s.ctx, s.p, clientv3.WithPrefix(), clientv3.WithRev(s.start+6), clientv3.WithCreatedNotify())
		<-future
		s.put("c", "5")
		s.put("c", "6")
		s.events("from now", now, 2)
		s.events("from the future", future, 1)
		fatal.If(s.t, s.c.RequestProgress(s.ctx))
		for r := range now {
			if r.IsProgressNotify() {
				s.say("progress at %d", s.rev(r.Header.Revision))
				break
			}
		}
	},
	// Last, alone: it forgets the history of all.
	"compaction": func(s *scenario) {
		for i := range 4 {
			s.put("a", fmt.Sprint(i))
		}
		if _, err := s.c.Compact(s.ctx, s.start+3); err != nil {
			s.t.Fatal(err)
		}
		s.get("before", s.k("a"), clientv3.WithRev(s.start+2))
		s.get("at", s.k("a"), clientv3.WithRev(s.start+3))
		s.get("now", s.k("a"))
		_, err := s.c.Compact(s.ctx, s.start+3)
		s.say("again: %v", err)
		_, err = s.c.Compact(s.ctx, s.start+1_000_000)
		s.say("future: %v", err)
		s.events("watch from before", s.c.Watch(s.ctx, s.p, clientv3.WithPrefix(), clientv3.WithRev(s.start+2)), 1)
		s.events("watch from it", s.c.Watch(s.ctx, s.p, clientv3.WithPrefix(), clientv3.WithRev(s.start+3)), 2)
	},
}

// TestAnswersAlike: request by request, the real etcd and ours answer the same.
func TestAnswersAlike(t *testing.T) {
	for name, tell := range scenarios {
		t.Run(name, func(t *testing.T) {
			if differ := differences(t, tell); len(differ) > 0 {
				t.Error(strings.Join(differ, "\n"))
			}
		})
	}
}

// differences runs a scenario on both, and returns where the answers differ.
func differences(t *testing.T, tell func(*scenario)) (out []string) {
	told := map[string][]string{}
	for which, e := range both {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Most)
		s := &scenario{t: t, ctx: ctx, c: e.dial(t), p: fmt.Sprintf("/alike-%d/", e.spaces.Add(1))}
		// A lease that another test left would expire meanwhile, and advance the revision.
		left, err := s.c.Leases(ctx)
		fatal.If(t, err)
		for _, l := range left.Leases {
			if _, err := s.c.Revoke(ctx, l.ID); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				t.Fatal(err)
			}
		}
		head, err := s.c.Get(ctx, s.p)
		fatal.If(t, err)
		s.start = head.Header.Revision
		tell(s)
		cancel()
		told[which] = s.lines
	}
	if len(told["real"]) == 0 {
		t.Fatal("nothing was told")
	}
	for i := range max(len(told["real"]), len(told["sim"])) {
		real, sim := line(told["real"], i), line(told["sim"], i)
		if real != sim {
			out = append(out, fmt.Sprintf("answer %d\nreal: %s\nsim:  %s", i, real, sim))
		}
	}
	return out
}

func has(all *clientv3.LeaseLeasesResponse, id clientv3.LeaseID) bool {
	return slices.ContainsFunc(all.Leases, func(l clientv3.LeaseStatus) bool { return l.ID == id })
}

func trim(keys [][]byte, prefix string) (out []string) {
	for _, k := range keys {
		out = append(out, strings.TrimPrefix(string(k), prefix))
	}
	return out
}

func line(lines []string, i int) string {
	if i >= len(lines) {
		return "(none)"
	}
	return lines[i]
}

// TestOthers: what status pages and doctors ask.
func TestOthers(t *testing.T) {
	got := map[string][]any{}
	for which, e := range both {
		c := e.dial(t)
		ctx, cancel := context.WithTimeout(context.Background(), wait.Most)
		defer cancel()
		st, err := c.Status(ctx, c.Endpoints()[0])
		fatal.If(t, err)
		alarms, err := c.AlarmList(ctx)
		fatal.If(t, err)
		list, err := c.MemberList(ctx)
		fatal.If(t, err)
		auth, err := c.AuthStatus(ctx)
		fatal.If(t, err)
		_, refused := c.Get(ctx, "a", clientv3.WithRev(1<<60))
		got[which] = []any{st.Version[:2], st.Leader != 0, len(alarms.Alarms), len(list.Members), auth.Enabled,
			errors.Is(refused, rpctypes.ErrFutureRev)}
	}
	if !reflect.DeepEqual(got["real"], got["sim"]) {
		t.Errorf("got %v", got)
	}
}
