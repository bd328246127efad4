package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/inside/member"
)

// ServerVersion returns the version of etcd that this program has inside.
func ServerVersion() string { return version.Version }

// Errors of Group.
var (
	ErrBusy     = errors.New("etcd adds one member at a time: another one has not got its vote yet")
	ErrAway     = errors.New("etcd adds no member while it is without another one")
	ErrAwayOnce = errors.New("etcd adds no member until all have been connected for 5 s: try again")
	ErrNotReady = errors.New("the learner has not caught up yet")
)

// Group is the members of an etcd, for those who change and look after them. The user of nodes may
// not do this, and spaces play no part in it. It is safe for concurrent use.
//
// It decides nothing; package member does.
type Group struct{ client *clientv3.Client }

// OpenGroup connects to members, some of which need not answer. The caller closes it.
func OpenGroup(c Config) (*Group, error) {
	client, err := Dial(c)
	if err != nil {
		return nil, err
	}
	return &Group{client}, nil
}

// Group returns the members that s is connected to, which the caller does not close.
func (s *Store) Group() (*Group, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	return &Group{client}, nil
}

// Close ends the connections, if there is a group.
func (g *Group) Close() {
	if g != nil {
		_ = g.client.Close()
	}
}

// List returns the members as a majority has them, and the ID of their cluster.
func (g *Group) List(ctx context.Context) (cluster uint64, list []member.Member, err error) {
	ctx = withAttempts(ctx)
	r, err := g.client.MemberList(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("list the members of etcd: %w", because(ctx, err))
	}
	for _, m := range r.Members {
		list = append(list, member.Member{
			ID:      m.ID,
			Name:    m.Name,
			Peers:   m.PeerURLs,
			Clients: m.ClientURLs,
			Learner: m.IsLearner,
		})
	}
	return r.Header.ClusterId, list, nil
}

// Add adds a member that has not started, without a vote. One that was added already is no error: a node
// whose member waits adds it by itself, and may have given it its vote since.
//
// It returns ErrBusy while another one is being added, ErrAway with those that do not answer, and
// ErrAwayOnce where all answer again.
func (g *Group) Add(ctx context.Context, peer string) (id uint64, err error) {
	r, err := g.client.MemberAddAsLearner(ctx, []string{peer})
	switch {
	case errors.Is(err, rpctypes.ErrTooManyLearners):
		return 0, fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, rpctypes.ErrUnhealthy):
		return 0, g.away(ctx)
	case errors.Is(err, rpctypes.ErrPeerURLExist), errors.Is(err, rpctypes.ErrMemberExist):
		// An ID is made of address and second: that of two who add it at once is the same.
		_, list, listed := g.List(ctx)
		added := slices.IndexFunc(list, func(m member.Member) bool { return slices.Contains(m.Peers, peer) })
		if added < 0 {
			return 0, fmt.Errorf("add member %s: %w", peer, cmp.Or(listed, err))
		}
		return list[added].ID, nil
	case err != nil:
		return 0, fmt.Errorf("add member %s: %w", peer, because(ctx, err))
	}
	return r.Member.ID, nil
}

// away returns ErrAway with the members that do not answer and what to do, or ErrAwayOnce.
func (g *Group) away(ctx context.Context) error {
	_, list, err := g.List(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	var names []string
	for _, m := range g.Status(ctx, list) {
		if m.Err != nil {
			names = append(names, m.Label())
		}
	}
	if len(names) == 0 {
		return ErrAwayOnce
	}
	return fmt.Errorf("%w: %s does not answer: start it, or replace it with \"allocator etcd replace\"", ErrAway,
		strings.Join(names, ", "))
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

// Remove removes a member; one that is not there any more is no error. The member that is asked may be the one that
// is removed, and stop before it has answered: then the list of the others decides.
func (g *Group) Remove(ctx context.Context, id uint64) error {
	_, err := g.client.MemberRemove(ctx, id)
	if err == nil || errors.Is(err, rpctypes.ErrMemberNotFound) {
		return nil
	}
	_, list, listed := g.List(ctx)
	if listed == nil && !slices.ContainsFunc(list, func(m member.Member) bool { return m.ID == id }) {
		return nil
	}
	return fmt.Errorf("remove member %x: %w", id, because(ctx, err))
}

// Move gives a member another address.
func (g *Group) Move(ctx context.Context, id uint64, peer string) error {
	if _, err := g.client.MemberUpdate(ctx, id, []string{peer}); err != nil {
		return fmt.Errorf("move member %x to %s: %w", id, peer, because(ctx, err))
	}
	return nil
}

// Status asks each member of a list for its status, and etcd at the same time for the alarms, which only a majority
// knows.
func (g *Group) Status(ctx context.Context, list []member.Member) []member.Status {
	alarms := make(chan *clientv3.AlarmResponse, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		r, _ := g.client.AlarmList(ctx)
		alarms <- r
	}()
	out := statuses(list, func(m member.Member) member.Status { return g.status(ctx, m) })
	if r := <-alarms; r != nil {
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

// Members asks every endpoint of the group for its status at the same time, and measures
// the time of the answers with src.
func (g *Group) Members(ctx context.Context, src clock.Source) []member.Status {
	return statuses(at(g.client.Endpoints()), func(m member.Member) member.Status {
		began := src.Now().Mono
		out := g.status(ctx, m)
		out.Took = src.Now().Mono.Sub(began)
		return out
	})
}

// Ask asks each endpoint for its status; none given: all of the group.
func (g *Group) Ask(ctx context.Context, endpoints ...string) []member.Status {
	if len(endpoints) == 0 {
		endpoints = g.client.Endpoints()
	}
	return statuses(at(endpoints), func(m member.Member) member.Status { return g.status(ctx, m) })
}

// at returns members that are known by their endpoints alone.
func at(endpoints []string) (out []member.Member) {
	for _, e := range endpoints {
		out = append(out, member.Member{Clients: []string{e}})
	}
	return out
}

// statuses asks all members at the same time, and compares what they have applied.
func statuses(list []member.Member, ask func(member.Member) member.Status) []member.Status {
	out := make([]member.Status, len(list))
	var all sync.WaitGroup
	for i, m := range list {
		all.Go(func() { out[i] = ask(m) })
	}
	all.Wait()
	var most uint64
	for _, s := range out {
		most = max(most, s.Applied)
	}
	for i := range out {
		if out[i].Err == nil {
			out[i].Lag = most - out[i].Applied
		}
	}
	return out
}

// statusTimeout bounds the status call to one endpoint.
const statusTimeout = 2 * time.Second

// errNotStarted is why a member is not asked.
var errNotStarted = errors.New("it has not started yet")

func (g *Group) status(ctx context.Context, m member.Member) member.Status {
	s := member.Status{Member: m, Err: errNotStarted}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, attemptsKey{}, &attempts{}), statusTimeout)
	defer cancel()
	for _, url := range m.Clients {
		r, err := g.client.Status(ctx, url)
		s.Endpoint = url
		if s.Err = because(ctx, err); err != nil {
			continue
		}
		s.Cluster, s.Revision, s.Applied = r.Header.ClusterId, r.Header.Revision, r.RaftAppliedIndex
		s.Version = r.Version
		s.Leader = r.Leader != 0
		s.Leads = s.Leader && r.Leader == r.Header.MemberId
		s.Size, s.InUse, s.Quota, s.Problems = r.DbSize, r.DbSizeInUse, r.DbSizeQuota, r.Errors
		if s.ID == 0 { // It was asked by its endpoint alone.
			s.ID, s.Learner = r.Header.MemberId, r.IsLearner
		}
		break
	}
	return s
}
