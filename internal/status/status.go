// Package status holds what is known of a cluster: the form in which every surface shows
// it, and the reader that builds it from etcd, from the node that answers and from what
// its peers report.
//
// [Cluster] is one contract. GET /v1/cluster answers its JSON, GetCluster the same fields as
// a message ([ToProto]), and the command line prints what it was answered ([FromProto]). A
// fact has its field here, its name in the proto file and in openapi.yaml, and no other form.
//
// A [Reader] reads etcd through a [Directory], within deadlines. If etcd does not answer, the
// picture has what the node itself knows, and names what is missing. A Reader also decodes
// IDs with the holders of their sids.
package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/watermark"
)

// Cluster is the space as it is in etcd, and the node that answers as it sees itself. IDs of
// etcd and of instances are texts. Times are Unix ms if their name does not say otherwise.
type Cluster struct {
	Space string `json:"space"`
	// Pool is a UUID; empty while it is not known.
	Pool string `json:"pool"`
	// Layout is the text of a flake.Layout.
	Layout      string `json:"layout"`
	EpochUnixMs int64  `json:"epoch_unix_ms"`
	// Era is 0 while it is not known.
	Era            int64 `json:"era"`
	EraFloorUnixMs int64 `json:"era_floor_unix_ms"`
	// Revision is the one of etcd at which the answer was read.
	Revision int64 `json:"revision"`
	// Read is when the nodes and sids were read from etcd, by the clock of the node that answers;
	// 0: never.
	Read int64 `json:"read_unix_ms"`
	// PoolSize is how many sids the space has, and PoolSIDs which, as first-last; that is
	// empty while it is not known.
	PoolSize int    `json:"pool_size"`
	PoolSIDs string `json:"pool_sids"`
	// WorkerSIDs are the sids for workers alone, by the settings of the node that answers.
	WorkerSIDs string `json:"worker_sids,omitempty"`
	// Expected is how many nodes there should be, by the settings of the node that answers; 0: any number.
	Expected int `json:"expected_nodes,omitempty"`
	// Nodes are those that are registered. If Read is 0, they are those that the node that
	// answers last listed.
	Nodes []Node `json:"nodes"`
	// SIDs are those that were ever used; none while Read is 0.
	SIDs []SID `json:"sids"`
	// Problem is why etcd could not be read, or what is wrong with its records.
	Problem string `json:"problem,omitempty"`
	// Problems has what is wrong, the worst first, and Summary the one sentence about all.
	Problems []Problem `json:"problems"`
	Summary  Problem   `json:"summary"`
	Self     Self      `json:"self"`
	// Etcd is nil while the node that answers has not asked its members.
	Etcd *Etcd `json:"etcd,omitempty"`
	// Callers have most connections, streams and memory of the node that answers, first the one with most.
	Callers []quota.Caller `json:"callers,omitempty"`
	// Watermark is what the node that answers knows of it; nil while that is nothing, and when
	// history was rewound.
	Watermark *watermark.Answer `json:"watermark,omitempty"`
}

// Node is a registered process.
type Node struct {
	Instance string `json:"instance"`
	Name     string `json:"name"`
	Version  string `json:"version"`
	GRPC     string `json:"grpc_address"`
	HTTP     string `json:"http_address"`
	// Console is the URL of its pages, as consoleURL returns it.
	Console string `json:"console_url,omitempty"`
	// Started is when the process began, by its own clock; 0: not known.
	Started int64 `json:"started_unix_ms"`
	// SID is -1 if it holds none, or if that is not known.
	SID int `json:"sid"`
	// SIDRange has the sids that it may take; empty: all.
	SIDRange string `json:"sid_range,omitempty"`
	// State is what it does, and Refusing why it refuses.
	State    State       `json:"state"`
	Refusing node.Reason `json:"refusing,omitempty"`
	// Ceil is the end of its window as far as it is known; 0: not known, or it holds no sid.
	Ceil int64 `json:"ceil_unix_ms"`
	// Clock is nil if the node that answers never measured it.
	Clock *PeerClock `json:"clock,omitempty"`
	// Report is nil if it sent none lately.
	Report *Report `json:"report,omitempty"`
}

// Report is what a node says of its work.
type Report struct {
	Rate int64 `json:"ids_per_second"`
	// Lead is how far its last ID lies ahead of its clock.
	Lead int64 `json:"lead_ms"`
	// Ceil is the end of its window; 0: it holds no sid.
	Ceil int64 `json:"ceil_unix_ms"`
	// Refusing is why it would refuse a request; 0: it would not.
	Refusing node.Reason `json:"refusing,omitempty"`
	// Age is the time since the report came.
	Age  int64 `json:"age_ms"`
	Work Work  `json:"work"`
}

// Work is how requests and writes of a node went lately. Counts and latencies are of the last
// WorkTime.
type Work struct {
	// Refused has how many requests it refused, by reason; a reason without any is absent.
	Refused map[string]int64 `json:"refused,omitempty"`
	// P50 and P99 are how long requests for IDs took, in µs; 0: there were none.
	P50 int64 `json:"p50_us"`
	P99 int64 `json:"p99_us"`
	// Write is how long the latest write to etcd took that was confirmed, and Written when that
	// was, by the clock of the node that answers; 0: there was none.
	Write   int64 `json:"etcd_write_us"`
	Written int64 `json:"etcd_written_unix_ms"`
}

// Refusals writes how many requests were refused in a second, the most frequent reason first;
// "none" if none was.
func (w Work) Refusals() string {
	var parts []string
	for _, reason := range slices.SortedFunc(maps.Keys(w.Refused), func(a, b string) int {
		return cmp.Or(cmp.Compare(w.Refused[b], w.Refused[a]), cmp.Compare(a, b))
	}) {
		parts = append(parts, fmt.Sprintf("%s %.1f/s", reason, float64(w.Refused[reason])/WorkTime.Seconds()))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// WorkTime is the time that Work is about.
const WorkTime = 5 * time.Second

// Etcd is what its members answered to the node that answers.
type Etcd struct {
	// Endpoints are those in the settings, Answer how many of them did, and Leader the one that
	// leads; empty: none of them says so.
	Endpoints int    `json:"endpoints"`
	Answer    int    `json:"answer"`
	Leader    string `json:"leader,omitempty"`
	// Voters are the members that vote, by etcd's own list, and VotersAnswer those of them that
	// answered; 0: no endpoint shows of each of them whether it does.
	Voters       int `json:"voters,omitempty"`
	VotersAnswer int `json:"voters_answer,omitempty"`
	// Members are what each of the endpoints says of itself.
	Members []EtcdMember `json:"members"`
	// Snapshot is when this node, if it has etcd inside, wrote its latest; 0: never.
	Snapshot int64 `json:"snapshot_unix_ms,omitempty"`
}

// EtcdMember is one member of etcd.
type EtcdMember struct {
	Endpoint string `json:"endpoint"`
	Leads    bool   `json:"leads"`
	Learner  bool   `json:"learner,omitempty"` // It has no vote yet.
	Lag      int64  `json:"lag"`               // entries that it has applied less than the one that applied most
	Size     int64  `json:"database_bytes"`
	Quota    int64  `json:"quota_bytes"`
	SyncP99  int64  `json:"sync_p99_us,omitempty"` // 0: not known
	// Problem is an alarm, or why it does not answer; empty if all is well.
	Problem string `json:"problem,omitempty"`
}

// Database returns the size of the member's database, and the part of its quota that it is.
func (m EtcdMember) Database() string {
	if m.Quota <= 0 {
		return fmt.Sprintf("%.1f MiB", float64(m.Size)/(1<<20))
	}
	return fmt.Sprintf("%.1f MiB, %d %%", float64(m.Size)/(1<<20), m.Size*100/m.Quota)
}

// SID is one sid with its window record.
type SID struct {
	SID int `json:"sid"`
	// State is free, held, waiting, quarantined or reserved.
	State    string `json:"state"`
	Term     int64  `json:"term"`
	Node     string `json:"node"`
	Instance string `json:"instance"`
	Base     int64  `json:"base_unix_ms"`
	Ceil     int64  `json:"ceil_unix_ms"`
	Problem  string `json:"problem,omitempty"`
	// Written is when the record was written, by the clock of the node that wrote it; 0: nobody did.
	Written int64 `json:"written_unix_ms"`
	// Unreleased says that it has no holder, and that the last one did not release it.
	Unreleased bool `json:"unreleased"`
	// Worker says that the holder is or was a generator outside of the nodes, acquired by Owner.
	Worker bool   `json:"worker,omitempty"`
	Owner  string `json:"owner,omitempty"`
}

// Self is the node that answers, as it sees itself.
type Self struct {
	Name     string `json:"name"`
	Instance string `json:"instance"`
	Version  string `json:"version"`
	Ready    bool   `json:"ready"`
	// Refusing and Message are why it would refuse a request; 0 and empty if it is ready.
	Refusing node.Reason `json:"refusing,omitempty"`
	Message  string      `json:"message,omitempty"`
	Draining bool        `json:"draining"`
	// SID is -1 if it holds none. Term, Base and Ceil are 0 then.
	SID  int   `json:"sid"`
	Term int64 `json:"term"`
	Base int64 `json:"base_unix_ms"`
	Ceil int64 `json:"ceil_unix_ms"`
	// Lead is how far the last ID lies ahead of the clock.
	Lead int64 `json:"lead_ms"`
	// Now is the issuing clock.
	Now     int64  `json:"now_unix_ms"`
	Verdict string `json:"verdict"`
	// Phase is that of its lease, and Window the length of its windows. IDs may run ahead of its clock by MaxLead.
	Phase   string `json:"phase"`
	Window  int64  `json:"window_ms"`
	MaxLead int64  `json:"max_lead_ms"`
	Issued  int64  `json:"ids_issued"`
	Rate    int64  `json:"ids_per_second"`
	Work    Work   `json:"work"`
	// Unverified is how many of the IDs were issued while no majority confirmed the clock.
	Unverified int64 `json:"ids_unverified"`
	// Refused has the requests that were refused, by reason; every reason is present.
	Refused map[string]int64 `json:"refused"`
	// Era, Revision and Cluster are what the process itself last read from etcd; 0: nothing yet.
	Era      int64  `json:"era"`
	Revision int64  `json:"revision"`
	Cluster  uint64 `json:"cluster_id,string"`
	// Highest is the highest ceiling ever confirmed to the process; 0: none.
	Highest int64 `json:"highest_ceil_unix_ms"`
	// Clock is nil if the node does not judge its clock.
	Clock *Clock `json:"clock,omitempty"`
}

// Clock is what a node has measured of its own clock and of the cluster's time. Times are in
// microseconds. The proto file and openapi.yaml describe each field.
type Clock struct {
	State         string      `json:"state"`
	Phase         string      `json:"phase"`
	Finding       string      `json:"finding"`
	Known         bool        `json:"known"`
	Offset        int64       `json:"offset_us"`
	Uncertainty   int64       `json:"uncertainty_us"`
	Limit         int64       `json:"limit_us"`
	Registered    int         `json:"registered"`
	Quorum        int         `json:"quorum"`
	Agree         int         `json:"agree"`
	Disagree      int         `json:"disagree"`
	Ambiguous     int         `json:"ambiguous"`
	Silent        int         `json:"silent"`
	Falsetickers  []string    `json:"falsetickers"`
	Shuts         int64       `json:"shuts"`
	Unverified    int64       `json:"unverified_us"`
	StepsForward  int64       `json:"steps_forward"`
	StepsBack     int64       `json:"steps_back"`
	StepPending   bool        `json:"step_pending"`
	StepBlocked   bool        `json:"step_blocked"`
	Held          int64       `json:"held_us"`
	Suspends      int64       `json:"suspends"`
	Stalls        int64       `json:"stalls"`
	Kernel        KernelClock `json:"kernel"`
	GossipMembers int         `json:"gossip_members"`
	GossipAddress string      `json:"gossip_address"`
}

// KernelClock is what the kernel reports of the wall clock.
type KernelClock struct {
	Known        bool  `json:"known"`
	Synchronized bool  `json:"synchronized"`
	MaxError     int64 `json:"max_error_us"`
}

// PeerClock is the clock of one node, as measured by the node that answers. Times are in
// microseconds.
type PeerClock struct {
	// Verdict and SID are what the node reports of itself; SID is -1 without one.
	Verdict string `json:"verdict"`
	SID     int    `json:"sid"`
	// Fresh says that it was measured lately, and answers: the values below count.
	Fresh bool `json:"fresh"`
	// Offset is its issuing clock minus that of the node that answers, ± Error.
	Offset int64 `json:"offset_us"`
	Error  int64 `json:"error_us"`
	// Wall is its wall clock minus the issuing clock of the node that answers.
	Wall int64 `json:"wall_offset_us"`
	// RTT is the round-trip time of the last exchange, and Age the time since.
	RTT int64 `json:"rtt_us"`
	Age int64 `json:"age_us"`
	// Self says that it is the node that answers.
	Self        bool `json:"self"`
	Falseticker bool `json:"falseticker"`
}

// Left returns what is left of the node's own window, in ms; 0 without one.
func (s Self) Left() int64 { return max(0, s.Ceil-s.Now) }

// Label names the node as well as it is known.
func (n Node) Label() string { return cmp.Or(n.Name, n.Instance) }

// Total returns what the nodes report together: rates and refusals are sums, and latencies those
// of the node that has the longest.
func (c Cluster) Total() (total Report) {
	total.Work.Refused = map[string]int64{}
	for _, n := range c.Nodes {
		if n.Report == nil {
			continue
		}
		w := n.Report.Work
		total.Rate += n.Report.Rate
		for reason, count := range w.Refused {
			total.Work.Refused[reason] += count
		}
		total.Work.P50, total.Work.P99 = max(total.Work.P50, w.P50), max(total.Work.P99, w.P99)
		total.Work.Write = max(total.Work.Write, w.Write)
	}
	return total
}

// SIDUse is how many sids of the space are used for what. A sid counts once; the sum of all is
// the size of the space.
type SIDUse struct {
	// Nodes are held by nodes, whether they issue or not.
	Nodes int `json:"nodes"`
	// Workers are for workers: those of WorkerSIDs, and those that workers hold besides.
	Workers int `json:"workers"`
	// Waiting have a ceiling that lies ahead of the clock.
	Waiting     int `json:"waiting"`
	Quarantined int `json:"quarantined"`
	Reserved    int `json:"reserved"`
	Free        int `json:"free"`
}

// Use returns how the sids of the space are used.
func (c Cluster) Use() SIDUse {
	workers, _ := lease.ParseSIDRange(c.WorkerSIDs) // After an error there are none.
	u := SIDUse{Workers: workers.Len()}
	for _, s := range c.SIDs {
		inRange := workers.Has(flake.SID(s.SID))
		switch state := SIDState(s, nil, c.Self.Now); {
		case s.State == Quarantined:
			u.Quarantined++
		case s.State == Reserved:
			u.Reserved++
		case s.State == Held && !s.Worker:
			u.Nodes++
		case inRange: // counted above
			continue
		case s.State == Held:
			u.Workers++
		case state == Waiting:
			u.Waiting++
		}
		if inRange {
			u.Workers--
		}
	}
	u.Free = max(c.PoolSize-u.Nodes-u.Workers-u.Waiting-u.Quarantined-u.Reserved, 0)
	return u
}
