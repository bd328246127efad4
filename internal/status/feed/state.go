package feed

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/text"
)

// State is what the core of a node reports at one moment. Nothing in it is changed once
// it was observed.
type State struct {
	Node      node.Stats
	Refusing  *node.Refusal // why a request would be refused now; nil: it would not
	Clocks    clock.Report
	EtcdFails bool                       // calls to etcd fail, more than one in a row
	EtcdSince clock.Millis               // since when they do
	EtcdLast  clock.Millis               // when the last call before succeeded; 0: none did
	EtcdError string                     // what the calls fail with
	Backup    string                     // why snapshots of etcd inside fail; "": they do not
	Alarms    map[lease.AlarmKind]uint64 // counters
	Files     map[string]Files           // The node reads these again when they change; the key is their name.
}

// Files are files that are read again when they change.
type Files struct {
	Reloads int64
	Failing bool
}

// maxEvents is how many events one transition has. More are counted by the last one: all
// nodes of a fleet may register at once.
const maxEvents = 128

// Transitions returns what happened between two states of one process, in an order in
// which a cause comes before its effects. The first state of a process follows nil.
func Transitions(old *State, now State) []Event {
	c := change{new: &now, at: now.Node.Now, self: now.Node.Name}
	if old == nil {
		old = &State{}
		c.add(Started, "the process started", "instance", string(now.Node.Instance))
	}
	c.old = old
	c.files()
	c.anchor()
	c.gate()
	c.peers()
	c.etcd()
	c.history()
	c.ownSID()
	c.drain()
	c.requests()
	c.quarantine()
	c.nodes()
	c.holders()
	if more := len(c.out) - maxEvents; more > 0 {
		c.out = append(c.out[:maxEvents], at(c.at, c.self, EventsOmitted,
			fmt.Sprintf("%d more events happened at the same time: the tables show their result", more), "count",
			strconv.Itoa(more)))
	}
	return c.out
}

// change is one transition in the making.
type change struct {
	old, new *State
	at       clock.Millis
	self     string
	out      []Event
}

// add adds an event about this node.
func (c *change) add(kind Kind, message string, pairs ...string) *Event {
	return c.about(c.self, kind, message, pairs...)
}

// about adds an event about any node.
func (c *change) about(name string, kind Kind, message string, pairs ...string) *Event {
	c.out = append(c.out, at(c.at, name, kind, message, pairs...))
	return &c.out[len(c.out)-1]
}

func (c *change) files() {
	for _, name := range slices.Sorted(maps.Keys(c.new.Files)) {
		was, is := c.old.Files[name], c.new.Files[name]
		if is.Reloads > was.Reloads {
			c.add(Reload, "files were reloaded: "+name, "files", name)
		}
		if is.Failing && !was.Failing {
			c.add(ReloadFailing, "files are not usable, or parts of them are ignored: "+name+
				"; the log has the reason", "files", name)
		}
	}
}

func (c *change) anchor() {
	was, is := c.old.Clocks.Anchor, c.new.Clocks.Anchor
	if is.Suspends > was.Suspends {
		slept := is.Asleep - was.Asleep
		c.add(ClockSuspend,
			"the machine was suspended for "+slept.Round(time.Millisecond).String(), "for", slept.String())
	}
	if is.Stalls > was.Stalls {
		c.add(ClockStall, "the process did not run for a second or more", "for",
			(is.Stalled - was.Stalled).String())
	}
	if is.StepsForward > was.StepsForward || is.StepsBack > was.StepsBack {
		c.add(ClockStep, "the wall clock was set: IDs keep their time until the new one is confirmed",
			"step", is.LastStep.String(), "held", is.Held.String(), "steps",
			strconv.FormatInt(is.StepsForward+is.StepsBack-was.StepsForward-was.StepsBack, 10))
	}
	if is.Followed > was.Followed {
		c.add(ClockFollowed, "IDs follow the wall clock", "held", is.Ended.Held.String(), "jump",
			is.Ended.Jump.String(), "after", is.Ended.Lasted.String(), "by", string(is.Ended.By))
	}
	if is.Withdrawn > was.Withdrawn {
		c.add(ClockReverted, "the step of the wall clock was reverted", "after", is.Ended.Lasted.String())
	}
	if is.Refuted > was.Refuted {
		c.add(ClockRefuted, "this machine's wall clock is wrong: its peers agree with the time before the step; "+
			"check NTP", "held", is.Held.String())
	}
	if is.Blocked && !was.Blocked {
		c.add(ClockBlocked, "IDs keep their time: the wall clock was set further ahead than nodes follow; set it "+
			"back, or if it is right run \"allocator admin accept-time\"", "held", is.Held.String())
	}
}

func (c *change) gate() {
	was, is := c.old.Clocks.Gate, c.new.Clocks.Gate
	from, to := was.Verdict.Phase, is.Verdict.Phase
	j := is.Judgement
	facts := []string{"phase", to.String(), "finding", j.Finding.String(), "offset", j.Offset.String(), "uncertainty",
		j.Uncertainty.String(),
		"agree", strconv.Itoa(j.Agree), "disagree", strconv.Itoa(j.Disagree), "silent", strconv.Itoa(j.Silent),
		"registered", strconv.Itoa(j.Registered), "falsetickers", strings.Join(j.Falsetickers, ",")}
	switch wasOpen, isOpen := from.State() == clock.Open, to.State() == clock.Open; {
	case wasOpen && !isOpen, from == clock.Starting && to != from && !isOpen:
		message := "the clocks disagree: nothing is issued; check NTP"
		if to == clock.Strict {
			message = "too few peers confirm the clock, and clock.policy is refuse: nothing is issued; check gossip " +
				"between the nodes"
		}
		c.add(GateShut, message, facts...)
	case !wasOpen && isOpen:
		c.add(GateOpened, "clocks allow issuing", facts...)
	case !isOpen:
	case from == clock.Confirmed && to != clock.Confirmed:
		c.add(Unconfirmed, "no majority confirms this clock: IDs are issued, and may be late or early", facts...)
	case from != clock.Confirmed && to == clock.Confirmed:
		c.add(Confirmed, "a majority confirms this clock", facts...)
	}
	for _, name := range j.Falsetickers {
		if !slices.Contains(was.Judgement.Falsetickers, name) {
			c.about(name, ClockFalse, "a majority disagrees with its clock", "reported_by", c.self)
		}
	}
	for _, name := range was.Judgement.Falsetickers {
		if !slices.Contains(j.Falsetickers, name) {
			c.about(name, ClockTrue, "its clock is not found wrong any more", "reported_by", c.self)
		}
	}
}

// peers compares what other nodes report of themselves by gossip.
func (c *change) peers() {
	before := make(map[string]clock.PeerReport, len(c.old.Clocks.Peers))
	for _, p := range c.old.Clocks.Peers {
		before[p.Instance] = p
	}
	for _, p := range c.new.Clocks.Peers {
		was, known := before[p.Instance]
		if !known || was.Age == 0 && was.RTT == 0 { // it has just answered for the first time
			continue
		}
		if was.Fresh != p.Fresh {
			if p.Fresh {
				c.about(p.Name, PeerAnswers, "it answers by gossip", "reported_by", c.self)
			} else {
				c.about(p.Name, PeerSilent, "it does not answer by gossip", "reported_by", c.self)
			}
		}
		switch wasOpen, isOpen := was.Verdict == clock.Open, p.Verdict == clock.Open; {
		case wasOpen && !isOpen:
			c.about(p.Name, GateShut, "it reports that clocks keep it from issuing", "verdict", p.Verdict.String(),
				"offset", p.Offset.String(), "reported_by", c.self)
		case !wasOpen && isOpen:
			c.about(p.Name, GateOpened, "it reports that clocks allow it to issue",
				"offset", p.Offset.String(), "reported_by", c.self)
		}
	}
}

func (c *change) etcd() {
	switch was, is := c.old.EtcdFails, c.new.EtcdFails; {
	case is && !was:
		message := "calls to etcd fail: the node has no window, and issues when etcd answers"
		if c.new.Node.Holding {
			message = "calls to etcd fail: IDs are issued until the window ends"
		}
		last := "never"
		if at := c.new.EtcdLast; at != 0 {
			last = text.Millis(int64(at))
		}
		c.add(EtcdFailing, message, "last_success", last, "window_left", c.windowLeft(), "error", c.new.EtcdError)
	case was && !is:
		c.add(EtcdAnswers, "calls to etcd succeed again", "after", (c.at - c.old.EtcdSince).Duration().String(),
			"window_left", c.windowLeft())
	}
	switch was, is := c.old.Backup, c.new.Backup; {
	case is != "" && was == "":
		c.add(BackupFailing, "no snapshot of etcd inside is written, or copied elsewhere", "error", is)
	case was != "" && is == "":
		c.add(BackupMade, "a snapshot of etcd inside was written, and copied where that is set")
	}
	if c.new.Alarms[lease.AlarmClock] > c.old.Alarms[lease.AlarmClock] {
		c.add(ClockAhead, c.new.Node.Lease.Problem)
	}
}

// windowLeft returns for how long the node issues IDs without etcd.
func (c *change) windowLeft() string {
	if !c.new.Node.Holding {
		return "0s"
	}
	return c.new.Node.WindowLeft().Duration().String()
}

func (c *change) history() {
	was, is := &c.old.Node.Lease, &c.new.Node.Lease
	if is.Phase == lease.Rewound && was.Phase != lease.Rewound {
		c.add(HistoryRewound, is.Problem)
	}
	if is.Era.Number > was.Era.Number && was.Era.Number != 0 {
		c.add(EraBegan, fmt.Sprintf("era %d began: an operator recovered the space", is.Era.Number),
			"era", strconv.FormatInt(is.Era.Number, 10), "floor_unix_ms", strconv.FormatInt(int64(is.Era.Floor), 10))
	}
}

// ownSID compares the tenure of this process.
func (c *change) ownSID() {
	was, is := &c.old.Node.Lease, &c.new.Node.Lease
	same := was.Held && is.Held && was.Grant.SID == is.Grant.SID && was.Grant.Term == is.Grant.Term
	if is.Phase == lease.Lost && was.Phase != lease.Lost && was.Held {
		message := fmt.Sprintf("sid %d was lost: IDs are issued up to the confirmed ceiling; ", was.Grant.SID)
		c.add(SIDLost, strings.TrimSuffix(message+is.Problem, "; "), grantFacts(was.Grant)...).SID = int(was.Grant.SID)
	}
	if was.Held && !same && was.Phase != lease.Lost {
		switch {
		case is.Phase == lease.Lost: // said above
		case is.Phase == lease.Rewound, is.Held:
			c.add(SIDLost, fmt.Sprintf("sid %d was lost", was.Grant.SID),
				grantFacts(was.Grant)...).SID = int(was.Grant.SID)
		default:
			c.add(SIDReleased, fmt.Sprintf("nothing is issued from sid %d any more: it is given back", was.Grant.SID),
				grantFacts(was.Grant)...).SID = int(was.Grant.SID)
		}
	}
	if is.Held && !same {
		c.add(SIDAcquired, fmt.Sprintf("sid %d was acquired", is.Grant.SID),
			grantFacts(is.Grant)...).SID = int(is.Grant.SID)
	}
	if is.Phase == lease.Standby && was.Phase != lease.Standby {
		c.add(Standby, is.Problem, "pool_size", strconv.Itoa(is.Pool.Size), "pool_held", strconv.Itoa(is.Pool.Held))
	}
}

func grantFacts(g lease.Grant) []string {
	return []string{"term", strconv.FormatInt(g.Term, 10), "base_unix_ms", strconv.FormatInt(int64(g.Base), 10),
		"ceil_unix_ms", strconv.FormatInt(int64(g.Ceil), 10)}
}

func (c *change) drain() {
	switch was, is := c.old.Node.Draining, c.new.Node.Draining; {
	case is && !was:
		c.add(Drained, "the node was taken out of service")
	case was && !is:
		c.add(Undrained, "the node was put back into service")
	}
}

func (c *change) requests() {
	reason := func(s *State) node.Reason {
		if s.Refusing == nil {
			return 0
		}
		return s.Refusing.Reason
	}
	was, is := reason(c.old), reason(c.new)
	switch {
	case is != 0 && is != was:
		c.add(Refusing, c.new.Refusing.Message, "reason", is.String())
	case is == 0 && (was != 0 || c.old.Node.Name == ""):
		c.add(Serving, "requests are answered with IDs", "after", was.String())
	}
}

// quarantine compares the sids that are not used.
func (c *change) quarantine() {
	was, is := c.old.Node.Lease.Quarantined, c.new.Node.Lease.Quarantined
	for _, sid := range slices.Sorted(maps.Keys(is)) {
		if _, known := was[sid]; !known {
			c.add(SIDQuarantined, fmt.Sprintf("sid %d is quarantined: %s", sid, is[sid])).SID = int(sid)
		}
	}
	for _, sid := range slices.Sorted(maps.Keys(was)) {
		if _, still := is[sid]; !still && c.new.Node.Lease.Listed {
			c.add(SIDUsable, fmt.Sprintf("sid %d is not quarantined any more", sid)).SID = int(sid)
		}
	}
}

// nodes compares who is registered, from the second list of the process on.
func (c *change) nodes() {
	was, is := &c.old.Node.Lease, &c.new.Node.Lease
	if !was.Listed || !is.Listed || sameArray(was.Nodes, is.Nodes) {
		return
	}
	joined, left := diff(was.Nodes, is.Nodes, func(r lease.Registration) lease.Instance { return r.Instance })
	for _, r := range left {
		c.about(r.Node, NodeLeft, "it is not registered any more", "instance", string(r.Instance))
	}
	for _, r := range joined {
		c.about(r.Node, NodeJoined, "it registered", "instance", string(r.Instance), "version", r.Version)
	}
}

// holders compares who has the sids, this process aside.
func (c *change) holders() {
	was, is := &c.old.Node.Lease, &c.new.Node.Lease
	if !was.Listed || !is.Listed || sameArray(was.Holders, is.Holders) {
		return
	}
	report := func(held []lease.Held, ofNode, ofWorker Kind, what string) {
		for _, h := range held {
			kind := ofNode
			switch {
			case h.Instance == c.new.Node.Instance:
				continue
			case h.Worker:
				kind = ofWorker
			}
			c.about(h.Node, kind, fmt.Sprintf(what, h.SID), "instance", string(h.Instance)).SID = int(h.SID)
		}
	}
	came, left := diff(was.Holders, is.Holders, func(h lease.Held) lease.Held { return h })
	report(left, HolderLeft, WorkerReleased, "it does not hold sid %d any more")
	report(came, HolderCame, WorkerAcquired, "it holds sid %d")
}

// diff returns what is in now alone and what is in was alone, by key.
func diff[T any, K comparable](was, now []T, key func(T) K) (came, left []T) {
	before, after := make(map[K]bool, len(was)), make(map[K]bool, len(now))
	for _, v := range was {
		before[key(v)] = true
	}
	for _, v := range now {
		after[key(v)] = true
		if !before[key(v)] {
			came = append(came, v)
		}
	}
	for _, v := range was {
		if !after[key(v)] {
			left = append(left, v)
		}
	}
	return came, left
}

// sameArray reports whether two slices are one: the core replaces what it changes.
func sameArray[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
