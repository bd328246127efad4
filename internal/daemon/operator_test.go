package daemon_test

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// TestFloorAboveWorkers: the IDs of a space that takes the place of a lost one begin above
// all that nodes of the lost one granted, to themselves and to workers (I1). The longer
// window decides, whichever it is.
func TestFloorAboveWorkers(t *testing.T) {
	for name, windows := range map[string]struct{ node, worker time.Duration }{
		"worker": {30 * time.Second, time.Minute},
		"node":   {2 * time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			c := daemontest.Settings(t, "a", shared)
			c.Lease.Window, c.Worker.Window = windows.node, windows.worker
			before := time.Now()
			_, v, err := daemon.Init(t.Context(), c, daemon.Beginning{}, slog.New(slog.DiscardHandler))
			fatal.If(t, err)
			// A clock that is max-skew ahead granted it, to one that is max-lead ahead of that.
			granted := before.Add(max(windows.node, windows.worker) + 2*c.Issue.MaxSkew + c.Issue.MaxLead)
			if floor := v.Era.Value.Floor.Time(); floor.Before(granted.Truncate(time.Millisecond)) {
				t.Errorf("IDs begin %v below what a node can have granted", granted.Sub(floor))
			}
		})
	}
}

// TestNoWayToEtcd: settings with which nothing can be asked of etcd are an error that names them.
func TestNoWayToEtcd(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*config.Config)
		says   string
	}{
		"no password file": {func(c *config.Config) { c.Etcd.Username, c.Etcd.PasswordFile = "u", "/nowhere/password" }, "/nowhere/password"},
		"no endpoint":      {func(c *config.Config) { c.Etcd.Endpoints = nil }, "none given"},
		"no space":         {func(c *config.Config) { c.Space = "a/b" }, "a/b"},
	} {
		c := daemontest.Settings(t, "a", shared)
		tc.change(&c)
		_, err := daemon.FindSpace(t.Context(), c, daemon.Beginning{}, slog.New(slog.DiscardHandler))
		if err == nil || errors.Is(err, daemon.ErrNoSpace) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRecoveryPage: the plan of a new era rests on the highest ceilings of this node and of all others, and shows why
// they refuse. This node adds its own to what others say by gossip.
func TestRecoveryPage(t *testing.T) {
	c := daemontest.Settings(t, "a", shared)
	c.Console.Operate = true
	daemontest.Init(t, c)
	other := c
	other.Node.Name = "b"
	nodes := []*running{start(t, c), start(t, other)}
	// says reports whether the plan's row of a node, which has its address, has some words.
	says := func(n *running, words string) bool {
		r := httptest.NewRequest("POST", "http://127.0.0.1/console/operate", strings.NewReader("action=recover"))
		r.RemoteAddr = "127.0.0.1:5000"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		nodes[0].Console().ServeHTTP(w, r)
		_, rest, _ := strings.Cut(w.Body.String(), n.Addresses().GRPC)
		row, _, _ := strings.Cut(rest, "</tr>")
		return strings.Contains(row, words)
	}
	for _, n := range nodes {
		wait.Until(t, "it issues", func() bool { return n.Node().Ready() == nil })
		wait.Until(t, "it says that it serves", func() bool { return says(n, "serving") })
	}
	for _, n := range nodes {
		n.Node().Drain()
		wait.Until(t, "it says why it refuses", func() bool { return says(n, "DRAINING") })
		wait.Until(t, "it says its ceiling", func() bool { return says(n, repair.At(n.Node().Stats().Reserved)) })
	}
}
