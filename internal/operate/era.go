package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/node"
)

// Node is a node that was asked what it has seen, and its answer.
type Node struct {
	Name       string
	GRPC       string // It is host:port; "": there is none, or it is not known.
	Registered bool   // It is in etcd as that is now.
	Answered   bool   // Else only State is set of the fields below.
	Pool       string // It belongs to this space; "": it has not learned that.
	Era        int64
	Revision   int64        // It has seen etcd's history up to there; 0: it did not say.
	Highest    clock.Millis // The highest ceiling ever confirmed to it; 0: none.
	Refusing   node.Reason  // 0: it issues.
	State      string       // The same in words, or why there is no answer.
}

// Ceiling returns Highest as a text.
func (n Node) Ceiling() string {
	switch {
	case !n.Answered:
		return "?"
	case n.Highest == 0:
		return "-"
	}
	return repair.At(n.Highest)
}

// label names the node as well as it is known.
func (n Node) label() string {
	if n.Name != "" && n.GRPC != "" {
		return n.Name + " at " + n.GRPC
	}
	return cmp.Or(n.Name, n.GRPC, "a node without a name")
}

// Answers are what nodes said after they were asked. An answer from before the question
// does not count: what was confirmed since then is not in it.
type Answers struct {
	Nodes []Node
	// Confirmed: a majority confirms the clock of the machine that computes the floor.
	Confirmed bool
}

// obstacles returns what keeps an era from beginning, unless somebody judges otherwise: a
// person can know more than the nodes that answer.
func obstacles(v lease.View, a Answers) (out []string) {
	rewound := slices.ContainsFunc(a.Nodes, func(n Node) bool { return n.Refusing == node.HistoryRewound })
	if !rewound && v.Era.Exists() && v.Era.Err == nil && v.Era.Value.Cluster == v.Cluster {
		out = append(out, "no node that answers reports HISTORY_REWOUND, and the era was begun on this etcd: "+
			"a new one may not be needed, and nodes issue no IDs until it begins")
	}
	for _, n := range a.Nodes {
		if !n.Answered {
			out = append(out, n.label()+" did not answer: without its answer the floor is right only if its clock "+
				"was right; "+
				"reach it, or stop it and use the command")
		}
	}
	if !a.Confirmed {
		out = append(out, "no majority confirms this machine's clock, and the floor rests on it: "+
			"use the page of another node, or the command on a machine whose clock is right")
	}
	return out
}

// ErrOtherSpace says that a node that answered is of another space than etcd has.
var ErrOtherSpace = errors.New("etcd has another space than a node")

// era returns the plan of a new era: the one rule for whether it may begin, with which number
// and which floor.
//
// It returns repair.ErrNotInitialized or ErrOtherSpace.
func (o *Operator) era(v lease.View, a Answers, floor clock.Millis) (Plan, error) {
	var reports []repair.NodeReport
	var unregistered []string // The command does not find them in the registry.
	for _, n := range a.Nodes {
		if v.Config.Exists() && v.Config.Err == nil && n.Pool != "" && n.Pool != v.Config.Value.Pool {
			return Plan{}, fmt.Errorf("%w: pool %s, and %s is of pool %s", ErrOtherSpace,
				lease.Printable(v.Config.Value.Pool), n.label(), lease.Printable(n.Pool))
		}
		if n.Answered {
			reports = append(reports, repair.NodeReport{Name: n.label(), Era: n.Era, Highest: n.Highest})
		}
		if !n.Registered && n.GRPC != "" {
			unregistered = append(unregistered, n.GRPC)
		}
	}
	by := o.cfg.Author()
	now := by.Now
	e, err := repair.NextEra(v, reports, floor, o.cfg.Bounds, now)
	e.Era.By = by.By()
	if errors.Is(err, repair.ErrNotInitialized) {
		return Plan{}, err
	}
	begun := fmt.Sprintf("era: %d, begun on this cluster", v.Era.Value.Number)
	switch {
	case !v.Era.Exists() || v.Era.Err != nil:
		begun = "era: missing or unreadable"
	case v.Era.Value.Cluster != v.Cluster:
		begun = fmt.Sprintf("era: %d, begun on another cluster, %x: every node refuses",
			v.Era.Value.Number, v.Era.Value.Cluster)
	}
	p := Plan{
		Action:    Recover,
		Title:     "begin a new era",
		Found:     []string{fmt.Sprintf("etcd: cluster %x, revision %d", v.Cluster, v.Revision), begun},
		Warnings:  e.Warnings,
		Obstacles: obstacles(v, a),
		Compares:  compares(v),
		Command:   o.Command(Recover, timeFlag("floor", floor), textFlag("addr", strings.Join(unregistered, ","))),
		Refused:   err,
		View:      v,
		Era:       e,
		Floor:     floor,
		Nodes:     a.Nodes,
	}
	if e.Highest > 0 {
		p.Found = append(p.Found,
			fmt.Sprintf("highest ceiling: %s, of %s", repair.At(e.Highest), lease.Printable(e.HighestOf)))
	}
	if err == nil {
		p.Title = fmt.Sprintf("begin era %d", e.Era.Number)
		p.Writes = []string{
			"era: " + lease.Encode(e.Era),
			fmt.Sprintf("nodes give up what they hold, and nothing is issued before the floor, %s, in %v; it is "+
				"computed again when you confirm",
				repair.At(e.Era.Floor), max(e.Era.Floor-now, 0).Duration().Round(time.Second/10)),
		}
	}
	return p, nil
}

// again decides p, which was shown, once more by what nodes answer now. It returns the plan
// to carry out.
func (o *Operator) again(ctx context.Context, p Plan) (Plan, error) {
	answers := o.cfg.Ask(ctx, p.View)
	v, err := o.cfg.Store.Load(ctx)
	if err != nil {
		return p, err
	}
	now, err := o.era(v, answers, p.Floor)
	switch {
	case err != nil:
		return p, err
	case !v.Config.Same(p.View.Config) || !v.Era.Same(p.View.Era):
		return p, repair.ErrChanged
	case now.Refused != nil:
		return p, now.Refused
	case now.Era.Era.Number != p.Era.Era.Number:
		return p, fmt.Errorf("%w: a node has seen another era since: now this would %s", repair.ErrRefused, now.Title)
	}
	for _, obstacle := range now.Obstacles {
		if !slices.Contains(p.Accepted, obstacle) {
			return p, fmt.Errorf("%w: %s", repair.ErrRefused, obstacle)
		}
	}
	now.Act = p.Act
	return now, nil
}

// Asked returns the nodes that were asked by gossip: self, those that are registered, those
// that were before, as a backup does not have who registered after it, and all that
// answered. answers has the members of gossip, by instance.
func Asked(self Node, instance lease.Instance, registered, before []lease.Registration,
	answers map[lease.Instance]Node) []Node {
	out := []Node{self}
	known := map[lease.Instance]bool{instance: true}
	add := func(r lease.Registration, now bool) {
		if known[r.Instance] {
			return
		}
		known[r.Instance] = true
		n := answers[r.Instance]
		n.Name, n.GRPC, n.Registered = cmp.Or(r.Node, lease.Printable(string(r.Instance))), r.GRPC, now
		out = append(out, n)
	}
	for _, r := range registered {
		out[0].Registered = out[0].Registered || r.Instance == instance
		add(r, true)
	}
	for _, r := range before {
		add(r, false)
	}
	for instance, n := range answers {
		if !known[instance] {
			out = append(out, n)
		}
	}
	slices.SortFunc(out[1:], func(a, b Node) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.GRPC, b.GRPC))
	})
	return out
}
