package etcdstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrSnapshot is returned for a snapshot that is not complete or was changed.
var ErrSnapshot = errors.New("etcdstore: the snapshot is not what etcd sent")

// Grant makes etcd accept users by the names in their certificates alone: root, and user,
// who may read and write the keys with the prefix and nothing else. It can be repeated, and
// at once by several members.
func (g *Group) Grant(ctx context.Context, user, prefix string) error {
	const root = "root"
	status, err := g.client.AuthStatus(ctx)
	if err != nil {
		return fmt.Errorf("state of authentication: %w", err)
	}
	if status.Enabled {
		r, err := g.client.UserGet(ctx, user)
		if err == nil && slices.Contains(r.Roles, user) {
			return nil
		}
	}
	none := &clientv3.UserAddOptions{NoPassword: true}
	_, err = g.client.UserAddWithOptions(ctx, root, "", none)
	if err = except(err, rpctypes.ErrUserAlreadyExist); err != nil {
		return fmt.Errorf("add user root: %w", err)
	}
	if _, err := g.client.UserGrantRole(ctx, root, root); err != nil {
		return fmt.Errorf("grant role root: %w", err)
	}
	_, err = g.client.RoleAdd(ctx, user)
	if err = except(err, rpctypes.ErrRoleAlreadyExist); err != nil {
		return fmt.Errorf("add role %s: %w", user, err)
	}
	if _, err := g.client.RoleGrantPermission(ctx, user, prefix, clientv3.GetPrefixRangeEnd(prefix),
		clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		return fmt.Errorf("grant %s to role %s: %w", prefix, user, err)
	}
	_, err = g.client.UserAddWithOptions(ctx, user, "", none)
	if err = except(err, rpctypes.ErrUserAlreadyExist); err != nil {
		return fmt.Errorf("add user %s: %w", user, err)
	}
	if _, err := g.client.UserGrantRole(ctx, user, user); err != nil {
		return fmt.Errorf("grant role %s: %w", user, err)
	}
	if _, err := g.client.AuthEnable(ctx); err != nil {
		return fmt.Errorf("enable authentication: %w", err)
	}
	return nil
}

// except returns err, but nil for the error that says that nothing was left to do.
func except(err, done error) error {
	if errors.Is(err, done) {
		return nil
	}
	return err
}

// Defragment makes the database of one member as small as its contents. It answers nobody meanwhile.
func (g *Group) Defragment(ctx context.Context, endpoint string) error {
	if _, err := g.client.Defragment(ctx, endpoint); err != nil {
		return fmt.Errorf("defragment %s: %w", endpoint, err)
	}
	return nil
}

// Compact removes all revisions before the latest, on all members.
func (g *Group) Compact(ctx context.Context, endpoint string) error {
	r, err := g.client.Status(ctx, endpoint)
	if err != nil {
		return fmt.Errorf("status of %s: %w", endpoint, err)
	}
	_, err = g.client.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical())
	if err = except(err, rpctypes.ErrCompacted); err != nil {
		return fmt.Errorf("compact at %d: %w", r.Header.Revision, err)
	}
	return nil
}

// NoSpace reports whether a member's quota is full, so that etcd takes no more writes.
func (g *Group) NoSpace(ctx context.Context) (bool, error) {
	full, err := g.full(ctx)
	return len(full) > 0, err
}

// Disarm ends the alarms of full quotas.
func (g *Group) Disarm(ctx context.Context) error {
	full, err := g.full(ctx)
	if err != nil {
		return err
	}
	for _, a := range full {
		if _, err := g.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return fmt.Errorf("disarm the alarm of %x: %w", a.MemberID, err)
		}
	}
	return nil
}

// full returns the alarms of full quotas.
func (g *Group) full(ctx context.Context) ([]*etcdserverpb.AlarmMember, error) {
	ctx = withAttempts(ctx)
	r, err := g.client.AlarmList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list alarms: %w", because(ctx, err))
	}
	return slices.DeleteFunc(r.Alarms, func(a *etcdserverpb.AlarmMember) bool {
		return a.Alarm != etcdserverpb.AlarmType_NOSPACE
	}), nil
}

// Snapshot writes a snapshot of the first member that gives one to w. The last 32 bytes are the checksum of
// those before, which Snapshot compares: with ErrSnapshot what was written is of no use.
func (g *Group) Snapshot(ctx context.Context, w io.Writer) error {
	return snapshot(ctx, g.client.Snapshot, w)
}

// snapshotBegins is the time within which a member sends the first bytes. etcd's client calls members that
// do not answer until ctx ends.
const snapshotBegins = time.Minute

func snapshot(ctx context.Context, open func(context.Context) (io.ReadCloser, error), w io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begins := time.AfterFunc(snapshotBegins, func() {
		cancel(fmt.Errorf("no member began to send it within %v", snapshotBegins))
	})
	defer begins.Stop()
	failed := func(err error) error {
		return fmt.Errorf("snapshot of etcd: %w", cmp.Or(context.Cause(ctx), because(ctx, err)))
	}
	r, err := open(ctx)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = r.Close() }()
	sum := sha256.New()
	var last []byte // The bytes at the end, of which the checksum may consist.
	n, err := io.Copy(io.MultiWriter(w, writer(func(p []byte) {
		begins.Stop()
		last = append(last, p...)
		if extra := len(last) - sha256.Size; extra > 0 {
			_, _ = sum.Write(last[:extra])
			last = append([]byte{}, last[extra:]...)
		}
	})), r)
	if err != nil {
		return failed(err)
	}
	if !bytes.Equal(last, sum.Sum(nil)) {
		return fmt.Errorf("%w: its checksum differs after %d bytes; take another", ErrSnapshot, n)
	}
	return nil
}

type writer func(p []byte)

func (f writer) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
