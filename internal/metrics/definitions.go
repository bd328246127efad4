package metrics

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flakelease/allocator/internal/cluster"
)

// Definition describes one family of series.
type Definition struct {
	Name   string
	Kind   string // counter, gauge or histogram
	Labels []string
	Help   string // one sentence, with the unit
}

// Names of the families.
const (
	idsIssued       = "allocator_ids_issued_total"
	requests        = "allocator_requests_total"
	refusals        = "allocator_refusals_total"
	issueLatency    = "allocator_request_duration_seconds"
	ready           = "allocator_ready"
	lead            = "allocator_lead_seconds"
	windowRemaining = "allocator_window_remaining_seconds"
	leaseRemaining  = "allocator_lease_ttl_remaining_seconds"
	sid             = "allocator_sid"
	term            = "allocator_term"
	era             = "allocator_era"
	phase           = "allocator_lease_phase"
	poolSIDs        = "allocator_pool_sids"
	workerSIDs      = "allocator_worker_sids"
	historyRewound  = "allocator_history_rewound"
	alarms          = "allocator_alarms_total"
	etcdLatency     = "allocator_etcd_call_duration_seconds"
	etcdErrors      = "allocator_etcd_call_errors_total"
	tickAge         = "allocator_keeper_tick_age_seconds"
	epochRemaining  = "allocator_epoch_remaining_seconds"
	settings        = "allocator_setting_seconds"
	nodeInfo        = "allocator_node_info"
	buildInfo       = "allocator_build_info"
)

// Names of the families about clocks and gossip.
const (
	idsUnverified      = "allocator_ids_unverified_total"
	clockVerdict       = "allocator_clock_verdict"
	clockPhase         = "allocator_clock_phase"
	clockFinding       = "allocator_clock_finding"
	clockNodes         = "allocator_clock_nodes"
	clockQuorum        = "allocator_clock_quorum"
	clockFalsetickers  = "allocator_clock_falsetickers"
	clusterOffset      = "allocator_clock_cluster_offset_seconds"
	clusterUncertainty = "allocator_clock_cluster_uncertainty_seconds"
	peerOffset         = "allocator_clock_offset_seconds"
	peerUncertainty    = "allocator_clock_uncertainty_seconds"
	clockShuts         = "allocator_clock_shuts_total"
	clockUnverified    = "allocator_clock_unverified_seconds_total"
	clockJumps         = "allocator_clock_discontinuities_total"
	clockSteps         = "allocator_clock_steps_total"
	clockNudges        = "allocator_clock_nudges_total"
	clockSuspends      = "allocator_clock_suspends_total"
	clockStalls        = "allocator_clock_stalls_total"
	stepPending        = "allocator_clock_step_pending"
	clockHeld          = "allocator_clock_held_seconds"
	tickDelay          = "allocator_clock_tick_delay_seconds"
	kernelSynchronized = "allocator_clock_kernel_synchronized"
	kernelMaxError     = "allocator_clock_kernel_max_error_seconds"
	gossipMembers      = "allocator_gossip_members"
	gossipExchanges    = "allocator_gossip_exchanges_total"
	gossipUnanswered   = "allocator_gossip_unanswered_total"
	gossipDropped      = "allocator_gossip_dropped_total"
)

// Names of the families about connections, certificates and tokens.
const (
	connections           = "allocator_connections"
	connectionsRefused    = "allocator_connections_refused_total"
	connectionsClosed     = "allocator_connections_closed_total"
	connectionsSlowed     = "allocator_connections_slowed_total"
	connectionMemory      = "allocator_connection_memory_bytes"
	connectionMemoryLimit = "allocator_connection_memory_limit_bytes"
	certificateRemaining  = "allocator_tls_certificate_remaining_seconds"
	reloadFailing         = "allocator_reload_failing"
	reloads               = "allocator_reloads_total"
)

var definitions = []Definition{
	{idsIssued, "counter", nil, "IDs issued by this node."},
	{requests, "counter", []string{"surface", "code"}, "Requests answered, by surface and by OK, CANCELED, NOT_FOUND or the reason of the refusal."},
	{refusals, "counter", []string{"reason"}, "Requests refused, by reason; a refused request issued nothing and changed nothing."},
	{issueLatency, "histogram", []string{"surface"}, "Time from reading a request to having its answer, including waits for the clock, in seconds; pipelined requests that share a block count once."},
	{ready, "gauge", nil, "1 if a request for an ID would be served now, else 0."},
	{lead, "gauge", nil, "How far the last ID is ahead of the node's clock, in seconds; 0 if it is not ahead."},
	{windowRemaining, "gauge", nil, "Time until the reserved window ends if etcd confirms no other, in seconds; 0 without a window."},
	{leaseRemaining, "gauge", nil, "Time until the lease in etcd expires if it is not renewed, in seconds; 0 without a lease."},
	{sid, "gauge", nil, "The sid held, or -1."},
	{term, "gauge", nil, "Term of the sid held; it grows with every acquisition of that sid by any node; 0 without a sid."},
	{era, "gauge", nil, "Era of the space as last read; 0 before the first read."},
	{phase, "gauge", []string{"phase"}, "1 for the current phase of the lease, 0 for the others."},
	{poolSIDs, "gauge", []string{"state"}, "Sids that the node may take (sid-range) by state, as last listed: held, free or quarantined; absent before the first list."},
	{workerSIDs, "gauge", []string{"state"}, "Sids for workers (worker.sid-range) by state, as last listed: held, free or quarantined; absent before the first list."},
	{historyRewound, "gauge", nil, "1 while the node issues nothing because etcd's history went back, else 0."},
	{alarms, "counter", []string{"kind"}, "Conditions that need an operator, by kind."},
	{etcdLatency, "histogram", []string{"op"}, "Duration of calls to etcd, including failed calls, in seconds."},
	{etcdErrors, "counter", []string{"op"}, "Calls to etcd that failed or whose outcome is unknown."},
	{tickAge, "gauge", nil, "Time since the last iteration of the lease keeper's loop, in seconds; above 1 the process gets too little CPU or is blocked."},
	{epochRemaining, "gauge", nil, "Time until the 43 bits of an ID's timestamp are used up, in seconds."},
	{idsUnverified, "counter", nil, "IDs issued while no majority confirmed this node's clock."},
	{clockVerdict, "gauge", []string{"state"}, "1 for the current verdict on this node's clock, 0 for the others."},
	{clockPhase, "gauge", []string{"phase"}, "1 for the current phase of the clock gate, 0 for the others."},
	{clockFinding, "gauge", []string{"finding"}, "1 for the result of the last comparison of clocks, 0 for the others."},
	{clockNodes, "gauge", []string{"opinion"}, "Registered nodes with gossip, by the result of comparing their clock with this node's; this node counts as agree."},
	{clockQuorum, "gauge", nil, "Number of registered nodes with gossip that is a majority."},
	{clockFalsetickers, "gauge", nil, "Other nodes whose clocks are certainly further than issue.max-skew from the cluster's time."},
	{clusterOffset, "gauge", nil, "The cluster's time minus this node's, in seconds; absent while no quorum agrees on it."},
	{clusterUncertainty, "gauge", nil, "Uncertainty of the cluster's time: half of the interval that contains it, in seconds; absent while no quorum agrees on it."},
	{peerOffset, "gauge", []string{"sid"}, "The clock of the holder of a sid minus this node's, in seconds; absent without a recent measurement."},
	{peerUncertainty, "gauge", []string{"sid"}, "Uncertainty of that offset: half of the interval that contains it, in seconds; absent without a recent measurement."},
	{clockShuts, "counter", nil, "Number of times that this node began to refuse because clocks disagree."},
	{clockUnverified, "counter", nil, "Time in which this node issued without confirmation of its clock by a majority, in seconds."},
	{clockJumps, "counter", nil, "Measurements of peers that contradict earlier ones: one of the two machines was paused, migrated or resumed."},
	{clockSteps, "counter", []string{"direction"}, "Steps of this machine's wall clock by more than 20 ms."},
	{clockNudges, "counter", []string{"direction"}, "Steps of this machine's wall clock by 2 to 20 ms."},
	{clockSuspends, "counter", nil, "Number of times that this machine was suspended."},
	{clockStalls, "counter", nil, "Number of times that this process did not run for more than a second."},
	{stepPending, "gauge", nil, "1 while IDs keep the time from before a step of the wall clock, else 0."},
	{clockHeld, "gauge", nil, "The wall clock minus the time used for IDs, in seconds."},
	{tickDelay, "gauge", nil, "Time between the last two reads of this machine's clocks, in seconds; far above 0.05 the process gets too little CPU."},
	{kernelSynchronized, "gauge", nil, "1 if the kernel reports that the wall clock is synchronized, else 0; absent if the kernel cannot be asked."},
	{kernelMaxError, "gauge", nil, "The kernel's bound of the wall clock's error, in seconds; absent if the kernel cannot be asked."},
	{gossipMembers, "gauge", nil, "Live members in gossip, this node included."},
	{gossipExchanges, "counter", nil, "Clock measurements of peers."},
	{gossipUnanswered, "counter", nil, "Clock requests to peers without an answer."},
	{gossipDropped, "counter", []string{"reason"}, "Messages and connections between nodes that were dropped, by reason."},
	{connections, "gauge", []string{"listener"}, "Open connections, by listener."},
	{connectionsRefused, "counter", []string{"listener"}, "Connections closed at once because limit.connections or limit.connections-per-source were open, or limit.memory was used, by listener."},
	{connectionsClosed, "counter", []string{"listener", "cause"}, "Connections closed before their clients closed them, by listener and cause: room for others while no call on them was valid, silent for a minute, stalled calls, or limit.memory."},
	{connectionsSlowed, "counter", []string{"listener"}, "Times that a connection was not read for a while because its source sent more than valid calls, by listener."},
	{connectionMemory, "gauge", nil, "Bytes that connections and their unfinished calls are counted with."},
	{connectionMemoryLimit, "gauge", nil, "The maximum of allocator_connection_memory_bytes: limit.memory; 0 is none."},
	{certificateRemaining, "gauge", []string{"certificate"}, "Time until the certificate in use expires, in seconds; negative after that; absent without a certificate."},
	{reloadFailing, "gauge", []string{"files"}, "1 while changed files cannot be used and the previous contents stay in use, else 0; absent without such files."},
	{reloads, "counter", []string{"files"}, "Number of times that changed files were loaded."},
	{settings, "gauge", []string{"setting"}, "Settings to compare other series with, in seconds."},
	{nodeInfo, "gauge", []string{"node", "space", "layout"}, "Always 1, with the node's name, the space that its IDs belong to, and their layout."},
	{buildInfo, "gauge", []string{"version"}, "Always 1, with the version of the program."},
}

// Definitions returns every family of this package, in the order of the
// reference.
func Definitions() []Definition { return append([]Definition(nil), definitions...) }

func (d Definition) desc() *prometheus.Desc {
	return prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
}

// Reference returns the page of all families, as Markdown.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# Metrics

Served on the admin port at ` + "`/metrics`" + `. All labels are from closed sets, or (those of the _info series) constants of the process. Every counter exists from the start, with 0.
The Go runtime's series (` + "`go_…`" + `) and those of the process (` + "`process_…`" + `) are served too.

| name | type | labels | meaning |
|---|---|---|---|
`)
	for _, d := range definitions {
		labels := "–"
		if len(d.Labels) > 0 {
			labels = "`" + strings.Join(d.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Kind, labels, d.Help)
	}
	fmt.Fprintf(&b, "\n## Values of labels\n\n")
	for _, l := range []struct {
		name, of string // of: the families whose label has these values; "": all
		values   []string
	}{
		{"reason", refusals, texts(reasons())}, {"reason", gossipDropped, cluster.DropReasons()},
		{"kind", "", texts(alarmKinds)}, {"op", "", texts(ops)},
		{"phase", phase, texts(phases)}, {"phase", clockPhase, texts(clockPhases)},
		{"state", poolSIDs, poolStates}, {"state", workerSIDs, poolStates}, {"state", clockVerdict, texts(clockStates)},
		{"finding", "", texts(clockFindings)}, {"opinion", "", opinions}, {"direction", "", directions},
		{"listener", "", ListenerNames}, {"files", "", fileKinds}, {"certificate", "", certificateKinds},
	} {
		of := ""
		if l.of != "" {
			of = " of `" + l.of + "`"
		}
		fmt.Fprintf(&b, "- `%s`%s: `%s`\n", l.name, of, strings.Join(l.values, "`, `"))
	}
	fmt.Fprintf(&b, "- `setting`: `%s`\n", strings.Join(settingNames(), "`, `"))
	b.WriteString("- `sid`: the sids of the other nodes with a recent measurement; a node without a sid has no series\n")
	return b.String()
}
