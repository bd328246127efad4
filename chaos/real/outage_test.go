package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
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
		var res Results
		text, err := os.ReadFile(filepath.Join(dir, "results.json"))
		fatal.If(t, errors.Join(err, json.Unmarshal(text, &res)))
		if res.Undecided != "" {
			t.Fatalf("%s is unknown, though this machine was never late: %q", res.Undecided, res.Why)
		}
		t.Skipf("the run proves nothing, since this machine was late or slow: %q", res.Why)
	default:
		t.Errorf("chaos run: exit %d", code)
	}
}
