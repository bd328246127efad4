package fence

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	prove "github.com/flakelease/allocator/chaos/fence"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/chaos/real/rigtest"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/internal/fence"
)

// TestReaders has IDs and marks of a cluster, while its nodes are killed and stopped and
// their clocks step. In tier check its windows are short, so that several faults fit into
// its time.
func TestReaders(t *testing.T) {
	tier.Check(t, "three nodes, three etcd members and a PostgreSQL server under load")
	timing, late := rig.Default, 20*time.Second
	seconds := tier.Of(t, "seconds", 0, 30, 600)
	if seconds < 600 {
		timing, late = rig.Brisk, 6*time.Second
		timing.Watermark = time.Second
	}
	c := start(t, timing)
	t.Setenv(nodesOfWriters, strings.Join(rigtest.Addresses(c.Rig), ","))
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer stop()
	asking.Go(func() { c.ask(ctx, func(client.Watermark) {}) })
	marks := c.client(rigtest.Addresses(c.Rig)...)
	prove.Run(t, prove.Config{
		Next: c.next,
		Mark: func(ctx context.Context) (fence.Mark, error) {
			w, err := marks.Watermark(ctx)
			return fence.Mark{UnixMs: w.UnixMilli, ID: w.ID.Int64()}, err
		},
		Mover:   []string{c.Allocator, "fence", "run", "--addr", strings.Join(rigtest.Addresses(c.Rig), ",")},
		Faults:  c.inject,
		Writers: 48, // and 16 in processes
		Program: []string{os.Args[0]},
		For:     time.Duration(seconds) * time.Second,
		Late:    late,
		Settle:  3 * time.Minute,
	})
	t.Logf("%d IDs were compared with the highest of %d watermarks before", c.given.Load(), c.asked.Load())
}
