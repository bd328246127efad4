package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/clockhook"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/chaos/real/rigtest"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// cluster is three nodes, and its client.
type cluster struct {
	*testing.T
	*rig.Rig
	sdk      *client.Client
	answered atomic.Int64 // the highest watermark that a node has answered, as an ID
	asked    atomic.Int64 // answers
	given    atomic.Int64 // IDs that were compared with it
}

// start returns a cluster that issues.
func start(t *testing.T, timing rig.Timing) *cluster {
	t.Helper()
	r := rigtest.New(t, timing, true)
	c := &cluster{T: t, Rig: r}
	fatal.If(t, r.Start(t.Context()))
	c.sdk = c.client(rigtest.Addresses(r)...)
	return c
}

func (c *cluster) client(targets ...string) *client.Client {
	sdk, err := client.New(client.Options{Targets: targets})
	fatal.If(c, err)
	c.Cleanup(func() { _ = sdk.Close() })
	return sdk
}

// next returns an ID of the cluster. None is below a watermark that was answered before.
func (c *cluster) next(ctx context.Context) (flake.ID, error) {
	before := flake.ID(c.answered.Load())
	id, err := c.sdk.Next(ctx)
	if err == nil && id < before {
		history.Violated(c, "I9", "a node issued %v after the watermark %v was answered", id, before)
	}
	if err == nil {
		c.given.Add(1)
	}
	return id, err
}

// ask asks each node for the watermark, again and again until ctx ends.
func (c *cluster) ask(ctx context.Context, saw func(client.Watermark)) {
	var all sync.WaitGroup
	for _, n := range c.Nodes {
		sdk := c.client(n.GRPC)
		all.Go(func() {
			for ; ctx.Err() == nil; rigtest.Wait(ctx, 50*time.Millisecond) {
				within, cancel := context.WithTimeout(ctx, time.Second)
				w, err := sdk.Watermark(within)
				cancel()
				if err != nil {
					continue // The node is down, or was restarted and has read none.
				}
				c.asked.Add(1)
				for {
					old := c.answered.Load()
					if w.ID.Int64() <= old || c.answered.CompareAndSwap(old, w.ID.Int64()) {
						break
					}
				}
				saw(w)
			}
		})
	}
	all.Wait()
}

// fault is what is done to a node, and undone.
type fault struct {
	name string
	do   func(*rig.Node) error
	hold time.Duration
	undo func(*rig.Node) error
}

// faults returns those that this machine supports.
func (c *cluster) faults() []fault {
	all := []fault{
		{
			name: "kill -9",
			do:   func(n *rig.Node) error { return n.Kill() },
			undo: func(n *rig.Node) error { return n.Start() },
		},
		{
			name: "SIGSTOP, briefly",
			do:   func(n *rig.Node) error { return n.Pause() },
			hold: time.Second,
			undo: func(n *rig.Node) error { return n.Resume() },
		},
		{
			name: "SIGSTOP, until the lease has expired",
			do:   func(n *rig.Node) error { return n.Pause() },
			hold: c.Timing.TTL + time.Second,
			undo: func(n *rig.Node) error { return n.Resume() },
		},
	}
	if !c.Clocks {
		return all
	}
	for _, by := range []time.Duration{3 * time.Second, -3 * time.Second} {
		step := func(by time.Duration) func(*rig.Node) error {
			return func(n *rig.Node) error {
				h := n.Hook()
				if h == nil {
					return errors.New("the node has no clock hook")
				}
				return h.Step(clockhook.Offsets{Wall: by})
			}
		}
		all = append(all, fault{
			name: fmt.Sprintf("a clock steps by %v", by),
			do:   step(by),
			hold: 2 * time.Second,
			undo: step(-by),
		})
	}
	return all
}

// inject injects faults into random nodes until ctx ends, each once in a round, in an order that is
// drawn for each, and heals them. The next follows when the watermark has passed the time of the one
// before. round is called at the end of each round.
func (c *cluster) inject(ctx context.Context, round func()) {
	all := c.faults()
	heal := context.WithoutCancel(ctx)
	for turn := 0; ctx.Err() == nil; turn++ {
		if turn%len(all) == 0 {
			if turn > 0 {
				round()
			}
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		}
		f, n := all[turn%len(all)], c.Nodes[rand.IntN(len(c.Nodes))]
		began := time.Now()
		var took time.Duration
		var why []string
		var late error
		var passing sync.WaitGroup
		passing.Go(func() { took, why, late = c.passes(heal, began) })
		if err := f.do(n); err != nil {
			c.Errorf("%s at %s: %v", f.name, n.Name, err)
			return
		}
		rigtest.Wait(ctx, f.hold)
		if err := f.undo(n); err != nil {
			c.Errorf("end of %s at %s: %v", f.name, n.Name, err)
			return
		}
		if err := rig.Until(heal, 2*time.Minute, n.Name+" issues again", n.Ready); err != nil {
			c.Errorf("after %s: %v", f.name, err)
			return
		}
		passing.Wait()
		if late != nil {
			c.Errorf("after %s at %s: %v", f.name, n.Name, late)
			return
		}
		c.Logf("%s at %s: the watermark passed its time after %v; it was held back by %q", f.name, n.Name,
			took.Round(time.Millisecond), why)
	}
}

// passes waits until the watermark is above a time, and returns how long after that time it
// was, and what held it back.
func (c *cluster) passes(ctx context.Context, at time.Time) (took time.Duration, why []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	// A server of another test may have the port of a node that is away, and answer as it likes.
	for ; ctx.Err() == nil; rigtest.Wait(ctx, 100*time.Millisecond) {
		for w, failed := range c.sdk.WatchWatermark(ctx) {
			if failed != nil {
				err = cmp.Or(err, failed)
				break
			}
			if w.UnixMilli > at.UnixMilli() {
				return time.Since(at), why, nil
			}
			for _, b := range w.BlockedBy {
				if text := b.Node + " " + b.Why; !strings.Contains(strings.Join(why, ","), text) {
					why = append(why, text)
				}
			}
		}
	}
	return 0, why, fmt.Errorf("the watermark did not pass, since %s; the first error: %w", strings.Join(why, ", "), err)
}
