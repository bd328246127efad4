package etcdstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/internal/etcdpod"
)

// ErrSnapshot is returned for a snapshot that is not complete or was changed.
var ErrSnapshot = errors.New("etcdstore: the snapshot is not what etcd sent")

// Admin asks and changes an etcd as its administrator: members, users, alarms, snapshots. The
// user of nodes may not do this, and spaces play no part in it. It is safe for concurrent use.
//
// It decides nothing; package etcdpod does.
type Admin struct {
	etcd *clientv3.Client
}

// OpenAdmin returns an administrator, who connects in the background.
func OpenAdmin(c Config) (*Admin, error) {
	etcd, err := Dial(c)
	if err != nil {
		return nil, err
	}
	return &Admin{etcd}, nil
}

// Close ends the connection.
func (c *Admin) Close() error { return c.etcd.Close() }

// List returns the members as a quorum confirms them, with their client URLs.
func (c *Admin) List(ctx context.Context) ([]etcdpod.Listed, []string, error) {
	r, err := c.etcd.MemberList(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list members: %w", err)
	}
	var out []etcdpod.Listed
	var urls []string
	for _, m := range r.Members {
		out = append(out, etcdpod.Listed{ID: m.ID, Name: m.Name, Peers: m.PeerURLs, Learner: m.IsLearner})
		urls = append(urls, m.ClientURLs...)
	}
	return out, urls, nil
}

// Remove removes a member; one that is not there any more is no error.
func (c *Admin) Remove(ctx context.Context, id uint64) error {
	if _, err := c.etcd.MemberRemove(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) {
		return fmt.Errorf("remove member %x: %w", id, err)
	}
	return nil
}

// Add adds a learner with a peer URL.
func (c *Admin) Add(ctx context.Context, peer string) error {
	if _, err := c.etcd.MemberAddAsLearner(ctx, []string{peer}); err != nil {
		return fmt.Errorf("add %s as a learner: %w", peer, err)
	}
	return nil
}

// Self is the state of the member at an endpoint, as it says itself.
type Self struct {
	ID      uint64
	Learner bool
}

// Self asks one endpoint.
func (c *Admin) Self(ctx context.Context, endpoint string) (Self, error) {
	r, err := c.etcd.Status(ctx, endpoint)
	if err != nil {
		return Self{}, fmt.Errorf("status of %s: %w", endpoint, err)
	}
	return Self{r.Header.MemberId, r.IsLearner}, nil
}

// Promote makes a learner a member that votes. etcd refuses until the learner has the data.
func (c *Admin) Promote(ctx context.Context, id uint64) error {
	_, err := c.etcd.MemberPromote(ctx, id)
	if err != nil && !errors.Is(err, rpctypes.ErrMemberNotLearner) {
		return fmt.Errorf("promote member %x: %w", id, err)
	}
	return nil
}

// Grant makes etcd accept users by the names in their certificates alone: root, and user,
// who may read and write the keys with the prefix and nothing else. It can be repeated, and
// at once by several members.
func (c *Admin) Grant(ctx context.Context, user, prefix string) error {
	const root = "root"
	status, err := c.etcd.AuthStatus(ctx)
	if err != nil {
		return fmt.Errorf("state of authentication: %w", err)
	}
	if status.Enabled {
		r, err := c.etcd.UserGet(ctx, user)
		if err == nil && slices.Contains(r.Roles, user) {
			return nil
		}
	}
	none := &clientv3.UserAddOptions{NoPassword: true}
	_, err = c.etcd.UserAddWithOptions(ctx, root, "", none)
	if err = except(err, rpctypes.ErrUserAlreadyExist); err != nil {
		return fmt.Errorf("add user root: %w", err)
	}
	if _, err := c.etcd.UserGrantRole(ctx, root, root); err != nil {
		return fmt.Errorf("grant role root: %w", err)
	}
	_, err = c.etcd.RoleAdd(ctx, user)
	if err = except(err, rpctypes.ErrRoleAlreadyExist); err != nil {
		return fmt.Errorf("add role %s: %w", user, err)
	}
	if _, err := c.etcd.RoleGrantPermission(ctx, user, prefix, clientv3.GetPrefixRangeEnd(prefix),
		clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		return fmt.Errorf("grant %s to role %s: %w", prefix, user, err)
	}
	_, err = c.etcd.UserAddWithOptions(ctx, user, "", none)
	if err = except(err, rpctypes.ErrUserAlreadyExist); err != nil {
		return fmt.Errorf("add user %s: %w", user, err)
	}
	if _, err := c.etcd.UserGrantRole(ctx, user, user); err != nil {
		return fmt.Errorf("grant role %s: %w", user, err)
	}
	if _, err := c.etcd.AuthEnable(ctx); err != nil {
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

// Conditions returns the state of the members at the endpoints.
func (c *Admin) Conditions(ctx context.Context, endpoints []string) []etcdpod.Condition {
	var out []etcdpod.Condition
	for _, e := range endpoints {
		m := etcdpod.Condition{Endpoint: e}
		if r, err := c.etcd.Status(ctx, e); err == nil {
			m.Healthy = r.Leader != 0 && !r.IsLearner
			m.Leader = r.Leader == r.Header.MemberId
			m.Size, m.Used = r.DbSize, r.DbSizeInUse
		}
		out = append(out, m)
	}
	return out
}

// Defragment makes the database of one member as small as its contents. It answers nobody meanwhile.
func (c *Admin) Defragment(ctx context.Context, endpoint string) error {
	if _, err := c.etcd.Defragment(ctx, endpoint); err != nil {
		return fmt.Errorf("defragment %s: %w", endpoint, err)
	}
	return nil
}

// Compact removes all revisions before the latest, on all members.
func (c *Admin) Compact(ctx context.Context, endpoint string) error {
	r, err := c.etcd.Status(ctx, endpoint)
	if err != nil {
		return fmt.Errorf("status of %s: %w", endpoint, err)
	}
	_, err = c.etcd.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical())
	if err = except(err, rpctypes.ErrCompacted); err != nil {
		return fmt.Errorf("compact at %d: %w", r.Header.Revision, err)
	}
	return nil
}

// NoSpace reports whether a member's quota is full, so that etcd takes no more writes.
func (c *Admin) NoSpace(ctx context.Context) (bool, error) {
	r, err := c.etcd.AlarmList(ctx)
	if err != nil {
		return false, fmt.Errorf("list alarms: %w", err)
	}
	return slices.ContainsFunc(r.Alarms, func(a *etcdserverpb.AlarmMember) bool {
		return a.Alarm == etcdserverpb.AlarmType_NOSPACE
	}), nil
}

// Disarm ends the alarms of full quotas.
func (c *Admin) Disarm(ctx context.Context) error {
	r, err := c.etcd.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("list alarms: %w", err)
	}
	for _, a := range r.Alarms {
		if a.Alarm == etcdserverpb.AlarmType_NOSPACE {
			if _, err := c.etcd.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
				return fmt.Errorf("disarm the alarm of %x: %w", a.MemberID, err)
			}
		}
	}
	return nil
}

// Snapshot writes a snapshot to w and returns its size. The last 32 bytes are the checksum of
// those before, which Snapshot compares: with ErrSnapshot what was written is of no use.
func (c *Admin) Snapshot(ctx context.Context, w io.Writer) (int64, error) {
	r, err := c.etcd.Snapshot(ctx)
	if err != nil {
		return 0, fmt.Errorf("snapshot: %w", err)
	}
	defer func() { _ = r.Close() }()
	sum := sha256.New()
	var last []byte // The bytes at the end, of which the checksum may consist.
	n, err := io.Copy(io.MultiWriter(w, writer(func(p []byte) {
		last = append(last, p...)
		if extra := len(last) - sha256.Size; extra > 0 {
			_, _ = sum.Write(last[:extra])
			last = append([]byte{}, last[extra:]...)
		}
	})), r)
	if err != nil {
		return n, fmt.Errorf("snapshot: %w", err)
	}
	if !bytes.Equal(last, sum.Sum(nil)) {
		return n, fmt.Errorf("%w: its checksum differs after %d bytes; take another", ErrSnapshot, n)
	}
	return n, nil
}

type writer func(p []byte)

func (f writer) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
