package archtest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// mayKnowMessage lists the packages that may name the message of a cluster, and why.
var mayKnowMessage = map[string]string{
	"api":                        "it is generated there",
	"internal/status":            "it makes the one from the other",
	"internal/server/grpcserver": "the signature of a handler has it",
}

// TestOnePictureOfTheCluster: no surface builds or reads the message by itself, so a fact
// about a node has one form.
func TestOnePictureOfTheCluster(t *testing.T) {
	g, known := listModules(t), map[string]bool{}
	for _, p := range g.paths() {
		for _, file := range g[p].GoFiles {
			src, err := os.ReadFile(filepath.Join(g[p].Dir, file))
			fatal.If(t, err)
			if !bytes.Contains(src, []byte("GetClusterResponse")) {
				continue
			}
			if by := listed(mayKnowMessage, p); by != "" {
				known[by] = true
			} else {
				t.Errorf("%s/%s names GetClusterResponse: use status.Ask, status.FromProto or status.ToProto", p, file)
			}
		}
	}
	if len(known) != len(mayKnowMessage) {
		t.Errorf("of %v only %v name the message", mayKnowMessage, known)
	}
}
