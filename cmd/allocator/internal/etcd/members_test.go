package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// A member that is replaced keeps its host, however it was named.
func TestHostOf(t *testing.T) {
	all := []member.Status{
		{Member: member.Member{ID: 0xa1, Name: "one", Peers: []string{"https://10.0.0.1:2380"}}},
		{Member: member.Member{ID: 0xb2, Name: "two", Peers: []string{"https://[fd00::2]:2380"}}},
	}
	for which, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "one": "10.0.0.1", "a1": "10.0.0.1", "b2": "fd00::2", "fd00::2": "fd00::2",
	} {
		if host, err := hostOf(all, which); err != nil || host != want {
			t.Errorf("%s: %s, %v; want %s", which, host, err, want)
		}
	}
	if host, err := hostOf(all, "10.0.0.9"); !errors.Is(err, member.ErrNoMember) {
		t.Errorf("no member: %s, %v", host, err)
	}
}

// A replacement that could not be added is refused before the old member is removed.
func TestPlanReplace(t *testing.T) {
	e := config.Etcd{Inside: config.Inside{PeerPort: 2380}}
	list := func(fourth ...member.Status) (out []member.Status) {
		for i, host := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			out = append(out, member.Status{Member: member.Member{
				ID:      uint64(i + 1),
				Name:    host,
				Peers:   []string{e.PeerURL(host)},
				Clients: []string{e.ClientURL(host)},
			}})
		}
		return append(out, fourth...)
	}
	learner := member.Status{Member: member.Member{ID: 4, Peers: []string{e.PeerURL("10.0.0.4")}, Learner: true}}
	for _, tc := range []struct {
		which, with string
		list        []member.Status
		says        string // empty: it is done
	}{
		{"10.0.0.3", "10.0.0.3", list(), ""},
		{"10.0.0.3", "10.0.0.4", list(), ""},
		{"10.0.0.3", "10.0.0.2", list(), "10.0.0.2 is a member already (2)"},
		{"10.0.0.3", "10.0.0.4", list(learner), "10.0.0.4 is a member already (4)"},
		{"10.0.0.3", "10.0.0.5", list(learner), "10.0.0.4:2380 (4) has no vote yet"},
		{"10.0.0.4", "10.0.0.4", list(learner), ""},
		{"10.0.0.3", "", list(learner), ""}, // It is removed alone.
	} {
		p, gone, err := planChange(seen{list: tc.list}, e, tc.which, tc.with)
		if gone.ID == 0 || (err == nil) != (tc.says == "") || errors.Is(err, member.ErrNoPlace) != (tc.says != "") ||
			err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("replace %s with %q: %v; want %q", tc.which, tc.with, err, tc.says)
		}
		then := map[string]string{"": "take 10.0.0.3 out of etcd.join", "10.0.0.4": "put 10.0.0.4 in the place of 10.0.0.3 in etcd.join"}
		if next := strings.Join(p.Then, "\n"); tc.which == "10.0.0.3" && err == nil && !strings.Contains(next, then[tc.with]) {
			t.Errorf("replace %s with %q: next is %q", tc.which, tc.with, next)
		}
	}
}

// The plan of a restore says what is left of the cluster that answers, and does not restore what runs in the
// restored one.
func TestPlanRestore(t *testing.T) {
	list := func(down ...int) (out []member.Status) {
		for i, host := range []string{"a", "b", "c"} {
			m := member.Status{Member: member.Member{ID: uint64(i + 1), Name: host, Peers: []string{"http://" + host + ":2380"}}}
			if m.Clients = []string{"http://" + host + ":2379"}; slices.Contains(down, i+1) {
				m.Err = errors.New("down")
			}
			out = append(out, m)
		}
		return out
	}
	founder := list(3)
	founder[2].Clients = nil
	r := inside.Restored{Data: member.Data{Host: "c", Peer: "http://c:2380"}, Cluster: 9}
	for _, tc := range []struct {
		name    string
		in      seen
		quorum  string
		found   string
		refused bool
	}{
		{name: "all answer", in: seen{list: list(), cluster: 7}, quorum: "yes, until the others are restored too: without c 2 of 2",
			found: "now 3 of 3"},
		{name: "it is down already", in: seen{list: list(3), cluster: 7}, quorum: "yes, until", found: "now 2 of 3"},
		{name: "another is down", in: seen{list: list(1), cluster: 7}, quorum: "no: without c 1 of 2 voting members answer"},
		{name: "nobody answers", in: seen{list: list(1, 2, 3), problem: errors.New("no leader")}, quorum: "there is none to lose",
			found: "no leader"},
		{name: "the others are restored", in: seen{list: founder, cluster: 9}, quorum: "yes: the member joins it",
			found: "in the restored cluster"},
		{name: "all are restored", in: seen{list: list(), cluster: 9}, quorum: "no", refused: true},
		{name: "all are restored, and it is down", in: seen{list: list(3), cluster: 9}, quorum: "no", refused: true},
	} {
		p, refused := planRestore(tc.in, r, "dir", []string{"a", "b", "c"})
		if !strings.HasPrefix(p.Quorum, tc.quorum) || !strings.Contains(strings.Join(p.Found, "\n"), tc.found) ||
			(refused != nil) != tc.refused {
			t.Errorf("%s: %q, %q, %v; want %q, %q", tc.name, p.Quorum, p.Found, refused, tc.quorum, tc.found)
		}
	}
}

// cluster is an etcd of the members a, b and c, which are as a test says.
type cluster struct {
	etcdserverpb.UnimplementedClusterServer
	mu        sync.Mutex // guards the fields below
	members   []*etcdserverpb.Member
	endpoints []string
	silent    map[uint64]bool
	alarmed   uint64 // the member whose quota is full; 0: none
	lost      bool   // A majority does not answer.
	busy      int    // It adds no member so many times.
	first     string // The node of a member that is removed adds it at this address before the command does; "": no.
	inSecond  bool   // It does so in the same second.
	lists     int
	meanwhile func(*cluster) // what happens while a person is asked; nil: nothing
	done      []string
}

// one is a member by itself.
type one struct {
	etcdserverpb.UnimplementedMaintenanceServer
	c  *cluster
	id uint64
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{silent: map[uint64]bool{}}
	for i, host := range []string{"a", "b", "c"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		fatal.If(t, err)
		c.endpoints = append(c.endpoints, "http://"+l.Addr().String())
		c.members = append(c.members, &etcdserverpb.Member{
			ID:         uint64(i + 1),
			Name:       host,
			PeerURLs:   []string{"http://" + host + ":2380"},
			ClientURLs: []string{c.endpoints[i]},
		})
		s := grpc.NewServer()
		etcdserverpb.RegisterClusterServer(s, c)
		etcdserverpb.RegisterMaintenanceServer(s, one{c: c, id: uint64(i + 1)})
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
	}
	return c
}

// learns adds a member without a vote.
func (c *cluster) learns() {
	c.members = append(c.members, &etcdserverpb.Member{ID: 4, PeerURLs: []string{"http://d:2380"}, IsLearner: true})
}

func (c *cluster) MemberList(context.Context, *etcdserverpb.MemberListRequest) (*etcdserverpb.MemberListResponse,
	error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lists++; c.lists == 2 && c.meanwhile != nil {
		c.meanwhile(c)
	}
	if c.lost {
		return nil, status.Error(codes.FailedPrecondition, "no majority")
	}
	return &etcdserverpb.MemberListResponse{Header: &etcdserverpb.ResponseHeader{ClusterId: 7}, Members: c.members}, nil
}

func (c *cluster) MemberRemove(_ context.Context, r *etcdserverpb.MemberRemoveRequest) (
	*etcdserverpb.MemberRemoveResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = append(c.done, fmt.Sprintf("remove %d", r.ID))
	if c.first != "" {
		c.members = append(c.members[:2:2], &etcdserverpb.Member{ID: 9, PeerURLs: []string{c.first}, IsLearner: true})
	}
	return &etcdserverpb.MemberRemoveResponse{}, nil
}

func (c *cluster) MemberAdd(_ context.Context, r *etcdserverpb.MemberAddRequest) (*etcdserverpb.MemberAddResponse,
	error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.busy > 0:
		c.busy--
		return nil, rpctypes.ErrGRPCUnhealthy
	case c.first == r.PeerURLs[0] && c.inSecond:
		return nil, rpctypes.ErrGRPCMemberExist
	case c.first == r.PeerURLs[0]:
		return nil, rpctypes.ErrGRPCPeerURLExist
	case c.first != "":
		return nil, rpctypes.ErrGRPCTooManyLearners
	}
	c.done = append(c.done, fmt.Sprintf("add %s, learner %v", r.PeerURLs[0], r.IsLearner))
	return &etcdserverpb.MemberAddResponse{Member: &etcdserverpb.Member{ID: 9}}, nil
}

func (o one) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	if o.c.silent[o.id] {
		return nil, status.Error(codes.FailedPrecondition, "down")
	}
	return &etcdserverpb.StatusResponse{
		Header: &etcdserverpb.ResponseHeader{ClusterId: 7, MemberId: o.id},
		Leader: 1,
	}, nil
}

func (o one) Defragment(context.Context, *etcdserverpb.DefragmentRequest) (*etcdserverpb.DefragmentResponse, error) {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	o.c.done = append(o.c.done, fmt.Sprintf("defragment %d", o.id))
	return &etcdserverpb.DefragmentResponse{}, nil
}

// Alarm waits for a majority.
func (o one) Alarm(ctx context.Context, _ *etcdserverpb.AlarmRequest) (*etcdserverpb.AlarmResponse, error) {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	if o.c.lost {
		o.c.mu.Unlock()
		<-ctx.Done()
		o.c.mu.Lock()
		return nil, ctx.Err()
	}
	out := &etcdserverpb.AlarmResponse{}
	if o.c.alarmed != 0 {
		out.Alarms = []*etcdserverpb.AlarmMember{{MemberID: o.c.alarmed, Alarm: etcdserverpb.AlarmType_NOSPACE}}
	}
	return out, nil
}

// TestAway: etcd adds no member while it misses another one, and the error names that one.
func TestAway(t *testing.T) {
	c := newCluster(t)
	c.busy, c.silent[2] = 2, true
	g, err := etcdstore.OpenGroup(etcdstore.Config{Endpoints: c.endpoints})
	fatal.If(t, err)
	defer g.Close()
	if _, err := g.Add(t.Context(), "http://d:2380"); !errors.Is(err, etcdstore.ErrAway) || !strings.Contains(err.Error(), "b does not answer: start it, or replace it") {
		t.Errorf("with b away: %v", err)
	}
	c.silent[2] = false
	if _, err := g.Add(t.Context(), "http://d:2380"); !errors.Is(err, etcdstore.ErrAwayOnce) {
		t.Errorf("where all answer again: %v", err)
	}
}

// command runs a command, and returns its exit code and what it printed.
func (c *cluster) command(t *testing.T, words ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	args := append(words, "--etcd.endpoints", strings.Join(c.endpoints, ","))
	code := cli.Run(t.Context(), args, strings.NewReader(""), &out, &out, nil, "", Command)
	return code, out.String()
}

// What a person agreed to is done only if the members are still such that it may be done.
func TestChange(t *testing.T) {
	const removed, added = "remove 3", "add http://c:2380, learner true"
	for _, tc := range []struct {
		name      string
		words     []string
		now       func(*cluster)
		meanwhile func(*cluster)
		code      int
		done      []string
		says      string
	}{
		{name: "remove", words: []string{"remove", "c", "--yes"}, done: []string{removed}, says: "c (3) is removed"},
		{name: "replace", words: []string{"replace", "c", "--yes"}, done: []string{removed, added},
			says: "c (9) is added without a vote"},
		{name: "replace the one that is silent", words: []string{"replace", "c", "--yes"},
			now: func(c *cluster) { c.silent[3] = true }, done: []string{removed, added}},
		{name: "show the plan", words: []string{"replace", "c", "--dry-run"}, says: "nothing was changed"},
		{name: "show the plan as JSON", words: []string{"replace", "c", "--dry-run", "--format", "json"}, says: `"quorum":"yes`},
		{name: "nobody can be asked", words: []string{"remove", "c"}, code: cli.ExitUsage, says: "give --yes"},
		{name: "the quorum does not survive", words: []string{"remove", "c", "--yes"},
			now: func(c *cluster) { c.silent[1] = true }, code: cli.ExitInvalid, says: "the quorum would not survive this"},
		{name: "no majority", words: []string{"remove", "c", "--yes"},
			now: func(c *cluster) { c.lost = true }, code: cli.ExitUnavailable, says: "no majority"},
		{name: "the quorum does not survive any more", words: []string{"remove", "c", "--yes"},
			meanwhile: func(c *cluster) { c.silent[1] = true }, code: cli.ExitInvalid,
			says: "the quorum would not survive this"},
		{name: "the majority is lost meanwhile", words: []string{"remove", "c", "--yes"},
			meanwhile: func(c *cluster) { c.lost = true }, code: cli.ExitUnavailable, says: "no majority"},
		{name: "another removes it meanwhile", words: []string{"remove", "c", "--yes"},
			meanwhile: func(c *cluster) { c.members = c.members[:2] }, code: cli.ExitInvalid, says: "there is no such member"},
		{name: "another member joins meanwhile", words: []string{"replace", "c", "--yes"},
			meanwhile: (*cluster).learns, code: cli.ExitInvalid, says: "members join one at a time"},
		{name: "its node adds it first", words: []string{"replace", "c", "--yes"},
			now: func(c *cluster) { c.first = "http://c:2380" }, done: []string{removed}, says: "c (9) is added without a vote"},
		{name: "its node adds it in the same second", words: []string{"replace", "c", "--yes"},
			now: func(c *cluster) { c.first, c.inSecond = "http://c:2380", true }, done: []string{removed}, says: "c (9) is added without a vote"},
		{name: "another node adds its member first", words: []string{"replace", "c", "--yes"},
			now: func(c *cluster) { c.first = "http://d:2380" }, code: cli.ExitUnavailable, done: []string{removed},
			says: "The node at c adds its member itself"},
		{name: "etcd adds it after a moment", words: []string{"replace", "c", "--yes"},
			now: func(c *cluster) { c.busy = 1 }, done: []string{removed, added}, says: "c (9) is added without a vote"},
		{name: "etcd adds none", words: []string{"replace", "c", "--yes", "--timeout", "1s"},
			now: func(c *cluster) { c.busy = 1000 }, code: cli.ExitUnavailable, done: []string{removed},
			says: "The node at c adds its member itself"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			c.meanwhile = tc.meanwhile
			if tc.now != nil {
				tc.now(c)
			}
			code, out := c.command(t, tc.words...)
			if code != tc.code || !slices.Equal(c.done, tc.done) || !strings.Contains(out, tc.says) {
				t.Errorf("exit code %d, did %q: %s; want %d, %q, %q", code, c.done, out, tc.code, tc.done, tc.says)
			}
		})
	}
}

// Scripts that watch etcd see from the exit code whether a person has to look.
func TestStatusCodes(t *testing.T) {
	for _, tc := range []struct {
		name string
		now  func(*cluster)
		code int
		says string
	}{
		{"all is well", func(*cluster) {}, cli.ExitOK, "3 of 3 voting members answer"},
		{"one does not answer", func(c *cluster) { c.silent[3] = true }, cli.ExitInvalid, "2 of 3 voting members answer"},
		{"an alarm", func(c *cluster) { c.alarmed = 2 }, cli.ExitInvalid, "NOSPACE"},
		{"no majority", func(c *cluster) { c.lost, c.silent[1], c.silent[2] = true, true, true }, cli.ExitUnavailable,
			"1 of 3 voting members answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			tc.now(c)
			if code, out := c.command(t, "status"); code != tc.code || !strings.Contains(out, tc.says) {
				t.Errorf("exit code %d: %s; want %d, %q", code, out, tc.code, tc.says)
			}
		})
	}
}

// TestStatusShowsCopies: what restores left beside the data takes room until it is deleted.
func TestStatusShowsCopies(t *testing.T) {
	var s config.Config
	s.Etcd.Inside.Dir = t.TempDir()
	copied := filepath.Join(s.Etcd.Inside.Dir, "etcd-before-20261126T120000Z")
	fatal.If(t, errors.Join(os.Mkdir(copied, 0o700), os.WriteFile(filepath.Join(copied, "db"), make([]byte, 3<<20), 0o600)))
	var out bytes.Buffer
	c := &call{a: &cli.App{Out: &out}, format: &cli.Choice{}}
	_ = c.showStatus(s, seen{}, nil)
	if want := "older data is kept in " + copied + ": 3.0 MiB\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, &out)
	}
}
