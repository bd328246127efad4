package main

import (
	"path/filepath"
	"testing"

	"github.com/flakelease/allocator/chaos/tier"
)

// TestOutage: with the default times no call is refused while etcd is away for 20 s. Before the load each
// node uses little memory, and at the end each one ends with exit status 0.
func TestOutage(t *testing.T) {
	tier.Check(t, "etcd away for 20 s")
	dir := filepath.Join(t.TempDir(), "run")
	switch code := run([]string{"run", "--default-timing", "--loopback", "--nodes", "3", "--for", "35s",
		"--fault", "etcd-quorum-short", "--dir", dir}); code {
	case exitPass:
	case exitUnknown:
		t.Skip("the run proves nothing: this machine was stalled, or the fault was not injected")
	default:
		t.Errorf("chaos run: exit %d", code)
	}
}
