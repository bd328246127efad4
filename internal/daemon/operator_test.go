package daemon_test

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/node"
)

// TestDrainByCall: an operator drains one of two nodes. Its sid is given back to
// the last ID, it refuses and takes no other, and its clock still counts. Undrained, it
// acquires a sid and issues.
func TestDrainByCall(t *testing.T) {
	c := daemontest.Settings(t, "a", shared)
	daemontest.Init(t, c)
	a := start(t, c)
	wait.Until(t, "the first node issues", func() bool { return a.Node().Ready() == nil })
	conn, err := grpc.NewClient(a.Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := a.Node().Next(t.Context(), 10, 0); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	r, err := pb.NewAdminServiceClient(conn).Drain(ctx, &pb.DrainRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !r.GetReleased() || r.GetSid() != 0 || r.GetCeilUnixMs() == 0 {
		t.Errorf("drained: %v", r)
	}
	if _, err := pb.NewAdminServiceClient(conn).Drain(ctx, &pb.DrainRequest{}); err != nil {
		t.Errorf("draining again: %v", err)
	}
	s := a.Node().Stats()
	if s.Holding || s.Lease.Held || !s.Lease.Idle {
		t.Errorf("drained: %+v", s.Lease)
	}
	if got := a.Node().Ready(); got == nil || got.Reason != node.Draining {
		t.Errorf("refuses with %v, want DRAINING", got)
	}
	if len(s.Lease.Nodes) == 0 {
		t.Error("it is no longer registered: its clock does not count any more")
	}
	wait.Until(t, "the log says who did it", func() bool {
		return strings.Contains(a.Log.String(), `msg="drain requested by an operator" node=a`)
	})
	for _, was := range []bool{true, false} {
		u, err := pb.NewAdminServiceClient(conn).Undrain(ctx, &pb.UndrainRequest{})
		if err != nil || u.GetWasDrained() != was {
			t.Fatalf("undrained: %v, %v", u, err)
		}
		wait.Until(t, "it issues again", func() bool { _, err := a.Node().Next(t.Context(), 1, 0); return err == nil })
	}
	if n := strings.Count(a.Log.String(), `msg="drain undone by an operator" node=a`); n != 1 {
		t.Errorf("it says %d times that the drain was undone", n)
	}
}

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
			if err != nil {
				t.Fatal(err)
			}
			// A clock that is max-skew ahead granted it, to one that is max-lead ahead of that.
			granted := before.Add(max(windows.node, windows.worker) + 2*c.Issue.MaxSkew + c.Issue.MaxLead)
			if floor := v.Era.Value.Floor.Time(); floor.Before(granted.Truncate(time.Millisecond)) {
				t.Errorf("IDs begin %v below what a node can have granted", granted.Sub(floor))
			}
		})
	}
}

// TestRecoveryPage: the plan of a new era rests on what this node and all others say now, also on why
// they refuse.
func TestRecoveryPage(t *testing.T) {
	c := daemontest.Settings(t, "a", shared)
	c.Console.Operate = true
	daemontest.Init(t, c)
	a := start(t, c)
	other := c
	other.Node.Name = "b"
	b := start(t, other)
	for _, n := range []*running{a, b} {
		wait.Until(t, "it issues", func() bool { return n.Node().Ready() == nil })
	}
	page := func() string {
		r := httptest.NewRequest("POST", "http://127.0.0.1/console/operate", strings.NewReader("action=recover"))
		r.RemoteAddr = "127.0.0.1:5000"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		a.Console().ServeHTTP(w, r)
		return w.Body.String()
	}
	// says is whether the plan's row of a node, which has its address, has a state.
	says := func(n *running, state string) bool {
		_, rest, _ := strings.Cut(page(), n.Addresses().GRPC)
		row, _, _ := strings.Cut(rest, "</tr>")
		return strings.Contains(row, state)
	}
	wait.Until(t, "both have answered", func() bool { return says(a, "serving") && says(b, "serving") })
	b.Node().Drain()
	a.Node().Drain()
	wait.Until(t, "both say why they refuse", func() bool { return says(a, "DRAINING") && says(b, "DRAINING") })
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{shared}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	if r, err := etcd.Delete(t.Context(), "/"+c.Root+"/"+c.Space+"/era"); err != nil || r.Deleted != 1 {
		t.Fatal(r, err)
	}
	wait.Until(t, "what matters more comes first", func() bool { return says(a, "HISTORY_REWOUND") })
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
