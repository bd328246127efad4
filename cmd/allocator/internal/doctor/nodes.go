package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	grpcstatus "google.golang.org/grpc/status"

	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/report"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/text"
)

// nodes checks which nodes are registered, whether they answer, and their names.
func (r *findings) nodes(f facts) {
	switch {
	case len(f.nodes) > 0:
	case f.loadErr != nil || !f.reached():
		r.Add("nodes", report.Skipped, "Give --addr: nodes know the others",
			"who is registered is not known, and no node answers")
	default:
		r.Add("nodes", report.Warn, "Start some with \"allocator serve\"", "no node is registered")
	}
	for _, reg := range f.registered {
		if reg.GRPC == "" {
			r.Add("node", report.Skipped, "", "%s has no gRPC listener (listen.grpc): it cannot be asked from here",
				cmp.Or(reg.Node, string(reg.Instance)))
		}
	}
	pool := f.view.Config.Value.Pool // "" where etcd cannot be read
	for _, n := range f.nodes {
		self, own := n.Cluster.Self, n.Cluster.OwnProblem()
		switch {
		case n.Err != nil:
			message := grpcstatus.Convert(n.Err).Message()
			do := "Check that it runs, and that advertise.grpc is reachable from here. A node that was killed is " +
				"unregistered when its lease expires"
			if hint := f.hint(message); hint != "" { // it runs and was reached
				do = strings.TrimSpace(hint)
			}
			r.Add("node", report.Fail, do, "%s does not answer: %s", n.Label(), message)
		case pool != "" && n.Cluster.Pool != "" && n.Cluster.Pool != pool:
			r.Add("node", report.Fail,
				"Nodes use different etcd clusters, or --addr names a node of another space: correct etcd.endpoints "+
					"or --addr",
				"%s is of another space: pool %s", n.Label(), n.Cluster.Pool)
		case !self.Ready:
			r.Add("node", report.Warn, "Look up the reason in docs/reference/refusals.md, and see docs/"+own.Page,
				"%s would refuse: %s: %s", n.Label(), self.Refusing, self.Message)
		case f.reached() && own.Kind == status.WindowShort:
			r.Add("node", report.Warn,
				"Can that node reach etcd? Its log says why it extends no window; at the end of the window it refuses",
				"%s is ready, with sid %d, but has %s of its window left", n.Label(), self.SID,
				text.Seconds(self.Left()))
		default:
			r.Add("node", report.OK, "", "%s is ready, with sid %d and %s of its window left",
				n.Label(), self.SID, text.Seconds(self.Left()))
		}
	}
	r.agreement(f)
	r.names(f)
	r.count(f)
	r.cluster(f)
}

// agreement compares what has to be the same of the nodes that answer: settings, and, within what an upgrade
// allows, versions.
func (r *findings) agreement(f facts) {
	var versions []string
	settings := map[string]map[string][]string{} // by key and value, the nodes
	for _, n := range f.nodes {
		if n.Err != nil {
			continue
		}
		if v := n.Cluster.Self.Version; release.MatchString(v) {
			versions = append(versions, v)
		}
		values := map[string]string{
			"worker.sid-range": cmp.Or(n.Cluster.WorkerSIDs, "none"),
			"lease.window":     (time.Duration(n.Cluster.Self.Window) * time.Millisecond).String(),
			"issue.max-lead":   (time.Duration(n.Cluster.Self.MaxLead) * time.Millisecond).String(),
		}
		if expected := n.Cluster.Expected; expected > 0 {
			values["cluster.expect"] = strconv.Itoa(expected)
		}
		if c := n.Cluster.Self.Clock; c != nil {
			values["issue.max-skew"] = (time.Duration(c.Limit) * time.Microsecond).String()
		}
		for key, value := range values {
			if settings[key] == nil {
				settings[key] = map[string][]string{}
			}
			settings[key][value] = append(settings[key][value], n.Label())
		}
	}
	slices.SortStableFunc(versions, func(a, b string) int { return minor(a) - minor(b) })
	if n := len(versions) - 1; n >= 0 && minor(versions[n])-minor(versions[0]) > 1 {
		r.Add("versions", report.Fail, "Upgrade the older ones: nodes of neighboring minor versions alone run beside "+
			"each other, see docs/how-to/upgrade.md", "there are nodes of %s and of %s", versions[0], versions[n])
	} else if n >= 0 {
		r.Add("versions", report.OK, "", "nodes are of %s to %s", versions[0], versions[n])
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if len(settings[key]) < 2 {
			continue
		}
		var parts []string
		for _, value := range slices.Sorted(maps.Keys(settings[key])) {
			parts = append(parts, value+" at "+strings.Join(settings[key][value], " and "))
		}
		r.Add("settings", report.Warn, "Set it to the same value on all nodes, and restart one after the other",
			"%s differs: %s", key, strings.Join(parts, "; "))
	}
	if len(settings) > 0 {
		r.Sound("settings", "nodes agree on the settings that have to be the same")
	}
}

// release is the form of a version that was released, without what a build of the source has for one.
var release = regexp.MustCompile(`^v?\d+\.\d{1,5}\.\d+(-rc\.\d+|-snapshot)?$`)

// minor returns a number of a version that is one more for the next minor version; 0 for no version.
func minor(version string) int {
	var major, minor int
	_, _ = fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	return major*100_000 + minor
}

// sameFact has the checks that find a problem by themselves, mostly with more detail.
var sameFact = map[string]string{
	status.Rewound:          "node",
	status.ClockSkewed:      "node",
	status.ClockUnconfirmed: "node",
	status.WindowEnded:      "node",
	status.WindowShort:      "node",
	status.Drained:          "node",
	status.NodesRefuse:      "node",
	status.NoSIDLeft:        "node",
	status.EtcdAway:         "etcd",
	status.MembersAway:      "etcd-endpoint",
	status.NodesMissing:     "node-count",
	status.NameShared:       "name",
	status.Vanished:         "unreleased",
	status.SIDsQuarantined:  "quarantine",
}

// cluster adds what the pages of the nodes that were asked show, except for what another
// check has found as well. So no page shows a problem that doctor does not.
func (r *findings) cluster(f facts) {
	seen := map[string]bool{}
	for _, n := range f.nodes {
		for _, p := range n.Cluster.Problems {
			// The same problem began a little earlier or later to another node.
			fact, _, _ := strings.Cut(p.Text, status.SinceMark)
			if seen[fact] || r.Wrong(sameFact[p.Kind]) {
				continue
			}
			seen[fact] = true
			r.Add("cluster", report.Warn, "See docs/"+p.Page, "%s sees: %s", n.Label(), p.Text)
		}
	}
	if len(seen) == 0 && slices.ContainsFunc(f.nodes, func(n deployment.NodeReport) bool { return n.Err == nil }) {
		r.Add("cluster", report.OK, "", "the nodes see and hear each other")
	}
}

// names checks that no two processes have one name.
func (r *findings) names(f facts) {
	const do = "Set another node.name on one of them: peers count clocks by name"
	byName := map[string][]lease.Registration{}
	for _, reg := range f.registered {
		byName[reg.Node] = append(byName[reg.Node], reg)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		of := byName[name]
		if len(of) < 2 || name == "" {
			continue
		}
		var live []string
		for _, reg := range of {
			if f.lives(reg) {
				live = append(live, cmp.Or(reg.GRPC, "without a gRPC listener"))
			}
		}
		if len(live) > 1 {
			r.Add("name", report.Fail, do, "%d processes have the name %s: at %s",
				len(live), name, strings.Join(live, ", "))
		} else {
			r.Add("name", report.Warn, "A node that was killed is unregistered when its lease expires: run doctor "+
				"again after lease.ttl. If it lasts: "+do,
				"%d registrations have the name %s, and %s", len(of), name, answering(len(live)))
		}
	}
	if len(f.registered) > 0 {
		r.Sound("name", "every node has a name of its own")
	}
}

func answering(n int) string {
	if n == 0 {
		return "no process answers"
	}
	return "1 process answers"
}

// lives reports whether that very process answered, or cannot be asked.
func (f facts) lives(reg lease.Registration) bool {
	return reg.GRPC == "" || slices.ContainsFunc(f.nodes, func(n deployment.NodeReport) bool {
		return n.Err == nil && n.Cluster.Self.Instance == string(reg.Instance)
	})
}

// count compares the number of nodes with the one that is expected.
func (r *findings) count(f facts) {
	if f.expect == 0 {
		return
	}
	live := map[string]bool{}
	for _, n := range f.nodes {
		if n.Err == nil {
			live[n.Cluster.Self.Instance] = true
		}
	}
	for _, reg := range f.registered {
		if reg.GRPC == "" {
			live[string(reg.Instance)] = true
		}
	}
	are := "are"
	if f.expect == 1 {
		are = "is"
	}
	switch n := len(live); {
	case n == f.expect:
		r.Add("node-count", report.OK, "", "%s, as expected", text.Count(n, "node"))
	case n < f.expect:
		r.Add("node-count", report.Fail, "\"allocator status\" shows who is there; start the others",
			"%s, and %d %s expected", text.Count(n, "node"), f.expect, are)
	default:
		r.Add("node-count", report.Warn, "\"allocator status\" shows who they are", "%s, and %d %s expected",
			text.Count(n, "node"), f.expect, are)
	}
}

// clocks compares this machine's clock with those of nodes and of their records.
func (r *findings) clocks(f facts) {
	const setRight = "Correct the clock (NTP, chrony) here or there: \"allocator status\" shows which one the nodes " +
		"agree on"
	compared := 0
	for _, n := range f.nodes {
		if n.Err != nil {
			continue
		}
		compared++
		switch lo, hi := n.Offset(); {
		case lo > f.maxSkew:
			r.Add("clock", report.Fail, setRight, "this machine's clock is at least %s behind the one of %s",
				text.Span(lo), n.Label())
		case hi < -f.maxSkew:
			r.Add("clock", report.Fail, setRight, "this machine's clock is at least %s ahead of the one of %s",
				text.Span(-hi), n.Label())
		default:
			r.Add("clock", report.OK, "", "the clock of %s minus this machine's is between %v and %v", n.Label(),
				lo.Round(time.Millisecond), hi.Round(time.Millisecond))
		}
	}
	wall, who := clock.Millis(0), flake.SID(0)
	for _, sid := range sorted(f.view.SIDs) {
		if s := f.view.SIDs[sid]; s.Holder.Exists() && s.Window.Err == nil && !s.Window.Value.Worker &&
			s.Window.Value.Wall > wall {
			wall, who = s.Window.Value.Wall, sid
		}
	}
	switch age := (f.now - wall).Duration(); {
	case wall == 0 && compared == 0:
		r.Add("clock", report.Skipped, "", "there is no node to compare this machine's clock with")
	case wall == 0:
	case age < -f.maxSkew:
		r.Add("clock", report.Fail, setRight,
			"the holder of sid %d wrote its record %s in the future, by this machine's clock", who,
			text.Span(-age))
	case age > 3*f.extend:
		r.Add("clock", report.Warn, setRight+". If the clocks are right, holders cannot write to etcd",
			"the latest record of a live holder is %v old", age.Round(time.Second))
	default:
		r.Add("clock", report.OK, "",
			"the latest record of a live holder was written %v ago", age.Round(time.Millisecond))
	}
	switch k := f.kernel; {
	case !k.Known:
		r.Add("clock-kernel", report.Skipped, "", "the kernel does not report whether its clock is synchronized")
	case k.Synchronized:
		r.Add("clock-kernel", report.OK, "", "the kernel's clock is synchronized")
	default:
		r.Add("clock-kernel", report.Warn,
			"Run chrony or another NTP client (chrony needs rtcsync to report to the kernel)",
			"the kernel's clock is not synchronized")
	}
}

func (r *findings) gossip(f facts) {
	if len(f.gossip) == 0 {
		r.Add("gossip", report.Skipped, "", "no node has registered a gossip address")
	}
	for _, addr := range slices.Sorted(maps.Keys(f.gossip)) {
		if err := f.gossip[addr]; err != nil {
			r.Add("gossip", report.Fail,
				"Open that port for TCP and UDP between all nodes, and check the advertised address",
				"%s cannot be reached: %v", addr, err)
			continue
		}
		r.Add("gossip", report.OK, "", "%s accepts connections", addr)
	}
}
