package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/report"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/text"
)

// findings collects the checks of facts.
type findings struct{ report.Report }

// examine judges facts. The same checks come in the same order whatever their
// results; a check of many things has a line for each that is not well.
func examine(f facts) report.Report {
	var r findings
	r.members(f)
	switch {
	case !f.reached():
		r.Add("etcd", report.Fail, "Start etcd, or correct --etcd.endpoints. Nodes issue IDs until their windows "+
			"end, so do not restart them", "no endpoint answers")
	default:
		r.etcd(f)
		if f.loadErr != nil {
			r.Add("space", report.Fail, "Check that etcd has a leader and that this user may read the prefix",
				"the space cannot be read: %v", f.loadErr)
		} else if !r.space(f) {
			return r.Report
		} else {
			r.records(f)
		}
	}
	r.nodes(f)
	r.certificates(f)
	r.access(f)
	r.clocks(f)
	r.gossip(f)
	return r.Report
}

func (r *findings) members(f facts) {
	clusters := map[uint64]bool{}
	for _, m := range f.members {
		if m.Err != nil {
			r.Add("etcd-endpoint", report.Fail,
				"Check that etcd runs there, and that the scheme (http or https) is right", "%s: %s", m.Endpoint,
				status.Convert(m.Err).Message())
			continue
		}
		clusters[m.Cluster] = true
		s, do := report.OK, ""
		if m.Took > slowEtcd {
			s, do = report.Warn, "Check etcd's disk and the network: extending a window takes one round trip and "+
				"one sync of that disk"
		}
		r.Add("etcd-endpoint", s, do, "%s: version %s, answered in %v", m.Endpoint, m.Version,
			m.Took.Round(time.Millisecond/10))
	}
	if len(clusters) > 1 {
		r.Add("etcd-cluster", report.Fail,
			"Correct etcd.endpoints on every node now: nodes that use different etcd clusters issue the same IDs",
			"the endpoints belong to %d different clusters: %s", len(clusters), hexes(clusters))
	} else if len(clusters) == 1 {
		r.Add("etcd-cluster", report.OK, "", "all endpoints that answer belong to cluster %s", hexes(clusters))
	}
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

func (r *findings) etcd(f facts) {
	leader, full, highest := true, "", int64(0)
	var versions []string
	for _, m := range f.members {
		if m.Err != nil {
			continue
		}
		leader = leader && m.Leader
		highest = max(highest, m.Revision)
		versions = append(versions, m.Version)
		if !sound(m.Version) {
			r.Add("etcd-version", report.Fail,
				"Upgrade to 3.5.23, 3.6.5 or later: before that, renewing a lease could report success for one that "+
					"was revoked", "%s runs %s", m.Endpoint, m.Version)
		}
		if m.Quota > 0 && m.Size*100 > m.Quota*nearlyFull {
			full = fmt.Sprintf("%s uses %d of %d MiB", m.Endpoint, m.Size>>20, m.Quota>>20)
		}
	}
	slices.SortFunc(versions, func(a, b string) int {
		return cmp.Or(minor(a)-minor(b), len(a)-len(b), strings.Compare(a, b)) // 3.6.5 is before 3.6.10.
	})
	if last := len(versions) - 1; versions[0] != versions[last] {
		state := report.Warn
		if minor(versions[last])-minor(versions[0]) > 1 {
			state = report.Fail
		}
		r.Add("etcd-version", state, "Finish the upgrade: restart the older members with the later version, one after "+
			"the other. etcd runs neighboring minor versions alone beside each other",
			"there are members of %s and of %s", versions[0], versions[last])
	}
	r.Sound("etcd-version", "every member has a supported version")
	if leader {
		r.Add("etcd-leader", report.OK, "", "every member that answers knows a leader")
	} else {
		r.Add("etcd-leader", report.Fail, "A majority of members has to run and to reach each other",
			"a member knows no leader: nothing can be written")
	}
	const makeRoom = "\"allocator etcd defragment\" as root of etcd; does another program write to this etcd?"
	switch {
	case f.noSpace:
		r.Add("etcd-space", report.Fail, "Run "+makeRoom, "alarm NOSPACE: etcd's quota is used up, it refuses writes")
	case full != "": // The command compacts only where the alarm is on.
		r.Add("etcd-space", report.Warn, "See that auto-compaction is on, and run "+makeRoom, "%s", full)
	case f.noSpaceErr != nil:
		r.Add("etcd-space", report.Skipped, "", "alarms cannot be read with this role: %s",
			status.Convert(f.noSpaceErr).Message())
	default:
		r.Add("etcd-space", report.OK, "", "no alarm, and room left")
	}
	switch {
	case f.loadErr != nil: // asked after it
	case f.compactErr != nil:
		r.Add("etcd-compaction", report.Skipped, "", "%s", status.Convert(f.compactErr).Message())
	case f.compacted:
		r.Add("etcd-compaction", report.OK, "", "old history is compacted")
	case highest > manyRevisions:
		r.Add("etcd-compaction", report.Warn,
			"Start etcd with --auto-compaction-mode=periodic --auto-compaction-retention=1h: each node writes every "+
				"few seconds, and etcd keeps it all until its quota is full",
			"history goes back to revision 1 of %d: auto-compaction is probably off", highest)
	default:
		r.Add("etcd-compaction", report.Skipped, "", "too early to decide, at revision %d", highest)
	}
	r.etcdMembers(f)
	switch {
	case f.own && f.socket:
		r.Add("etcd-role", report.OK, "", "the member listens on a socket that no other user of this machine can open")
	case f.own && f.mutual && f.open != "":
		r.Add("etcd-role", report.Warn, f.openDo, "%s", f.open)
	case f.own && f.mutual:
		r.Add("etcd-role", report.OK, "", "members inside nodes accept certificates of their authority alone")
	case f.roleErr != nil:
		r.Add("etcd-role", report.Fail, "Give a user that may read and write the prefix of the space", "%s",
			status.Convert(f.roleErr).Message())
	case !f.role.Auth:
		r.Add("etcd-role", report.Warn, "Any client that reaches etcd can change any record. Turn authentication "+
			"on, with a role for the prefix alone", "etcd does not authenticate clients")
	case f.role.Outside:
		r.Add("etcd-role", report.Fail, "Give the nodes' role read and write on the prefix of the space, and "+
			"nothing else", "this user may write outside the prefix")
	default:
		r.Add("etcd-role", report.OK, "", "writing outside the prefix is denied")
	}
}

const (
	// farBehind is how many entries a member may lag: some minutes of what a thousand nodes write.
	farBehind = 10_000
	// slowDisk is etcd's own advice for the 99th percentile, tenfold: windows outlast seconds.
	slowDisk = 100 * time.Millisecond
	// lateSnapshot is how many times the pause between snapshots is too long.
	lateSnapshot = 3
)

// etcdMembers judges the members one by one, and the disk of the one on this machine.
func (r *findings) etcdMembers(f facts) {
	for _, m := range f.members {
		switch {
		case m.Err != nil:
		case m.Learner:
			r.Add("etcd-lag", report.Warn, "It gets its vote when it has caught up; see the log of its node",
				"%s has no vote yet", m.Endpoint)
		case m.Lag > farBehind:
			r.Add("etcd-lag", report.Warn, "Look at its disk and network", "%s is %d entries behind", m.Endpoint, m.Lag)
		}
	}
	r.Sound("etcd-lag", "every member that answers votes and keeps up")
	if !f.own {
		return
	}
	for _, m := range f.members {
		if p99 := f.syncs[member.HostOf(m.Endpoint)]; p99 > slowDisk {
			r.Add("etcd-disk", report.Warn, "Give etcd inside a faster disk, or one of its own",
				"%s: one in a hundred writes takes %v or more to reach the disk", m.Endpoint, p99)
		}
	}
	r.Sound("etcd-disk", "no slow disk")
	switch {
	case f.free < 0:
	case f.free < inside.MinRoom:
		r.Add("etcd-room", report.Fail, "Make room: a member whose disk is full ends",
			"%d MiB are free on the disk of this machine's member, which needs %d", f.free>>20,
			int64(inside.MinRoom)>>20)
	default:
		r.Add("etcd-room", report.OK, "", "%d MiB are free on the disk of this machine's member", f.free>>20)
	}
	switch {
	case f.due == 0:
	case len(f.snapshots) == 0:
		r.Add("etcd-snapshot", report.Warn, "See the log of this machine's node",
			"this machine has no snapshot of etcd")
	default:
		age := f.now.Time().Sub(f.snapshots[0].At)
		level, do := report.OK, ""
		if age > lateSnapshot*f.due {
			level, do = report.Warn, "See the log of this machine's node; is the disk full?"
		}
		r.Add("etcd-snapshot", level, do, "the latest of this machine is %s old", text.Span(age))
	}
	switch age := f.now.Time().Sub(f.copied); {
	case !f.copies:
	case f.copied.IsZero():
		r.Add("etcd-copy", report.Warn, "See the log of this machine's node",
			"etcd.snapshot-command has copied no snapshot of this machine yet")
	case age > lateSnapshot*f.due:
		r.Add("etcd-copy", report.Warn, "See the log of this machine's node: does etcd.snapshot-command end with 0?",
			"the latest verified copy of this machine is of %s ago", text.Span(age))
	default:
		r.Add("etcd-copy", report.OK, "", "the latest verified copy of this machine is of %s ago", text.Span(age))
	}
}

// sound reports whether etcd's version is one that nodes can rely on: 3.5.23 or
// 3.6.5, or later of the same line, or any later line.
func sound(version string) bool {
	var n [3]int
	if read, _ := fmt.Sscanf(version, "%d.%d.%d", &n[0], &n[1], &n[2]); read < 2 {
		return false
	}
	minimum := [3]int{3, 5, 23}
	if n[0] == 3 && n[1] == 6 {
		minimum = [3]int{3, 6, 5}
	}
	return slices.Compare(n[:], minimum[:]) >= 0
}

// space reports whether there is a space to check further.
func (r *findings) space(f facts) bool {
	v := f.view
	_, outside := v.Config.Value.SIDsOf(f.sids)
	switch have := v.Config; {
	case !have.Exists():
		r.Add("space", report.Fail, "Run \"allocator init\" once; omit --fresh if IDs were ever issued in the space",
			"space %q is not initialized", f.space)
		return false
	case have.Err != nil:
		r.Add("space", report.Fail, "Restore etcd from a backup; see docs/how-to/restore-etcd.md",
			"its config is unreadable: %v", have.Err)
		return false
	case have.Value.Format() != f.want.Format():
		r.Add("space", report.Fail, "Start nodes with the space's values, or give another --space",
			"it has layout %s and epoch %s, and layout %s and epoch %s are configured here", have.Value.Layout,
			day(have.Value.Epoch), f.want.Layout, day(f.want.Epoch))
	case outside != nil:
		r.Add("space", report.Fail, "Set sid-range to sids of the space, or give another --space", "%v", outside)
	default:
		sids := ""
		if s := have.Value.SIDs(); s.Len() < have.Value.Layout.Holders() {
			sids = ", sids " + s.Of(have.Value.Layout)
		}
		r.Add("space", report.OK, "", "%q is initialized: layout %s%s, epoch %s, pool %s", f.space, have.Value.Layout,
			sids, day(have.Value.Epoch), have.Value.Pool)
	}
	if end := v.Config.Value.Last(); end-f.now < clock.MillisOf(aYear) {
		r.Add("space", report.Warn, "Begin a space with a later epoch or another layout before that: "+
			"see docs/reference/ids.md",
			"IDs of layout %s end at %s, in %s", v.Config.Value.Layout, day(end), text.Span((end - f.now).Duration()))
	}
	switch era := v.Era; {
	case !era.Exists() || era.Err != nil:
		r.Add("era", report.Fail, "Run \"allocator admin recover\"", "it is missing or unreadable")
	case era.Value.Cluster != v.Cluster:
		r.Add("era", report.Fail, "Nodes refuse with HISTORY_REWOUND. Follow docs/how-to/restore-etcd.md, then run "+
			"\"allocator admin recover\"",
			"etcd's cluster is %x, and era %d began on %x: it was restored from a backup, or is another etcd",
			v.Cluster, era.Value.Number, era.Value.Cluster)
	case era.Value.Floor > f.now+clock.MillisOf(time.Hour):
		r.Add("era", report.Fail,
			"Is this machine's clock right? If so, wait, or, if a wrong clock set that floor, run "+
				"\"allocator admin recover --dry-run\", which names an earlier one to give with --floor; "+
				"see docs/how-to/repair-clocks.md",
			"era %d begins at %s, in %s: no IDs until then", era.Value.Number, day(era.Value.Floor),
			text.Span((era.Value.Floor - f.now).Duration()))
	case era.Value.Floor > f.now:
		r.Add("era", report.Warn, "Wait", "era %d begins in %v: no IDs until then", era.Value.Number,
			(era.Value.Floor - f.now).Duration().Round(time.Second))
	default:
		r.Add("era", report.OK, "", "era %d, begun on this cluster", era.Value.Number)
	}
	return true
}

func day(t clock.Millis) string { return t.Time().UTC().Format(time.RFC3339) }

// records checks the windows.
func (r *findings) records(f facts) {
	v := f.view
	far := max(f.now, v.Era.Value.Floor) + f.slack
	quarantined := 0
	var workers []string
	var reserved lease.SIDSet
	for _, sid := range sorted(v.SIDs) {
		s := v.SIDs[sid]
		w := s.Window.Value
		release := fmt.Sprintf("\"allocator admin release-sid %d\" repairs it", sid)
		waits := w.Waits(f.now)
		if waits != "" || s.Distrust(v.Era.Value, far) != "" {
			quarantined++
		}
		switch {
		case !v.Config.Value.SIDs().Has(sid):
			r.Add("records", report.Fail,
				"etcd was edited, or the sids of the space were: look for IDs of that sid in other regions with "+
					"\"allocator audit\"",
				"sid %d has records, and the space has the sids %s", sid,
				v.Config.Value.SIDs().Of(v.Config.Value.Layout))
		case s.Window.Err != nil:
			r.Add("records", report.Fail, "Find out who changed it. "+release,
				"the window of sid %d is unreadable: %v", sid, s.Window.Err)
		case s.Holder.Err != nil:
			r.Add("records", report.Fail, "Find out who changed it; etcd deletes it when its lease expires",
				"the holder of sid %d is unreadable: %v", sid, s.Holder.Err)
		case s.Holder.Exists() && !s.Window.Exists():
			r.Add("records", report.Fail, "etcd was edited or partly restored: see docs/how-to/repair-sids.md",
				"sid %d has a holder and no window", sid)
		case v.Era.Exists() && v.Era.Err == nil && w.Era > v.Era.Value.Number:
			r.Add("records", report.Fail, "etcd was edited or partly restored: see docs/how-to/repair-sids.md",
				"the window of sid %d is of era %d, and this is era %d", sid, w.Era, v.Era.Value.Number)
		case w.State == lease.Quarantined:
			r.Add("quarantine", report.Warn,
				fmt.Sprintf("\"allocator admin release-sid %d\" returns it to the pool", sid),
				"sid %d: %s", sid, w.ByOperator())
		case w.State == lease.Reserved:
			reserved.Add(sid)
		case w.Ceil > far && s.Holder.Exists() && f.isRegistered(w.Node):
			r.Add("ceilings", report.Fail,
				fmt.Sprintf("Are the clocks of this machine and of %s right now? If so, restart %[1]s: it acquires "+
					"another sid, and nodes leave this one alone until then", lease.Printable(w.Node)),
				"the ceiling of sid %d is %s, %s ahead of this clock; %q holds it", sid, repair.At(w.Ceil),
				text.Span((w.Ceil - f.now).Duration()), w.Node)
		case w.Ceil > far:
			r.Add("ceilings", report.Fail,
				"Is this machine's clock right? If so, stop the node whose clock was wrong. "+release,
				"the ceiling of sid %d is %s, %s ahead of this clock; %q wrote it", sid, repair.At(w.Ceil),
				text.Span((w.Ceil - f.now).Duration()), w.Node)
		case waits != "":
			r.Add("quarantine", report.Warn, "Wait until then", "sid %d: %s", sid, waits)
		case w.State == lease.Active && s.Holder.Exists() && f.now-w.Ceil > overdue:
			r.Add("unreleased", report.Warn,
				fmt.Sprintf("It is dead, paused, refuses, or cannot reach etcd, and its lease lives on. A node "+
					"ends the hold within a minute. If none does: \"allocator admin quarantine %d --force\", then "+
					"\"allocator admin release-sid %[1]d\"", sid),
				"%q holds sid %d, and its window ended %v ago", lease.Printable(w.Node), sid,
				(f.now - w.Ceil).Duration().Round(time.Second))
		case w.Worker && s.Holder.Exists():
			workers = append(workers, fmt.Sprintf("%s (sid %d)", lease.Printable(s.Holder.Value.Node), sid))
		case w.Worker: // one that was killed is no fault of a node
		case f.expect > 0 && len(f.registered) >= f.expect: // Others replaced a node that vanished.
		case w.State == lease.Active && !s.Holder.Exists() && f.now-w.Wall < recently && !f.isRegistered(w.Node):
			r.Add("unreleased", report.Warn,
				"Look at that node: it was killed, is paused, or cannot reach etcd. Another node may use the sid "+
					"once its window has passed",
				"%s has not released sid %d: it last wrote %v ago", cmp.Or(w.Node, string(w.Instance)), sid,
				(f.now - w.Wall).Duration().Round(time.Second))
		}
	}
	r.Sound("records", "all %d records of sids are readable", len(v.SIDs))
	r.Sound("unreleased", "no node has vanished lately without releasing its sid")
	if n := len(workers); n > 0 {
		if n > workersNamed {
			workers = append(workers[:workersNamed], fmt.Sprintf("and %d more", n-workersNamed))
		}
		r.Add("workers", report.OK, "", "%s sids: %s",
			text.Count(n, "worker")+map[bool]string{true: " holds", false: " hold"}[n == 1],
			strings.Join(workers, ", "))
	}
	if reserved.Len() > 0 {
		r.Add("reserved", report.OK, "", "generators outside of the cluster have the sids %v", reserved)
	}
	r.Sound("ceilings", "none is far ahead of the clock")
	if quarantined == 0 {
		r.Add("quarantine", report.OK, "", "no sid is quarantined")
	}
}

// workersNamed is how many workers are named.
const workersNamed = 16

// aYear is how long before the last ID of a layout its end is reported.
const aYear = 365 * 24 * time.Hour

// overdue is how long the window of a holder has been over when it is reported: it extends it long before the end.
const overdue = clock.Millis(30 * 1000)

// recently is how long a node that vanished is reported.
const recently = clock.Millis(60 * 60 * 1000)

// isRegistered reports whether a process of that name is registered.
func (f facts) isRegistered(node string) bool {
	return slices.ContainsFunc(f.registered, func(r lease.Registration) bool { return r.Node == node })
}

func sorted(sids map[flake.SID]lease.SIDRecords) []flake.SID {
	return slices.Sorted(maps.Keys(sids))
}
