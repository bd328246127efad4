package etcd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// Files that are there are kept: certificates while they are valid, and a snapshot in any case.
func TestFilesAreKept(t *testing.T) {
	dir := t.TempDir()
	pki, backup := filepath.Join(dir, "pki"), filepath.Join(dir, "backup.db")
	if err := os.WriteFile(backup, []byte("of yesterday"), 0o600); err != nil {
		t.Fatal(err)
	}
	certs := []string{"certs", "--hosts", "10.0.0.1,10.0.0.2", "--out", pki}
	for _, tc := range []struct {
		words []string
		code  int
		says  string
	}{
		{certs, 0, "valid for 365 days"},
		{certs, 0, "all 2 hosts already, the first until 20"},
		{[]string{"snapshot", backup, "--etcd.endpoints", "http://127.0.0.1:1"}, cli.ExitUsage, "backup.db exists"},
	} {
		var out bytes.Buffer
		code := cli.Run(t.Context(), tc.words, strings.NewReader(""), &out, &out, nil, "", Command)
		if code != tc.code || !strings.Contains(out.String(), tc.says) {
			t.Errorf("%q: code %d, %s", tc.words, code, out.String())
		}
	}
	if text, err := os.ReadFile(backup); err != nil || string(text) != "of yesterday" {
		t.Errorf("%s, %v", text, err)
	}
}
