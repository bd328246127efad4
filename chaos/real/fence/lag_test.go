package fence

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	prove "github.com/flakelease/allocator/chaos/fence"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/chaos/real/rigtest"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/client"
)

// nodesOfWriters is the variable of the environment with the addresses of the nodes that a process of
// writers asks.
const nodesOfWriters = "FENCE_NODES"

func TestMain(m *testing.M) {
	if nodes := os.Getenv(nodesOfWriters); nodes != "" {
		sdk, err := client.New(client.Options{Targets: strings.Split(nodes, ",")})
		if err != nil {
			panic(err)
		}
		if prove.Writers(sdk.Next) {
			return
		}
	}
	rigtest.Main(m)
}

// TestLag measures how far the watermark lags behind the clock of the node that answers
// while clients draw IDs, and by how much a killed holder delays it. The goals are those of
// a machine that does nothing else; the bounds here are for one that is loaded.
func TestLag(t *testing.T) {
	tier.Check(t, "watermarks of three nodes and three etcd members, twice")
	for _, tc := range []struct {
		name            string
		interval        time.Duration
		goal, bound     time.Duration // of the lag at p99
		killed, outside time.Duration // goal and bound after kill -9
	}{
		{"default", 0, 6500 * time.Millisecond, 30 * time.Second, 45 * time.Second, 2 * time.Minute},
		{"watermark.interval 1s", time.Second, 1500 * time.Millisecond, 30 * time.Second, 45 * time.Second, 2 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			timing := rig.Default
			timing.Watermark = tc.interval
			c := start(t, timing)
			if _, _, err := c.passes(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer stop()
			for range 8 {
				all.Go(func() {
					for ctx.Err() == nil {
						if _, err := c.next(ctx); err != nil && ctx.Err() == nil {
							t.Errorf("no ID: %v", err)
							return
						}
						rigtest.Wait(ctx, time.Millisecond)
					}
				})
			}
			lags := c.lags(ctx, 30*time.Second)
			text, p99 := prove.Percentiles(lags), lags[len(lags)*99/100]
			t.Logf("%d answers, lag %s; the goal for p99 is %v", len(lags), text, tc.goal)
			// A night's machine does nothing else.
			bound := tier.Of(t, "ms of lag at p99", 0, int(tc.bound.Milliseconds()), int(tc.goal.Milliseconds()))
			if p99.Milliseconds() > int64(bound) {
				t.Errorf("the watermark lags by %s", text)
			}
			n := c.Nodes[2]
			began := time.Now()
			fatal.If(t, n.Kill())
			took, why, err := c.passes(t.Context(), began)
			fatal.If(t, err)
			t.Logf("after kill -9 of a holder the watermark passed its time after %v; the goal is %v; held back by %q",
				took.Round(time.Millisecond), tc.killed, why)
			if took > tc.outside {
				t.Errorf("a killed holder delayed the watermark by %v", took)
			}
		})
	}
}

// lags returns the lags of answers of all nodes in some time.
func (c *cluster) lags(ctx context.Context, in time.Duration) (all []time.Duration) {
	ctx, stop := context.WithTimeout(ctx, in)
	defer stop()
	var mu sync.Mutex // guards all
	c.ask(ctx, func(w client.Watermark) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, w.Lag)
	})
	if len(all) == 0 {
		c.Fatal("no node answered a watermark")
	}
	return all
}
