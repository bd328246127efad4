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

// Grant takes a lease of ttl, rounded up to whole seconds. After an error one may exist; nothing
// is on it, and it expires by itself.
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
