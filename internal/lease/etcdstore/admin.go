package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/internal/lease/records"
)

// Compacted reports whether etcd has compacted its history beyond a revision.
func (s *Store) Compacted(ctx context.Context, revision int64) (bool, error) {
	_, err := s.get(ctx, s.Keys.Config(), clientv3.WithRev(revision), clientv3.WithCountOnly())
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read revision %d: %w", revision, err)
	}
	return false, nil
}

// Role is what etcd permits us to do. With Auth it has authentication enabled, and with
// Outside we may write outside the prefix of the space.
type Role struct {
	Auth    bool
	Outside bool
}

// Role finds out whether we may write a key next to the space. Nothing is written:
// etcd checks the permissions of every branch of a transaction, also of one that
// is never taken.
func (s *Store) Role(ctx context.Context) (Role, error) {
	client, err := s.client()
	if err != nil {
		return Role{}, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	auth := true
	if st, err := client.AuthStatus(ctx); err == nil {
		auth = st.Enabled
	} else if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return Role{}, fmt.Errorf("ask for etcd's authentication: %w", because(ctx, err))
	}
	key := strings.TrimSuffix(string(s.Keys), "/") + "-outside"
	_, err = s.Do(ctx, records.Txn{
		If:   []records.Compare{{Key: s.Keys.Config(), Of: records.Revision, Number: -1}},
		Then: []records.Op{{Do: records.Put, Key: key}},
	})
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return Role{Auth: auth}, nil
	case err != nil:
		return Role{}, fmt.Errorf("ask for a write outside the prefix: %w", err)
	}
	return Role{Auth: auth, Outside: true}, nil
}
