package doctor

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// state is how a check came out.
type state string

const (
	passed  state = "ok"
	warned  state = "warn"
	failed  state = "fail"
	skipped state = "skipped"
)

// check is the result of one check.
type check struct {
	Name   string `json:"check"`
	State  state  `json:"state"`
	Detail string `json:"detail"`
	Do     string `json:"do,omitempty"` // what to do about it
}

// report collects checks.
type report []check

func (r *report) add(name string, s state, do, format string, args ...any) {
	*r = append(*r, check{name, s, fmt.Sprintf(format, args...), do})
}

// examine judges facts. The same checks come in the same order whatever their
// results; a check of many things has a line for each that is not well.
func examine(f facts) []check {
	var r report
	r.members(f)
	if !f.reached() {
		r.add("etcd", failed, "Start etcd, or correct --etcd.endpoints. Nodes issue IDs until their windows end, so do not restart them", "no endpoint answers")
		return r
	}
	r.etcd(f)
	if f.loadErr != nil {
		r.add("space", failed, "Check that etcd has a leader and that this user may read the prefix", "the space cannot be read: %v", f.loadErr)
		return r
	}
	if !r.space(f) {
		return r
	}
	r.records(f)
	r.nodes(f)
	r.access(f)
	r.clocks(f)
	r.gossip(f)
	return r
}

func (r *report) members(f facts) {
	clusters := map[uint64]bool{}
	for _, m := range f.members {
		if m.Err != nil {
			r.add("etcd-endpoint", failed, "Check that etcd runs there, and that the scheme (http or https) is right", "%s: %s", m.Endpoint, reasonOf(m.Err))
			continue
		}
		clusters[m.Cluster] = true
		s, do := passed, ""
		if m.Took > slowEtcd {
			s, do = warned, "Check etcd's disk and the network: extending a window takes one round trip and one sync of that disk"
		}
		r.add("etcd-endpoint", s, do, "%s: version %s, answered in %v", m.Endpoint, m.Version, m.Took.Round(time.Millisecond/10))
	}
	if len(clusters) > 1 {
		r.add("etcd-cluster", failed, "Correct etcd.endpoints on every node now: nodes that use different etcd clusters issue the same IDs",
			"the endpoints belong to %d different clusters: %s", len(clusters), hexes(clusters))
	} else if len(clusters) == 1 {
		r.add("etcd-cluster", passed, "", "all endpoints that answer belong to cluster %s", hexes(clusters))
	}
}

// reasonOf returns the message of an error of a call.
func reasonOf(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

func hexes(ids map[uint64]bool) string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		out = append(out, fmt.Sprintf("%x", id))
	}
	return strings.Join(out, ", ")
}

// slowEtcd is an answer that takes longer than a healthy member needs, an ocean
// in between included.
const slowEtcd = 300 * time.Millisecond

// nearlyFull is the part of etcd's quota, in per cent, at which to act.
const nearlyFull = 80

// manyRevisions is what 32 nodes write in some two hours. History that goes
// back further is not compacted each hour.
const manyRevisions = 50_000

func (r *report) etcd(f facts) {
	leader, full, highest := true, "", int64(0)
	for _, m := range f.members {
		if m.Err != nil {
			continue
		}
		leader = leader && m.Leader
		highest = max(highest, m.Revision)
		if !sound(m.Version) {
			r.add("etcd-version", failed, "Upgrade to 3.5.23, 3.6.5 or later: before that, renewing a lease could report success for one that was revoked", "%s runs %s", m.Endpoint, m.Version)
		}
		if m.Quota > 0 && m.Size*100 > m.Quota*nearlyFull {
			full = fmt.Sprintf("%s uses %d of %d MiB", m.Endpoint, m.Size>>20, m.Quota>>20)
		}
	}
	if !slices.ContainsFunc(*r, func(c check) bool { return c.Name == "etcd-version" }) {
		r.add("etcd-version", passed, "", "every member has a supported version")
	}
	if leader {
		r.add("etcd-leader", passed, "", "every member that answers knows a leader")
	} else {
		r.add("etcd-leader", failed, "A majority of members has to run and to reach each other", "a member knows no leader: nothing can be written")
	}
	const makeRoom = "Compact and defragment etcd, then \"etcdctl alarm disarm\"; turn auto-compaction on"
	switch {
	case f.noSpace:
		r.add("etcd-space", failed, makeRoom, "alarm NOSPACE: the quota is used up and every write is refused")
	case full != "":
		r.add("etcd-space", warned, makeRoom, "%s", full)
	case f.noSpaceErr != nil:
		r.add("etcd-space", skipped, "", "alarms cannot be read with this role: %s", status.Convert(f.noSpaceErr).Message())
	default:
		r.add("etcd-space", passed, "", "no alarm, and room left")
	}
	switch {
	case f.loadErr != nil: // asked after it
	case f.compactErr != nil:
		r.add("etcd-compaction", skipped, "", "%s", status.Convert(f.compactErr).Message())
	case f.compacted:
		r.add("etcd-compaction", passed, "", "old history is compacted")
	case highest > manyRevisions:
		r.add("etcd-compaction", warned, "Start etcd with --auto-compaction-mode=periodic --auto-compaction-retention=1h: each node writes every few seconds, and etcd keeps it all until its quota is full",
			"history goes back to revision 1 of %d: auto-compaction is probably off", highest)
	default:
		r.add("etcd-compaction", skipped, "", "too early to decide, at revision %d", highest)
	}
	switch {
	case f.roleErr != nil:
		r.add("etcd-role", failed, "Give a user that may read and write the prefix of the space", "%s", status.Convert(f.roleErr).Message())
	case !f.role.Auth:
		r.add("etcd-role", warned, "Any client that reaches etcd can change any record. Turn authentication on, with a role for the prefix alone", "etcd does not authenticate clients")
	case f.role.Outside:
		r.add("etcd-role", failed, "Give the nodes' role read and write on the prefix of the space, and nothing else", "this user may write outside the prefix")
	default:
		r.add("etcd-role", passed, "", "writing outside the prefix is denied")
	}
}

// sound reports whether etcd's version is one that nodes can rely on: 3.5.23 or
// 3.6.5, or later of the same line, or any later line.
func sound(version string) bool {
	var n [3]int
	release, _, _ := strings.Cut(version, "-")
	for i, part := range strings.SplitN(release, ".", 3) {
		v, err := strconv.Atoi(part)
		if err != nil {
			return false
		}
		n[i] = v
	}
	minimum := [3]int{3, 5, 23}
	if n[0] == 3 && n[1] == 6 {
		minimum = [3]int{3, 6, 5}
	}
	return slices.Compare(n[:], minimum[:]) >= 0
}

// space reports whether there is a space to check further.
func (r *report) space(f facts) bool {
	v := f.view
	switch have := v.Config; {
	case !have.Exists():
		r.add("space", failed, "Run \"allocator init\" once; omit --fresh if IDs were ever issued in the space", "space %q is not initialized", f.space)
		return false
	case have.Err != nil:
		r.add("space", failed, "Restore etcd from a backup; see docs/OPERATIONS.md", "its config is unreadable: %v", have.Err)
		return false
	case have.Value.Format() != f.want.Format():
		r.add("space", failed, "Start nodes with the space's values, or give another --space",
			"it has layout %s and epoch %s, and layout %s and epoch %s are configured here", have.Value.Layout, day(have.Value.Epoch), f.want.Layout, day(f.want.Epoch))
	default:
		r.add("space", passed, "", "%q is initialized: layout %s, epoch %s, pool %s", f.space, have.Value.Layout, day(have.Value.Epoch), have.Value.Pool)
	}
	switch era := v.Era; {
	case !era.Exists() || era.Err != nil:
		r.add("era", failed, "Run \"allocator admin recover\"", "it is missing or unreadable")
	case era.Value.Cluster != v.Cluster:
		r.add("era", failed, "Nodes refuse with HISTORY_REWOUND. Follow docs/OPERATIONS.md, then run \"allocator admin recover\"",
			"etcd's cluster is %x, and era %d began on %x: it was restored from a backup, or is another etcd", v.Cluster, era.Value.Number, era.Value.Cluster)
	case era.Value.Floor > f.now:
		r.add("era", warned, "Wait", "era %d begins in %v: no IDs until then", era.Value.Number, (era.Value.Floor - f.now).Duration().Round(time.Second))
	default:
		r.add("era", passed, "", "era %d, begun on this cluster", era.Value.Number)
	}
	return true
}

func day(t clock.Millis) string { return t.Time().UTC().Format(time.RFC3339) }

// records checks the windows.
func (r *report) records(f facts) {
	v := f.view
	far := max(f.now, v.Era.Value.Floor) + f.slack
	bad, distant, quarantined := 0, 0, 0
	for _, sid := range sorted(v.SIDs) {
		s := v.SIDs[sid]
		w := s.Window.Value
		release := fmt.Sprintf("\"allocator admin release-sid %d\" repairs it", sid)
		switch {
		case s.Window.Err != nil:
			bad++
			r.add("records", failed, "Find out who changed it. "+release, "the window of sid %d is unreadable: %v", sid, s.Window.Err)
		case s.Holder.Err != nil:
			bad++
			r.add("records", failed, "Find out who changed it; etcd deletes it when its lease expires", "the holder of sid %d is unreadable: %v", sid, s.Holder.Err)
		case s.Holder.Exists() && !s.Window.Exists():
			bad++
			r.add("records", failed, "etcd was edited or partly restored: see docs/OPERATIONS.md", "sid %d has a holder and no window", sid)
		case v.Era.Exists() && v.Era.Err == nil && w.Era > v.Era.Value.Number:
			bad++
			r.add("records", failed, "etcd was edited or partly restored: see docs/OPERATIONS.md", "the window of sid %d is of era %d, and this is era %d", sid, w.Era, v.Era.Value.Number)
		case w.State == lease.Quarantined:
			quarantined++
			r.add("quarantine", warned, fmt.Sprintf("\"allocator admin release-sid %d\" returns it to the pool", sid), "sid %d was quarantined by an operator: %s", sid, cmp.Or(w.Reason, "no reason was given"))
		case w.Ceil > far:
			distant++
			r.add("ceilings", failed, "Is this machine's clock right? If so, stop the node whose clock was wrong. "+release,
				"the ceiling of sid %d is %s, %v ahead of this clock; %q wrote it", sid, repair.At(w.Ceil), ahead(w.Ceil-f.now), w.Node)
		}
	}
	if bad == 0 {
		r.add("records", passed, "", "all %d records of sids are readable", len(v.SIDs))
	}
	if distant == 0 {
		r.add("ceilings", passed, "", "none is far ahead of the clock")
	}
	if quarantined == 0 {
		r.add("quarantine", passed, "", "no sid is quarantined")
	}
}

// ahead shows a distance that may be many years.
func ahead(d clock.Millis) string {
	const day = 24 * 60 * 60 * 1000
	if d > 2*day {
		return cli.Count(int(d/day), "day")
	}
	return d.Duration().Round(time.Second).String()
}

func sorted(sids map[flake.SID]lease.SIDRecords) []flake.SID {
	return slices.Sorted(maps.Keys(sids))
}

// nodes checks which nodes are registered and whether they answer.
func (r *report) nodes(f facts) {
	if len(f.nodes) == 0 {
		r.add("nodes", warned, "Start some with \"allocator serve\"", "no node is registered")
		return
	}
	for _, reg := range f.view.Nodes {
		if reg.GRPC == "" {
			r.add("node", skipped, "", "%s has no gRPC listener (listen.grpc): it cannot be asked from here", cmp.Or(reg.Node, string(reg.Instance)))
		}
	}
	for _, n := range f.nodes {
		self := n.Cluster.GetSelf()
		switch {
		case n.Err != nil:
			message := status.Convert(n.Err).Message()
			do := "Check that it runs, and that advertise.grpc is reachable from here. A node that was killed is unregistered when its lease expires"
			if hint := f.hint(message); hint != "" { // it runs and was reached
				do = strings.TrimSpace(hint)
			}
			r.add("node", failed, do, "%s does not answer: %s", n.Label(), message)
		case n.Cluster.GetPool() != "" && n.Cluster.GetPool() != f.view.Config.Value.Pool:
			r.add("node", failed, "Nodes use different etcd clusters, or --addr names a node of another space: correct etcd.endpoints or --addr", "%s is of another space: pool %s", n.Label(), n.Cluster.GetPool())
		case self.GetReady():
			r.add("node", passed, "", "%s is ready, with sid %d", n.Label(), self.GetSid())
		default:
			r.add("node", warned, "Look up the reason in docs/OPERATIONS.md", "%s would refuse: %s: %s", n.Label(), strings.TrimPrefix(self.GetRefusing().String(), "REASON_"), self.GetMessage())
		}
	}
}

// clocks compares this machine's clock with those of nodes and of their records.
func (r *report) clocks(f facts) {
	const setRight = "Correct the clock (NTP, chrony) here or there: \"allocator status\" shows which one the nodes agree on"
	compared := 0
	for _, n := range f.nodes {
		if n.Err != nil {
			continue
		}
		compared++
		switch lo, hi := n.Offset(); {
		case lo > f.maxSkew:
			r.add("clock", failed, setRight, "this machine's clock is at least %v behind the one of %s", lo.Round(time.Millisecond), n.Label())
		case hi < -f.maxSkew:
			r.add("clock", failed, setRight, "this machine's clock is at least %v ahead of the one of %s", (-hi).Round(time.Millisecond), n.Label())
		default:
			r.add("clock", passed, "", "the clock of %s minus this machine's is between %v and %v", n.Label(), lo.Round(time.Millisecond), hi.Round(time.Millisecond))
		}
	}
	wall, who := clock.Millis(0), flake.SID(0)
	for _, sid := range sorted(f.view.SIDs) {
		if s := f.view.SIDs[sid]; s.Holder.Exists() && s.Window.Err == nil && s.Window.Value.Wall > wall {
			wall, who = s.Window.Value.Wall, sid
		}
	}
	switch age := (f.now - wall).Duration(); {
	case wall == 0 && compared == 0:
		r.add("clock", skipped, "", "there is no node to compare this machine's clock with")
	case wall == 0:
	case age < -f.maxSkew:
		r.add("clock", failed, setRight, "the holder of sid %d wrote its record %v in the future, by this machine's clock", who, (-age).Round(time.Millisecond))
	case age > 3*f.extend:
		r.add("clock", warned, setRight+". If the clocks are right, holders cannot write to etcd", "the latest record of a live holder is %v old", age.Round(time.Second))
	default:
		r.add("clock", passed, "", "the latest record of a live holder was written %v ago", age.Round(time.Millisecond))
	}
	switch k := f.kernel; {
	case !k.Known:
		r.add("clock-kernel", skipped, "", "the kernel does not report whether its clock is synchronized")
	case k.Synchronized:
		r.add("clock-kernel", passed, "", "the kernel's clock is synchronized")
	default:
		r.add("clock-kernel", warned, "Run chrony or another NTP client (chrony needs rtcsync to report to the kernel)", "the kernel's clock is not synchronized")
	}
}

func (r *report) gossip(f facts) {
	if len(f.gossip) == 0 {
		r.add("gossip", skipped, "", "no node has registered a gossip address")
	}
	for _, addr := range slices.Sorted(maps.Keys(f.gossip)) {
		if err := f.gossip[addr]; err != nil {
			r.add("gossip", failed, "Open that port for TCP and UDP between all nodes, and check the advertised address", "%s cannot be reached: %v", addr, err)
			continue
		}
		r.add("gossip", passed, "", "%s accepts connections", addr)
	}
}

// printChecks prints a line for each check, and below it what to do.
func printChecks(w io.Writer, checks []check) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	tally := map[state]int{}
	for _, c := range checks {
		tally[c.State]++
		fmt.Fprintf(t, "%s\t%s\t%s\n", c.State, c.Name, c.Detail)
		if c.Do != "" {
			fmt.Fprintf(t, "\t\t→ %s\n", c.Do)
		}
	}
	fmt.Fprintf(t, "\n%d ok, %d warn, %d fail, %d skipped\n", tally[passed], tally[warned], tally[failed], tally[skipped])
	return t.Flush()
}
