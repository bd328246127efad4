package agreement_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/devetcd"
	"github.com/flakelease/allocator/internal/node"
)

// TestRealNodes: three daemons on loopback, with a real etcd and real packets.
// The one whose clock is a second ahead is refused; the others serve on.
func TestRealNodes(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	etcd, err := devetcd.Start(ctx, devetcd.Config{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	settings := func(name string) config.Config {
		c := config.Default()
		c.Node.Name, c.Space = name, "agreement"
		c.Etcd.Endpoints = []string{etcd.Endpoint()}
		c.Listen = config.Listen{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", Gossip: "127.0.0.1:0"}
		return c
	}
	if _, _, err := daemon.Init(ctx, settings("init"), daemon.Beginning{Fresh: true}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}

	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	logs := map[string]*output.Text{}
	start := func(name string, off time.Duration) *daemon.Daemon {
		logs[name] = &output.Text{}
		log := slog.New(slog.NewTextHandler(logs[name], nil))
		d, err := daemon.New(daemon.Config{Settings: settings(name), Version: "test", Logger: log, Host: wrong(off)})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if err := d.Run(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		return d
	}
	until := func(within time.Duration, what string, ok func() bool) time.Duration {
		t.Helper()
		from := time.Now()
		for !ok() {
			if time.Since(from) > within {
				for name, l := range logs {
					t.Logf("%s\n%s", name, tail(l.String(), 4000))
				}
				t.Fatalf("not within %v: %s", within, what)
			}
			time.Sleep(5 * time.Millisecond)
		}
		return time.Since(from)
	}

	good := []*daemon.Daemon{start("a", 0), start("b", 0)}
	for _, d := range good {
		until(5*time.Second, "a good node is ready", func() bool { return d.Node().Ready() == nil })
	}
	// Who was there first may have listed the space before the other was in it.
	until(8*time.Second, "both are confirmed by each other", func() bool {
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
	took := until(8*time.Second, "the skewed node refuses", func() bool {
		r := bad.Node().Ready()
		return r != nil && r.Reason == node.ClockSkew
	})
	t.Logf("refused with CLOCK_SKEW %v after its start", took)
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

// ahead are the clocks of a machine whose wall clock is wrong by as much.
type ahead struct {
	*clock.System
	by time.Duration
}

func (a ahead) Read() clock.Readings {
	r := a.System.Read()
	r.Wall += int64(a.by)
	return r
}

// wrong returns a machine whose wall clock is ahead.
func wrong(by time.Duration) daemon.Host {
	return daemon.Host{Clock: clock.NewSystem(clock.SystemConfig{Clocks: ahead{clock.NewSystem(clock.SystemConfig{}), by}})}
}
