//go:build linux

package worker

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

var released = flag.String("released", "", "write the file of a worker of this version into testdata/released: docs/RELEASING.md")

// What agents of each release wrote is read by this one. Programs have mapped such files, and
// an agent is upgraded beside them.
func TestReleasedFiles(t *testing.T) {
	releases := map[string]held{
		"0.1.0": held{Worker: 77, Term: 5, NotBefore: 1_764_000_000_000, NotAfter: 1_764_000_060_000}.split(),
	}
	const releasedDir = "../../../../testdata/released"
	if *released != "" {
		text := hex.EncodeToString(releases[*released].encode()) + "\n"
		fatal.If(t, os.WriteFile(filepath.Join(releasedDir, *released, "worker-file.hex"), []byte(text), 0o644))
	}
	dirs, err := os.ReadDir(releasedDir)
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no releases: %v", err)
	}
	for _, dir := range dirs {
		digits, err := os.ReadFile(filepath.Join(releasedDir, dir.Name(), "worker-file.hex"))
		fatal.If(t, err)
		raw, err := hex.DecodeString(strings.TrimSpace(string(digits)))
		fatal.If(t, err)
		got, err := decode(raw)
		if want, known := releases[dir.Name()]; err != nil || got != want || !known {
			t.Errorf("release %s: %v\ngot  %+v\nwant %+v", dir.Name(), err, got, want)
		}
	}
}
