package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/text"
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

// Cluster returns the picture of now: what it has of etcd was read at most viewFresh ago. If
// etcd does not answer, Problem says so: there are no sids, and the nodes are those that this
// one last listed, with the sids that they report by gossip. The error is ctx's.
func (r *Reader) Cluster(ctx context.Context) (Cluster, error) {
	var asked sync.WaitGroup
	if r.cfg.Ask != nil {
		asked.Go(func() { r.cfg.Ask(ctx) })
	}
	if answered := r.askMembers(); answered != nil {
		asked.Go(func() {
			select {
			case <-answered:
			case <-ctx.Done():
			}
		})
	}
	err := r.load(ctx, viewFresh)
	asked.Wait()
	if ctx.Err() != nil {
		return Cluster{}, ctx.Err()
	}
	if err != nil {
		return r.picture(reading{}, "etcd cannot be read: the nodes are those of an earlier list, "+
			"and the state of sids is unknown"), nil
	}
	return r.picture(r.latest(), ""), nil
}

const (
	// snapshotFresh is for how long a view of the space does for snapshots.
	snapshotFresh = 2 * time.Second
	// wideFresh is the same of a space with more than wideSIDs: a read has some 500 kB.
	wideFresh = 5 * time.Second
	wideSIDs  = 256
	// snapshotWait is how long a snapshot waits for a read; it shows the last one then.
	snapshotWait = 300 * time.Millisecond
)

// Snapshot returns the picture for a page that stays open. It reads etcd at most every
// snapshotFresh, waits for it no longer than snapshotWait, and shows what was last read if
// etcd does not answer. Read says of when that is.
func (r *Reader) Snapshot(ctx context.Context) Cluster {
	fresh := snapshotFresh
	if len(r.latest().view.SIDs) > wideSIDs {
		fresh = wideFresh
	}
	wait, cancel := context.WithTimeout(ctx, snapshotWait)
	defer cancel()
	err := r.load(wait, fresh)
	switch latest := r.latest(); {
	case !latest.ok:
		return r.picture(latest, "etcd has not been read yet: the nodes are those of an earlier list, "+
			"and the state of sids is unknown")
	case err != nil && wait.Err() == nil:
		return r.picture(latest, "etcd cannot be read: nodes and sids are as they were last read")
	default:
		return r.picture(latest, "")
	}
}

// Glance returns the nodes as the node knows them without asking anybody: those that it last
// listed, with the sids that they held then or report, and their reports that are not older
// than maxAge. Of sids it has those that this node holds and others report to hold, with holder
// and term alone. It does not say what is wrong. Call it at regular times: from its calls the
// Reader knows since when nodes are in their states.
func (r *Reader) Glance(maxAge time.Duration) Cluster {
	st, clocks := r.node.Stats(), r.clocks()
	c := r.base(st)
	held := map[lease.Instance]int{}
	for _, h := range st.Lease.Holders {
		held[h.Instance] = int(h.SID)
	}
	maps.Copy(held, reportedSIDs(c.Self, clocks.Peers))
	c.fillNodes(st.Lease.Nodes, held)
	r.fillLive(&c, clocks, r.cfg.Reports(false), maxAge)
	c.judgeNodes()
	r.note(c)
	hold := func(sid int, term int64, node, instance string) {
		if sid >= 0 {
			c.SIDs = append(c.SIDs, SID{SID: sid, State: Held, Term: term, Node: node, Instance: instance})
		}
	}
	hold(c.Self.SID, c.Self.Term, c.Self.Name, c.Self.Instance)
	for _, p := range clocks.Peers {
		hold(p.SID, p.Term, p.Name, p.Instance)
	}
	return c
}

// goneKept is for how long a node that is not listed any more is remembered, to see what it begins when it is back.
const goneKept = time.Hour

// note remembers since when the nodes of c do what they do.
func (r *Reader) note(c Cluster) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := make(map[string]doing, len(c.Nodes))
	for _, n := range c.Nodes {
		d, known := r.doing[n.Instance]
		if d.what != n.What() {
			d.what, d.since, d.began = n.What(), c.Self.Now, known || r.notedAt != 0 && n.Started > r.notedAt
		}
		if n.Clock == nil || !n.Clock.Falseticker {
			d.wrong = 0
		} else if d.wrong == 0 {
			d.wrong = c.Self.Now
		}
		now[n.Instance] = d
	}
	for instance, d := range r.doing {
		if d.what != "" {
			d = doing{since: c.Self.Now}
		}
		if _, listed := now[instance]; !listed && c.Self.Now-d.since < goneKept.Milliseconds() {
			now[instance] = d
		}
	}
	r.doing, r.notedAt = now, c.Self.Now
}

// Since returns since when nodes are in the states that they have in c, by instance, in Unix ms. What began
// after the latest Glance began now.
func (r *Reader) Since(c Cluster) map[string]int64 { return r.since(c, false) }

// FalseSince returns since when a majority finds the clocks of nodes wrong, by instance, in Unix ms.
func (r *Reader) FalseSince() map[string]int64 {
	out := map[string]int64{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for instance, d := range r.doing {
		if d.wrong != 0 {
			out[instance] = d.wrong
		}
	}
	return out
}

// since is Since; with seen it leaves out what was not seen to begin.
func (r *Reader) since(c Cluster, seen bool) map[string]int64 {
	out := make(map[string]int64, len(c.Nodes))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range c.Nodes {
		switch d := r.doing[n.Instance]; {
		case d.what == n.What() && (d.began || !seen):
			out[n.Instance] = d.since
		case !seen:
			out[n.Instance] = c.Self.Now
		}
	}
	return out
}

// picture returns what the node knows: of etcd what was read, and of its peers what they
// report. problem is why etcd was not read now.
func (r *Reader) picture(from reading, problem string) Cluster {
	r.askMembers()
	r.making.Lock()
	defer r.making.Unlock()
	st, clocks, now := r.node.Stats(), r.clocks(), r.clock.Now()
	c := r.base(st)
	c.Problem = problem
	if from.ok {
		c.Read = int64(now.Wall - clock.MillisOf(now.Mono.Sub(from.at)))
		c.fill(from.view, st.Now, r.cfg.Bounds)
	} else {
		c.fillNodes(st.Lease.Nodes, reportedSIDs(c.Self, clocks.Peers))
	}
	r.fillLive(&c, clocks, r.cfg.Reports(true), reportFresh)
	c.judgeNodes()
	c.conclude(r.since(c, true))
	return c
}

const (
	// membersFresh is the pause between two questions to etcd's members, and membersTimeout bounds one.
	membersFresh   = 5 * time.Second
	membersTimeout = 2 * time.Second
	// membersKept is for how long an answer is shown. A picture of a page does not wait for the next one.
	membersKept = 3 * membersFresh
)

// askMembers has the members of etcd asked if that did not happen lately. Unless an answer is known, it
// returns what is closed when there is one.
func (r *Reader) askMembers() (answered <-chan struct{}) {
	now := r.clock.Now().Mono
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.members != nil && now.Sub(r.knownAt) >= membersKept {
		r.members = nil
	}
	if r.cfg.Members == nil || r.ending.Err() != nil {
		return nil
	}
	if r.asking == nil && (r.members == nil || now.Sub(r.askedAt) >= membersFresh) {
		done := make(chan struct{})
		r.asking, r.askedAt = done, now
		ctx, ended := r.begin(context.Background(), membersTimeout)
		go func() {
			defer ended()
			answer := r.cfg.Members(ctx)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.members, r.knownAt, r.asking = &answer, r.clock.Now().Mono, nil
			close(done)
		}()
	}
	if r.members != nil {
		return nil
	}
	return r.asking
}

const (
	// reportFresh is the age up to which a report tells what a node does now.
	reportFresh = 5 * time.Second
	// owedFor is after what time without an answer a node counts as silent. It is asked each
	// second, or three times in two seconds.
	owedFor = 1500 * time.Millisecond
)

// fillLive adds what does not come from etcd: clocks, and reports that are not older than
// maxAge.
func (r *Reader) fillLive(c *Cluster, clocks clock.Report, reports map[string]Heard, maxAge time.Duration) {
	if r.cfg.Clocks != nil {
		c.fillClocks(clocks)
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		heard, member := reports[n.Instance]
		switch {
		case n.Instance == c.Self.Instance || reports == nil:
		case (!member || heard.Owed > owedFor) && n.Clock != nil:
			n.Clock.Fresh = false
		case heard.Report != nil && heard.Report.Age <= maxAge.Milliseconds():
			n.Report = heard.Report
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
		Nodes:          []Node{},
		SIDs:           []SID{},
		Space:          r.cfg.Space,
		Pool:           st.Lease.Space.Pool,
		Layout:         r.format.Layout.String(),
		EpochUnixMs:    r.format.Epoch,
		Era:            st.Lease.Era.Number,
		EraFloorUnixMs: int64(st.Lease.Era.Floor),
		Revision:       st.Lease.Revision,
		PoolSize:       lease.Space{Layout: r.format.Layout, Part: st.Lease.Space.Part}.SIDs().Len(),
		Self:           r.self(st),
		Expected:       r.cfg.Expected,
	}
	if r.cfg.Marks != nil {
		if mark, err := r.cfg.Marks.Read(); err == nil {
			c.Watermark = &mark
		}
	}
	if r.cfg.Callers != nil {
		c.Callers = r.cfg.Callers()
	}
	c.WorkerSIDs = st.Lease.Workers.String()
	r.mu.Lock()
	c.Etcd = r.members
	r.mu.Unlock()
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
		Phase: st.Lease.Phase.String(), Window: r.cfg.Bounds.Window.Milliseconds(),
		MaxLead: r.cfg.Bounds.MaxLead.Milliseconds(),
		Now:     int64(st.Now), Verdict: st.Verdict.State.String(), Issued: st.Issued, Unverified: st.Unverified,
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
	if r.cfg.Work != nil {
		self.Work, self.Rate = r.cfg.Work()
	}
	return self
}

// reading is the space as it was read, if it was.
type reading struct {
	ok   bool
	view lease.View
	at   clock.Mono // when the read began
}

// latest returns the space as last read.
func (r *Reader) latest() reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read
}

// load reads the space if that did not happen less than fresh ago. Concurrent requests share
// one read, which goes on if a caller leaves.
func (r *Reader) load(ctx context.Context, fresh time.Duration) error {
	now := r.clock.Now().Mono
	r.mu.Lock()
	err := r.readErr
	done := err == nil && r.read.ok && now.Sub(r.read.at) < fresh || err != nil && now.Sub(r.failedAt) < viewRetry
	r.mu.Unlock()
	if done {
		return err
	}
	result := r.loads.DoChan("", func() (any, error) {
		began := r.clock.Now().Mono
		r.mu.Lock()
		if err := r.ending.Err(); err != nil {
			r.mu.Unlock()
			return nil, err
		}
		ctx, ended := r.begin(ctx, viewTimeout)
		r.mu.Unlock()
		defer ended()
		v, err := r.cfg.Directory.Load(ctx)
		r.logRead("space", err)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.readErr = err; err != nil {
			r.failedAt = r.clock.Now().Mono
			return nil, err
		}
		r.read = reading{true, v, began}
		return nil, nil
	})
	select {
	case res := <-result:
		return res.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fill adds what was read from the store.
func (c *Cluster) fill(v lease.View, now clock.Millis, bounds lease.Bounds) {
	c.Revision = v.Revision
	if v.Config.Exists() && v.Config.Err == nil {
		c.Pool = v.Config.Value.Pool
		c.Layout = v.Config.Value.Layout.String()
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
	for sid, rec := range v.SIDs {
		if rec.Holder.Exists() && rec.Holder.Err == nil {
			held[rec.Holder.Value.Instance] = int(sid)
		}
		c.SIDs = append(c.SIDs, viewSID(sid, rec, v.Era.Value, now, bounds))
	}
	slices.SortFunc(c.SIDs, func(a, b SID) int { return cmp.Compare(a.SID, b.SID) })
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
			Instance: lease.Printable(string(r.Instance)),
			Name:     r.Node,
			Version:  r.Version,
			GRPC:     r.GRPC,
			HTTP:     r.HTTP,
			Console:  consoleURL(r.Console),
			Started:  max(int64(r.Started), 0),
			SID:      sid,
			SIDRange: r.SIDRange,
		})
	}
	byName := func(a, b Node) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Instance, b.Instance)) }
	if more := len(c.Nodes) - maxNodes; more > 0 {
		slices.SortFunc(c.Nodes, func(a, b Node) int {
			return cmp.Or(cmp.Compare(min(b.SID, 0), min(a.SID, 0)), byName(a, b)) // holders first
		})
		c.Nodes = slices.Clone(c.Nodes[:maxNodes])
		c.Problem = strings.TrimPrefix(fmt.Sprintf("%s; %d more nodes are registered: this list has %d, and all "+
			"that hold a sid",
			c.Problem, more, maxNodes), "; ")
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

// viewSID returns the state of a sid by its records. Package lease decides which sids are quarantined, and the node
// has decided that too, but for records that may be minutes old.
func viewSID(sid flake.SID, rec lease.SIDRecords, era lease.Era, now clock.Millis, bounds lease.Bounds) SID {
	w := rec.Window.Value
	v := SID{
		SID: int(sid), Term: w.Term, Node: w.Node, Instance: string(w.Instance),
		Base: int64(w.Base), Ceil: int64(w.Ceil), Written: int64(w.Wall),
		Unreleased: w.State == lease.Active && !rec.Holder.Exists(),
		Worker:     w.Worker, Owner: w.Owner,
	}
	problem := rec.Distrust(era, bounds.SoundBy(now, era, w.Worker))
	switch {
	case problem != "":
		v.State, v.Problem = Quarantined, problem
	case w.State == lease.Reserved:
		v.State, v.Problem = Reserved, w.ByOperator()
	case rec.Holder.Exists():
		v.State = Held
		v.Node, v.Instance = rec.Holder.Value.Node, string(rec.Holder.Value.Instance)
		if rec.Holder.Value.Instance != w.Instance {
			v.Problem = fmt.Sprintf("the window was written by %s", cmp.Or(string(w.Instance), "nobody"))
		}
	case w.Ceil > now:
		v.State = Waiting
		v.Problem = "usable in " + text.Span(clock.Millis(w.Ceil-now).Duration())
	default:
		v.State = Free
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
