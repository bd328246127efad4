package etcdstore

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// Version is one write of a sid's window record.
type Version struct {
	SID    flake.SID
	Window lease.Entry[lease.Window] // absent: the record was deleted
}

// History returns every version that etcd still has of the space's window
// records, oldest first. Compaction forgets old ones; ErrCompacted of etcd's
// client is then returned, and a later from must be given.
//
// It is for audits and tests: it reads all of it, and nothing on a request's or
// a lease's path calls it.
func (s *Store) History(ctx context.Context, from int64) ([]Version, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	head, err := s.client.Get(ctx, s.keys.config())
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	end := head.Header.Revision
	var out []Version
	seen := from - 1
	watch := s.client.Watch(clientv3.WithRequireLeader(ctx), s.keys.windows(),
		clientv3.WithPrefix(), clientv3.WithRev(max(from, 1)), clientv3.WithProgressNotify())
	for seen < end {
		// Answers carry no revision of their own while nothing of the prefix
		// changes; asking for progress makes etcd say how far it has come.
		if err := s.client.RequestProgress(clientv3.WithRequireLeader(ctx)); err != nil {
			return nil, fmt.Errorf("read history: %w", err)
		}
		r, ok := <-watch
		if !ok {
			return nil, fmt.Errorf("read history: %w", context.Cause(ctx))
		}
		if err := r.Err(); err != nil {
			return nil, fmt.Errorf("read history: %w", err)
		}
		seen = max(seen, r.Header.Revision)
		for _, ev := range r.Events {
			sid, ok := sidUnder(string(ev.Kv.Key), s.keys.windows())
			if !ok || ev.Kv.ModRevision > end {
				continue
			}
			v := Version{SID: sid}
			if ev.Type == clientv3.EventTypePut {
				v.Window = entry[lease.Window](ev.Kv)
			}
			out = append(out, v)
		}
	}
	return out, nil
}
