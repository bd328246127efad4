// Package daemontest runs nodes in the process of a test, as the daemon runs them: with
// their listeners, their gossip and an etcd.
package daemontest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// Settings returns the configuration of a node of the name on free ports, for a space that
// is named after the test, in the etcd at endpoint.
func Settings(t testing.TB, name, endpoint string) config.Config {
	t.Helper()
	c := config.Default()
	c.Node.Name = name
	c.Space = strings.ToLower(strings.NewReplacer("/", ".", "_", "-", "#", "-", "=", "-").Replace(t.Name()))
	c.Etcd.Endpoints = []string{endpoint}
	c.Listen = config.Listen{GRPC: loopback.Any, HTTP: loopback.Any, Admin: loopback.Any, Gossip: loopback.Any}
	return c
}

// Init initializes the space of a node.
func Init(t testing.TB, c config.Config) {
	t.Helper()
	_, _, err := daemon.Init(context.Background(), c, daemon.Beginning{Fresh: true}, slog.New(slog.DiscardHandler))
	fatal.If(t, err)
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

// Ahead returns a machine whose wall clock is ahead.
func Ahead(by time.Duration) daemon.Host {
	clocks := ahead{clock.NewSystem(nil), by}
	return daemon.Host{Clock: clock.NewSystem(clocks)}
}

// Running is a node that runs until it is stopped, or until the test ends.
type Running struct {
	*daemon.Daemon
	Log  *output.Text // It is printed if the test fails.
	Stop func() error // It asks the node to stop, waits, and returns what Run did.
}

// Start starts a node and returns when it listens.
func Start(t testing.TB, c config.Config, host daemon.Host) *Running {
	t.Helper()
	n := &Running{Log: &output.Text{}}
	log := slog.New(slog.NewTextHandler(n.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	n.Daemon, err = daemon.New(daemon.Config{Settings: c, Version: "test", Logger: log, Host: host})
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	n.Stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(c.StopWithin() + 20*time.Second):
			return errors.New("did not stop")
		}
	})
	t.Cleanup(func() {
		if err := n.Stop(); err != nil && !t.Failed() {
			t.Errorf("stop of %s: %v", c.Node.Name, err)
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", c.Node.Name, n.Log)
		}
	})
	select {
	case <-n.Listening():
	case err := <-ended:
		ended <- err
		t.Fatalf("%s ended before it listened: %v", c.Node.Name, err)
	}
	return n
}
