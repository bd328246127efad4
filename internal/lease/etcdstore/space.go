package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"time"

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

// statusTimeout bounds the status call to one endpoint.
const statusTimeout = 2 * time.Second

// Version returns the version of the first endpoint that answers, such as "3.6.5".
func (s *Store) Version(ctx context.Context) (string, error) {
	client, err := s.client()
	if err != nil {
		return "", err
	}
	var errs []error
	for _, endpoint := range client.Endpoints() {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		r, err := client.Status(ctx, endpoint)
		cancel()
		if err == nil {
			return r.Version, nil
		}
		errs = append(errs, fmt.Errorf("version of %s: %w", endpoint, err))
	}
	return "", errors.Join(errs...)
}
