package metrics

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
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
	poolSids        = "allocator_pool_sids"
	historyRewound  = "allocator_history_rewound"
	alarms          = "allocator_alarms_total"
	etcdLatency     = "allocator_etcd_call_duration_seconds"
	etcdErrors      = "allocator_etcd_call_errors_total"
	tickAge         = "allocator_keeper_tick_age_seconds"
	epochRemaining  = "allocator_epoch_remaining_seconds"
	buildInfo       = "allocator_build_info"
)

var definitions = []Definition{
	{idsIssued, "counter", nil, "IDs issued by this node."},
	{requests, "counter", []string{"surface", "code"}, "Requests answered, by surface and by OK, CANCELED, NOT_FOUND or the reason of the refusal."},
	{refusals, "counter", []string{"reason"}, "Requests refused, by reason; a refusal issued nothing and changed nothing."},
	{issueLatency, "histogram", []string{"surface"}, "Time from reading a request to having its answer, waits for the clock included, in seconds."},
	{ready, "gauge", nil, "1 if a request for an ID would be served now, else 0."},
	{lead, "gauge", nil, "How far the latest ID runs ahead of the node's clock, in seconds; 0 if it does not."},
	{windowRemaining, "gauge", nil, "Time until the reserved window is used up if etcd confirms no more, in seconds; 0 without a window."},
	{leaseRemaining, "gauge", nil, "Time until the lease in etcd runs out if it is never renewed, in seconds; 0 without a lease."},
	{sid, "gauge", nil, "The sid held, or -1."},
	{term, "gauge", nil, "Term of the sid held; it grows with every acquisition of a sid by anyone; 0 without a sid."},
	{era, "gauge", nil, "Era of the space as last read; 0 before the first read."},
	{phase, "gauge", []string{"phase"}, "1 for the phase that the lease is in, 0 for the others."},
	{poolSids, "gauge", []string{"state"}, "Sids of the space by state, as last listed: held, free or quarantined; absent before the first list."},
	{historyRewound, "gauge", nil, "1 while etcd's history is not believed and nothing is issued, else 0."},
	{alarms, "counter", []string{"kind"}, "Conditions that an operator should look at, by kind."},
	{etcdLatency, "histogram", []string{"op"}, "Time of calls to etcd, failed ones included, in seconds."},
	{etcdErrors, "counter", []string{"op"}, "Calls to etcd without a clear answer."},
	{tickAge, "gauge", nil, "Time since the keeper's loop last went round, in seconds; over 1 means that the process is starved or stuck."},
	{epochRemaining, "gauge", nil, "Time until the 43 bits of an ID's timestamp are used up, in seconds."},
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

Served on the admin port at ` + "`/metrics`" + `. All labels are from closed sets, and counters are there with 0 from the start.
Series of the Go runtime (` + "`go_…`" + `) and the process (` + "`process_…`" + `) come with them.

| name | type | labels | what it is |
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
		name   string
		values []string
	}{
		{"reason", texts(reasons())}, {"kind", texts(alarmKinds)}, {"op", texts(ops)},
		{"phase", texts(phases)}, {"state", poolStates},
	} {
		fmt.Fprintf(&b, "- `%s`: `%s`\n", l.name, strings.Join(l.values, "`, `"))
	}
	return b.String()
}
