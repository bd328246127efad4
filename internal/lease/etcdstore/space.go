package etcdstore

import (
	"context"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Init is that of [records.Space]; the timeout is of all its requests together.
func (s *Store) Init(
	ctx context.Context, space lease.Space, floor clock.Millis, reserved ...lease.Reservation,
) (created bool, now lease.View, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.Space.Init(ctx, space, floor, reserved...)
}

// Holder is that of [records.Space]; the timeout is of all its requests together.
func (s *Store) Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.LedgerLine, bool, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.Space.Holder(ctx, sid, at)
}
