package sqlid

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/clockhook"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/chaos/real/rigtest"
	prove "github.com/flakelease/allocator/chaos/sqlid"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/internal/sqlid"
)

const (
	hold   = 2 * time.Second
	window = 8 * time.Second // of a worker: it is extended when a third has passed
)

func TestMain(m *testing.M) { rigtest.Main(m) }

// TestUnique: IDs that databases answer, in each isolation level and whatever became of the transaction, are
// different from each other and from those of nodes, rise in each session, and lie in intervals that etcd has
// confirmed to one worker.
func TestUnique(t *testing.T) {
	tier.Check(t, "three nodes, three etcd members and PostgreSQL servers under load")
	r := start(t)
	addresses := rigtest.Addresses(r)
	addr := strings.Join(addresses, ",")
	note := func(op history.Op) {
		if _, err := r.History.Write(op); err != nil {
			t.Error(err)
		}
	}
	sdk, err := client.New(client.Options{Targets: addresses})
	fatal.If(t, err)
	defer func() { _ = sdk.Close() }()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		draw(ctx, sdk, note)
	}()
	defer func() { stop(); <-ended }()
	prove.Check(t, prove.Config{
		Format: r.Format,
		Hold:   hold,
		Write:  note,
		Runner: func(name string, databases []string) prove.Process {
			p := &rig.Process{
				Name: name, Place: rig.Loopback{}, Path: r.Allocator, Dir: filepath.Join(r.Dir, "logs"), Hooked: r.Clocks,
				Args: []string{"sql", "run", "--name", name, "--addr", addr, "--every", "200ms", "--hold", hold.String()},
			}
			for _, url := range databases {
				p.Args = append(p.Args, "--database", url)
			}
			t.Cleanup(func() {
				_ = p.Kill()
				rigtest.Log(t, p)
			})
			return p
		},
		Faults:  func(run *prove.Run) []prove.Fault { return faults(r, run) },
		Writers: 32,
		Rounds:  tier.Of(t, "rounds", 0, 1, 6),
	})
	stop()
	<-ended
	fatal.If(t, r.CatchUp(t.Context()))
	fatal.If(t, r.History.Flush())
	record, err := os.ReadFile(filepath.Join(r.Dir, "history.jsonl"))
	fatal.If(t, err)
	// Some records of windows are seen late on a busy machine: here they only have to be there.
	suite := history.Suite{history.NewUnique(0, nil), history.NewOrder(), history.NewConfirmed(window)}
	results, err := suite.Check(bytes.NewReader(record), nil)
	fatal.If(t, err)
	for _, found := range results {
		t.Logf("%s: %s, %s", found.Check, found.Verdict, found.Reason)
		if found.Verdict != history.Pass {
			history.Violated(t, "I10", "%s: %s %v", found.Check, found.Reason, found.Violations)
		}
	}
}

// draw draws IDs of the nodes until ctx ends.
func draw(ctx context.Context, sdk *client.Client, note func(history.Op)) {
	for ctx.Err() == nil {
		if id, err := sdk.Next(ctx); err == nil {
			note(history.Op{
				Process: "1000", Type: history.OK, F: history.FAllocate,
				Block: history.Block{First: id, Count: 1, Stride: 1},
			})
		}
		rigtest.Wait(ctx, 10*time.Millisecond)
	}
}

// start returns a cluster that issues, and gives worker numbers.
func start(t *testing.T) *rig.Rig {
	t.Helper()
	r := rigtest.New(t, rig.Brisk, true)
	for _, n := range r.Nodes {
		n.Args = append(n.Args, "--sid-range", "0-7", "--worker.sid-range", "8-31", "--worker.window", window.String(),
			"--worker.per-client", "24")
	}
	if _, err := r.History.Write(history.Op{Process: history.Harness, Type: history.Info, F: history.FSetup,
		Setup: &history.Setup{
			Layout: r.Format.Layout.String(), EpochMs: r.Format.Epoch, StartMs: r.StartWall(),
			MaxSkewMs: rig.MaxSkew.Milliseconds(), MaxLeadMs: rig.MaxLead.Milliseconds(),
			WindowMs: r.Timing.Window.Milliseconds(), Nodes: r.Names(), NotRun: r.Cannot,
		}}); err != nil {
		t.Fatal(err)
	}
	fatal.If(t, r.Start(t.Context()))
	return r
}

// faults are those of nodes, etcd and clocks.
func faults(r *rig.Rig, run *prove.Run) []prove.Fault {
	n := 0
	next := func() *rig.Node { n++; return r.Nodes[n%len(r.Nodes)] }
	all := []prove.Fault{
		{Name: "kill -9 of a node", Do: func(ctx context.Context) error {
			n := next()
			if err := errors.Join(n.Kill(), n.Start()); err != nil {
				return err
			}
			return rig.Until(ctx, time.Minute, n.Name+" issues", n.Ready)
		}},
		{Name: "etcd is away, until the hold is over", Do: func(context.Context) error {
			var errs []error
			for _, p := range r.Etcds {
				errs = append(errs, p.Pause())
			}
			run.Until(sqlid.Expired)
			for _, p := range r.Etcds {
				errs = append(errs, p.Resume())
			}
			return errors.Join(errs...)
		}},
	}
	if !r.Clocks {
		run.Logf("not run: faults of clocks: %v", r.Cannot)
		return all
	}
	for _, by := range []time.Duration{3 * time.Second, -3 * time.Second, time.Hour, -time.Hour} {
		all = append(all, prove.Fault{Name: fmt.Sprintf("clocks of a node and of runners step by %v", by),
			Do: func(ctx context.Context) error {
				hooks := []*clockhook.Hook{next().Hook()}
				for _, p := range run.Main() {
					hooks = append(hooks, p.(*rig.Process).Hook())
				}
				var errs []error
				for _, h := range hooks {
					errs = append(errs, h.Step(clockhook.Offsets{Wall: by}))
				}
				rigtest.Wait(ctx, 2*time.Second)
				for _, h := range hooks {
					errs = append(errs, h.Step(clockhook.Offsets{Wall: -by}))
				}
				return errors.Join(errs...)
			}})
	}
	return all
}
