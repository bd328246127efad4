package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

const (
	// viewFresh is for how long a view of the space answers requests. With it any
	// number of requests makes at most five reads a second.
	viewFresh = 200 * time.Millisecond
	// viewTimeout bounds a read of the whole space.
	viewTimeout = 2 * time.Second
	// maxNodes bounds the nodes of an answer: twice the sids of the widest layout, and
	// below the 4 MiB that gRPC clients take.
	maxNodes = 2048
	// viewRetry is for how long a failed read answers requests, which then need not
	// wait for viewTimeout each.
	viewRetry = time.Second
)

// Cluster is the space as it is in etcd, and the node as it sees itself. IDs of etcd
// and of instances are strings; times are Unix ms.
type Cluster struct {
	Space          string       `json:"space"`
	Pool           string       `json:"pool"` // UUID; empty while unknown
	Layout         string       `json:"layout"`
	EpochUnixMs    int64        `json:"epoch_unix_ms"`
	Era            int64        `json:"era"` // 0 while unknown
	EraFloorUnixMs int64        `json:"era_floor_unix_ms"`
	Revision       int64        `json:"revision"`
	PoolSize       int          `json:"pool_size"`             // how many sids the space has
	PoolSIDs       string       `json:"pool_sids"`             // which, as first-last; empty while unknown
	WorkerSIDs     string       `json:"worker_sids,omitempty"` // which of them are for workers alone; empty: none
	Nodes          []Node       `json:"nodes"`                 // with Problem as this node last listed them; null while unknown
	SIDs           []SID        `json:"sids"`                  // those ever used; null while unknown
	Problem        string       `json:"problem,omitempty"`
	Self           Self         `json:"self"`
	LayoutValue    flake.Layout `json:"-"` // Layout as a value
}

// Node is a registered process.
type Node struct {
	Instance string `json:"instance"`
	Name     string `json:"name"`
	Version  string `json:"version"`
	GRPC     string `json:"grpc_address"`
	HTTP     string `json:"http_address"`
	Console  string `json:"console_url,omitempty"` // of its pages, as consoleURL returns it
	SID      int    `json:"sid"`                   // -1: none, or not known
	SIDRange string `json:"sid_range,omitempty"`   // that it may take; empty: all
	// Clock is nil if it was never measured.
	Clock *PeerClock `json:"clock,omitempty"`
	// Report is nil if the node never sent one: reports are asked for while somebody looks.
	Report *Report `json:"report,omitempty"`
}

// Report is what a node says of its work.
type Report struct {
	Rate     int64       `json:"ids_per_second"`
	Lead     int64       `json:"lead_ms"`
	Ceil     int64       `json:"ceil_unix_ms"` // of its window; 0: it holds no sid
	Refusing node.Reason `json:"refusing,omitempty"`
	Age      int64       `json:"age_ms"` // since the report came
}

// SID is one sid with its window record.
type SID struct {
	SID      int    `json:"sid"`
	State    string `json:"state"` // free, held, waiting or quarantined
	Term     int64  `json:"term"`
	Node     string `json:"node"`
	Instance string `json:"instance"`
	Base     int64  `json:"base_unix_ms"`
	Ceil     int64  `json:"ceil_unix_ms"`
	Problem  string `json:"problem,omitempty"`
	Written  int64  `json:"written_unix_ms"` // by the clock of the node that wrote the record; 0: nobody did
	// Unreleased: it has no holder, and the last one did not release it.
	Unreleased bool `json:"unreleased"`
	// Worker: the holder is or was a generator outside of the nodes, acquired by Owner.
	Worker bool   `json:"worker,omitempty"`
	Owner  string `json:"owner,omitempty"`
}

// Self is the node that answers, as it sees itself.
type Self struct {
	Name     string      `json:"name"`
	Instance string      `json:"instance"`
	Version  string      `json:"version"`
	Ready    bool        `json:"ready"`
	Refusing node.Reason `json:"refusing,omitempty"`
	Message  string      `json:"message,omitempty"`
	Draining bool        `json:"draining"`
	SID      int         `json:"sid"` // -1: none
	Term     int64       `json:"term"`
	Base     int64       `json:"base_unix_ms"` // of the window; 0 without one
	Ceil     int64       `json:"ceil_unix_ms"`
	Lead     int64       `json:"lead_ms"` // how far the last ID lies ahead of the clock
	Now      int64       `json:"now_unix_ms"`
	Verdict  string      `json:"verdict"`
	Issued   int64       `json:"ids_issued"`
	Rate     int64       `json:"ids_per_second"` // lately
	// Unverified is how many of the IDs were issued while no majority confirmed the clock.
	Unverified int64 `json:"ids_unverified"`
	// Refused has the requests that were refused, by reason; every reason is present.
	Refused  map[string]int64 `json:"refused"`
	Era      int64            `json:"era"`                  // last read by the process; 0: none yet
	Revision int64            `json:"revision"`             // of etcd, last read by the process; 0: none yet
	Cluster  uint64           `json:"cluster_id,string"`    // etcd's, last read by the process; 0: none yet
	Highest  int64            `json:"highest_ceil_unix_ms"` // ever confirmed to the process; 0: none
	Clock    *Clock           `json:"clock,omitempty"`      // nil: the node does not judge its clock
}

// Cluster returns the view, at most viewFresh old. If etcd does not answer, the view
// has only what the node itself knows, and Problem is set: the nodes that it last
// listed, with the sids that they report by gossip. The error is ctx's.
func (r *Reader) Cluster(ctx context.Context) (Cluster, error) {
	st := r.node.Stats()
	c, clocks := r.base(st), r.clocks()
	v, err := r.load(ctx, viewFresh)
	switch {
	case ctx.Err() != nil:
		return Cluster{}, ctx.Err()
	case err != nil:
		c.Problem = "etcd cannot be read: the nodes are those of an earlier list, and the state of sids is unknown"
		c.fillNodes(st.Lease.Nodes, reportedSIDs(c.Self, clocks.Peers))
	default:
		c.fill(v, st)
	}
	r.fillLive(&c, clocks)
	return c, nil
}

// fillLive adds what does not come from etcd: clocks and reports.
func (r *Reader) fillLive(c *Cluster, clocks clock.Report) {
	if r.cfg.Clocks != nil {
		c.fillClocks(clocks)
	}
	var reports map[string]Report
	if r.cfg.Reports != nil {
		reports = r.cfg.Reports()
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if r, ok := reports[n.Instance]; ok {
			n.Report = &r
		} else if n.Instance == c.Self.Instance {
			n.Report = &Report{Rate: c.Self.Rate, Lead: c.Self.Lead, Ceil: c.Self.Ceil, Refusing: c.Self.Refusing}
		}
	}
}

// clocks returns the measurements of clocks; none if nobody has them.
func (r *Reader) clocks() clock.Report {
	if r.cfg.Clocks == nil {
		return clock.Report{}
	}
	return r.cfg.Clocks()
}

// base returns what the node itself knows of the space.
func (r *Reader) base(st node.Stats) Cluster {
	c := Cluster{
		Space:          r.cfg.Space,
		Pool:           st.Lease.Space.Pool,
		Layout:         r.format.Layout.String(),
		EpochUnixMs:    r.format.Epoch,
		Era:            st.Lease.Era.Number,
		EraFloorUnixMs: int64(st.Lease.Era.Floor),
		Revision:       st.Lease.Revision,
		PoolSize:       lease.Space{Layout: r.format.Layout, Part: st.Lease.Space.Part}.SIDs().Len(),
		Self:           r.self(st),
		LayoutValue:    r.format.Layout,
	}
	c.WorkerSIDs = st.Lease.Workers.String()
	if c.Pool != "" {
		c.PoolSIDs = st.Lease.Space.SIDs().String()
	}
	return c
}

// Self returns how the node sees itself. It reads nothing from etcd.
func (r *Reader) Self() Self { return r.self(r.node.Stats()) }

func (r *Reader) self(st node.Stats) Self {
	self := Self{
		Name: st.Name, Instance: string(st.Instance), Version: r.cfg.Version, Ready: true, SID: -1,
		Now: int64(st.Now), Verdict: st.Verdict.State.String(), Issued: st.Issued, Unverified: st.Unverified,
		Draining: st.Draining, Lead: int64(st.Lead), Refused: make(map[string]int64, len(node.Reasons)),
		Era: st.Lease.Era.Number, Revision: st.Lease.Revision, Cluster: st.Lease.Cluster, Highest: int64(st.Reserved),
	}
	for _, reason := range node.Reasons {
		self.Refused[reason.String()] = st.Refused[reason]
	}
	if refusal := r.node.Ready(); refusal != nil {
		self.Ready, self.Refusing, self.Message = false, refusal.Reason, refusal.Message
	}
	if st.Holding {
		self.SID, self.Term, self.Base, self.Ceil = int(st.SID), st.Term, int64(st.Base), int64(st.Ceil)
	}
	if r.cfg.Feed != nil {
		self.Rate = r.cfg.Feed.Rate()
	}
	return self
}

// load returns the space as last read, if that was less than fresh ago, or reads it. Concurrent requests share one
// read, which goes on if a caller leaves.
func (r *Reader) load(ctx context.Context, fresh time.Duration) (lease.View, error) {
	now := r.clock.Now().Mono
	r.mu.Lock()
	view, err := r.view, r.viewErr
	done := r.read && err == nil && now.Sub(r.readAt) < fresh || err != nil && now.Sub(r.failedAt) < viewRetry
	r.mu.Unlock()
	if done {
		return view, err
	}
	result := r.loads.DoChan("", func() (any, error) {
		began := r.clock.Now().Mono
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), viewTimeout)
		defer cancel()
		v, err := r.cfg.Directory.Load(ctx)
		r.logRead("space", err)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.viewErr = err; err != nil {
			r.failedAt = r.clock.Now().Mono
			return lease.View{}, err
		}
		r.view, r.readAt, r.read = v, began, true
		return v, nil
	})
	select {
	case r := <-result:
		return r.Val.(lease.View), r.Err
	case <-ctx.Done():
		return lease.View{}, ctx.Err()
	}
}

// fill adds what was read from the store.
func (c *Cluster) fill(v lease.View, st node.Stats) {
	c.Revision = v.Revision
	if v.Config.Exists() && v.Config.Err == nil {
		c.Pool = v.Config.Value.Pool
		c.LayoutValue, c.Layout = v.Config.Value.Layout, v.Config.Value.Layout.String()
		c.EpochUnixMs = int64(v.Config.Value.Epoch)
		c.PoolSize, c.PoolSIDs = v.Config.Value.SIDs().Len(), v.Config.Value.SIDs().String()
	}
	if v.Era.Exists() && v.Era.Err == nil {
		c.Era, c.EraFloorUnixMs = v.Era.Value.Number, int64(v.Era.Value.Floor)
	}
	if err := errors.Join(v.Config.Err, v.Era.Err); err != nil {
		c.Problem = err.Error()
	}
	held := make(map[lease.Instance]int)
	c.SIDs = make([]SID, 0, len(v.SIDs))
	for sid, rec := range v.SIDs {
		if rec.Holder.Exists() && rec.Holder.Err == nil {
			held[rec.Holder.Value.Instance] = int(sid)
		}
		c.SIDs = append(c.SIDs, viewSID(sid, rec, st))
	}
	slices.SortFunc(c.SIDs, func(a, b SID) int { return cmp.Compare(a.SID, b.SID) })
	c.Nodes = []Node{}
	c.fillNodes(v.Nodes, held)
}

// reportedSIDs returns the sids that this node holds and that its peers report.
func reportedSIDs(self Self, peers []clock.PeerReport) map[lease.Instance]int {
	held := map[lease.Instance]int{lease.Instance(self.Instance): self.SID}
	for _, p := range peers {
		held[lease.Instance(p.Instance)] = p.SID
	}
	return held
}

// fillNodes adds the registered nodes with the sids that they hold. Without any the
// nodes are unknown: this one is registered itself.
func (c *Cluster) fillNodes(registered []lease.Registration, held map[lease.Instance]int) {
	for _, r := range registered {
		sid, ok := held[r.Instance]
		if !ok {
			sid = -1
		}
		c.Nodes = append(c.Nodes, Node{
			Instance: lease.Printable(string(r.Instance)), Name: r.Node, Version: r.Version, GRPC: r.GRPC, HTTP: r.HTTP, Console: consoleURL(r.Console), SID: sid, SIDRange: r.SIDRange,
		})
	}
	byName := func(a, b Node) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Instance, b.Instance)) }
	if more := len(c.Nodes) - maxNodes; more > 0 {
		slices.SortFunc(c.Nodes, func(a, b Node) int {
			return cmp.Or(cmp.Compare(min(b.SID, 0), min(a.SID, 0)), byName(a, b)) // holders first
		})
		c.Nodes = slices.Clone(c.Nodes[:maxNodes])
		c.Problem = strings.TrimPrefix(fmt.Sprintf("%s; %d more nodes are registered: this list has %d, and all that hold a sid", c.Problem, more, maxNodes), "; ")
	}
	slices.SortFunc(c.Nodes, byName)
}

// consolePath is where a node has its pages.
const consolePath = "/console/"

// hostName is a host as a link may have it: a DNS name or an IPv4 address. Those of
// version 6 are checked by their own syntax.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?$`)

// consoleURL returns the URL of a node's pages from what its registration says, made anew
// from scheme, host and port; "" for everything else, since whoever can write to etcd can
// register any text.
func consoleURL(registered string) string {
	u, err := url.Parse(registered)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Scheme+"://"+u.Host != registered {
		return ""
	}
	host, port := u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return ""
	}
	if ip, err := netip.ParseAddr(host); err != nil && !hostName.MatchString(host) || err == nil && ip.Zone() != "" {
		return ""
	}
	return u.Scheme + "://" + net.JoinHostPort(host, strconv.FormatUint(n, 10)) + consolePath
}

// viewSID returns the state of a sid by its records. Package lease decides which sids
// are quarantined; a sid with an unreadable record always is.
func viewSID(sid flake.SID, rec lease.SIDRecords, st node.Stats) SID {
	w := rec.Window.Value
	v := SID{
		SID: int(sid), Term: w.Term, Node: w.Node, Instance: string(w.Instance),
		Base: int64(w.Base), Ceil: int64(w.Ceil), Written: int64(w.Wall),
		Unreleased: w.State == lease.Active && !rec.Holder.Exists(),
		Worker:     w.Worker, Owner: w.Owner,
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
	for _, s := range []*string{&v.Node, &v.Instance, &v.Problem, &v.Owner} {
		*s = lease.Printable(*s)
	}
	return v
}

// Window reads the window record of a sid from the store, never from a cached view.
func (r *Reader) Window(ctx context.Context, sid flake.SID) (lease.Entry[lease.Window], error) {
	v, err := r.cfg.Directory.Load(ctx)
	return v.SIDs[sid].Window, err
}
