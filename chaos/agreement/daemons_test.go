package agreement_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/node"
)

// TestRealNodes: three daemons on loopback, with etcd's own client and real packets.
// The one whose clock is a second ahead is refused; the others serve on.
func TestRealNodes(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	etcd, endpoint, err := etcdsim.OnLoopback()
	fatal.If(t, err)
	t.Cleanup(etcd.Close)
	settings := func(name string) config.Config { return daemontest.Settings(t, name, endpoint) }
	daemontest.Init(t, settings("init"))
	start := func(name string, off time.Duration) *daemontest.Running {
		return daemontest.Start(t, settings(name), daemontest.Ahead(off))
	}

	good := []*daemontest.Running{start("a", 0), start("b", 0)}
	for _, d := range good {
		wait.Until(t, "a good node is ready", func() bool { return d.Node().Ready() == nil })
	}
	// Who was there first may have listed the space before the other was in it.
	wait.Until(t, "both are confirmed by each other", func() bool {
		return good[0].Node().Stats().Verdict.Phase == clock.Confirmed && good[1].Node().Stats().Verdict.Phase == clock.Confirmed
	})
	serving, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for i, d := range good {
		clients.Go(func() {
			for serving.Err() == nil {
				if _, err := d.Node().Next(ctx, 1, 0); err != nil {
					t.Errorf("good node %d: %v", i, err)
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	bad := start("c", time.Second)
	wait.Until(t, "the skewed node refuses", func() bool {
		r := bad.Node().Ready()
		return r != nil && r.Reason == node.ClockSkew
	})
	time.Sleep(2 * time.Second)
	stop()
	clients.Wait()

	r, s := bad.Node().Ready(), bad.Node().Stats()
	if r == nil {
		t.Fatal("the skewed node would issue")
	}
	if r.Reason != node.ClockSkew || s.Issued != 0 || s.Reserved != 0 {
		t.Errorf("%v, issued %d, reserved up to %d", r, s.Issued, s.Reserved)
	}
	if off := offsetOf(r) + time.Second; off.Abs() > 50*time.Millisecond || r.Metadata["limit_ms"] != "250" {
		t.Errorf("refusal %+v", r)
	}
}
