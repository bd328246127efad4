package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// definition describes one family of series.
type definition struct {
	Name   string
	Labels []string
	Help   string // one sentence, with the unit
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
	{idsIssued, nil, "IDs issued by this node."},
	{requests, []string{"surface", "code"}, "Requests answered, by surface and by OK, CANCELED, NOT_FOUND or the " +
		"reason of the refusal."},
	{refusals, []string{"reason"}, "Requests refused, by reason; a refused request issued nothing and changed " +
		"nothing."},
	{issueLatency, []string{"surface"}, "Time from reading a request to having its answer, including waits for the " +
		"clock, in seconds; pipelined requests that share a block count once."},
	{ready, nil, "1 if a request for an ID would be served now, else 0."},
	{lead, nil, "How far the last ID is ahead of the node's clock, in seconds; 0 if it is not ahead."},
	{windowRemaining, nil, "Time until the reserved window ends if etcd confirms no other, in seconds; 0 without a " +
		"window."},
	{leaseRemaining, nil, "Time until the lease in etcd expires if it is not renewed, in seconds; 0 without a lease."},
	{sid, nil, "The sid held, or -1."},
	{term, nil, "Term of the sid held; it grows with every acquisition of that sid by any node; 0 without a sid."},
	{era, nil, "Era of the space as last read; 0 before the first read."},
	{watermarkAt, nil, "The watermark as last read, in Unix seconds; 0 before the first one."},
	{phase, []string{"phase"}, "1 for the current phase of the lease, 0 for the others."},
	{poolSIDs, []string{"state"}, "Sids that the node may take (sid-range) by state, as last listed: held, free, " +
		"quarantined or reserved; absent before the first list."},
	{workerSIDs, []string{"state"}, "Sids for workers (worker.sid-range) by state, as last listed: held, free, " +
		"quarantined or reserved; absent before the first list."},
	{watermarkLag, nil, "How far the watermark is behind the clock, in seconds; absent while the node has read none."},
	{watermarkHeld, nil, "1 if the watermark lags by more than 2 × `watermark.interval` and what a holder that " +
		"vanished delays it by, else 0; absent while the node has read none."},
	{watermarkBlocked, []string{"why"}, "1 while the watermark waits for this cause, else 0."},
	{watermarkReaders, nil, "Callers that wait for the watermark to pass an ID."},
	{historyRewound, nil, "1 while the node issues nothing because etcd's history went back, else 0."},
	{alarms, []string{"kind"}, "Conditions that need an operator, by kind."},
	{etcdLatency, []string{"op"}, "Duration of calls to etcd, including failed calls, in seconds."},
	{etcdErrors, []string{"op"}, "Calls to etcd that failed or whose outcome is unknown."},
	{etcdMemberUp, nil, "1 while the member of etcd that this node runs answers, else 0; absent without etcd.inside, " +
		"as are the next seven."},
	{etcdMembers, []string{"state"}, "Members of the etcd inside that vote, and how many of them answer this node."},
	{etcdDatabase, nil, "Size of the member's database on disk, in bytes."},
	{etcdQuota, nil, "Size at which etcd refuses writes, in bytes."},
	{etcdFree, nil, "Free space on the disk of the member, in bytes."},
	{etcdSnapshotAge, nil, "Time since the member's latest snapshot, in seconds; absent before the first."},
	{etcdCopyAge, nil, "Age of the latest snapshot of the member that was found whole and copied elsewhere by " +
		"`etcd.snapshot-command`, in seconds; absent before the first."},
	{etcdSnapshotFailing, nil, "1 while the member's snapshots cannot be written, are damaged, or cannot be copied " +
		"elsewhere, else 0."},
	{tickAge, nil, "Time since the last iteration of the lease keeper's loop, in seconds; above 1 the process gets " +
		"too little CPU or is blocked."},
	{epochRemaining, nil, "Time until the timestamp bits of the layout are used up, in seconds."},
	{idsUnverified, nil, "IDs issued while no majority confirmed this node's clock."},
	{clockVerdict, []string{"state"}, "1 for the current verdict on this node's clock, 0 for the others."},
	{clockPhase, []string{"phase"}, "1 for the current phase of the clock gate, 0 for the others."},
	{clockFinding, []string{"finding"}, "1 for the result of the last comparison of clocks, 0 for the others."},
	{clockNodes, []string{"opinion"}, "Registered nodes with gossip, by the result of comparing their clock with " +
		"this node's; this node counts as agree."},
	{clockQuorum, nil, "Number of registered nodes with gossip that is a majority."},
	{clockFalsetickers, nil, "Other nodes whose clocks are certainly further than issue.max-skew from the cluster's " +
		"time."},
	{clusterOffset, nil, "The cluster's time minus this node's, in seconds; absent while no quorum agrees on it."},
	{clusterUncertainty, nil, "Uncertainty of the cluster's time: half of the interval that contains it, in seconds; " +
		"absent while no quorum agrees on it."},
	{peerOffset, []string{"sid"}, "The clock of the holder of a sid minus this node's, in seconds; absent without a " +
		"recent measurement."},
	{peerUncertainty, []string{"sid"}, "Uncertainty of that offset: half of the interval that contains it, in " +
		"seconds; absent without a recent measurement."},
	{clockShuts, nil, "Number of times that this node began to refuse because clocks disagree."},
	{clockUnverified, nil, "Time in which this node issued without confirmation of its clock by a majority, in " +
		"seconds."},
	{clockJumps, nil, "Measurements of peers that contradict earlier ones: one of the two machines was paused, " +
		"migrated or resumed."},
	{clockSteps, []string{"direction"}, "Steps of this machine's wall clock by more than 20 ms."},
	{clockNudges, []string{"direction"}, "Steps of this machine's wall clock by 2 to 20 ms."},
	{clockSuspends, nil, "Number of times that this machine was suspended."},
	{clockStalls, nil, "Number of times that this process did not run for more than a second."},
	{stepPending, nil, "1 while IDs keep the time from before a step of the wall clock, else 0."},
	{clockHeld, nil, "The wall clock minus the time used for IDs, in seconds."},
	{tickDelay, nil, "Time between the last two reads of this machine's clocks, in seconds; far above 0.05 the " +
		"process gets too little CPU."},
	{kernelSynchronized, nil, "1 if the kernel reports that the wall clock is synchronized, else 0; absent if the " +
		"kernel cannot be asked."},
	{kernelMaxError, nil, "The kernel's bound of the wall clock's error, in seconds; absent if the kernel cannot be " +
		"asked."},
	{gossipMembers, nil, "Registered nodes that are live members of gossip, this node included."},
	{gossipExchanges, nil, "Clock measurements of peers."},
	{gossipUnanswered, nil, "Clock requests to peers without an answer."},
	{gossipDropped, []string{"reason"}, "Messages and connections between nodes that were dropped, by reason."},
	{connections, []string{"listener"}, "Open connections, by listener."},
	{connectionsRefused, []string{"listener"}, "Connections closed at once because limit.connections or a quarter of " +
		"them from one address were open, or the memory for connections was used, by listener."},
	{connectionsClosed, []string{"listener", "cause"}, "Connections closed before their clients closed them, by " +
		"listener and cause: room for others, while they were idle or had no valid call; silent for a minute; " +
		"stalled calls or answers; or their memory."},
	{connectionsSlowed, []string{"listener"}, "Times that a connection was not read for a while because its source " +
		"sent more than valid calls, by listener."},
	{connectionMemory, nil, "Bytes that connections, their unfinished calls and unread answers are counted with."},
	{connectionMemoryLimit, nil, "The maximum of allocator_connection_memory_bytes; 0 is none."},
	{certificateRemaining, []string{"certificate"}, "Time until the certificate in use expires, in seconds; negative " +
		"after that; absent without a certificate."},
	{reloadFailing, []string{"files"}, "1 while changed files cannot be used and the previous contents stay in use, " +
		"else 0; absent without such files."},
	{reloads, []string{"files"}, "Number of times that changed files were loaded."},
	{settings, []string{"setting"}, "Settings to compare other series with, in seconds."},
	{nodeInfo, []string{"node", "space", "layout"}, "Always 1, with the node's name, the space that its IDs belong " +
		"to, and their layout."},
	{buildInfo, []string{"version"}, "Always 1, with the version of the program."},
}

func (d definition) desc() *prometheus.Desc {
	return prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
}
