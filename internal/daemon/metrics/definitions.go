package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/watermark"
)

// definition describes one family of series.
type definition struct {
	Name   string
	Kind   string // counter, gauge or histogram
	Labels []string
	Help   string // one sentence, with the unit
	When   string // what question it answers
	Alert  string // values that are not normal; "" if any may be
}

// Names of the families.
const (
	idsIssued        = "allocator_ids_issued_total"
	requests         = "allocator_requests_total"
	refusals         = "allocator_refusals_total"
	issueLatency     = "allocator_request_duration_seconds"
	ready            = "allocator_ready"
	lead             = "allocator_lead_seconds"
	windowRemaining  = "allocator_window_remaining_seconds"
	leaseRemaining   = "allocator_lease_ttl_remaining_seconds"
	sid              = "allocator_sid"
	term             = "allocator_term"
	era              = "allocator_era"
	watermarkAt      = "allocator_watermark_timestamp_seconds"
	phase            = "allocator_lease_phase"
	poolSIDs         = "allocator_pool_sids"
	workerSIDs       = "allocator_worker_sids"
	watermarkLag     = "allocator_watermark_lag_seconds"
	watermarkHeld    = "allocator_watermark_held"
	watermarkBlocked = "allocator_watermark_blocked"
	watermarkReaders = "allocator_watermark_readers"
	historyRewound   = "allocator_history_rewound"
	alarms           = "allocator_alarms_total"
	etcdLatency      = "allocator_etcd_call_duration_seconds"
	etcdErrors       = "allocator_etcd_call_errors_total"
	etcdMemberUp     = "allocator_etcd_member_up"
	etcdMembers      = "allocator_etcd_members"
	etcdDatabase     = "allocator_etcd_database_bytes"
	etcdQuota        = "allocator_etcd_quota_bytes"
	etcdFree         = "allocator_etcd_disk_free_bytes"
	etcdSnapshotAge  = "allocator_etcd_snapshot_age_seconds"
	etcdCopyAge      = "allocator_etcd_copy_age_seconds"
	tickAge          = "allocator_keeper_tick_age_seconds"
	epochRemaining   = "allocator_epoch_remaining_seconds"
	settings         = "allocator_setting_seconds"
	nodeInfo         = "allocator_node_info"
	buildInfo        = "allocator_build_info"

	etcdSnapshotFailing = "allocator_etcd_snapshot_failing"
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

var definitions = []definition{
	{idsIssued, "counter", nil, "IDs issued by this node.",
		"you want to know the load", ""},
	{requests, "counter", []string{"surface", "code"},
		"Requests answered, by surface and by OK, CANCELED, NOT_FOUND or the reason of the refusal.",
		"errors by listener; `CANCELED` are callers that left", "rate of anything but `OK` above a few per cent"},
	{refusals, "counter", []string{"reason"},
		"Requests refused, by reason; a refused request issued nothing and changed nothing.",
		"something is refused: by reason", "`WINDOW_EXHAUSTED`, `HISTORY_REWOUND` above 0; others by rate"},
	{issueLatency, "histogram", []string{"surface"},
		"Time from reading a request to having its answer, including waits for the clock, in seconds; pipelined " +
			"requests that share a block count once.",
		"callers are slow: waits of up to 100 ms are in it", "p99 above 50 ms"},
	{ready, "gauge", nil, "1 if a request for an ID would be served now, else 0.",
		"always", "0 for 2 min on a node that is no standby; sum over nodes below what you need"},
	{lead, "gauge", nil, "How far the last ID is ahead of the node's clock, in seconds; 0 if it is not ahead.",
		"`ENTROPY_OVERFLOW`: demand keeps it near 0.25", "above 0.2 for 1 min"},
	{windowRemaining, "gauge", nil, "Time until the reserved window ends if etcd confirms no other, in seconds; 0 " +
		"without a window.",
		"the first sign of a slow etcd: 25 to 30 normally", "**below 20 for 10 s: etcd does not confirm**"},
	{leaseRemaining, "gauge", nil, "Time until the lease in etcd expires if it is not renewed, in seconds; 0 " +
		"without a lease.",
		"holders vanish though they are alive", "below 6"},
	{sid, "gauge", nil, "The sid held, or -1.",
		"which node made this ID; -1 is a standby", ""},
	{term, "gauge", nil, "Term of the sid held; it grows with every acquisition of that sid by any node; 0 " +
		"without a sid.",
		"it jumps: the holder of the sid keeps changing", "more than 5 in an hour"},
	{era, "gauge", nil, "Era of the space as last read; 0 before the first read.",
		"it differs between nodes for more than a minute", ""},
	{watermarkAt, "gauge", nil, "The watermark as last read, in Unix seconds; 0 before the first one.",
		"readers wait: how far nodes let them read", ""},
	{phase, "gauge", []string{"phase"}, "1 for the current phase of the lease, 0 for the others.",
		"a node is not ready: which phase keeps it", "`rewound`"},
	{poolSIDs, "gauge", []string{"state"},
		"Sids that the node may take (sid-range) by state, as last listed: held, free, quarantined or reserved; " +
			"absent before the first list.",
		"`NO_SID`", "`free` at 0; `quarantined` above 0"},
	{workerSIDs, "gauge", []string{"state"},
		"Sids for workers (worker.sid-range) by state, as last listed: held, free, quarantined or reserved; absent " +
			"before the first list.",
		"`NO_WORKER`", "`free` at 0; `quarantined` above 0"},
	{watermarkLag, "gauge", nil, "How far the watermark is behind the clock, in seconds; absent while the node has " +
		"read none.",
		"readers wait for IDs to be complete", "`allocator_watermark_held`"},
	{watermarkHeld, "gauge", nil,
		"1 if the watermark lags by more than 2 × `watermark.interval` and what a holder that vanished delays it by, " +
			"else 0; absent while the node has read none.",
		"readers wait for long", "1 on all nodes for 15 s"},
	{watermarkBlocked, "gauge", []string{"why"}, "1 while the watermark waits for this cause, else 0.",
		"`allocator_watermark_lag_seconds` grows", ""},
	{watermarkReaders, "gauge", nil, "Callers that wait for the watermark to pass an ID.", "memory grows", ""},
	{historyRewound, "gauge", nil, "1 while the node issues nothing because etcd's history went back, else 0.",
		"always", "1"},
	{alarms, "counter", []string{"kind"}, "Conditions that need an operator, by kind.",
		"always", "any increase"},
	{etcdLatency, "histogram", []string{"op"}, "Duration of calls to etcd, including failed calls, in seconds.",
		"window remaining falls; `extend` and `load` are the usual ones", "p99 of `extend` above 0.5 s"},
	{etcdErrors, "counter", []string{"op"}, "Calls to etcd that failed or whose outcome is unknown.",
		"the same: calls whose outcome is unknown", "rate above 0 for 1 min"},
	{etcdMemberUp, "gauge", nil, "1 while the member of etcd that this node runs answers, else 0; absent without " +
		"etcd.inside, as are the next seven.",
		"always", "0 for 5 min"},
	{etcdMembers, "gauge", []string{"state"}, "Members of the etcd inside that vote, and how many of them answer " +
		"this node.",
		"may another machine fail?", "fewer answering than voting, for 5 min"},
	{etcdDatabase, "gauge", nil, "Size of the member's database on disk, in bytes.", "does it grow?", ""},
	{etcdQuota, "gauge", nil, "Size at which etcd refuses writes, in bytes.",
		"the same", "80 % of it used"},
	{etcdFree, "gauge", nil, "Free space on the disk of the member, in bytes.",
		"a member whose disk is full ends", "below 384 MiB"},
	{etcdSnapshotAge, "gauge", nil, "Time since the member's latest snapshot, in seconds; absent before the first.",
		"what would a restore bring back?", "above three hours"},
	{etcdCopyAge, "gauge", nil, "Age of the latest snapshot of the member that was found whole and copied elsewhere " +
		"by `etcd.snapshot-command`, in seconds; absent before the first.",
		"the same, if all disks are lost", "above three hours"},
	{etcdSnapshotFailing, "gauge", nil, "1 while the member's snapshots cannot be written, are damaged, or cannot be " +
		"copied elsewhere, else 0.",
		"the log of the node has the reason", "1 for 15 min"},
	{tickAge, "gauge", nil, "Time since the last iteration of the lease keeper's loop, in seconds; above 1 the " +
		"process gets too little CPU or is blocked.",
		"a node lost its sid for no reason: the process is starved", "above 2"},
	{epochRemaining, "gauge", nil, "Time until the timestamp bits of the layout are used up, in seconds.",
		"planning another layout or epoch", "below a year"},
	{idsUnverified, "counter", nil, "IDs issued while no majority confirmed this node's clock.",
		"clocks are unconfirmed", "rate above 0 for 10 min"},
	{clockVerdict, "gauge", []string{"state"}, "1 for the current verdict on this node's clock, 0 for the others.",
		"`CLOCK_SKEW` or `CLOCK_UNVERIFIED`: whether clocks keep a node from serving", "`open` at 0 for 1 min"},
	{clockPhase, "gauge", []string{"phase"}, "1 for the current phase of the clock gate, 0 for the others.",
		"the same, finer: see [phases](clocks.md)", "`unproven` or `grace` for 10 min"},
	{clockFinding, "gauge", []string{"finding"}, "1 for the result of the last comparison of clocks, 0 for the others.",
		"a refusal has just begun or ended: the latest finding", ""},
	{clockNodes, "gauge", []string{"opinion"},
		"Registered nodes with gossip, by the result of comparing their clock with this node's; this node counts " +
			"as agree.",
		"*unconfirmed*: `silent` nodes are missing for a majority", "`silent` above 0 for 10 min"},
	{clockQuorum, "gauge", nil, "Number of registered nodes with gossip that is a majority.",
		"how many have to agree, to compare with `agree` above", ""},
	{clockFalsetickers, "gauge", nil, "Other nodes whose clocks are certainly further than issue.max-skew from the " +
		"cluster's time.",
		"always: some other node's clock is wrong", "above 0 for 1 min"},
	{clusterOffset, "gauge", nil, "The cluster's time minus this node's, in seconds; absent while no quorum " +
		"agrees on it.",
		"NTP on this machine", "beyond ±0.05: the node warns there, and refuses at 0.25"},
	{clusterUncertainty, "gauge", nil, "Uncertainty of the cluster's time: half of the interval that contains it, " +
		"in seconds; absent while no quorum agrees on it.",
		"offsets seem too large", "above 0.1"},
	{peerOffset, "gauge", []string{"sid"},
		"The clock of the holder of a sid minus this node's, in seconds; absent without a recent measurement.",
		"which of the others differs, by its sid", ""},
	{peerUncertainty, "gauge", []string{"sid"},
		"Uncertainty of that offset: half of the interval that contains it, in seconds; absent without a recent " +
			"measurement.",
		"slow networks show here", ""},
	{clockShuts, "counter", nil, "Number of times that this node began to refuse because clocks disagree.",
		"it flaps", "any increase"},
	{clockUnverified, "counter", nil, "Time in which this node issued without confirmation of its clock by a " +
		"majority, in seconds.",
		"how long I5 did not hold", ""},
	{clockJumps, "counter", nil, "Measurements of peers that contradict earlier ones: one of the two machines was " +
		"paused, migrated or resumed.",
		"machines are overcommitted", "more than 5 in an hour"},
	{clockSteps, "counter", []string{"direction"}, "Steps of this machine's wall clock by more than 20 ms.",
		"something sets the clock by steps", "more than 2 in an hour"},
	{clockNudges, "counter", []string{"direction"}, "Steps of this machine's wall clock by 2 to 20 ms.",
		"NTP steps where it should slew", ""},
	{clockSuspends, "counter", nil, "Number of times that this machine was suspended.",
		"a sid changed its holder", "any increase on a server"},
	{clockStalls, "counter", nil, "Number of times that this process did not run for more than a second.",
		"CPU limits, a paused VM", "any increase"},
	{stepPending, "gauge", nil, "1 while IDs keep the time from before a step of the wall clock, else 0.",
		"IDs are off the wall clock", "1 for 1 min"},
	{clockHeld, "gauge", nil, "The wall clock minus the time used for IDs, in seconds.",
		"by how much they are off", "beyond ±0.1 for 1 min"},
	{tickDelay, "gauge", nil, "Time between the last two reads of this machine's clocks, in seconds; far above 0.05 " +
		"the process gets too little CPU.",
		"stalls: 0.05 normally", "above 0.5"},
	{kernelSynchronized, "gauge", nil, "1 if the kernel reports that the wall clock is synchronized, else 0; absent " +
		"if the kernel cannot be asked.",
		"NTP; a hint", "0 for 30 min"},
	{kernelMaxError, "gauge", nil, "The kernel's bound of the wall clock's error, in seconds; absent if the kernel " +
		"cannot be asked.",
		"NTP: it grows while the time server does not answer", "above 0.1"},
	{gossipMembers, "gauge", nil, "Registered nodes that are live members of gossip, this node included.",
		"*unconfirmed*: which nodes gossip reaches at all", "below the number of nodes for 5 min"},
	{gossipExchanges, "counter", nil, "Clock measurements of peers.",
		"the same: each peer brings one each 2 s", "rate at 0 with more than one node"},
	{gossipUnanswered, "counter", nil, "Clock requests to peers without an answer.",
		"the same: UDP is lost, or a peer is starved", "above a tenth of the exchanges"},
	{gossipDropped, "counter", []string{"reason"},
		"Messages and connections between nodes that were dropped, by reason.",
		"the same; `forged`, `replayed`, `stream_…` and `packet_invalid` are not from a node",
		"`forged` or `impostor` above 0"},
	{connections, "gauge", []string{"listener"}, "Open connections, by listener.",
		"clients are many, or do not close theirs", "above 3,000 of 4,096"},
	{connectionsRefused, "counter", []string{"listener"},
		"Connections closed at once because limit.connections or a quarter of them from one address were open, or " +
			"the memory for connections was used, by listener.",
		"clients are cut off at once", "any increase"},
	{connectionsClosed, "counter", []string{"listener", "cause"},
		"Connections closed before their clients closed them, by listener and cause: room for others, while they " +
			"were idle or had no valid call; silent for a minute; stalled calls or answers; or their memory.",
		"the same, later: somebody holds connections, unfinished calls or unread answers",
		"`memory` or `stalled` above 0"},
	{connectionsSlowed, "counter", []string{"listener"},
		"Times that a connection was not read for a while because its source sent more than valid calls, by listener.",
		"a flood, or a client with a wrong token", ""},
	{connectionMemory, "gauge", nil,
		"Bytes that connections, their unfinished calls and unread answers are counted with.",
		"how much of their memory do connections use", "above four fifths of the limit"},
	{connectionMemoryLimit, "gauge", nil, "The maximum of allocator_connection_memory_bytes; 0 is none.",
		"the same", ""},
	{certificateRemaining, "gauge", []string{"certificate"},
		"Time until the certificate in use expires, in seconds; negative after that; absent without a certificate.",
		"handshakes fail", "below a week"},
	{reloadFailing, "gauge", []string{"files"},
		"1 while changed files cannot be used and the previous contents stay in use, else 0; absent without " +
			"such files.",
		"always", "1 for 1 min"},
	{reloads, "counter", []string{"files"}, "Number of times that changed files were loaded.",
		"whether a new file is in use", ""},
	{settings, "gauge", []string{"setting"}, "Settings to compare other series with, in seconds.",
		"writing a rule", ""},
	{nodeInfo, "gauge", []string{"node", "space", "layout"},
		"Always 1, with the node's name, the space that its IDs belong to, and their layout.",
		"which pod is which node", ""},
	{buildInfo, "gauge", []string{"version"}, "Always 1, with the version of the program.",
		"a rollout: which version runs", ""},
}

func (d definition) desc() *prometheus.Desc {
	return prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
}

// Reference returns the page of all families, as Markdown.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# Metrics

Served on the admin port at ` + "`/metrics`" + `. All labels are from closed sets, or (those of the
_info series) constants of the process. Every counter exists from the start, with 0. The Go runtime's series
(` + "`go_…`" + `) and those of the process (` + "`process_…`" + `) are served too.

A name that ends in ` + "`_total`" + ` is a counter, in ` + "`_duration_seconds`" + ` a histogram; all others are
gauges. [Alerts](alerts.md) watch most of these.

| name and labels | meaning | read it when | not normal |
|---|---|---|---|
`)
	for _, d := range definitions {
		name, alert := d.Name, d.Alert
		if len(d.Labels) > 0 {
			name += "{" + strings.Join(d.Labels, ",") + "}"
		}
		if alert == "" {
			alert = "–"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, d.Help, d.When, alert)
	}
	fmt.Fprintf(&b, "\n## Values of labels\n\n")
	for _, l := range []struct {
		name, of string // The label has these values in the families named by of; "" stands for all.
		values   []string
	}{
		{"reason", refusals, texts(node.Reasons)}, {"reason", gossipDropped, cluster.DropReasons()},
		{"kind", "", texts(alarmKinds)}, {"op", "", texts(ops)},
		{"why", "", texts(watermark.Whys)}, {"phase", phase, texts(phases)}, {"phase", clockPhase, texts(clockPhases)},
		{"state", poolSIDs, poolStates}, {"state", workerSIDs, poolStates}, {"state", clockVerdict, texts(clockStates)},
		{"finding", "", texts(clockFindings)}, {"opinion", "", opinions}, {"direction", "", directions},
		{"listener", "", listenerNames}, {"files", "", fileKinds}, {"certificate", "", certificateKinds},
	} {
		of := ""
		if l.of != "" {
			of = " of `" + l.of + "`"
		}
		fmt.Fprintf(&b, "- `%s`%s: `%s`\n", l.name, of, strings.Join(l.values, "`, `"))
	}
	fmt.Fprintf(&b, "- `setting`: `%s`\n", strings.Join(slices.Sorted(maps.Keys(compared(config.Config{}))), "`, `"))
	b.WriteString("- `sid`: the sids of the other nodes with a recent measurement; a node without a sid has no " +
		"series\n")
	return b.String()
}
