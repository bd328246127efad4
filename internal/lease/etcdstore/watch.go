package etcdstore

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/internal/lease"
)

// reopenDelay is the pause before a watch that ended is opened again.
const reopenDelay = 250 * time.Millisecond

// Watch reports every change of config, era, the accepted time, a holder, the mark or a
// registration, that the watch was opened, and that it had to be opened again. Each
// progress it asks etcd which revision the watch has reached, and reports that. It
// blocks until ctx ends and returns its error.
func (s *Store) Watch(ctx context.Context, progress time.Duration, report func(lease.Watched)) error {
	for {
		s.watchUntilBroken(ctx, progress, report)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(reopenDelay):
		}
	}
}

// Acted returns a channel that receives when Watch sees an act of an operator, and when it is opened.
func (s *Store) Acted() <-chan struct{} { return s.acted }

func (s *Store) act() {
	select {
	case s.acted <- struct{}{}:
	default:
	}
}

// watchUntilBroken watches from the current revision on. It returns when the
// connection is lost, there is no client, etcd does not open the watch or ends it (no leader, too slow, an
// error), or ctx ends.
//
// It opens its own stream. The client's Watch would resume after a lost connection,
// which is not needed: after each new watch the caller reads everything, and so no
// revision that a watch begins at can be compacted.
func (s *Store) watchUntilBroken(ctx context.Context, progress time.Duration, report func(lease.Watched)) {
	// Without this, a watch on a member that is cut off from the others would get no
	// events and no error. It is set only here, since it breaks the client's lease
	// streams.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	opening := time.AfterFunc(callTimeout, cancel)
	defer opening.Stop()
	client, err := s.client()
	if err != nil {
		return
	}
	stream, err := etcdserverpb.NewWatchClient(client.ActiveConnection()).Watch(ctx, grpc.WaitForReady(true))
	if err != nil {
		return
	}
	first, end := s.Keys.Watched()
	create := &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte(first), RangeEnd: []byte(end)},
	}
	if stream.Send(&etcdserverpb.WatchRequest{RequestUnion: create}) != nil {
		return
	}
	for {
		r, err := stream.Recv()
		if err != nil || r.Canceled {
			return
		}
		if r.Created {
			if !opening.Stop() {
				return
			}
			report(lease.Watched{Opened: true, Revision: r.Header.Revision})
			s.act()
			asking.Go(func() { askProgress(ctx, stream, progress) })
			continue
		}
		seen := lease.Watched{Revision: r.Header.Revision}
		for _, ev := range r.Events {
			if s.Keys.IsAct(string(ev.Kv.Key)) {
				s.act()
			}
			if c, ok := s.Keys.Change(kvOf(ev.Kv), ev.Type == mvccpb.PUT); ok {
				seen.Changes = append(seen.Changes, c)
			}
		}
		report(seen)
	}
}

// askProgress asks etcd again and again which revision the watch has reached. The
// answer has all changes until then before it.
func askProgress(ctx context.Context, stream etcdserverpb.Watch_WatchClient, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ask := &etcdserverpb.WatchRequest_ProgressRequest{ProgressRequest: &etcdserverpb.WatchProgressRequest{}}
		if stream.Send(&etcdserverpb.WatchRequest{RequestUnion: ask}) != nil {
			return // Recv has the reason.
		}
	}
}
