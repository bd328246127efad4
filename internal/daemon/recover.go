package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/console"
)

const (
	// answerWithin is how long other nodes have to say by gossip what they have seen, and
	// answerAgain when those that did not are asked again: a packet may be lost.
	answerWithin = 2 * time.Second
	answerAgain  = 700 * time.Millisecond
	answerPause  = 20 * time.Millisecond
)

// recovery returns the era that the node would begin, and what that rests on. It writes
// nothing.
//
// Nodes are asked by gossip, which both sides authenticate by its key. An operator's token
// is not sent to the addresses in the registry: whoever can write to etcd could register
// one of his own.
func (d *Daemon) recovery(ctx context.Context) (console.Recovery, error) {
	v, err := d.etcd.store.Load(ctx)
	if err != nil {
		return console.Recovery{}, err
	}
	return d.recoveryOf(v, d.askNodes(ctx, v))
}

// recover begins the era, if config and era are as they were shown, and if nothing keeps
// the node from it now.
func (d *Daemon) recover(ctx context.Context, shown lease.View) (repair.Era, error) {
	asked := d.askNodes(ctx, shown)
	era, _, err := d.etcd.store.Recover(ctx, shown, func(now lease.View) (repair.Era, error) {
		r, err := d.recoveryOf(now, asked)
		switch {
		case err != nil:
			return r.Era, err
		case r.Refused != nil:
			return r.Era, r.Refused
		case len(r.Obstacles) > 0:
			return r.Era, errors.New(r.Obstacles[0])
		}
		return r.Era, nil
	})
	return era, err
}

// askNodes asks the other nodes what they have seen, and waits for those that are
// registered or in gossip. Only answers that come meanwhile count.
func (d *Daemon) askNodes(ctx context.Context, v lease.View) map[string]cluster.PeerReport {
	c := d.cluster.Load()
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	began, again := d.clock.Now().Mono, time.Duration(0)
	for {
		took := d.clock.Now().Mono.Sub(began)
		if took >= again {
			for range 1 + len(v.Nodes)/cluster.AsksAtOnce {
				c.AskReports()
			}
			again += answerAgain
		}
		all := c.Reports()
		missing := false
		for instance, r := range all {
			if r.Sent = r.Sent && r.Age <= took; !r.Sent {
				missing = true
			}
			all[instance] = r
		}
		if !missing {
			return all
		}
		select {
		case <-ctx.Done():
			return all
		case <-time.After(answerPause):
		}
	}
}

// recoveryOf returns the era for a space, with the answers of other nodes.
func (d *Daemon) recoveryOf(v lease.View, answers map[string]cluster.PeerReport) (console.Recovery, error) {
	st, now := d.node.Stats(), d.clock.Now().Wall
	if pool := st.Lease.Space.Pool; pool != "" && v.Config.Exists() && v.Config.Err == nil && v.Config.Value.Pool != pool {
		return console.Recovery{}, fmt.Errorf("etcd has another space: pool %s, and this node is of pool %s", lease.Printable(v.Config.Value.Pool), pool)
	}
	listed := slices.ContainsFunc(v.Nodes, func(r lease.Registration) bool { return r.Instance == d.instance })
	self := console.Asked{Name: st.Name, GRPC: d.addrs.AdvertisedGRPC, Registered: listed, Answered: true, Era: st.Lease.Era.Number, Highest: int64(st.Reserved)}
	if refusal := d.node.Ready(); refusal != nil {
		self.Refusing = refusal.Reason.String()
	}
	a := repair.Answers{
		Reports:   []repair.NodeReport{{Name: st.Name, Era: self.Era, Highest: st.Reserved}},
		Rewound:   st.Lease.Phase == lease.Rewound,
		Confirmed: d.watch.Report().Gate.Verdict.Confirmed(),
	}
	r := console.Recovery{View: v, Now: int64(now), Nodes: []console.Asked{self}}
	known := map[string]bool{string(d.instance): true}
	ask := func(n console.Asked, report cluster.PeerReport) {
		if n.Answered = report.Sent; n.Answered {
			n.Era, n.Highest = report.Era, int64(report.Highest)
			n.Refusing = node.Reason(report.Reason).String()
			a.Reports = append(a.Reports, repair.NodeReport{Name: n.Name, Era: n.Era, Highest: report.Highest})
			a.Rewound = a.Rewound || report.Reason == uint8(node.HistoryRewound)
		} else {
			a.Silent = append(a.Silent, n.Name)
		}
		r.Nodes = append(r.Nodes, n)
	}
	// Those of etcd as it is now, and of the last list before it went back: a backup does
	// not have who registered after it.
	for i, list := range [][]lease.Registration{v.Nodes, st.Lease.Nodes} {
		for _, reg := range list {
			if instance := string(reg.Instance); !known[instance] {
				known[instance] = true
				ask(console.Asked{Name: cmp.Or(reg.Node, lease.Printable(instance)), GRPC: reg.GRPC, Registered: i == 0}, answers[instance])
			}
		}
	}
	for instance, report := range answers {
		if !known[instance] {
			ask(console.Asked{Name: lease.Printable(report.Member.Node), GRPC: lease.Printable(report.Member.GRPC)}, report)
		}
	}
	slices.SortFunc(r.Nodes[1:], func(a, b console.Asked) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.GRPC, b.GRPC)) })
	slices.Sort(a.Silent)
	r.Era, r.Refused = repair.NextEra(v, a.Reports, 0, d.cfg.Slack(), now)
	if errors.Is(r.Refused, repair.ErrNotInitialized) {
		return r, r.Refused
	}
	r.Obstacles = repair.Obstacles(v, a)
	return r, nil
}
