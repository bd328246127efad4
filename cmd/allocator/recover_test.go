package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/node"
)

// backup takes a snapshot of etcd, as an operator does.
func (d *testCluster) backup() string {
	d.Helper()
	r, err := d.keys().Snapshot(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	defer r.Close()
	path := filepath.Join(d.TempDir(), "backup.db")
	f, err := os.Create(path)
	if err != nil {
		d.Fatal(err)
	}
	if _, err := io.Copy(f, r); err != nil {
		d.Fatal(err)
	}
	if err := f.Close(); err != nil {
		d.Fatal(err)
	}
	return path
}

// Programs that tests share, each built once; they return its path.
var (
	buildEtcd = sync.OnceValues(func() (string, error) { return build.Etcd(context.Background(), builtDir) })
	buildDev  = sync.OnceValues(func() (string, error) { return build.Allocator(context.Background(), builtDir) })
)

// restore puts the snapshot in the place of etcd's data, under another cluster
// token, while etcd is stopped, and starts it on the same ports.
func (d *testCluster) restore(backup string) {
	d.Helper()
	d.etcd.Stop()
	if err := os.RemoveAll(d.etcd.Dir()); err != nil {
		d.Fatal(err)
	}
	etcd, err := buildEtcd()
	if err != nil {
		d.Fatal(err)
	}
	out, err := exec.CommandContext(d.Context(), etcd, "snapshot", "restore", backup, "--name", "dev", "--data-dir", d.etcd.Dir(),
		"--initial-advertise-peer-urls", d.etcd.Peer(), "--initial-cluster", "dev="+d.etcd.Peer(), "--initial-cluster-token", "restored").CombinedOutput()
	if err != nil {
		d.Fatalf("etcd snapshot restore: %v\n%s", err, out)
	}
	if err := d.etcd.Restart(d.Context()); err != nil {
		d.Fatal(err)
	}
}

// TestRecoverUnderANewToken is the runbook's way: no node, running or started
// meanwhile, can write between the restore and the recovery.
//
// Incident T33 (restored from an old snapshot), docs/INCIDENTS.md.
func TestRecoverUnderANewToken(t *testing.T) {
	tier.Check(t, "restores etcd from a snapshot with etcd's own program")
	t.Parallel()
	d := deploy(t)
	a, b := d.node("a"), d.node("b")
	a.awaitReason(0)
	b.awaitReason(0)
	backup := d.backup()
	for _, m := range []*member{a, b} {
		known := m.granted()
		wait.Until(t, m.name+" is granted more than the backup knows", func() bool { return m.granted() > known })
	}
	granted := b.granted()
	b.stop() // gives its sid back, which the backup does not know

	d.restore(backup)
	a.awaitReason(node.HistoryRewound)
	c := d.node("c") // starts on the restored etcd, and has nothing to compare with but the era
	c.awaitReason(node.HistoryRewound)
	confirmed := a.granted()
	granted = max(granted, confirmed)
	before := d.blocks()

	out := d.says(cli.ExitOK, "", "admin", "recover", "--yes", "--format", "json", "--addr", a.Addresses().GRPC)
	var r struct {
		Era         int64    `json:"era"`
		PreviousEra int64    `json:"previous_era"`
		FloorUnixMs int64    `json:"floor_unix_ms"`
		Highest     int64    `json:"highest_ceil_unix_ms"`
		Unreached   []string `json:"unreached"`
	}
	if err := json.Unmarshal([]byte(out[strings.LastIndex(out, "\n{")+1:]), &r); err != nil {
		t.Fatal(err)
	}
	if r.Era != 2 || r.PreviousEra != 1 || r.Highest < int64(confirmed) {
		t.Errorf("got %+v", r)
	}
	if !slices.Equal(r.Unreached, []string{b.Addresses().GRPC}) { // The backup's registry still names it.
		t.Errorf("not reached: %q, want b", r.Unreached)
	}
	a.awaitReason(0)
	c.awaitReason(0)
	wait.Until(t, "both serve again", func() bool { return d.blocks() > before+200 && c.Node().Stats().Issued > 0 })
	a.stop()
	c.stop()
	d.unique()
	if int64(granted) >= r.FloorUnixMs {
		t.Errorf("the floor %d lies below a ceiling that was granted, %d", r.FloorUnixMs, granted)
	}
	format := flake.Format{Layout: flake.Scalable, Epoch: flake.DefaultEpoch}
	for _, i := range d.issued[before:] {
		if ms := format.UnixMilli(i.First); ms < r.FloorUnixMs {
			t.Fatalf("after the recovery %v was issued, %d ms below the floor", i.First, r.FloorUnixMs-ms)
		}
	}
}
