package etcdsim

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

type kv struct {
	pb.UnimplementedKVServer
	s *Server
}

func (k kv) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if err := k.s.store.checkRange(r); err != nil {
		return nil, err
	}
	out := k.s.store.ask(r, k.s.store.revision)
	out.Header = k.s.header()
	return out, nil
}

func (k kv) Put(_ context.Context, r *pb.PutRequest) (out *pb.PutResponse, err error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if err := k.s.store.checkPut(r); err != nil {
		return nil, err
	}
	if err := k.s.store.checkLease(r); err != nil {
		return nil, err
	}
	k.s.change(func() {
		t := k.s.store.begin()
		out = t.carryPut(r)
		t.end()
	})
	out.Header = k.s.header()
	return out, nil
}

func (k kv) DeleteRange(_ context.Context, r *pb.DeleteRangeRequest) (out *pb.DeleteRangeResponse, err error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if len(r.Key) == 0 {
		return nil, rpctypes.ErrGRPCEmptyKey
	}
	k.s.change(func() {
		t := k.s.store.begin()
		out = t.carryDelete(r)
		t.end()
	})
	out.Header = k.s.header()
	return out, nil
}

func (k kv) Txn(_ context.Context, r *pb.TxnRequest) (out *pb.TxnResponse, err error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if err := k.s.store.checkTxn(r, maxOps); err != nil {
		return nil, err
	}
	k.s.change(func() { out, err = k.s.store.txn(r) })
	if err != nil {
		return nil, err
	}
	out.Header = k.s.header()
	return out, nil
}

func (k kv) Compact(_ context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if err := k.s.store.compact(r.Revision); err != nil {
		return nil, err
	}
	return &pb.CompactionResponse{Header: k.s.header()}, nil
}

type leases struct {
	pb.UnimplementedLeaseServer
	s *Server
}

func (l leases) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	id := r.ID
	if id == 0 {
		l.s.granted++
		id = 0x7000 + l.s.granted
	}
	if l.s.grants[id] != nil {
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	ttl := max(r.TTL, minTTL)
	l.s.grants[id] = &grant{ttl, time.Now().Add(time.Duration(ttl) * time.Second)}
	l.s.store.attached[id] = map[string]bool{}
	return &pb.LeaseGrantResponse{Header: l.s.header(), ID: id, TTL: ttl}, nil
}

func (l leases) LeaseRevoke(_ context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.grants[r.ID] == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	l.s.revoke(r.ID)
	return &pb.LeaseRevokeResponse{Header: l.s.header()}, nil
}

// revoke deletes a lease with its keys, in one revision. s.mu is held.
func (s *Server) revoke(id int64) {
	s.change(func() {
		t := s.store.begin()
		var keys []string
		for key := range t.attached[id] {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			t.remove(t.get(key, t.at))
		}
		t.end()
	})
	delete(s.store.attached, id)
	delete(s.grants, id)
}

// extend gives every lease its full time again, as a new leader does. s.mu is
// held.
func (s *Server) extend() {
	for id, g := range s.grants {
		s.grants[id] = &grant{g.ttl, time.Now().Add(time.Duration(g.ttl) * time.Second)}
	}
}

// expire ends leases that have expired, until Close. Only a leader does.
func (s *Server) expire() {
	ticker := time.NewTicker(expireEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.ending.Done():
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		var over []int64
		for id, g := range s.grants {
			if s.leader && s.grpc != nil && !time.Now().Before(g.ends) {
				over = append(over, id)
			}
		}
		slices.Sort(over)
		for _, id := range over {
			s.revoke(id)
		}
		s.mu.Unlock()
	}
}

func (l leases) LeaseKeepAlive(
	stream grpc.BidiStreamingServer[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse],
) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		out, err := l.s.serve(stream.Context(), pb.Lease_LeaseKeepAlive_FullMethodName, true,
			func() (any, error) { return l.renew(r.ID), nil })
		if err != nil {
			return err
		}
		if err := stream.Send(out.(*pb.LeaseKeepAliveResponse)); err != nil {
			return err
		}
	}
}

// renew gives a lease its full time again. A TTL of 0 says that there is none.
func (l leases) renew(id int64) *pb.LeaseKeepAliveResponse {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	out := &pb.LeaseKeepAliveResponse{Header: l.s.header(), ID: id}
	if g := l.s.grants[id]; g != nil {
		l.s.grants[id] = &grant{g.ttl, time.Now().Add(time.Duration(g.ttl) * time.Second)}
		out.TTL = g.ttl
	}
	return out
}

func (l leases) LeaseTimeToLive(_ context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	out := &pb.LeaseTimeToLiveResponse{Header: l.s.header(), ID: r.ID, TTL: -1}
	g := l.s.grants[r.ID]
	if g == nil {
		return out, nil
	}
	out.GrantedTTL, out.TTL = g.ttl, int64(time.Until(g.ends)/time.Second)
	if r.Keys {
		var keys []string
		for key := range l.s.store.attached[r.ID] {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			out.Keys = append(out.Keys, []byte(key))
		}
	}
	return out, nil
}

func (l leases) LeaseLeases(context.Context, *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	out := &pb.LeaseLeasesResponse{Header: l.s.header()}
	var ids []int64
	for id := range l.s.grants {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		out.Leases = append(out.Leases, &pb.LeaseStatus{ID: id})
	}
	return out, nil
}

type maintenance struct {
	pb.UnimplementedMaintenanceServer
	s *Server
}

func (m maintenance) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return &pb.StatusResponse{Header: m.s.header(), Version: version, Leader: 1, RaftTerm: m.s.term, DbSize: 1 << 16},
		nil
}

func (m maintenance) Alarm(_ context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if r.Action != pb.AlarmRequest_GET {
		return nil, errMissing
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return &pb.AlarmResponse{Header: m.s.header()}, nil
}

type members struct {
	pb.UnimplementedClusterServer
	s *Server
}

func (m members) MemberList(context.Context, *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return &pb.MemberListResponse{Header: m.s.header(), Members: []*pb.Member{{ID: 1, Name: "etcd"}}}, nil
}

type auth struct {
	pb.UnimplementedAuthServer
	s *Server
}

func (a auth) AuthStatus(context.Context, *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return &pb.AuthStatusResponse{Header: a.s.header()}, nil
}
