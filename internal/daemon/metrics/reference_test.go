package metrics

import (
	flags "flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/watermark"
)

var page = flags.String("page", "", "write the reference of all series, as Markdown, into this file; make docs does")

// readers has what the reference says of each family to people who read it.
var readers = map[*definition]struct {
	when  string // what question the family answers
	alert string // values that are not normal; "" if any may be
}{
	idsIssued:             {"you want to know the load", ""},
	requests:              {"errors by listener; `CANCELED` are callers that left", "rate of anything but `OK` above a few per cent"},
	refusals:              {"something is refused: by reason", "`WINDOW_EXHAUSTED`, `HISTORY_REWOUND` above 0; others by rate"},
	issueLatency:          {"callers are slow: waits of up to 100 ms are in it", "p99 above 50 ms"},
	ready:                 {"always", "0 for 2 min on a node that is no standby; sum over nodes below what you need"},
	lead:                  {"`ENTROPY_OVERFLOW`: demand keeps it near 0.25", "above 0.2 for 1 min"},
	windowRemaining:       {"the first sign of a slow etcd: 25 to 30 normally", "**below 20 for 10 s: etcd does not confirm**"},
	leaseRemaining:        {"holders vanish though they are alive", "below 6"},
	sid:                   {"which node made this ID; -1 is a standby", ""},
	term:                  {"it jumps: the holder of the sid keeps changing", "more than 5 in an hour"},
	era:                   {"it differs between nodes for more than a minute", ""},
	watermarkAt:           {"readers wait: how far nodes let them read", ""},
	phase:                 {"a node is not ready: which phase keeps it", "`rewound`"},
	poolSIDs:              {"`NO_SID`", "`free` at 0; `quarantined` above 0"},
	workerSIDs:            {"`NO_WORKER`", "`free` at 0; `quarantined` above 0"},
	watermarkLag:          {"readers wait for IDs to be complete", "`allocator_watermark_held`"},
	watermarkHeld:         {"readers wait for long", "1 on all nodes for 15 s"},
	watermarkBlocked:      {"`allocator_watermark_lag_seconds` grows", ""},
	watermarkReaders:      {"memory grows", ""},
	historyRewound:        {"always", "1"},
	alarms:                {"always", "any increase"},
	etcdLatency:           {"window remaining falls; `extend` and `load` are the usual ones", "p99 of `extend` above 0.5 s"},
	etcdErrors:            {"the same: calls whose outcome is unknown", "rate above 0 for 1 min"},
	etcdMemberUp:          {"always", "0 for 5 min"},
	etcdMembers:           {"may another machine fail?", "fewer answering than voting, for 5 min"},
	etcdDatabase:          {"does it grow?", ""},
	etcdQuota:             {"the same", "80 % of it used"},
	etcdFree:              {"a member whose disk is full ends", "below 384 MiB"},
	etcdSnapshotAge:       {"what would a restore bring back?", "above three hours"},
	etcdCopyAge:           {"the same, if all disks are lost", "above three hours"},
	etcdSnapshotFailing:   {"the log of the node has the reason", "1 for 15 min"},
	tickAge:               {"a node lost its sid for no reason: the process is starved", "above 2"},
	epochRemaining:        {"planning another layout or epoch", "below a year"},
	idsUnverified:         {"clocks are unconfirmed", "rate above 0 for 10 min"},
	clockVerdict:          {"`CLOCK_SKEW` or `CLOCK_UNVERIFIED`: whether clocks keep a node from serving", "`open` at 0 for 1 min"},
	clockPhase:            {"the same, finer: see [phases](clocks.md)", "`unproven` or `grace` for 10 min"},
	clockFinding:          {"a refusal has just begun or ended: the latest finding", ""},
	clockNodes:            {"*unconfirmed*: `silent` nodes are missing for a majority", "`silent` above 0 for 10 min"},
	clockQuorum:           {"how many have to agree, to compare with `agree` above", ""},
	clockFalsetickers:     {"always: some other node's clock is wrong", "above 0 for 1 min"},
	clusterOffset:         {"NTP on this machine", "beyond ±0.05: the node warns there, and refuses at 0.25"},
	clusterUncertainty:    {"offsets seem too large", "above 0.1"},
	peerOffset:            {"which of the others differs, by its sid", ""},
	peerUncertainty:       {"slow networks show here", ""},
	clockShuts:            {"it flaps", "any increase"},
	clockUnverified:       {"how long I5 did not hold", ""},
	clockJumps:            {"machines are overcommitted", "more than 5 in an hour"},
	clockSteps:            {"something sets the clock by steps", "more than 2 in an hour"},
	clockNudges:           {"NTP steps where it should slew", ""},
	clockSuspends:         {"a sid changed its holder", "any increase on a server"},
	clockStalls:           {"CPU limits, a paused VM", "any increase"},
	stepPending:           {"IDs are off the wall clock", "1 for 1 min"},
	clockHeld:             {"by how much they are off", "beyond ±0.1 for 1 min"},
	tickDelay:             {"stalls: 0.05 normally", "above 0.5"},
	kernelSynchronized:    {"NTP; a hint", "0 for 30 min"},
	kernelMaxError:        {"NTP: it grows while the time server does not answer", "above 0.1"},
	gossipMembers:         {"*unconfirmed*: which nodes gossip reaches at all", "below the number of nodes for 5 min"},
	gossipExchanges:       {"the same: each peer brings one each 2 s", "rate at 0 with more than one node"},
	gossipUnanswered:      {"the same: UDP is lost, or a peer is starved", "above a tenth of the exchanges"},
	gossipDropped:         {"the same; `forged`, `replayed`, `stream_…` and `packet_invalid` are not from a node", "`forged` or `impostor` above 0"},
	connections:           {"clients are many, or do not close theirs", "above 3,000 of 4,096"},
	connectionsRefused:    {"clients are cut off at once", "any increase"},
	connectionsClosed:     {"the same, later: somebody holds connections, unfinished calls or unread answers", "`memory` or `stalled` above 0"},
	connectionsSlowed:     {"a flood, or a client with a wrong token", ""},
	connectionMemory:      {"how much of their memory do connections use", "above four fifths of the limit"},
	connectionMemoryLimit: {"the same", ""},
	certificateRemaining:  {"handshakes fail", "below a week"},
	reloadFailing:         {"always", "1 for 1 min"},
	reloads:               {"whether a new file is in use", ""},
	settings:              {"writing a rule", ""},
	nodeInfo:              {"which pod is which node", ""},
	buildInfo:             {"a rollout: which version runs", ""},
}

// The reference says of each family when to read it, and of no other.
func TestReference(t *testing.T) {
	for _, d := range definitions {
		if readers[d].when == "" {
			t.Errorf("the reference does not say when to read %s", d.Name)
		}
	}
	if len(readers) != len(definitions) {
		t.Errorf("the reference has %d families, of %d", len(readers), len(definitions))
	}
	if *page != "" {
		fatal.If(t, os.WriteFile(*page, []byte(reference()), 0o644))
	}
}

// reference returns the page of all families, as Markdown.
func reference() string {
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
		name, alert := d.Name, readers[d].alert
		if len(d.Labels) > 0 {
			name += "{" + strings.Join(d.Labels, ",") + "}"
		}
		if alert == "" {
			alert = "–"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, d.Help, readers[d].when, alert)
	}
	fmt.Fprintf(&b, "\n## Values of labels\n\n")
	for _, l := range []struct {
		name   string
		of     *definition // The label has these values in that family; nil stands for all.
		values []string
	}{
		{"reason", refusals, texts(node.Reasons)}, {"reason", gossipDropped, cluster.DropReasons()},
		{"kind", nil, texts(alarmKinds)}, {"op", nil, texts(ops)},
		{"why", nil, texts(watermark.Whys)}, {"phase", phase, texts(phases)}, {"phase", clockPhase, texts(clockPhases)},
		{"state", poolSIDs, poolStates}, {"state", workerSIDs, poolStates}, {"state", clockVerdict, texts(clockStates)},
		{"finding", nil, texts(clockFindings)}, {"opinion", nil, opinions}, {"direction", nil, directions},
		{"listener", nil, listenerNames}, {"files", nil, []string{"tls", "tokens", "gossip_keys", "etcd_tls"}}, {"certificate", nil, []string{"server", "etcd_client"}},
	} {
		of := ""
		if l.of != nil {
			of = " of `" + l.of.Name + "`"
		}
		fmt.Fprintf(&b, "- `%s`%s: `%s`\n", l.name, of, strings.Join(l.values, "`, `"))
	}
	fmt.Fprintf(&b, "- `setting`: `%s`\n", strings.Join(slices.Sorted(maps.Keys(compared(config.Config{}))), "`, `"))
	b.WriteString("- `sid`: the sids of the other nodes with a recent measurement; a node without a sid has no " +
		"series\n")
	return b.String()
}

// texts returns the names of values as labels show them.
func texts[T any](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = fmt.Sprint(v)
	}
	return out
}
