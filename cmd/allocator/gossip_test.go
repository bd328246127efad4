package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/flakelease/allocator/internal/cluster"
)

// TestKeygen: what keygen prints is a keyring that gossip takes, and another one
// each time.
func TestKeygen(t *testing.T) {
	seen := map[string]bool{}
	for range 3 {
		var out bytes.Buffer
		if code := run(t.Context(), []string{"gossip", "keygen"}, nil, &out, io.Discard, nil); code != exitOK {
			t.Fatalf("exit code %d", code)
		}
		keys, err := cluster.ParseKeys(out.Bytes())
		if err != nil || len(keys) != 1 || len(keys[0]) != keyBytes {
			t.Errorf("%q: keys of length %d, %v", out.String(), len(keys), err)
		}
		seen[out.String()] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d different keys of 3", len(seen))
	}
}
