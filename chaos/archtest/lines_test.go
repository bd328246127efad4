package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// stated is the sentence of CONTRIBUTING.md that says how many lines the product has.
var stated = regexp.MustCompile(`The product has at most ([0-9,]+) lines`)

// slack is how far the product may be below that before the number is lowered.
const slack = 1000

// README is a front page, which a reader takes in at once, and all pages are no more than one can read.
func TestWordCount(t *testing.T) {
	if words := len(strings.Fields(read(t, "README.md"))); words > 700 {
		t.Errorf("README.md has %d words, of at most 700: move what only some readers need to docs", words)
	}
	words := 0
	for _, name := range tracked(t, "*.md") {
		words += len(strings.Fields(read(t, name)))
	}
	if words > 58_000 || words < 50_000 {
		t.Errorf("the pages have %d words, of 50,000 to 58,000: remove some, or lower both numbers", words)
	}
}

// tracked returns which files there are that git knows, by patterns; generated ones are not among them.
func tracked(t *testing.T, patterns ...string) (names []string) {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", root(t), "ls-files"}, patterns...)...).Output()
	if err != nil {
		t.Skipf("not run: git ls-files: %v", err)
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool { // It may be removed, and not yet committed.
		_, err := os.Stat(filepath.Join(root(t), name))
		return os.IsNotExist(err)
	})
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
	lines := 0
	for _, name := range tracked(t, "*.go", "*.js", ":!*_test.go", ":!*.pb.go", ":!chaos", ":!clients/conformance",
		":!bench", ":!deploy", ":!tools", ":!examples", ":!clients/typescript/test") {
		lines += strings.Count(read(t, name), "\n")
	}
	switch {
	case lines > most:
		t.Errorf("the product has %d lines, and CONTRIBUTING.md says at most %d: remove some, or raise the number in the same "+
			"commit and give the reason in its body", lines, most)
	case lines < most-slack:
		t.Errorf("the product has %d lines: lower the number in CONTRIBUTING.md from %d", lines, most)
	}
}
