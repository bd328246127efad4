package daemon

import (
	"context"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/operate"
	"github.com/flakelease/allocator/internal/status"
)

const (
	// answerWithin is how long other nodes have to say by gossip what they have seen, and
	// answerAgain when those that did not are asked again: a packet may be lost.
	answerWithin = 2 * time.Second
	answerAgain  = 700 * time.Millisecond
	answerPause  = 20 * time.Millisecond
)

// askNodes returns what this node and all others that it knows have seen, for a new era.
//
// Nodes are asked by gossip, which both sides authenticate by its key. An operator's token
// is not sent to the addresses in the registry: whoever can write to etcd could register
// one of his own.
func (d *Daemon) askNodes(ctx context.Context, v lease.View) operate.Answers {
	answers := map[lease.Instance]operate.Node{}
	if c := d.cluster.Load(); c != nil {
		answers = askPeers(ctx, c, d.clock)
	}
	st := d.node.Stats()
	self := operate.Node{
		Name:     st.Name,
		GRPC:     d.addrs.AdvertisedGRPC,
		Answered: true,
		Pool:     st.Lease.Space.Pool,
		Era:      st.Lease.Era.Number,
		Revision: st.Lease.Revision,
		Highest:  st.Reserved,
	}
	if refusal := d.node.Ready(); refusal != nil {
		self.Refusing, self.State = refusal.Reason, refusal.Message
	}
	if st.Lease.Phase == lease.Rewound {
		self.Refusing = node.HistoryRewound // Another reason may come first in a refusal.
	}
	return operate.Answers{
		Nodes:     operate.Asked(self, d.instance, v.Nodes, st.Lease.Nodes, answers),
		Confirmed: d.watch.Report().Gate.Verdict.Confirmed(),
	}
}

// peers are the other registered nodes with gossip.
type peers interface {
	AskReports(n int)
	Reports() map[string]cluster.PeerReport
}

// askAll asks all peers for their reports.
func askAll(c peers) {
	for range 1 + len(c.Reports())/cluster.AsksAtOnce {
		c.AskReports(cluster.AsksAtOnce)
	}
}

// askPeers asks all peers what they have seen, and waits for each, up to answerWithin.
func askPeers(ctx context.Context, c peers, src clock.Source) map[lease.Instance]operate.Node {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	askAll(c)
	began, again := src.Now().Mono, answerAgain // What came before is no answer.
	for {
		took := src.Now().Mono.Sub(began)
		if took >= again {
			askAll(c)
			again += answerAgain
		}
		answers, missing := map[lease.Instance]operate.Node{}, false
		for instance, r := range c.Reports() {
			n := operate.Node{Name: r.Peer.Node, GRPC: r.Peer.GRPC}
			said, err := status.ParseSaid(r.Said, r.Age, 0)
			if n.Answered = err == nil && r.Age < took; n.Answered {
				n.Era, n.Highest, n.Refusing = said.Era, said.Highest, said.Refusing
			}
			missing = missing || !n.Answered
			answers[lease.Instance(instance)] = n
		}
		if !missing {
			return answers
		}
		select {
		case <-ctx.Done():
			return answers
		case <-time.After(answerPause):
		}
	}
}
