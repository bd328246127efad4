package daemon

import (
	"context"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/status"
)

// gossipConfig returns what is known before the pool's ID is: enough to listen.
func (d *Daemon) gossipConfig() cluster.Config {
	return cluster.Config{
		Node: d.cfg.Node.Name, Instance: string(d.instance), Label: d.cfg.Root + "/" + d.cfg.Space,
		Bind: d.cfg.Listen.Gossip, Advertise: d.cfg.Advertise.Gossip,
		Keys: d.security.keys, Insecure: d.cfg.Gossip.Insecure,
		Local: local{d}, Logger: d.log,
	}
}

// local gives gossip the state of this node.
type local struct{ d *Daemon }

// Clocks reads the clocks.
func (l local) Clocks() clock.Snapshot {
	c, _ := l.d.clock.Snapshot()
	return c
}

// Status returns the status of the node. It may be called when the cluster runs.
func (l local) Status() agreement.Status { return l.d.watch.Status() }

// reports returns what other nodes say of theirs, and if look is set, has them asked for
// lookedFor.
func (d *Daemon) reports(look bool) map[string]status.Heard {
	now := d.clock.Now()
	if look {
		d.looked.Store(int64(now.Mono))
	}
	c := d.cluster.Load()
	if c == nil {
		return nil
	}
	out := map[string]status.Heard{}
	for instance, r := range c.Reports() {
		h := status.Heard{Owed: r.Owed}
		if said, err := status.ParseSaid(r.Said, r.Age, now.Wall); err == nil {
			h.Report = &said.Report
		}
		out[instance] = h
	}
	return out
}

// lookedLately reports whether somebody looked at other nodes, so that they are being asked.
func (d *Daemon) lookedLately(now clock.Mono) bool {
	looked := clock.Mono(d.looked.Load())
	return looked != 0 && now.Sub(looked) < lookedFor
}

// askOnce asks other nodes for their reports unless they are being asked, and returns when
// each has answered, or did not within answerWithin. Concurrent calls are one.
func (d *Daemon) askOnce(ctx context.Context) {
	c := d.cluster.Load()
	if c == nil || d.lookedLately(d.clock.Now().Mono) {
		return
	}
	_, _, _ = d.asking.Do("", func() (any, error) { return askPeers(context.WithoutCancel(ctx), c, d.clock), nil })
}

// runGossip runs gossip until ctx ends, from when the pool is known on.
func (d *Daemon) runGossip(ctx context.Context) error {
	if d.gossip == nil {
		<-ctx.Done()
		return nil
	}
	st, changed := d.keeper.Watch()
	for st.Space.Pool == "" {
		select {
		case <-ctx.Done():
			return d.gossip.Shutdown()
		case <-changed:
		}
		st, changed = d.keeper.Watch()
	}
	cfg := d.gossipConfig()
	cfg.Pool = st.Space.Pool
	cfg.Transport, cfg.Advertise = d.gossip, d.addrs.Gossip
	cfg.OnExchange, cfg.Report = d.watch.OnExchange, func() []byte { return d.reader.Self().Say() }
	c, err := cluster.New(cfg)
	if err != nil {
		_ = d.gossip.Shutdown()
		return err
	}
	d.cluster.Store(c)
	d.watch.SetGossip(c)
	return c.Run(ctx)
}

// gossipStats returns the counters of gossip, which are 0 until it runs.
func (d *Daemon) gossipStats() (s cluster.Stats) {
	if c := d.cluster.Load(); c != nil {
		return c.Stats()
	}
	return s
}
