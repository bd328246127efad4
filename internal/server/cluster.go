package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

const (
	// viewFresh is for how long a view of the space answers requests: with it
	// no number of them makes more than five reads a second.
	viewFresh = 200 * time.Millisecond
	// viewTimeout bounds a read of the whole space.
	viewTimeout = 2 * time.Second
)

// clusterView is the space as etcd has it, and the node as it sees itself. IDs
// of etcd and of instances are strings; times are Unix ms.
type clusterView struct {
	Space          string       `json:"space"`
	Pool           string       `json:"pool"` // UUID; empty while unknown
	Layout         string       `json:"layout"`
	EpochUnixMs    int64        `json:"epoch_unix_ms"`
	Era            int64        `json:"era"` // 0 while unknown
	EraFloorUnixMs int64        `json:"era_floor_unix_ms"`
	Revision       int64        `json:"revision"`
	PoolSize       int          `json:"pool_size"`
	Nodes          []nodeView   `json:"nodes"` // null while unknown
	SIDs           []sidView    `json:"sids"`  // those ever used; null while unknown
	Problem        string       `json:"problem,omitempty"`
	Self           selfView     `json:"self"`
	layout         flake.Layout // Layout
}

type nodeView struct {
	Instance string `json:"instance"`
	Name     string `json:"name"`
	Version  string `json:"version"`
	GRPC     string `json:"grpc_address"`
	HTTP     string `json:"http_address"`
	SID      int    `json:"sid"`                 // -1: none
	SIDRange string `json:"sid_range,omitempty"` // that it may take; empty: all
	// Clock is nil where nothing was heard of it.
	Clock *peerView `json:"clock,omitempty"`
}

type sidView struct {
	SID      int    `json:"sid"`
	State    string `json:"state"` // free, held, waiting or quarantined
	Term     int64  `json:"term"`
	Node     string `json:"node"`
	Instance string `json:"instance"`
	Base     int64  `json:"base_unix_ms"`
	Ceil     int64  `json:"ceil_unix_ms"`
	Problem  string `json:"problem,omitempty"`
}

type selfView struct {
	Name     string      `json:"name"`
	Instance string      `json:"instance"`
	Version  string      `json:"version"`
	Ready    bool        `json:"ready"`
	Refusing node.Reason `json:"refusing,omitempty"`
	Message  string      `json:"message,omitempty"`
	SID      int         `json:"sid"` // -1: none
	Term     int64       `json:"term"`
	Ceil     int64       `json:"ceil_unix_ms"`
	Now      int64       `json:"now_unix_ms"`
	Verdict  string      `json:"verdict"`
	Issued   int64       `json:"ids_issued"`
	Era      int64       `json:"era"`                  // that it last knew; 0: none yet
	Revision int64       `json:"revision"`             // of etcd, that it last read; 0: none yet
	Cluster  uint64      `json:"cluster_id,string"`    // etcd's, that it last read; 0: none yet
	Highest  int64       `json:"highest_ceil_unix_ms"` // ever confirmed to the process; 0: none
	Clock    *clockView  `json:"clock,omitempty"`      // nil: it judges none
}

// cluster returns the view, at most viewFresh old. Where etcd does not answer,
// only what the node itself knows is in it, and Problem says so. The error is
// ctx's.
func (s *Server) cluster(ctx context.Context) (clusterView, error) {
	st := s.node.Stats()
	c := clusterView{
		Space:          s.cfg.Space,
		Pool:           st.Lease.Space.Pool,
		Layout:         s.format.Layout.String(),
		EpochUnixMs:    s.format.Epoch,
		Era:            st.Lease.Era.Number,
		EraFloorUnixMs: int64(st.Lease.Era.Floor),
		Revision:       st.Lease.Revision,
		PoolSize:       s.format.Layout.Holders(),
		Self:           s.self(st),
		layout:         s.format.Layout,
	}
	v, err := s.load(ctx)
	switch {
	case ctx.Err() != nil:
		return clusterView{}, ctx.Err()
	case err != nil:
		c.Problem = "etcd cannot be read: nodes and sids are unknown"
	default:
		c.fill(v, st)
	}
	if s.cfg.Clocks != nil {
		c.fillClocks(s.cfg.Clocks())
	}
	return c, nil
}

func (s *Server) self(st node.Stats) selfView {
	self := selfView{
		Name: st.Name, Instance: string(st.Instance), Version: s.cfg.Version, Ready: true, SID: -1,
		Now: int64(st.Now), Verdict: st.Verdict.State.String(), Issued: st.Issued,
		Era: st.Lease.Era.Number, Revision: st.Lease.Revision, Cluster: st.Lease.Cluster, Highest: int64(st.Reserved),
	}
	if r := s.node.Ready(); r != nil {
		self.Ready, self.Refusing, self.Message = false, r.Reason, r.Message
	}
	if st.Holding {
		self.SID, self.Term, self.Ceil = int(st.SID), st.Lease.Grant.Term, int64(st.Ceil)
	}
	return self
}

// load returns the space as last read, or reads it. Requests that come while it
// is being read share the answer; the read outlives a caller that leaves.
func (s *Server) load(ctx context.Context) (lease.View, error) {
	s.mu.Lock()
	view, fresh := s.view, s.read && s.clock.Now().Mono.Sub(s.readAt) < viewFresh
	s.mu.Unlock()
	if fresh {
		return view, nil
	}
	result := s.loads.DoChan("", func() (any, error) {
		began := s.clock.Now().Mono
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), viewTimeout)
		defer cancel()
		v, err := s.cfg.Directory.Load(ctx)
		if err != nil {
			s.log.Warn("read of the space failed", "error", err)
			return lease.View{}, err
		}
		s.mu.Lock()
		s.view, s.readAt, s.read = v, began, true
		s.mu.Unlock()
		return v, nil
	})
	select {
	case r := <-result:
		return r.Val.(lease.View), r.Err
	case <-ctx.Done():
		return lease.View{}, ctx.Err()
	}
}

// fill adds what the store says.
func (c *clusterView) fill(v lease.View, st node.Stats) {
	c.Revision = v.Revision
	if v.Config.Exists() && v.Config.Err == nil {
		c.Pool = v.Config.Value.Pool
		c.layout, c.Layout = v.Config.Value.Layout, v.Config.Value.Layout.String()
		c.EpochUnixMs, c.PoolSize = int64(v.Config.Value.Epoch), v.Config.Value.Layout.Holders()
	}
	if v.Era.Exists() && v.Era.Err == nil {
		c.Era, c.EraFloorUnixMs = v.Era.Value.Number, int64(v.Era.Value.Floor)
	}
	if err := errors.Join(v.Config.Err, v.Era.Err); err != nil {
		c.Problem = err.Error()
	}
	held := make(map[lease.Instance]int)
	c.SIDs = make([]sidView, 0, len(v.SIDs))
	for sid, rec := range v.SIDs {
		if rec.Holder.Exists() && rec.Holder.Err == nil {
			held[rec.Holder.Value.Instance] = int(sid)
		}
		c.SIDs = append(c.SIDs, viewSID(sid, rec, st))
	}
	slices.SortFunc(c.SIDs, func(a, b sidView) int { return cmp.Compare(a.SID, b.SID) })
	c.Nodes = make([]nodeView, 0, len(v.Nodes))
	for _, r := range v.Nodes {
		sid, ok := held[r.Instance]
		if !ok {
			sid = -1
		}
		c.Nodes = append(c.Nodes, nodeView{
			Instance: string(r.Instance), Name: r.Node, Version: r.Version, GRPC: r.GRPC, HTTP: r.HTTP, SID: sid, SIDRange: r.SIDRange,
		})
	}
	slices.SortFunc(c.Nodes, func(a, b nodeView) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Instance, b.Instance))
	})
}

// viewSID puts a sid's records in words. Whether a sid is quarantined is the
// lease's to judge; a record that cannot be read always is.
func viewSID(sid flake.SID, rec lease.SIDRecords, st node.Stats) sidView {
	w := rec.Window.Value
	v := sidView{
		SID: int(sid), Term: w.Term, Node: w.Node, Instance: string(w.Instance),
		Base: int64(w.Base), Ceil: int64(w.Ceil),
	}
	problem, quarantined := st.Lease.Quarantined[sid]
	switch err := errors.Join(rec.Window.Err, rec.Holder.Err); {
	case err != nil:
		v.State, v.Problem = "quarantined", err.Error()
	case quarantined:
		v.State, v.Problem = "quarantined", problem
	case rec.Holder.Exists():
		v.State = "held"
		v.Node, v.Instance = rec.Holder.Value.Node, string(rec.Holder.Value.Instance)
		if rec.Holder.Value.Instance != w.Instance {
			v.Problem = fmt.Sprintf("the window was written by %s", cmp.Or(string(w.Instance), "nobody"))
		}
	case w.Ceil > st.Now:
		v.State = "waiting"
		v.Problem = fmt.Sprintf("usable in %v", clock.Millis(w.Ceil-st.Now).Duration())
	default:
		v.State = "free"
	}
	return v
}

// proto returns the view as gRPC sends it.
func (c clusterView) proto() *pb.GetClusterResponse {
	res := &pb.GetClusterResponse{
		Space: c.Space, Pool: c.Pool, Layout: layoutOf(c.layout), EpochUnixMs: c.EpochUnixMs,
		Era: c.Era, EraFloorUnixMs: c.EraFloorUnixMs, Revision: c.Revision,
		Problem: c.Problem, PoolSize: int32(c.PoolSize),
		Self: &pb.NodeStatus{
			Name: c.Self.Name, Instance: c.Self.Instance, Ready: c.Self.Ready,
			Refusing: wires[c.Self.Refusing].reason, Message: c.Self.Message,
			Sid: int32(c.Self.SID), Term: c.Self.Term, CeilUnixMs: c.Self.Ceil,
			NowUnixMs: c.Self.Now, Verdict: c.Self.Verdict, IdsIssued: c.Self.Issued,
			Era: c.Self.Era, Revision: c.Self.Revision, ClusterId: c.Self.Cluster, HighestCeilUnixMs: c.Self.Highest,
			Clock: c.Self.Clock.proto(),
		},
	}
	for _, n := range c.Nodes {
		res.Nodes = append(res.Nodes, &pb.Node{
			Instance: n.Instance, Name: n.Name, Version: n.Version,
			GrpcAddress: n.GRPC, HttpAddress: n.HTTP, Sid: int32(n.SID), SidRange: n.SIDRange, Clock: n.Clock.proto(),
		})
	}
	for _, sid := range c.SIDs {
		res.Sids = append(res.Sids, &pb.Sid{
			Sid: int32(sid.SID), State: sid.State, Term: sid.Term, Node: sid.Node, Instance: sid.Instance,
			BaseUnixMs: sid.Base, CeilUnixMs: sid.Ceil, Problem: sid.Problem,
		})
	}
	return res
}
