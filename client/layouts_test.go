package client_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/node"
)

// TestSmallBlocks: where a block lies within one unit of time, a thousand callers and
// large fills are served by requests as large as the layout allows. That the node
// grants no more is learned once, and no caller notices.
func TestSmallBlocks(t *testing.T) {
	for _, layout := range []flake.Layout{flake.Twitter, flake.JS53} {
		t.Run(layout.String(), func(t *testing.T) {
			f := flake.Format{Layout: layout, Epoch: layout.Epoch()}
			limit := 1 << layout.SequenceBits()
			nodes, targets := clusterOf(t, 2, f)
			for _, mode := range modes {
				t.Run(mode.String(), func(t *testing.T) {
					refused := func() (n int64) {
						for _, one := range nodes {
							n += one.Node().Stats().Refused[node.InvalidCount]
						}
						return n
					}
					before := refused()
					c := dial(t, client.Options{Targets: targets, Mode: mode, Timeout: time.Minute}) // beside other work
					w := &callLog{}
					var wg sync.WaitGroup
					const callers, calls = 1000, 5
					for range callers {
						wg.Go(func() {
							for range calls {
								if err := w.call(func() (client.Block, error) { return one(c.Next(context.Background())) }); err != nil {
									t.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
					w.finish(t, true, callers*calls)
					ids := make([]flake.ID, 3*limit+1)
					if err := c.NextN(context.Background(), ids); err != nil {
						t.Fatal(err)
					}
					for i := range ids[1:] {
						if ids[i+1] <= ids[i] {
							t.Fatalf("%d after %d", ids[i+1], ids[i])
						}
					}
					// A batch too large, one behind it, and the fill: each may find it out by itself.
					if n := refused() - before; n > 4 {
						t.Errorf("%d requests were refused for their count", n)
					}
					b, err := c.Block(context.Background(), limit)
					if err != nil || b.Count != limit || b.Stride != 1 || f.UnixMilli(b.First) != f.UnixMilli(b.Last()) {
						t.Errorf("the largest block: %+v, %v", b, err)
					}
					_, err = c.Block(context.Background(), limit+1)
					if r := (*client.Refusal)(nil); !errors.As(err, &r) || r.Reason != client.InvalidCount || !strings.HasSuffix(r.Message, "which is what a sid has in 1ms of layout "+layout.String()) {
						t.Errorf("a larger one: %v", err)
					}
				})
			}
		})
	}
}
