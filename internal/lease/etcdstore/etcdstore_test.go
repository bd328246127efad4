package etcdstore

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
)

// shared is the one etcd of the tests that leave it running, each with a space
// of its own.
var (
	shared *etcdserver.Server
	spaces atomic.Int32
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if shared, err = etcdserver.Start(context.Background(), etcdserver.Alone{NoSync: true, Run: member.Run{Log: "text"}}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer shared.Close()
		return m.Run()
	}())
}

// open returns a space of its own in the etcd of server.
func open(t *testing.T, server *etcdserver.Server, options ...grpc.DialOption) *Store {
	t.Helper()
	client, err := Dial(Config{Endpoints: []string{server.Endpoint()}, Options: options})
	fatal.If(t, err)
	t.Cleanup(func() { client.Close() })
	s, err := New(client, "test", fmt.Sprintf("space-%d", spaces.Add(1)))
	fatal.If(t, err)
	return s
}

func timeout(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestContract(t *testing.T) {
	storetest.Contract(t, func(t *testing.T) storetest.Harness {
		s, ctx := open(t, shared), timeout(t, 5*time.Minute)
		check := func(err error) {
			if err != nil {
				t.Helper()
				t.Fatal(err)
			}
		}
		return storetest.Harness{
			Space: s,
			Put: func(key, raw string) {
				_, err := s.connected.Load().Put(ctx, string(s.Keys)+key, raw)
				check(err)
			},
			Delete: func(key string) {
				_, err := s.connected.Load().Delete(ctx, string(s.Keys)+key)
				check(err)
			},
			Expire: func(id lease.LeaseID) {
				_, err := s.connected.Load().Revoke(ctx, clientv3.LeaseID(id))
				check(err)
			},
			Compact: func() {
				v, err := s.Load(ctx)
				check(err)
				_, err = s.connected.Load().Compact(ctx, v.Revision)
				check(err)
			},
		}
	})
}
