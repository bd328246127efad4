// Package member decides how a member of an etcd starts that this project runs, and what a change
// of the members does to their quorum. Such members are in nodes (etcd inside), and in the pods of
// the chart.
//
// A member that may have voted or acknowledged a write must never come back under its old ID
// without its data, since raft counts on what it promised. etcd alone does not see to that. So:
//
//   - Members begin a cluster only when each of them said that it has no data, and then wrote that it
//     intends to begin. One without that intention has had data since.
//   - A member whose data is gone, or that the cluster removed, comes back as another: a learner,
//     which votes for nothing until it has all data. Learners join one at a time.
//   - A member founds only the cluster that its own list begins. A restored cluster names members
//     that never started too, and two of those would be a quorum beside it.
//   - Restored data in which etcd has never run are as good as none: the cluster that they begin may know
//     the member already.
//
// Who says that a member may be replaced differs, and is a value, Own.Replaces:
//
//   - In nodes a person does: only a person knows whether a disk is gone or the wrong one was given. So a
//     member that was lost or removed is refused. An operator's list says which hosts are members, and hosts
//     change (Move): lists, names and clocks that contradict each other are refused before a cluster begins.
//   - In pods nobody is asked: names are fixed, and a lost volume is a claim that somebody deleted. A member
//     without data has its predecessor removed, and moves those of a removed one, or of another cluster, away.
//     Only the list that a majority has counts.
//
// The package does no I/O. Machine is the start of one member, and Decide its table. After each step that changes what
// is seen, it asks again, so that a crash between two steps is one more case of the same table.
package member

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/lease"
)

// Member is a member as the members' own list has it.
type Member struct {
	ID      uint64   `json:"id"`
	Name    string   `json:"name"` // It is empty for one that was added and has not started.
	Peers   []string `json:"peers"`
	Clients []string `json:"clients"` // none: it has never started
	Learner bool     `json:"learner,omitempty"`
}

// Started says that the member has taken part in its cluster.
func (m Member) Started() bool { return len(m.Clients) > 0 }

// Label names the member as well as it is known.
func (m Member) Label() string {
	if m.Name != "" {
		return m.Name
	}
	return strings.Join(m.Peers, ",")
}

// Waiting is what a member without data says of itself before a cluster exists.
type Waiting struct {
	Host    string    `json:"host"`    // its own address in the list
	Node    string    `json:"node"`    // node.name
	Process string    `json:"process"` // random
	Join    []string  `json:"join"`    // its list, sorted
	Token   string    `json:"token"`   // It waits with restored data of this token; "": without data.
	Intends bool      `json:"intends"` // It has written that it begins the cluster.
	Now     time.Time `json:"now"`
}

// Answer is what one address of the list answered. Without Waiting, Began and Members it did not.
type Answer struct {
	Waiting *Waiting
	Began   bool          // It has data, and does not say who the members are.
	Skew    time.Duration // Waiting.Now minus our clock when that arrived: an answer is kept for long.
	Cluster uint64
	Members []Member
	Err     error
}

// Own is the member that decides.
type Own struct {
	Host    string
	Node    string
	Process string
	Join    []string // sorted, with Host in it
	Peer    string   // URL
	Token   string   // It has restored data of this token, in which etcd has never run; "": it has none.
	Intends bool     // It has written that it begins the cluster, and has not answered in it; so do restored data.
	Founds  uint64   // the cluster that begins from Join and Token
	// Replaces says that the member is replaced if its data is gone; else a person is asked. Every list of
	// members that it is given is then the one that a majority has.
	Replaces bool
	Before   Answer // what the address answered that elsewhere returned
}

// Data is what the directory of the member holds: who wrote it.
type Data struct {
	Host    string `json:"host"`
	Peer    string `json:"peer"`
	Cluster uint64 `json:"cluster,omitempty"` // 0: the member has not answered yet since it began.
	ID      uint64 `json:"id,omitempty"`
	Version string `json:"version"` // The etcd that ran last had it.
	// Initial, Token and Existing are how it began.
	Initial  string `json:"initial"`
	Token    string `json:"token"`
	Existing bool   `json:"existing,omitempty"`
	// Restored says that etcd has never run in the data: a restore prepared it.
	Restored bool `json:"restored,omitempty"`
	// Act says who restored the data; zero: nobody did, or it is not known.
	Act lease.Act `json:"act,omitzero"`
	// Members are those of the cluster when they were last listed.
	Members []Member `json:"members,omitempty"`
}

// Noted returns what the directory is to say once the member has answered, at host and peer, with the members as they
// list themselves; none: they are not known.
func (d Data) Noted(s Status, list []Member, host, peer string) Data {
	d.Cluster, d.ID = s.Cluster, s.ID
	if len(list) > 0 {
		d.Members = list
		if OtherAddress(list, s.ID, peer) == "" {
			d.Host, d.Peer = host, peer
		}
	}
	return d
}

// Run is what a member runs with: the run.json of one inside a node, and what a pod of the chart decides.
type Run struct {
	Version  string `json:"version"` // The node that started it had this one of etcd.
	Name     string `json:"name"`
	Client   string `json:"client"` // URLs that the member is known by
	Peer     string `json:"peer"`
	IP       string `json:"ip"` // It listens there.
	Initial  string `json:"initial"`
	Token    string `json:"token"`
	Existing bool   `json:"existing"`
	Quota    int64  `json:"quota"`
	TLS      TLS    `json:"tls"`
	Log      string `json:"log"` // text or json
	// Those of pods alone: the common name that members have in their certificates, since their addresses change,
	// and the port of metrics, without TLS.
	PeerName string `json:"peerName,omitempty"`
	Metrics  string `json:"metrics,omitempty"`
}

// TLS has the paths of the files that a member serves and calls with.
type TLS struct {
	CA, Cert, Key string
}

// Action is what to do now.
type Action string

// The actions.
const (
	Ask    Action = "ask"    // Ask the other addresses of the list: Heard.
	AskAt  Action = "ask at" // Ask Step.At: There.
	List   Action = "list"   // List the members as a majority has them: Listed.
	Wait   Action = "wait"   // Step.Why says for what. A Tick follows.
	Intend Action = "intend" // Write durably that this member begins the cluster.
	Begin  Action = "begin"  // Start a new cluster with all members of the list.
	Start  Action = "start"  // Start from the data.
	Add    Action = "add"    // Add the member to the cluster as a learner.
	Join   Action = "join"   // Start as the member that the cluster has added already.
	Move   Action = "move"   // Tell the cluster the new address of the member.
	// Those of Own.Replaces alone.
	Remove  Action = "remove"  // Have the predecessor removed.
	Discard Action = "discard" // Move data that the cluster does not know out of the way.
)

// Step is a decision.
type Step struct {
	Action  Action
	Why     string   // for people
	Err     error    // Wait: why the start fails until somebody acts; nil: it goes on by itself.
	At      string   // the URL of AskAt; this member's with Add and Move
	Initial string   // Join starts with these: name=URL,…
	ID      uint64   // Join, Move, Remove and Discard are about this member.
	Clients []string // List, Add, Move and Remove ask these.
}

// Reason is why a member does not start.
type Reason string

// The reasons.
const (
	Lost         Reason = "data lost"
	Removed      Reason = "removed"
	Copied       Reason = "copied"
	OtherCluster Reason = "other cluster"
	OtherList    Reason = "other list"
	SameName     Reason = "same name"
	SameHost     Reason = "same address"
	Clocks       Reason = "clocks"
)

// Refusal says why a member does not start, and what to do. The node keeps asking, and uses the
// other members meanwhile.
type Refusal struct {
	Reason Reason
	Text   string
}

// Error returns the sentence.
func (r *Refusal) Error() string { return r.Text }

func refuse(r Reason, format string, args ...any) error {
	return &Refusal{r, fmt.Sprintf(format, args...)}
}

// MaxSkew is by how much clocks may differ when a cluster begins. Certificates are valid from an
// hour before they were made; nodes compare their clocks in milliseconds later.
const MaxSkew = time.Minute

// Decide returns what to do. seen has the answers of the other addresses of the list, by
// address; an address without an answer is asked again. data is nil for an empty directory. For
// restored data in which etcd has never run, own is what OfRestored returns, and Begin starts from them.
//
// It returns a *Refusal if the member must not start as it is.
func Decide(own Own, data *Data, seen map[string]Answer) (Step, error) {
	if own.Token != "" {
		seen = restoredToo(own, seen)
	}
	cluster, members, err := theCluster(own, seen)
	if err != nil {
		return Step{}, err
	}
	if data != nil && own.Token == "" {
		return withData(own, *data, seen, cluster, members)
	}
	if len(members) > 0 {
		return intoCluster(own, seen, cluster, members)
	}
	return begin(own, seen)
}

// OfRestored returns own for restored data in which etcd has never run: who begins with them. founds is
// the cluster that they begin.
func OfRestored(own Own, data Data, founds uint64) Own {
	own.Host, own.Peer, own.Token, own.Founds, own.Intends = data.Host, data.Peer, data.Token, founds, true
	own.Join = nil
	for member := range strings.SplitSeq(data.Initial, ",") {
		host, _, _ := strings.Cut(member, "=")
		own.Join = append(own.Join, host)
	}
	slices.Sort(own.Join)
	return own
}

// restoredToo returns the answers without those of members that run in another cluster than the one
// that restored data begin: they are to be restored yet, and say nothing about it.
func restoredToo(own Own, seen map[string]Answer) map[string]Answer {
	out := maps.Clone(seen)
	for host, a := range seen {
		if len(a.Members) > 0 && a.Cluster != own.Founds {
			out[host] = Answer{Err: fmt.Errorf("it runs in cluster %x: restore it too", a.Cluster)}
		}
	}
	return out
}

// theCluster returns the cluster that answers, of which there is at most one.
func theCluster(own Own, seen map[string]Answer) (id uint64, list []Member, err error) {
	from := ""
	for _, host := range slices.Sorted(maps.Keys(seen)) {
		a := seen[host]
		if len(a.Members) == 0 {
			continue
		}
		if id != 0 && a.Cluster != id {
			return 0, nil, refuse(OtherCluster, "%s and %s are members of different clusters (%x and %x): correct "+
				"etcd.join of %s, or empty the directory of the one that does not belong to it", from, host, id,
				a.Cluster, own.Host)
		}
		if from == "" || len(a.Members) > len(list) {
			id, list, from = a.Cluster, a.Members, host
		}
	}
	return id, list, nil
}

// elsewhere returns another address at which the member of data may run: it was there before, or the
// others were told that it is there. "": there is none.
func elsewhere(own Own, data Data, seen map[string]Answer) string {
	if data.Peer != own.Peer {
		return data.Peer
	}
	for _, host := range slices.Sorted(maps.Keys(seen)) {
		if at := OtherAddress(seen[host].Members, data.ID, own.Peer); at != "" {
			return at
		}
	}
	return ""
}

// OtherAddress returns the address that members have of the one with an ID, unless it is peer. "": it is,
// or they have none of it.
func OtherAddress(members []Member, id uint64, peer string) string {
	if me := find(members, id); me >= 0 && len(members[me].Peers) > 0 && !slices.Contains(members[me].Peers, peer) {
		return members[me].Peers[0]
	}
	return ""
}

// another reports whether somebody lists an address as that of another member than the one with an ID.
func another(seen map[string]Answer, id uint64, peer string) bool {
	for _, a := range seen {
		if slices.ContainsFunc(a.Members, func(m Member) bool { return m.ID != id && slices.Contains(m.Peers, peer) }) {
			return true
		}
	}
	return false
}

// withData starts from what the directory holds, unless the members that answer contradict it.
func withData(own Own, data Data, seen map[string]Answer, cluster uint64, members []Member) (Step, error) {
	if len(members) > 0 && data.Cluster != 0 && cluster != data.Cluster {
		if own.Replaces {
			return Step{Action: Discard, ID: data.ID, Why: fmt.Sprintf("the data are of cluster %x, and the "+
				"members are cluster %x", data.Cluster, cluster)}, nil
		}
		return Step{}, refuse(OtherCluster, "the directory of etcd.inside is of cluster %x, and the members in "+
			"etcd.join are cluster %x: give the directory that belongs to it, or an empty one", data.Cluster, cluster)
	}
	me := find(members, data.ID)
	if data.ID == 0 {
		me = slices.IndexFunc(members, func(m Member) bool { return slices.Contains(m.Peers, data.Peer) })
	}
	if len(members) > 0 && me < 0 && data.ID != 0 {
		if own.Replaces {
			return Step{Action: Discard, ID: data.ID,
				Why: "this member was removed from the cluster: its data are of no use"}, nil
		}
		return Step{}, refuse(Removed, "the members removed %s from their cluster, so its data is no longer used: to "+
			"join again, move the directory of etcd.inside away and restart", own.Host)
	}
	// Two processes must not be one member. The one that answers need not be in etcd.join.
	at := elsewhere(own, data, seen)
	if at != "" && len(own.Before.Members) > 0 && own.Before.Cluster == cmp.Or(data.Cluster, cluster) &&
		(data.ID == 0 || !another(seen, data.ID, at)) {
		return Step{}, refuse(Copied, "%s still runs, and the directory of etcd.inside is a copy of its: empty it, "+
			"and join as a new member; if this machine replaces that one, stop that member first", at)
	}
	if me < 0 {
		// etcd itself finds the others, and needs a majority of them. A list may be older than this member.
		return Step{Action: Start}, nil
	}
	if !slices.Contains(members[me].Peers, own.Peer) && data.Peer != own.Peer {
		return Step{Action: Move, ID: members[me].ID, At: own.Peer, Clients: clients(members),
			Why: fmt.Sprintf("the member was %s, and is %s now", data.Peer, own.Peer)}, nil
	}
	return Step{Action: Start}, nil
}

// standing is how a list of members has this member.
type standing string

const (
	absent  standing = "no member"
	added   standing = "a member that was added"     // It has no name yet.
	founder standing = "a member that never started" // The cluster began with it.
	started standing = "a member"
)

// is reports whether a member is the one that decides. Only fixed names tell.
func (own Own) is(m Member) bool {
	return slices.Contains(m.Peers, own.Peer) || own.Replaces && m.Name == own.Host
}

func standingOf(own Own, members []Member) standing {
	me := slices.IndexFunc(members, own.is)
	switch {
	case me < 0:
		return absent
	case members[me].Started(), members[me].Name == "" && !members[me].Learner:
		return started // A vote without a name: it may have cast it before the others knew its name.
	case members[me].Name == "":
		return added
	}
	return founder
}

// intoCluster joins a cluster that exists with an empty directory.
func intoCluster(own Own, seen map[string]Answer, cluster uint64, members []Member) (Step, error) {
	in := map[standing]string{} // who has it so
	for _, host := range slices.Sorted(maps.Keys(seen)) {
		if list := seen[host].Members; len(list) > 0 {
			in[standingOf(own, list)] = host
		}
	}
	switch {
	case own.Replaces && in[started]+in[founder] != "":
		return Step{Action: Remove, ID: members[slices.IndexFunc(members, own.is)].ID, Clients: clients(members),
			Why: "the cluster lists this member, whose data are lost"}, nil
	case in[started] != "" && own.Token != "":
		return Step{}, Again(own.Host)
	case in[started] != "":
		return Step{}, lost(own.Host)
	case len(in) > 1: // A list that is behind catches up.
		return Step{Action: Wait, Why: "the members to agree about " + own.Host}, nil
	case in[absent] != "":
		return admit(own, members), nil
	case in[added] != "":
		return join(own.Host, own.Peer, members), nil
	}
	if len(members) != len(own.Join) {
		return Step{}, refuse(OtherList, "the cluster began with %d members, and etcd.join of %s names %d: give all "+
			"of them the same etcd.join", len(members), own.Host, len(own.Join))
	}
	// A restored cluster has members that never started too. Those that begin beside it would be a
	// second cluster, with a quorum of its own.
	if cluster != own.Founds {
		return Step{}, refuse(Lost, "cluster %x did not begin from etcd.join of %s (it was restored, or has another "+
			"list): run \"allocator etcd restore\" here with the same snapshot, or replace this member", cluster,
			own.Host)
	}
	return begin(own, seen)
}

// Again is the refusal of a member whose restore it has started from before: it may have voted and
// acknowledged writes since, which the snapshot does not have.
func Again(host string) error {
	return refuse(Lost, "%s has started from this restore already, and from the snapshot it would come back without "+
		"what it has stored since: if its data was lost, run \"allocator etcd replace %s\"; to restore all members "+
		"from this snapshot once more, run \"allocator etcd restore\" on each with the same --again", host, host)
}

func lost(host string) error {
	return refuse(Lost, "%s is a member, and the directory of etcd.inside is empty: its data was lost, or it is the "+
		"wrong directory. If it was lost, run \"allocator etcd replace %s\"", host, host)
}

// begin starts a new cluster once each other member has answered that it has no data, or restored data in which
// etcd has never run. It waits for a silent member, which may know that this one has started before.
//
// If other members run already, each of them lists this one as never started. This member begins beside them only if
// it wrote its intention before. Without the intention its disk was lost, perhaps after it had voted.
func begin(own Own, seen map[string]Answer) (Step, error) {
	nodes := map[string]string{own.Node: own.Host}
	running := false
	var missing, hesitant []string
	for _, host := range own.Join {
		if host == own.Host {
			continue
		}
		a := seen[host]
		if len(a.Members) > 0 || a.Began {
			running = true
			continue
		}
		w := a.Waiting
		if w == nil {
			host += " to answer"
			if a.Err != nil {
				host += fmt.Sprintf(" (%v)", a.Err)
			}
			missing = append(missing, host)
			continue
		}
		switch {
		case w.Process == own.Process || w.Host != host:
			return Step{}, refuse(SameHost, "%s answers as %s: two addresses in etcd.join are one machine, or "+
				"etcd.address is wrong on one; each machine has one address there", host, w.Host)
		case own.Token != "" && w.Token == "":
			missing = append(missing, host+" to be restored too")
			continue
		case w.Token != own.Token && own.Token == "":
			return Step{}, refuse(Lost, "%s waits with a restored snapshot, and %s has no data: run \"allocator etcd "+
				"restore\" here with the same snapshot", host, own.Host)
		case w.Token != own.Token:
			return Step{}, refuse(OtherCluster, "%s was restored with token %s, and %s with %s: restore both with the "+
				"same snapshot, etcd.join and --again", host, w.Token, own.Host, own.Token)
		case !slices.Equal(w.Join, own.Join):
			return Step{}, refuse(OtherList, "%s has etcd.join=%s, and %s has %s: give all of them the same", host,
				strings.Join(w.Join, ","), own.Host, strings.Join(own.Join, ","))
		case nodes[w.Node] != "":
			return Step{}, refuse(SameName, "%s and %s have the same node.name %q: give each its own",
				nodes[w.Node], host, w.Node)
		case a.Skew.Abs() > MaxSkew:
			return Step{}, refuse(Clocks, "the clock of %s differs from that of %s by %v, and certificates need the "+
				"time: run NTP on both", host, own.Host, a.Skew.Round(time.Second))
		}
		nodes[w.Node] = host
		if !w.Intends && w.Token == "" {
			hesitant = append(hesitant, host)
		}
	}
	if own.Replaces && running && !own.Intends {
		return Step{Action: Wait, Why: "this member has lost its data, and those that have data are no majority: " +
			"start the others; if they have lost theirs too, restore a snapshot"}, nil
	}
	if len(missing) > 0 {
		rule := "the first start needs all members"
		if own.Token != "" {
			rule += "; if a machine is gone for good, restore the others again, with --etcd.join without it"
		}
		return Step{Action: Wait, Why: strings.Join(missing, ", ") + ": " + rule}, nil
	}
	switch {
	case !own.Intends && running:
		return Step{}, lost(own.Host)
	case !own.Intends:
		return Step{Action: Intend, Why: "no member has data"}, nil
	case !running && len(hesitant) > 0:
		return Step{Action: Wait, Why: strings.Join(hesitant, ", ") + " to see that no member has data"}, nil
	}
	return Step{Action: Begin, Why: "no member has data"}, nil
}

// find returns the place of the member with an ID; -1: none has it.
func find(members []Member, id uint64) int {
	return slices.IndexFunc(members, func(m Member) bool { return m.ID == id })
}

// admit adds a member that the cluster does not list, once no other is joining.
func admit(own Own, members []Member) Step {
	for _, m := range members {
		if m.Learner {
			return Step{Action: Wait, Why: fmt.Sprintf("member %s to be promoted: members join one at a time",
				m.Label())}
		}
	}
	return Step{Action: Add, At: own.Peer, Clients: clients(members), Why: "the cluster does not list this member"}
}

// join starts a member that was added. etcd compares the URLs of the list that it starts with, and
// needs names that differ.
func join(name, peer string, members []Member) Step {
	var parts []string
	var id uint64
	for _, m := range members {
		called := cmp.Or(m.Name, fmt.Sprintf("%x", m.ID))
		if slices.Contains(m.Peers, peer) {
			called, id = name, m.ID
		}
		for _, p := range m.Peers {
			parts = append(parts, called+"="+p)
		}
	}
	return Step{
		Action:  Join,
		Initial: strings.Join(parts, ","),
		ID:      id,
		Clients: clients(members),
		Why:     "the cluster expects this member",
	}
}

func clients(members []Member) (urls []string) {
	for _, m := range members {
		if !m.Learner {
			urls = append(urls, m.Clients...)
		}
	}
	return urls
}
