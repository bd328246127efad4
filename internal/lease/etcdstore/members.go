package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/internal/member"
)

// ServerVersion returns the version of etcd that this program has inside.
func ServerVersion() string { return version.Version }

// Errors of Group.
var (
	ErrBusy     = errors.New("etcd changes one member at a time: another is being added")
	ErrNotReady = errors.New("the learner has not caught up yet")
	ErrMember   = errors.New("etcd has no such member")
)

// Group is the members of an etcd, for those who change them.
type Group struct{ client *clientv3.Client }

// OpenGroup connects to members, some of which need not answer. The caller closes it.
func OpenGroup(c Config) (*Group, error) {
	client, err := Dial(c)
	if err != nil {
		return nil, err
	}
	return &Group{client}, nil
}

// Close ends the connections.
func (g *Group) Close() { _ = g.client.Close() }

// List returns the members as a majority has them, and the ID of their cluster.
func (g *Group) List(ctx context.Context) (cluster uint64, list []member.Member, err error) {
	r, err := g.client.MemberList(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("list the members of etcd: %w", because(ctx, err))
	}
	for _, m := range r.Members {
		list = append(list, memberOf(m))
	}
	return r.Header.ClusterId, list, nil
}

func memberOf(m *etcdserverpb.Member) member.Member {
	return member.Member{
		ID:      m.ID,
		Name:    m.Name,
		Peers:   m.PeerURLs,
		Clients: m.ClientURLs,
		Learner: m.IsLearner,
	}
}

// Add adds a member that has not started, without a vote.
//
// It returns ErrBusy while another one is being added.
func (g *Group) Add(ctx context.Context, peer string) (id uint64, err error) {
	r, err := g.client.MemberAddAsLearner(ctx, []string{peer})
	switch {
	case errors.Is(err, rpctypes.ErrTooManyLearners), errors.Is(err, rpctypes.ErrUnhealthy):
		return 0, fmt.Errorf("%w: %w", ErrBusy, err)
	case err != nil:
		return 0, fmt.Errorf("add member %s: %w", peer, because(ctx, err))
	}
	return r.Member.ID, nil
}

// Promote gives a learner its vote.
//
// It returns ErrNotReady before it has caught up.
func (g *Group) Promote(ctx context.Context, id uint64) error {
	_, err := g.client.MemberPromote(ctx, id)
	switch {
	case errors.Is(err, rpctypes.ErrMemberLearnerNotReady):
		return ErrNotReady
	case errors.Is(err, rpctypes.ErrMemberNotLearner):
		return nil
	case err != nil:
		return fmt.Errorf("promote member %x: %w", id, because(ctx, err))
	}
	return nil
}

// Remove removes a member.
func (g *Group) Remove(ctx context.Context, id uint64) error {
	_, err := g.client.MemberRemove(ctx, id)
	switch {
	case errors.Is(err, rpctypes.ErrMemberNotFound):
		return ErrMember
	case err != nil:
		return fmt.Errorf("remove member %x: %w", id, because(ctx, err))
	}
	return nil
}

// Move gives a member another address.
func (g *Group) Move(ctx context.Context, id uint64, peer string) error {
	if _, err := g.client.MemberUpdate(ctx, id, []string{peer}); err != nil {
		return fmt.Errorf("move member %x to %s: %w", id, peer, because(ctx, err))
	}
	return nil
}

// MemberStatus is what one member says of itself.
type MemberStatus struct {
	member.Member
	Err              error
	Cluster          uint64
	Version          string
	Leads            bool
	Lag              uint64 // entries that the leader has and it has not applied
	Applied          uint64
	Size, InUse      int64 // bytes of its database
	Quota            int64
	Alarms, Problems []string
}

// Status asks each member of a list for its status.
func (g *Group) Status(ctx context.Context, list []member.Member) []MemberStatus {
	out := make([]MemberStatus, len(list))
	var all sync.WaitGroup
	for i, m := range list {
		all.Go(func() { out[i] = g.status(ctx, m) })
	}
	all.Wait()
	var highest uint64
	for _, s := range out {
		highest = max(highest, s.Applied)
	}
	for i := range out {
		if out[i].Err == nil {
			out[i].Lag = highest - out[i].Applied
		}
	}
	if r, err := g.client.AlarmList(ctx); err == nil {
		for _, a := range r.Alarms {
			for i := range out {
				if out[i].ID == a.MemberID {
					out[i].Alarms = append(out[i].Alarms, a.Alarm.String())
				}
			}
		}
	}
	return out
}

// errNotStarted is why a member is not asked.
var errNotStarted = errors.New("it has not started yet")

func (g *Group) status(ctx context.Context, m member.Member) MemberStatus {
	s := MemberStatus{Member: m, Err: errNotStarted}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, attemptsKey{}, &attempts{}), statusTimeout)
	defer cancel()
	for _, url := range m.Clients {
		r, err := g.client.Status(ctx, url)
		if s.Err = because(ctx, err); err != nil {
			continue
		}
		s.Cluster, s.Version, s.Applied = r.Header.ClusterId, r.Version, r.RaftAppliedIndex
		s.Leads = r.Leader != 0 && r.Leader == r.Header.MemberId
		s.Size, s.InUse, s.Quota, s.Problems = r.DbSize, r.DbSizeInUse, r.DbSizeQuota, r.Errors
		if s.ID == 0 { // asked by its address alone
			s.ID, s.Learner = r.Header.MemberId, r.IsLearner
		}
		break
	}
	return s
}

// Snapshot writes a snapshot of the first member that gives one.
func (g *Group) Snapshot(ctx context.Context, w io.Writer) error {
	r, err := g.client.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("snapshot of etcd: %w", because(ctx, err))
	}
	defer r.Close()
	if _, err := io.Copy(w, r); err != nil {
		return fmt.Errorf("snapshot of etcd: %w", because(ctx, err))
	}
	return nil
}
