package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// TestCheckCommits commits one message of each kind and runs the check of
// `make lint` on it.
func TestCheckCommits(t *testing.T) {
	script := filepath.Join(root(t), "tools/check-commits")
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=n", "-c", "user.email=n@example.com", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q", "-b", "main")
	git("commit", "-q", "--allow-empty", "-m", "all: begin")
	for _, tc := range []struct {
		message, want string
		lines         int
	}{
		{message: "gen: seal once", lines: 3},
		{message: "gen, lease: seal once\n\nIt was sealed twice. It is sealed once, since twice is slower.", lines: 300},
		{message: "gen: seal once", lines: 300, want: "no body"},
		{message: "Seal once", want: `not "package: do the thing"`},
		{message: "gen: seal once.", want: "full stop"},
		{message: "gen: sealed once", want: "not imperative"},
		{message: "gen: embed the page"},
		{message: "gen: " + strings.Repeat("seal ", 20) + "once", want: "at most 72"},
		{message: "gen: seal once\n\nThis session sealed it.", want: "more than the software"},
	} {
		git("checkout", "-q", "-B", "work", "main")
		fatal.If(t, os.WriteFile(filepath.Join(dir, "file"), []byte(strings.Repeat("line\n", tc.lines)), 0o600))
		git("add", "-A")
		git("commit", "-q", "--allow-empty", "-m", tc.message)
		cmd := exec.Command(script)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if (err != nil) != (tc.want != "") || !strings.Contains(string(out), tc.want) {
			t.Errorf("%q with %d lines: %v\n%s\nwant %q", tc.message, tc.lines, err, out, tc.want)
		}
	}
}
