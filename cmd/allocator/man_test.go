package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every command has a page that troff takes without a warning, with all its
// flags on it.
func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	code, out, _ := allocator("docs", "man", dir)
	if code != exitOK || out != "" {
		t.Fatalf("exit code %d, %q", code, out)
	}
	root := (&app{}).root()
	root.InitDefaultCompletionCmd()
	for _, name := range []string{"allocator", "allocator-parse", "allocator-admin-drain", "allocator-from-time", "allocator-completion-bash"} {
		if _, err := os.Stat(filepath.Join(dir, name+".1")); err != nil {
			t.Error(err)
		}
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "allocator-monotonic.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".SH NAME\nallocator-monotonic \\- Make N", `\-\-after \fIstring\fR`, "NOT COORDINATED", ".SH EXIT STATUS\n.TP\n.B 0\n", ".BR allocator\\-new (1)"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in\n%s", want, b)
		}
	}
	if _, err := exec.LookPath("groff"); err != nil {
		t.Skip("not run: groff is not installed, so the pages were not set (Debian: apt-get install groff)")
	}
	for _, page := range pages {
		out, err := exec.Command("groff", "-man", "-Tutf8", "-ww", "-z", page).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("%s: %v, %s", page, err, out)
		}
	}
}

func TestRoff(t *testing.T) {
	if got, want := roff(".a\n'b\nc.d \\e -x «ß»"), "\\&.a\n\\&'b\nc.d \\ee \\-x \\[u00AB]\\[u00DF]\\[u00BB]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The command prints the page that is committed.
func TestDocsPrintsTheReference(t *testing.T) {
	want, err := os.ReadFile("../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, out, _ := allocator("docs", "cli"); out != string(want) {
		t.Error("allocator docs cli prints another page than docs/reference/cli.md")
	}
}
