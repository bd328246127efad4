// Package balance decides which node a client asks next, and when it asks one again that refused
// or failed.
//
// A Pool is a machine: its methods take the time since the client's start, and neither wait nor
// start anything. The client carries out what they return, and guards a Pool with one lock.
//
//	asked by all ── refuses, fails or is silent ──▶ paused ── its time is over ──▶ on trial
//	     ▲                                            ▲                              │
//	     └────────────── it serves ───────────────────┴── it does not ───────────────┘
//
// A node on trial is asked by one call. The rest wait for the outcome, so that a thousand callers
// do not ask a refusing node a thousand times.
package balance

import (
	"cmp"
	"slices"
	"time"
)

// Times of a pause.
const (
	// A node that fails is not asked for this long, twice as long each time.
	FirstPause = 20 * time.Millisecond
	lastPause  = time.Second
	// A node that does not answer at all costs callers a whole attempt.
	FirstSilence = time.Second
	lastSilence  = 15 * time.Second
	// RefusedPause is for refusals that name no delay.
	RefusedPause = time.Second
	// maxRefused is the longest that a refusing node is not asked; by then an operator may have
	// changed something.
	maxRefused = 5 * time.Second
)

// MaxNodes bounds the nodes that one client connects to. Of names with more addresses some are
// used, which differ from client to client.
const MaxNodes = 16

// Address is the address of a node, and the target that it was found under.
type Address struct{ Target, Addr string }

// Node is what a pool knows of a node at one address. Times are since the client's start; 0: none.
type Node struct {
	Address
	Refusals int64 // answers without IDs
	Failures int64 // no answer, or a wrong one

	ready      bool          // connected
	until      time.Duration // It is not asked before; 0: it has served since.
	trial      time.Duration // The trial under way times out then.
	unanswered time.Duration // Callers time out since then.
	fails      int           // failures in a row
	cause      error         // why until was set; nil: it has served since
	why        Kind          // Refused or TooFar if cause is a refusal
}

func (n *Node) self() *Node { return n }

// Cause returns why the node was not asked, or nil if it has served since.
func (n *Node) Cause() error { return n.cause }

// Paused returns for how long from now on the node is not asked, but for a trial.
func (n *Node) Paused(now time.Duration) time.Duration { return max(0, n.until-now) }

// left returns for how long from now on the node is not asked.
func (n *Node) left(now time.Duration) time.Duration {
	if n.until == 0 {
		return 0
	}
	return max(n.until, n.trial) - now
}

// Member is a pointer to a Node, or to a type that embeds one.
type Member interface {
	comparable
	self() *Node
}

// Pool holds the nodes that a client knows.
type Pool[M Member] struct {
	Attempt time.Duration // the time of an attempt, and so of a trial
	Turn    uint          // Pick begins with the node after this one.
	Nodes   []M

	changed bool
}

// Changed reports whether a node may be asked since the last call of Changed that was not asked
// before, or the nodes are others: calls that wait should try again.
func (p *Pool[M]) Changed() bool {
	was := p.changed
	p.changed = false
	return was
}

// Ready notes whether m is connected. A node that refused and is connected anew is tried without its pause: a new
// process may serve. Without that, three nodes that restart within a second would all be paused.
func (p *Pool[M]) Ready(m M, ready bool) {
	n := m.self()
	p.changed = p.changed || n.ready != ready
	if ready && !n.ready && n.why == Refused {
		n.until = min(n.until, 1) // It is over, and one call tries the node.
	}
	n.ready = ready
}

// Connected returns how many nodes there is a connection to.
func (p *Pool[M]) Connected() (n int) {
	for _, m := range p.Nodes {
		if m.self().ready {
			n++
		}
	}
	return n
}

// Pick returns the next node to ask, other than avoid where there is another, and the caller has to
// ask it. If none can be asked now it returns the zero M, and after what time one may be.
func (p *Pool[M]) Pick(now time.Duration, avoid M) (M, time.Duration) {
	var none, pick M
	p.Turn++
	wait := time.Second
	for i := range p.Nodes {
		m := p.Nodes[(p.Turn+uint(i))%uint(len(p.Nodes))]
		if n := m.self(); !n.ready {
			continue
		} else if left := n.left(now); left > 0 {
			wait = min(wait, left)
		} else if pick = m; m != avoid {
			break
		}
	}
	if pick != none && pick.self().until != 0 {
		pick.self().trial = now + p.Attempt
	}
	return pick, wait
}

// Kind is what a request shows about the node.
type Kind uint8

// The kinds.
const (
	Served   Kind = iota // It answered what it was asked.
	Refused              // It refuses, and would refuse other requests too.
	TooFar               // It refuses all requests of the client, whose last ID is too far ahead.
	OfCall               // It refused this request alone.
	Left                 // The caller left, which shows nothing.
	Failed               // It gave no answer, or a wrong one.
	Silent               // It did not answer in the time of an attempt.
	Deadline             // It did not answer by the caller's deadline, which was earlier.
)

// Outcome is how a request ended.
type Outcome struct {
	Kind  Kind
	Retry time.Duration // the delay that a refusal names; 0: none
	Err   error         // why the node is not asked from now on
	Old   bool          // It was sent over a connection that has been replaced since.
}

// Ended notes how a request to m ended, and with it the trial if there was one. It reports whether the
// connection is to be replaced, since the node is silent.
func (p *Pool[M]) Ended(m M, now time.Duration, o Outcome) (replace bool) {
	n := m.self()
	p.changed = p.changed || n.trial != 0
	n.trial = 0
	switch o.Kind {
	case Served:
		n.until, n.unanswered, n.fails, n.cause = 0, 0, 0, nil
	case Refused, TooFar:
		n.Refusals++
		if o.Retry <= 0 {
			o.Retry = RefusedPause
		}
		n.unanswered, n.fails = 0, 0 // It answers.
		n.pause(now+min(o.Retry, maxRefused), o)
	case OfCall:
		n.Refusals++
	case Failed:
		n.failed(now, o, FirstPause, lastPause)
	case Silent:
		return n.failed(now, o, FirstSilence, lastSilence)
	case Deadline: // a failure if no caller was answered for the time of an attempt
		if n.unanswered == 0 {
			n.unanswered = now
		} else if now-n.unanswered > p.Attempt {
			n.unanswered = 0
			return n.failed(now, o, FirstSilence, lastSilence)
		}
	}
	return false
}

// failed pauses the node, unless the request was under way when another failed, or was sent over an
// older connection.
func (n *Node) failed(now time.Duration, o Outcome, first, last time.Duration) bool {
	n.Failures++
	if n.until > now || o.Old {
		return false
	}
	n.pause(now+min(first<<min(n.fails, 10), last), o)
	n.fails++
	return true
}

func (n *Node) pause(until time.Duration, o Outcome) { n.until, n.cause, n.why = until, o.Err, o.Kind }

// Cause returns the refusal of a node that is paused because of it. If there is none it returns why some
// node was paused last and has not served since, or nil.
func (p *Pool[M]) Cause(now time.Duration) (err error, refusing bool) {
	for _, m := range p.Nodes {
		n := m.self()
		if n.cause != nil && n.until > now && (n.why == Refused || n.why == TooFar) {
			return n.cause, true
		}
		err = cmp.Or(err, n.cause)
	}
	return err, false
}

// Forgive has nodes asked again that are not, since the client's last ID was too far ahead.
func (p *Pool[M]) Forgive() {
	for _, m := range p.Nodes {
		if n := m.self(); n.cause != nil && n.why == TooFar {
			n.until, n.cause = 0, nil
		}
	}
	p.changed = true
}

// Choose returns the addresses that the client should be connected to, given those that were found, each
// once. Nodes of targets whose lookup failed stay: the failure of a name server is none of the nodes. Of
// too many, connected ones stay, and shuffle says which others are used.
func (p *Pool[M]) Choose(found []Address, failed map[string]error, shuffle func(int, func(i, j int))) []Address {
	connected := map[string]bool{}
	for _, m := range p.Nodes {
		n := m.self()
		connected[n.Addr] = n.ready
		if failed[n.Target] != nil {
			found = append(found, n.Address)
		}
	}
	var list []Address
	for _, a := range found {
		if !slices.ContainsFunc(list, func(b Address) bool { return a.Addr == b.Addr }) {
			list = append(list, a)
		}
	}
	if len(list) <= MaxNodes {
		return list
	}
	shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	rank := func(a Address) int {
		if connected[a.Addr] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(list, func(a, b Address) int { return rank(a) - rank(b) })
	return list[:MaxNodes]
}

// Use makes list the pool's nodes, and returns those that are no longer.
func (p *Pool[M]) Use(list []M) (gone []M) {
	for _, m := range p.Nodes {
		if !slices.Contains(list, m) {
			gone = append(gone, m)
		}
	}
	p.Nodes, p.changed = list, true
	return gone
}
