package archtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// stated is the sentence of CONTRIBUTING.md that says how many lines the product has.
var stated = regexp.MustCompile(`The product has at most ([0-9,]+) lines`)

// slack is how far the product may be below that before the number is lowered.
const slack = 1000

// README is a front page, which a reader takes in at once.
func TestWordsOfReadme(t *testing.T) {
	if words := len(strings.Fields(read(t, "README.md"))); words > 700 {
		t.Errorf("README.md has %d words, of at most 700: move what only some readers need to docs", words)
	}
}

// The product stays as small as CONTRIBUTING.md says, so that what it can do is not bought with lines unseen.
func TestLines(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "CONTRIBUTING.md"))
	fatal.If(t, err)
	m := stated.FindSubmatch(text)
	if m == nil {
		t.Fatalf("CONTRIBUTING.md lacks %q", stated)
	}
	most, err := strconv.Atoi(strings.ReplaceAll(string(m[1]), ",", ""))
	fatal.If(t, err)
	out, err := exec.Command("git", "-C", root(t), "ls-files", "*.go", "*.js", ":!*_test.go", ":!*.pb.go", ":!chaos", ":!clients/conformance",
		":!bench", ":!deploy", ":!tools", ":!examples", ":!clients/typescript/test").Output()
	if err != nil {
		t.Skipf("not run: git ls-files: %v", err)
	}
	lines := 0
	for _, name := range strings.Fields(string(out)) {
		src, err := os.ReadFile(filepath.Join(root(t), name))
		if os.IsNotExist(err) {
			continue // removed, and not yet committed
		} else if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(src, []byte("\n"))
	}
	switch {
	case lines > most:
		t.Errorf("the product has %d lines, and CONTRIBUTING.md says at most %d: remove some, or raise the number in the same "+
			"commit and give the reason in its body", lines, most)
	case lines < most-slack:
		t.Errorf("the product has %d lines: lower the number in CONTRIBUTING.md from %d", lines, most)
	}
}
