// Package rig starts what the tests of the examples need: an etcd and three nodes, and the
// examples themselves. It is not an example.
package rig

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/flakelease/allocator/chaos/devtest"
)

// Build builds a command of the examples and returns its path.
func Build(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path,
		"github.com/flakelease/allocator/examples/"+name).CombinedOutput()
	if err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

// Cluster is an etcd and three nodes, whose sids are below 16.
type Cluster struct {
	Etcd  string // URL
	GRPC  []string
	Nodes []devtest.Node // the second and the third; the first is in etcd's process
}

// NewCluster starts a cluster that is stopped when the test ends.
func NewCluster(t *testing.T) *Cluster {
	t.Helper()
	program := devtest.Program(t)
	first := devtest.Dev(t, program, 1)[0]
	c := &Cluster{Etcd: first.Etcd, GRPC: []string{first.GRPC}}
	for _, name := range []string{"node-2", "node-3"} {
		n := devtest.Serve(t, program, c.Etcd, name, "--worker.sid-range", "16-31")
		c.GRPC, c.Nodes = append(c.GRPC, n.GRPC), append(c.Nodes, n)
	}
	return c
}
