package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// definition describes one family of series.
type definition struct {
	Name   string
	Help   string // one sentence, with the unit
	Labels []string
	desc   *prometheus.Desc
}

// definitions has all families, in the order of the reference.
var definitions []*definition

// series defines a family.
func series(name, help string, labels ...string) *definition {
	d := &definition{name, help, labels, prometheus.NewDesc(name, help, labels, nil)}
	definitions = append(definitions, d)
	return d
}

// sink gets the series of a scrape.
type sink chan<- prometheus.Metric

// send sends the value of a series. The name of its family says whether it is a counter.
func (s sink) send(of *definition, v float64, labels ...string) {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(of.Name, "_total") {
		kind = prometheus.CounterValue
	}
	s <- prometheus.MustNewConstMetric(of.desc, kind, v, labels...)
}

// flag sends 1 or 0.
func (s sink) flag(of *definition, on bool, labels ...string) {
	v := 0.0
	if on {
		v = 1
	}
	s.send(of, v, labels...)
}

// The families.
var (
	idsIssued = series("allocator_ids_issued_total", "IDs issued by this node.")
	requests  = series("allocator_requests_total", "Requests answered, by surface and by OK, CANCELED, NOT_FOUND or "+
		"the reason of the refusal.", "surface", "code")
	refusals = series("allocator_refusals_total", "Requests refused, by reason; a refused request issued nothing and "+
		"changed nothing.", "reason")
	issueLatency = series("allocator_request_duration_seconds", "Time from reading a request to having its answer, "+
		"including waits for the clock, in seconds; pipelined requests that share a block count once.", "surface")
	ready = series("allocator_ready", "1 if a request for an ID would be served now, else 0.")
	lead  = series("allocator_lead_seconds", "How far the last ID is ahead of the node's clock, in seconds; 0 if it "+
		"is not ahead.")
	windowRemaining = series("allocator_window_remaining_seconds", "Time until the reserved window ends if etcd "+
		"confirms no other, in seconds; 0 without a window.")
	leaseRemaining = series("allocator_lease_ttl_remaining_seconds", "Time until the lease in etcd expires if it is "+
		"not renewed, in seconds; 0 without a lease.")
	sid  = series("allocator_sid", "The sid held, or -1.")
	term = series("allocator_term", "Term of the sid held; it grows with every acquisition of that sid by any node; "+
		"0 without a sid.")
	era         = series("allocator_era", "Era of the space as last read; 0 before the first read.")
	watermarkAt = series("allocator_watermark_timestamp_seconds", "The watermark as last read, in Unix seconds; 0 "+
		"before the first one.")
	phase    = series("allocator_lease_phase", "1 for the current phase of the lease, 0 for the others.", "phase")
	poolSIDs = series("allocator_pool_sids", "Sids that the node may take (sid-range) by state, as last listed: "+
		"held, free, quarantined or reserved; absent before the first list.", "state")
	workerSIDs = series("allocator_worker_sids", "Sids for workers (worker.sid-range) by state, as last listed: "+
		"held, free, quarantined or reserved; absent before the first list.", "state")
	watermarkLag = series("allocator_watermark_lag_seconds", "How far the watermark is behind the clock, in seconds; "+
		"absent while the node has read none.")
	watermarkHeld = series("allocator_watermark_held", "1 if the watermark lags by more than 2 × "+
		"`watermark.interval` and what a holder that vanished delays it by, else 0; absent while the node has read "+
		"none.")
	watermarkBlocked = series("allocator_watermark_blocked", "1 while the watermark waits for this cause, else "+
		"0.", "why")
	watermarkReaders = series("allocator_watermark_readers", "Callers that wait for the watermark to pass an ID.")
	historyRewound   = series("allocator_history_rewound", "1 while the node issues nothing because etcd's history "+
		"went back, else 0.")
	alarms      = series("allocator_alarms_total", "Conditions that need an operator, by kind.", "kind")
	etcdLatency = series("allocator_etcd_call_duration_seconds", "Duration of calls to etcd, including failed calls, "+
		"in seconds.", "op")
	etcdErrors = series("allocator_etcd_call_errors_total", "Calls to etcd that failed or whose outcome is "+
		"unknown.", "op")
	etcdMemberUp = series("allocator_etcd_member_up", "1 while the member of etcd that this node runs answers, else "+
		"0; absent without etcd.inside, as are the next seven.")
	etcdMembers = series("allocator_etcd_members", "Members of the etcd inside that vote, and how many of them "+
		"answer this node.", "state")
	etcdDatabase    = series("allocator_etcd_database_bytes", "Size of the member's database on disk, in bytes.")
	etcdQuota       = series("allocator_etcd_quota_bytes", "Size at which etcd refuses writes, in bytes.")
	etcdFree        = series("allocator_etcd_disk_free_bytes", "Free space on the disk of the member, in bytes.")
	etcdSnapshotAge = series("allocator_etcd_snapshot_age_seconds", "Time since the member's latest snapshot, in "+
		"seconds; absent before the first.")
	etcdCopyAge = series("allocator_etcd_copy_age_seconds", "Age of the latest snapshot of the member that was found "+
		"whole and copied elsewhere by `etcd.snapshot-command`, in seconds; absent before the first.")
	etcdSnapshotFailing = series("allocator_etcd_snapshot_failing", "1 while the member's snapshots cannot be "+
		"written, are damaged, or cannot be copied elsewhere, else 0.")
	tickAge = series("allocator_keeper_tick_age_seconds", "Time since the last iteration of the lease keeper's loop, "+
		"in seconds; above 1 the process gets too little CPU or is blocked.")
	epochRemaining = series("allocator_epoch_remaining_seconds", "Time until the timestamp bits of the layout are "+
		"used up, in seconds.")
	idsUnverified = series("allocator_ids_unverified_total", "IDs issued while no majority confirmed this node's "+
		"clock.")
	clockVerdict = series("allocator_clock_verdict", "1 for the current verdict on this node's clock, 0 for the "+
		"others.", "state")
	clockPhase = series("allocator_clock_phase", "1 for the current phase of the clock gate, 0 for the "+
		"others.", "phase")
	clockFinding = series("allocator_clock_finding", "1 for the result of the last comparison of clocks, 0 for the "+
		"others.", "finding")
	clockNodes = series("allocator_clock_nodes", "Registered nodes with gossip, by the result of comparing their "+
		"clock with this node's; this node counts as agree.", "opinion")
	clockQuorum       = series("allocator_clock_quorum", "Number of registered nodes with gossip that is a majority.")
	clockFalsetickers = series("allocator_clock_falsetickers", "Other nodes whose clocks are certainly further than "+
		"issue.max-skew from the cluster's time.")
	clusterOffset = series("allocator_clock_cluster_offset_seconds", "The cluster's time minus this node's, in "+
		"seconds; absent while no quorum agrees on it.")
	clusterUncertainty = series("allocator_clock_cluster_uncertainty_seconds", "Uncertainty of the cluster's time: "+
		"half of the interval that contains it, in seconds; absent while no quorum agrees on it.")
	peerOffset = series("allocator_clock_offset_seconds", "The clock of the holder of a sid minus this node's, in "+
		"seconds; absent without a recent measurement.", "sid")
	peerUncertainty = series("allocator_clock_uncertainty_seconds", "Uncertainty of that offset: half of the "+
		"interval that contains it, in seconds; absent without a recent measurement.", "sid")
	clockShuts = series("allocator_clock_shuts_total", "Number of times that this node began to refuse because "+
		"clocks disagree.")
	clockUnverified = series("allocator_clock_unverified_seconds_total", "Time in which this node issued without "+
		"confirmation of its clock by a majority, in seconds.")
	clockJumps = series("allocator_clock_discontinuities_total", "Measurements of peers that contradict earlier "+
		"ones: one of the two machines was paused, migrated or resumed.")
	clockSteps = series("allocator_clock_steps_total", "Steps of this machine's wall clock by more than 20 "+
		"ms.", "direction")
	clockNudges = series("allocator_clock_nudges_total", "Steps of this machine's wall clock by 2 to 20 "+
		"ms.", "direction")
	clockSuspends = series("allocator_clock_suspends_total", "Number of times that this machine was suspended.")
	clockStalls   = series("allocator_clock_stalls_total", "Number of times that this process did not run for more "+
		"than a second.")
	stepPending = series("allocator_clock_step_pending", "1 while IDs keep the time from before a step of the wall "+
		"clock, else 0.")
	clockHeld = series("allocator_clock_held_seconds", "The wall clock minus the time used for IDs, in seconds.")
	tickDelay = series("allocator_clock_tick_delay_seconds", "Time between the last two reads of this machine's "+
		"clocks, in seconds; far above 0.05 the process gets too little CPU.")
	kernelSynchronized = series("allocator_clock_kernel_synchronized", "1 if the kernel reports that the wall clock "+
		"is synchronized, else 0; absent if the kernel cannot be asked.")
	kernelMaxError = series("allocator_clock_kernel_max_error_seconds", "The kernel's bound of the wall clock's "+
		"error, in seconds; absent if the kernel cannot be asked.")
	gossipMembers = series("allocator_gossip_members", "Registered nodes that are live members of gossip, this node "+
		"included.")
	gossipExchanges  = series("allocator_gossip_exchanges_total", "Clock measurements of peers.")
	gossipUnanswered = series("allocator_gossip_unanswered_total", "Clock requests to peers without an answer.")
	gossipDropped    = series("allocator_gossip_dropped_total", "Messages and connections between nodes that were "+
		"dropped, by reason.", "reason")
	connections        = series("allocator_connections", "Open connections, by listener.", "listener")
	connectionsRefused = series("allocator_connections_refused_total", "Connections closed at once because "+
		"limit.connections or a quarter of them from one address were open, or the memory for connections was used, "+
		"by listener.", "listener")
	connectionsClosed = series("allocator_connections_closed_total", "Connections closed before their clients closed "+
		"them, by listener and cause: room for others, while they were idle or had no valid call; silent for a "+
		"minute; stalled calls or answers; or their memory.", "listener", "cause")
	connectionsSlowed = series("allocator_connections_slowed_total", "Times that a connection was not read for a "+
		"while because its source sent more than valid calls, by listener.", "listener")
	connectionMemory = series("allocator_connection_memory_bytes", "Bytes that connections, their unfinished calls "+
		"and unread answers are counted with.")
	connectionMemoryLimit = series("allocator_connection_memory_limit_bytes", "The maximum of "+
		"allocator_connection_memory_bytes; 0 is none.")
	certificateRemaining = series("allocator_tls_certificate_remaining_seconds", "Time until the certificate in use "+
		"expires, in seconds; negative after that; absent without a certificate.", "certificate")
	reloadFailing = series("allocator_reload_failing", "1 while changed files cannot be used and the previous "+
		"contents stay in use, else 0; absent without such files.", "files")
	reloads  = series("allocator_reloads_total", "Number of times that changed files were loaded.", "files")
	settings = series("allocator_setting_seconds", "Settings to compare other series with, in seconds.", "setting")
	nodeInfo = series("allocator_node_info", "Always 1, with the node's name, the space that its IDs belong to, and "+
		"their layout.", "node", "space", "layout")
	buildInfo = series("allocator_build_info", "Always 1, with the version of the program.", "version")
)
