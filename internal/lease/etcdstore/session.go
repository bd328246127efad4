package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/internal/lease"
)

// Register puts r on the lease id, or if that is 0 on a new lease of ttl, rounded up
// to whole seconds. After an error a new lease may exist; it is not renewed, and
// expires by itself. etcd grants no lease shorter than 1.5 election timeouts (2 s).
// It returns lease.ErrLeaseGone if the lease has expired or was revoked.
func (s *Store) Register(
	ctx context.Context, id lease.LeaseID, ttl time.Duration, r lease.Registration,
) (lease.LeaseID, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	granted := id == 0
	if granted {
		var err error
		if id, err = s.Grant(ctx, ttl); err != nil {
			return 0, err
		}
	}
	put, err := s.readNode(ctx, id, r)
	if err == nil {
		err = put(ctx)
	}
	if err != nil {
		if granted { // Only the registration can be on this lease.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = s.Revoke(ctx, id)
		}
		return 0, leaseError("register "+string(r.Instance)+" on", id, err)
	}
	return id, nil
}

// Grant takes a lease of ttl, as Register does. After an error one may exist; nothing is
// on it, and it expires by itself.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	client, err := s.client()
	if err != nil {
		return 0, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	r, err := client.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return 0, fmt.Errorf("grant lease: %w", because(ctx, err))
	}
	return lease.LeaseID(r.ID), nil
}

// readNode reads the node's key, and returns what puts r there, on the lease, if the
// key is still the same: otherwise a late request of an earlier registration would
// move the key to a lease that is not renewed, and the node would disappear from the
// registry.
func (s *Store) readNode(
	ctx context.Context, id lease.LeaseID, r lease.Registration,
) (put func(context.Context) error, err error) {
	key := s.keys.node(r.Instance)
	seen, err := s.get(ctx, key)
	if err != nil {
		return nil, err
	}
	rev := int64(0)
	if len(seen.Kvs) > 0 {
		rev = seen.Kvs[0].ModRevision
	}
	return func(ctx context.Context) error {
		same := clientv3.Compare(clientv3.ModRevision(key), "=", rev)
		onLease := clientv3.WithLease(clientv3.LeaseID(id))
		put, err := s.txn(ctx, []clientv3.Cmp{same}, []clientv3.Op{clientv3.OpPut(key, lease.Encode(r), onLease)}, nil)
		if err == nil && !put.Succeeded {
			err = errOvertaken
		}
		return err
	}, nil
}

var errOvertaken = errors.New("etcdstore: another registration of this instance was written first")

// KeepAlive renews the lease once. It returns lease.ErrLeaseGone if it has
// expired or was revoked.
//
// It sends one message on its own stream. The client's KeepAliveOnce retries without
// a pause for as long as etcd has no leader, and its KeepAlive does not show when a
// renewal was sent.
func (s *Store) KeepAlive(ctx context.Context, id lease.LeaseID) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	ctx, end := context.WithCancel(ctx) // A stream lives until its context ends.
	defer end()
	ttl, err := func() (int64, error) {
		stream, err := clientv3.RetryLeaseClient(client).LeaseKeepAlive(ctx, grpc.WaitForReady(true))
		if err != nil {
			return 0, err
		}
		if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
			return 0, err
		}
		r, err := stream.Recv()
		return r.GetTTL(), err
	}()
	if err = clientv3.ContextError(ctx, err); err == nil && ttl <= 0 {
		err = rpctypes.ErrLeaseNotFound
	}
	return leaseError("keep alive", id, err)
}

// Revoke ends the lease and deletes every key on it. A lease that is gone is no
// error.
func (s *Store) Revoke(ctx context.Context, id lease.LeaseID) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, err = client.Revoke(ctx, clientv3.LeaseID(id))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return leaseError("revoke", id, err)
}

// leaseError wraps err with the operation and the lease.
func leaseError(doing string, id lease.LeaseID, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = lease.ErrLeaseGone
	}
	return fmt.Errorf("%s lease %x: %w", doing, int64(id), err)
}
