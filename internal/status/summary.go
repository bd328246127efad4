package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/text"
	"github.com/flakelease/allocator/internal/watermark"
)

// Level is how bad something is.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // nothing is lost yet, and somebody should look
	Bad  Level = "bad"  // nodes refuse that should serve, or soon will
)

// Problem is something that an operator should know, in the words that the console, top,
// status and doctor show.
type Problem struct {
	// Kind is a name for programs; empty if all is well.
	Kind  string `json:"kind,omitempty"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	// Page says what to do about it, below docs; empty if all is well.
	Page string `json:"page,omitempty"`
}

// The kinds of problems. Each of a node's own has an entry in ofNodes.
const (
	Rewound          = "history_rewound"
	EtcdAway         = "etcd_away"
	MembersAway      = "members_away"
	Unread           = "not_read"
	Records          = "records"
	ClockSkewed      = "clock_skewed"
	ClockUnconfirmed = "clock_unconfirmed"
	ClockFalse       = "clock_false"
	WindowEnded      = "window_ended"
	WindowShort      = "window_short"
	Drained          = "drained"
	NodesRefuse      = "refusing"
	NodesSilent      = "silent"
	NodesUnknown     = "unknown"
	NodesMissing     = "nodes_missing"
	Vanished         = "vanished"
	NameShared       = "name_shared"
	SIDsQuarantined  = "sids_quarantined"
	NoSIDLeft        = "no_sid_left"
	WatermarkHeld    = "watermark_held"
)

const (
	pageEtcd   = "how-to/restore-etcd.md#etcd-does-not-answer"
	pageMember = "how-to/run-on-machines.md#a-member-is-lost-or-its-machine"
	pagePeers  = "how-to/repair-clocks.md#peers-do-not-answer"
	pageFalse  = "how-to/repair-clocks.md#one-clock-is-wrong"
	pageDoctor = "reference/doctor.md"
)

// nodesProblem is a problem that nodes can have. Its text has {names} for the nodes, and
// {they refuse} for what they do.
type nodesProblem struct {
	kind  string
	level Level
	page  string
	text  string
}

// problem returns the problem of nodes with these names. since says when it began, as
// Cluster.since returns it.
func (k nodesProblem) problem(names []string, since string) Problem {
	they := "they refuse"
	if len(names) == 1 {
		they = "it refuses"
	}
	sentence := strings.NewReplacer("{names}", text.List(names), "{they refuse}", they).Replace(k.text)
	return Problem{k.kind, k.level, strings.TrimSuffix(sentence, ".") + since + ".", k.page}
}

// SinceMark stands in a text before the time at which a problem began.
const SinceMark = " (since "

// since returns in parentheses when something began, by the node that answers; "" if at is
// not known.
func (c Cluster) since(at int64) string {
	if at <= 0 {
		return ""
	}
	form := "15:04:05 MST"
	if c.Self.Now-at > (12 * time.Hour).Milliseconds() {
		form = "2006-01-02 15:04 MST"
	}
	return SinceMark + time.UnixMilli(at).UTC().Format(form) + ")"
}

// ofNodes are the problems that a node can have, the worst first.
var ofNodes = []nodesProblem{
	{Rewound, Bad, "how-to/restore-etcd.md#etcd-was-restored-from-a-backup",
		"etcd's history went back: nodes refuse until an operator begins a new era."},
	{ClockSkewed, Bad, pageFalse, "{names}: the clock is wrong, so {they refuse}."},
	{WindowEnded, Bad, pageEtcd, "{names}: the window has ended, so {they refuse}."},
	{ClockUnconfirmed, Bad, pagePeers, "{names}: no majority confirms the clock, so {they refuse}."},
	{ClockFalse, Bad, pageFalse, "{names}: a majority disagrees with the clock."},
	{NodesRefuse, Warn, "reference/refusals.md", "Refusing: {names}."},
	{Drained, Warn, "how-to/upgrade.md#take-a-node-out-of-service-and-keep-the-process",
		"{names}: drained or stopping, so {they refuse}."},
	{NodesSilent, Warn, pagePeers, "No reply from {names}."},
	{WindowShort, Warn, "reference/alerts.md#allocatorwindowlow", "{names}: etcd does not extend the window."},
	{NodesUnknown, Warn, pagePeers, "Nothing is known of {names}: no gossip came."},
	{NoSIDLeft, Warn, "how-to/repair-sids.md#the-pool-is-exhausted", "No sid is left for {names}."},
}

// problemOf returns the worst problem that a node has; "" if it has none.
func problemOf(c Cluster, n Node) string {
	switch {
	case n.Refusing == node.ClockSkew:
		return ClockSkewed
	case n.Refusing == node.WindowExhausted:
		return WindowEnded
	case n.Refusing == node.ClockUnverified:
		return ClockUnconfirmed
	case n.Refusing == node.HistoryRewound:
		return Rewound
	case n.Refusing == node.Draining:
		return Drained
	case n.Refusing != 0:
		return NodesRefuse
	case n.State == Silent:
		return NodesSilent
	case n.State == Unknown:
		return NodesUnknown
	case n.Clock != nil && n.Clock.Falseticker:
		return ClockFalse
	case n.State == Standby:
		return NoSIDLeft
	case c.short(n):
		return WindowShort
	}
	return ""
}

// began returns when a problem of a node began, as far as the picture shows it; 0: it does not.
func (c Cluster) began(kind string, n Node) int64 {
	switch {
	case kind == NodesSilent && n.Clock != nil:
		return c.Self.Now - n.Clock.Age/1000
	case kind == WindowEnded:
		return n.Ceil
	case kind == WindowShort:
		return n.Ceil - c.Self.Window // the last extension
	}
	return 0
}

// short reports whether the window of a node that serves is shorter than a third of it ever
// is while etcd confirms extensions. It is judged as of when it was known: a report or a
// record may be some seconds old.
func (c Cluster) short(n Node) bool {
	if n.SID < 0 || n.Ceil == 0 || c.Self.Window == 0 {
		return false
	}
	known := c.Read
	if n.Report != nil && n.Report.Ceil == n.Ceil {
		known = c.Self.Now - n.Report.Age
	}
	return (n.Ceil-known)*3 < c.Self.Window*2
}

// For how long what was read of etcd counts as current. Readers read it every two seconds
// while somebody looks, and every five in a space with many sids.
const (
	staleAfter     = 4500 * time.Millisecond
	wideStaleAfter = 8 * time.Second
)

// Stale reports whether etcd was not read lately: its nodes and sids are as they were at Read.
func (c Cluster) Stale() bool {
	after := staleAfter
	if len(c.SIDs) > wideSIDs {
		after = wideStaleAfter
	}
	return c.Read == 0 || c.Self.Now-c.Read > after.Milliseconds()
}

// vanishedFor is how long a node that vanished with its sid is a problem.
const vanishedFor = time.Hour

// Problems returns what is wrong in a cluster whose nodes were judged, the worst first. It
// is never nil. began has since when nodes are in their states, by instance; those absent are not
// known.
func Problems(c Cluster, began map[string]int64) []Problem {
	p := problems{c: c, states: began, list: []Problem{}}
	p.etcd()
	p.members()
	p.nodes()
	p.names()
	p.missing()
	p.quarantined()
	p.watermark()
	slices.SortStableFunc(p.list, func(a, b Problem) int { return cmp.Compare(a.Level, b.Level) }) // bad, then warn
	return p.list
}

// problems collects those of c.
type problems struct {
	c      Cluster
	states map[string]int64 // since when nodes are in their states, by instance
	list   []Problem
}

// began returns when a problem of a node began; 0: it is not known.
func (p *problems) began(kind string, n Node) int64 {
	if at := p.c.began(kind, n); at != 0 || kind == ClockFalse { // A false clock is no state.
		return at
	}
	return p.states[n.Instance]
}

func (p *problems) add(kind string, level Level, page, format string, args ...any) {
	p.list = append(p.list, Problem{kind, level, fmt.Sprintf(format, args...), page})
}

func (p *problems) etcd() {
	c := p.c
	serving, shortest := c.serving()
	away := c.since(c.Read)
	switch {
	case !c.Stale() && c.Problem == "":
	case !c.Stale():
		p.add(Records, Warn, pageDoctor, "%s.", c.Problem)
	case len(c.Nodes) == 0:
		p.add(Unread, Warn, pageEtcd, "No node is known yet: etcd has not been read.")
	case serving == 0:
		p.add(EtcdAway, Bad, pageEtcd, "etcd does not answer%s, and the windows have ended: nobody issues.", away)
	case shortest >= 0:
		p.add(EtcdAway, Bad, pageEtcd,
			"etcd does not answer%s. Nodes issue until their windows end, the first in %s.", away,
			text.Seconds(shortest))
	default:
		p.add(EtcdAway, Bad, pageEtcd, "etcd does not answer%s, and the state of sids is not known.", away)
	}
}

// members says which endpoints of etcd do not answer, while a majority of its members does.
func (p *problems) members() {
	e := p.c.Etcd
	if e == nil || e.Answer == e.Endpoints || p.c.Stale() {
		return
	}
	var away []string
	for _, m := range e.Members {
		if m.Problem != "" && m.Size == 0 { // One that answers has a database.
			away = append(away, m.Endpoint)
		}
	}
	names := text.List(away)
	switch spare := e.VotersAnswer - e.Voters/2 - 1; {
	case len(away) == 0:
	case e.Voters == 0 || spare < 0: // A majority runs, since etcd was read a moment ago.
		p.add(MembersAway, Warn, pageMember, "No answer from etcd at %s.", names)
	case spare == 0:
		p.add(MembersAway, Warn, pageMember, "etcd has %d of %d members: the loss of one more stops every write "+
			"(no answer from %s).", e.VotersAnswer, e.Voters, names)
	default:
		p.add(MembersAway, Warn, pageMember, "etcd has %d of %d members: %d more may fail (no answer from %s).",
			e.VotersAnswer, e.Voters, spare, names)
	}
}

func (p *problems) nodes() {
	names, since := map[string][]string{}, map[string]int64{}
	for _, n := range p.c.Nodes {
		kind, name := problemOf(p.c, n), n.Label()
		if at := p.began(kind, n); len(names[kind]) == 0 || at < since[kind] {
			since[kind] = at // 0: of one it is not known, and may be earlier than of the others.
		}
		if kind == NodesRefuse {
			name += " with " + n.Refusing.String()
		}
		names[kind] = append(names[kind], name)
	}
	if p.c.Self.Phase == lease.Rewound.String() {
		names[Rewound] = append(names[Rewound], p.c.Self.Name)
	}
	serving, _ := p.c.serving()
	for _, k := range ofNodes {
		if k.kind == ClockSkewed && serving == 0 {
			k.page = "how-to/repair-clocks.md#no-majority-agrees"
			k.text = "The clocks disagree, and nobody issues: {names}."
		}
		if len(names[k.kind]) > 0 {
			p.list = append(p.list, k.problem(names[k.kind], p.c.since(since[k.kind])))
		}
	}
}

// names finds names that several processes have.
func (p *problems) names() {
	count := map[string]int{}
	for _, n := range p.c.Nodes {
		if count[n.Name]++; count[n.Name] == 2 {
			p.add(NameShared, Warn, "reference/alerts.md#allocatornameshared",
				"Several processes are registered as %s: if that lasts for longer than a lease, set node.name "+
					"on each.", n.Label())
		}
	}
}

// Vanished returns the nodes that are not registered any more and have not released their sids. Started is
// when their records were written last. Where as many nodes are registered as should be, others replaced them.
func (c Cluster) Vanished() (out []Node) {
	if c.Expected > 0 && len(c.Nodes) >= c.Expected {
		return nil
	}
	for _, s := range c.SIDs {
		registered := func(n Node) bool { return n.Name == s.Node }
		lately := c.Self.Now-s.Written < vanishedFor.Milliseconds()
		if s.Unreleased && !s.Worker && lately && !slices.ContainsFunc(c.Nodes, registered) {
			gone := Node{Instance: s.Instance, Name: s.Node, SID: s.SID, State: Gone, Ceil: s.Ceil, Started: s.Written}
			out = append(out, gone)
		}
	}
	return out
}

// should returns how many nodes there should be, as far as that is known.
func (c Cluster) should() int {
	names := map[string]bool{}
	for _, n := range c.Vanished() {
		names[n.Label()] = true
	}
	return max(len(c.Nodes)+len(names), c.Expected)
}

// missing finds nodes that are not registered and should be: by sids whose holders vanished, and by the number
// that is expected.
func (p *problems) missing() {
	c := p.c
	vanished := c.Vanished()
	for _, n := range vanished {
		p.add(Vanished, Warn, pageDoctor, "%s vanished, and has not released sid %d%s.", n.Label(), n.SID,
			c.since(n.Started))
	}
	if n := len(c.Nodes); n > 0 && n+len(vanished) < c.Expected {
		p.add(NodesMissing, Warn, pageDoctor, "%d of %s expected are registered.", n, text.Count(c.Expected, "node"))
	}
}

func (p *problems) quarantined() {
	n := 0
	for _, s := range p.c.SIDs {
		if s.State == Quarantined {
			n++
		}
	}
	if n > 0 {
		p.add(SIDsQuarantined, Warn, "how-to/repair-sids.md#a-record-is-corrupt-or-a-sid-quarantined",
			"%s quarantined.", text.Count(n, "sid"))
	}
}

// watermark finds who holds the watermark back, unless the cause is a problem that is named
// already.
func (p *problems) watermark() {
	m := p.c.Watermark
	if m == nil || !m.Held {
		return
	}
	for _, b := range m.BlockedBy {
		if b.Why != watermark.EtcdAway {
			p.add(WatermarkHeld, Warn, "reference/watermark.md#why-it-waits", "The watermark is %s behind: %s%s.",
				text.Seconds(m.Lag), b.Text, p.c.since(b.Since))
			return
		}
	}
}

// WatermarkLine is one line about the watermark; "" if it is not known.
func (c Cluster) WatermarkLine() string {
	m := c.Watermark
	if m == nil {
		return ""
	}
	line := fmt.Sprintf("watermark %s, %s behind", text.Millis(m.At), text.Seconds(m.Lag))
	if len(m.BlockedBy) > 0 {
		line += ": " + m.BlockedBy[0].Text
	}
	return line
}

// OwnProblem returns the worst problem of the node that answers, by what it knows of itself;
// of level OK if it has none.
func (c Cluster) OwnProblem() Problem {
	n := Node{Name: c.Self.Name, Instance: c.Self.Instance}
	n.judgeSelf(c.Self)
	kind := problemOf(c, n)
	for _, k := range ofNodes {
		if k.kind == kind {
			return k.problem([]string{n.Label()}, c.since(c.began(kind, n)))
		}
	}
	return Problem{Level: OK}
}

// serving returns how many nodes serve, and the shortest time that is left of a node's
// window, in ms; -1: none is known.
func (c Cluster) serving() (nodes int, shortest int64) {
	shortest = -1
	for _, n := range c.Nodes {
		if n.State == Serving {
			nodes++
		}
		if left := n.Ceil - c.Self.Now; n.SID >= 0 && n.Ceil != 0 && (shortest < 0 || left < shortest) {
			shortest = max(0, left)
		}
	}
	return nodes, shortest
}

// Summarize returns the one sentence about a cluster: its worst problem, or that all is well.
func Summarize(c Cluster) Problem {
	serving, shortest := c.serving()
	if len(c.Problems) == 0 {
		sentence := fmt.Sprintf("All is well: %s serve", text.Count(serving, "node"))
		if serving == 1 {
			sentence += "s"
		}
		if shortest >= 0 {
			sentence += fmt.Sprintf(", every window lasts %s or longer", text.Seconds(shortest))
		}
		return Problem{Level: OK, Text: sentence + "."}
	}
	worst := c.Problems[0]
	if len(c.Nodes) > 0 {
		worst.Text += fmt.Sprintf(" %d of %s serve", serving, text.Count(c.should(), "node"))
		if more := len(c.Problems) - 1; more > 0 {
			worst.Text += fmt.Sprintf("; %s more", text.Count(more, "problem"))
		}
		worst.Text += "."
	}
	return worst
}
