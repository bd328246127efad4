package main

import "fmt"

// picked restricts a series to what the reader has picked; space is a label of
// allocator_node_info alone, which every query is joined with.
const picked = `namespace=~"$namespace", job=~"$job", instance=~"$instance"`

// of returns a series of the nodes picked, more being further matchers.
func of(name string, more ...string) string {
	m := picked
	for _, x := range more {
		m += ", " + x
	}
	return fmt.Sprintf("%s{%s}", name, m)
}

// byNode gives an expression for instances the name of the node and its space.
func byNode(expr string) string {
	return fmt.Sprintf(`(%s) * on (namespace, job, instance) group_left (node, space) allocator_node_info{%s, space=~"$space"}`, expr, picked)
}

// rate is per second, over what Grafana thinks fit for the scrapes.
func rate(series string) string { return fmt.Sprintf("rate(%s[$__rate_interval])", series) }

// quantile of a histogram, over all nodes.
func quantile(q float64, name, by string, more ...string) string {
	return fmt.Sprintf("histogram_quantile(%g, sum by (le, %s) (%s))", q, by, rate(of(name+"_bucket", more...)))
}

var zero = 0.0

// bad are colours of figures that should be 0.
var bad = []step{{0, "green"}, {1, "red"}}

var rows = []row{
	{"At a glance", []panel{
		{title: "Nodes that serve", kind: "stat", unit: "short", width: 4, steps: []step{{0, "red"}, {1, "green"}},
			help:    "Nodes that would answer a request for an ID now. Standbys do not count.",
			queries: []query{{`sum(` + byNode(of("allocator_ready")) + `)`, "serving"}}},
		{title: "IDs a second", kind: "stat", unit: "short", width: 4,
			help:    "Issued by all nodes.",
			queries: []query{{`sum(` + byNode(rate(of("allocator_ids_issued_total"))) + `)`, "IDs/s"}}},
		{title: "Refused", kind: "stat", unit: "percentunit", width: 4, steps: []step{{0, "green"}, {0.01, "orange"}, {0.05, "red"}},
			help: "Share of requests that got a refusal which is not the caller's fault.",
			queries: []query{{fmt.Sprintf(`sum(%s) / (sum(%s) > 0) or vector(0)`,
				byNode("sum by (namespace, job, instance) ("+rate(of("allocator_refusals_total", `reason!~"INVALID_.*|UNAUTHENTICATED|PERMISSION_DENIED|RATE_LIMITED"`))+")"),
				byNode("sum by (namespace, job, instance) ("+rate(of("allocator_requests_total", `code!~"CANCELED|NOT_FOUND|INVALID_.*|UNAUTHENTICATED|PERMISSION_DENIED|RATE_LIMITED"`))+")")), "refused"}}},
		{title: "Least window left", kind: "stat", unit: "s", width: 4, steps: []step{{0, "red"}, {18, "orange"}, {24, "green"}},
			help:    "Of the nodes that hold a sid: the time until the first refuses if etcd confirms no more. 25 to 30 s with default settings.",
			queries: []query{{`min(` + byNode(of("allocator_window_remaining_seconds")+" and on (namespace, job, instance) "+of("allocator_sid")+" >= 0") + `)`, "left"}}},
		{title: "Sids", kind: "stat", unit: "short", width: 4,
			help:    "The pool as last listed. Keep a fifth of it free: a crashed node's sid is unusable for up to 45 s.",
			queries: []query{{`max by (state) (` + byNode(of("allocator_pool_sids")) + `)`, "{{state}}"}}},
		{title: "Clocks that are wrong", kind: "stat", unit: "short", width: 4, steps: bad,
			help:    "Nodes whose clocks stand surely further than issue.max-skew from the cluster's time.",
			queries: []query{{`max(` + byNode(of("allocator_clock_falsetickers")) + `)`, "falsetickers"}}},
		{title: "Serving", kind: "state-timeline", unit: "short", width: 12, steps: []step{{0, "red"}, {1, "green"}}, values: map[string]string{"0": "refuses", "1": "serves"},
			help:    "Whether each node would answer a request for an ID.",
			queries: []query{{byNode(of("allocator_ready")), "{{node}}"}}},
		{title: "IDs a second, by node", kind: "timeseries", unit: "short", width: 12, min: &zero,
			help:    "A node can issue 32.8 million a second (layout fleet: 1 million).",
			queries: []query{{byNode(rate(of("allocator_ids_issued_total"))), "{{node}}"}}},
	}},
	{"Refusals", []panel{
		{title: "Refusals a second, by reason", kind: "timeseries", unit: "reqps", width: 12, min: &zero,
			help:    "docs/OPERATIONS.md has a section for each reason.",
			queries: []query{{`sum by (reason) (` + byNode(rate(of("allocator_refusals_total"))) + `) > 0`, "{{reason}}"}}},
		{title: "Requests a second, by surface", kind: "timeseries", unit: "reqps", width: 12, min: &zero,
			help:    "Answered requests, refused ones included.",
			queries: []query{{`sum by (surface) (` + byNode(rate(of("allocator_requests_total"))) + `) > 0`, "{{surface}}"}}},
		{title: "Alarms, within an hour", kind: "timeseries", unit: "short", width: 12, min: &zero,
			help:    "Conditions that an operator should look at; the log has the message.",
			queries: []query{{`sum by (kind) (` + byNode("increase("+of("allocator_alarms_total")+"[1h])") + `) > 0`, "{{kind}}"}}},
		{title: "Lead over the clock", kind: "timeseries", unit: "s", width: 12, min: &zero,
			help:    "How far IDs run ahead of the clock. Demand keeps it up; at issue.max-lead it is refused with ENTROPY_OVERFLOW.",
			queries: []query{{byNode(of("allocator_lead_seconds")), "{{node}}"}, {`max(` + byNode(of("allocator_setting_seconds", `setting="issue.max-lead"`)) + `)`, "limit"}}},
	}},
	{"Latency", []panel{
		{title: "Requests for IDs", kind: "timeseries", unit: "s", width: 12, min: &zero,
			help: "From reading a request to having its answer, waits for the clock included; the network is not in it.",
			queries: []query{
				{quantile(0.5, "allocator_request_duration_seconds", "surface", `surface=~"grpc_allocate|grpc_stream|http_ids|resp_.*"`), "{{surface}} p50"},
				{quantile(0.99, "allocator_request_duration_seconds", "surface", `surface=~"grpc_allocate|grpc_stream|http_ids|resp_.*"`), "{{surface}} p99"},
			}},
		{title: "Calls to etcd", kind: "timeseries", unit: "s", width: 12, min: &zero,
			help:    "No request waits for these. 99th percentile, failed calls included.",
			queries: []query{{quantile(0.99, "allocator_etcd_call_duration_seconds", "op"), "{{op}} p99"}}},
	}},
	{"Windows and leases", []panel{
		{title: "Window left", kind: "timeseries", unit: "s", width: 12, min: &zero,
			help:    "It falls by a second a second and is raised each lease.extend-every. A line that only falls: etcd does not confirm.",
			queries: []query{{byNode(of("allocator_window_remaining_seconds")), "{{node}}"}}},
		{title: "Lease left", kind: "timeseries", unit: "s", width: 12, min: &zero,
			help:    "Without renewal the sid is taken for free at 0. Uniqueness does not depend on it.",
			queries: []query{{byNode(of("allocator_lease_ttl_remaining_seconds")), "{{node}}"}}},
		{title: "Sid held", kind: "state-timeline", unit: "short", width: 12, values: map[string]string{"-1": "none"},
			help:    "Each node's sid. Two nodes with one at once: see AllocatorDuplicateHolder.",
			queries: []query{{byNode(of("allocator_sid")), "{{node}}"}}},
		{title: "Phase of the lease", kind: "timeseries", unit: "short", width: 12, min: &zero,
			help:    "Nodes by what they are about: holding is serving, standby waits for a sid.",
			queries: []query{{`sum by (phase) (` + byNode(of("allocator_lease_phase")) + `) > 0`, "{{phase}}"}}},
		{title: "Calls to etcd without a clear answer", kind: "timeseries", unit: "reqps", width: 12, min: &zero,
			help:    "Each is read back before anything else is done.",
			queries: []query{{`sum by (op) (` + byNode(rate(of("allocator_etcd_call_errors_total"))) + `) > 0`, "{{op}}"}}},
		{title: "Terms and eras", kind: "timeseries", unit: "short", width: 12,
			help:    "A term grows when a sid changes hands; an era when an operator recovers the space.",
			queries: []query{{byNode("changes(" + of("allocator_term") + "[1h])"), "{{node}} term changes in 1 h"}, {`max(` + byNode(of("allocator_era")) + `)`, "era"}}},
	}},
	{"Clocks", []panel{
		{title: "Offset from the cluster's time", kind: "timeseries", unit: "s", width: 12,
			help:    "The middle of what a majority agrees on, minus this node's clock. At ±issue.max-skew the node refuses.",
			queries: []query{{byNode(of("allocator_clock_cluster_offset_seconds")), "{{node}}"}}},
		{title: "How well that is known", kind: "timeseries", unit: "s", width: 12, min: &zero,
			help:    "Half of the interval; it grows where the network is slow or peers are silent.",
			queries: []query{{byNode(of("allocator_clock_cluster_uncertainty_seconds")), "{{node}}"}}},
		{title: "Peers, as each node sees them", kind: "timeseries", unit: "s", width: 12,
			help: "Clock of the holder of a sid minus that of the node that looked, with the bounds of what it can be.",
			queries: []query{
				{byNode(of("allocator_clock_offset_seconds")), "{{node}} sees sid {{sid}}"},
				{byNode(of("allocator_clock_offset_seconds") + " + on (namespace, job, instance, sid) " + of("allocator_clock_uncertainty_seconds")), "{{node}} sees sid {{sid}}, at most"},
				{byNode(of("allocator_clock_offset_seconds") + " - on (namespace, job, instance, sid) " + of("allocator_clock_uncertainty_seconds")), "{{node}} sees sid {{sid}}, at least"},
			}},
		{title: "Verdict", kind: "state-timeline", unit: "short", width: 12, steps: []step{{0, "green"}, {1, "red"}}, values: map[string]string{"0": "fine", "1": "refuses"},
			help:    "Whether clocks keep a node from serving: skewed, or unverified under the strict policy.",
			queries: []query{{byNode("max by (namespace, job, instance) (" + of("allocator_clock_verdict", `state!="open"`) + ")"), "{{node}}"}}},
		{title: "Opinions of the registered nodes", kind: "timeseries", unit: "short", width: 12, min: &zero,
			help:    "What clocks say of each node's; silent ones are not heard.",
			queries: []query{{`min by (opinion) (` + byNode(of("allocator_clock_nodes")) + `)`, "{{opinion}}, least"}, {`max by (opinion) (` + byNode(of("allocator_clock_nodes")) + `)`, "{{opinion}}, most"}}},
		{title: "Steps, sleeps and stalls, within an hour", kind: "timeseries", unit: "short", width: 12, min: &zero,
			help: "Of the wall clock, the machine and the process.",
			queries: []query{
				{byNode("sum by (namespace, job, instance) (increase("+of("allocator_clock_steps_total")+"[1h]))") + " > 0", "{{node}} steps"},
				{byNode("increase("+of("allocator_clock_suspends_total")+"[1h])") + " > 0", "{{node}} sleeps"},
				{byNode("increase("+of("allocator_clock_stalls_total")+"[1h])") + " > 0", "{{node}} stalls"},
				{byNode("increase("+of("allocator_clock_discontinuities_total")+"[1h])") + " > 0", "{{node}} discontinuities"},
			}},
		{title: "IDs issued on an unconfirmed clock", kind: "timeseries", unit: "short", width: 12, min: &zero,
			help:    "A second. Unique as ever, and only as near to real time as one machine's clock.",
			queries: []query{{byNode(rate(of("allocator_ids_unverified_total"))), "{{node}}"}}},
		{title: "Kernel's bound for the clock's error", kind: "timeseries", unit: "s", width: 12, min: &zero,
			help:    "A hint from NTP; it grows while the time server does not answer.",
			queries: []query{{byNode(of("allocator_clock_kernel_max_error_seconds")), "{{node}}"}}},
	}},
	{"Gossip and process", []panel{
		{title: "Gossip", kind: "timeseries", unit: "short", width: 8, min: &zero,
			help: "Members alive, and messages a second by what became of them.",
			queries: []query{
				{`min(` + byNode(of("allocator_gossip_members")) + `)`, "members, least"},
				{`sum(` + byNode(rate(of("allocator_gossip_exchanges_total"))) + `)`, "answered"},
				{`sum(` + byNode(rate(of("allocator_gossip_unanswered_total"))) + `)`, "unanswered"},
				{`sum by (reason) (` + byNode(rate(of("allocator_gossip_dropped_total"))) + `) > 0`, "dropped: {{reason}}"},
			}},
		{title: "Connections", kind: "timeseries", unit: "short", width: 8, min: &zero,
			help:    "Open connections, by port; at limit.connections further ones are closed.",
			queries: []query{{`sum by (door) (` + byNode(of("allocator_connections")) + `)`, "{{door}}"}}},
		{title: "Certificates and files", kind: "timeseries", unit: "s", width: 8,
			help:    "Time until the certificate in use expires.",
			queries: []query{{`min by (certificate) (` + byNode(of("allocator_tls_certificate_remaining_seconds")) + `)`, "{{certificate}}"}}},
		{title: "CPU", kind: "timeseries", unit: "short", width: 8, min: &zero,
			help:    "Cores that each process keeps busy.",
			queries: []query{{byNode(rate(of("process_cpu_seconds_total"))), "{{node}}"}}},
		{title: "Memory", kind: "timeseries", unit: "bytes", width: 8, min: &zero,
			help:    "Resident; an idle node has about 30 MiB.",
			queries: []query{{byNode(of("process_resident_memory_bytes")), "{{node}}"}}},
		{title: "Delays of the process's own loops", kind: "timeseries", unit: "s", width: 8, min: &zero,
			help: "0.05 and below 1 when all is well; more, and the process is starved of CPU.",
			queries: []query{
				{byNode(of("allocator_clock_tick_delay_seconds")), "{{node}} clock"},
				{byNode(of("allocator_keeper_tick_age_seconds")), "{{node}} keeper"},
			}},
		{title: "Versions", kind: "timeseries", unit: "short", width: 8, min: &zero,
			help:    "Nodes by the version that they run.",
			queries: []query{{`count by (version) (` + of("allocator_build_info") + `)`, "{{version}}"}}},
	}},
}
