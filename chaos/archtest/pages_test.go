package archtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/pages"
)

// executable reports whether readers paste what the blocks of a document show.
func executable(name string) bool {
	return slices.Contains([]string{"README.md", "CONTRIBUTING.md", "deploy/helm/allocator/README.md"}, name) ||
		under(name, "docs/tutorial", "docs/how-to")
}

var (
	isRun  = regexp.MustCompile(`^(?:run|(?:run|background|interrupt): (.+))$`)
	notRun = regexp.MustCompile(`^not run: .+$`)
	shown  = regexp.MustCompile(`^(file|prints): .+$`)
	whole  = regexp.MustCompile(`\b([Ff]ollow|Carry|Steps)\(`) // a test that runs every block of a page
)

// unmarked returns the blocks of commands in a page that do not say whether a test runs
// them, and those that say so while no test does. Tests are the sources that name the page.
func unmarked(text string, tests []string) (out []string) {
	for _, b := range pages.Parse(text) {
		commands := slices.Contains([]string{"", "sh", "bash", "shell", "console", "sql"}, b.Lang)
		m := isRun.FindStringSubmatch(b.Mark)
		switch {
		case m != nil && !slices.ContainsFunc(tests, func(source string) bool {
			return whole.MatchString(source) ||
				m[1] != "" && (strings.Contains(source, `"`+m[1]+`"`) || strings.Contains(source, ": "+m[1]+`"`))
		}):
			out = append(out, fmt.Sprintf("line %d: <!-- %s -->, and no test runs it", b.Line, b.Mark))
		case commands && m == nil && !notRun.MatchString(b.Mark) && !shown.MatchString(b.Mark):
			out = append(out, fmt.Sprintf("line %d: a block of commands has no <!-- run --> or <!-- not run: REASON --> on the line above", b.Line))
		}
	}
	return out
}

// A reader may trust each block of commands in a page that teaches: a test runs it, or
// the page says why none does.
func TestCommandsAreRun(t *testing.T) {
	list, err := exec.Command("git", "-C", root(t), "ls-files", "-z", "--", "*_test.go", "chaos/kube/*.go", ":!chaos/archtest", ":!chaos/pages").Output()
	if err != nil {
		t.Skipf("not run: git ls-files: %v", err)
	}
	var sources []string
	var kube string
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		b, err := os.ReadFile(filepath.Join(root(t), name))
		switch {
		case err != nil:
		case strings.HasPrefix(name, "chaos/kube/"): // a program, which reads pages by itself
			kube += string(b)
		case strings.Contains(string(b), "chaos/pages"):
			sources = append(sources, string(b))
		}
	}
	sources = append(sources, kube)
	for _, name := range documents(t) {
		if !executable(name) {
			continue
		}
		path := regexp.MustCompile(`["/]` + regexp.QuoteMeta(name) + `"`)
		tests := slices.DeleteFunc(slices.Clone(sources), func(source string) bool { return !path.MatchString(source) })
		for _, bad := range unmarked(read(t, name), tests) {
			t.Errorf("%s: %s", name, bad)
		}
	}
}

func TestUnmarked(t *testing.T) {
	for text, want := range map[string]int{
		"```sh\nls\n```\n":                               1,
		"```\nls\n```\n":                                 1,
		"```go\npackage x\n```\n":                        0,
		"<!-- run -->\n```sh\nls\n```\n":                 1,
		"<!-- run: one -->\n```sh\nls\n```\n":            0,
		"<!-- run: two -->\n```sh\nls\n```\n":            1,
		"<!-- not run: no tool -->\n```sh\nls\n```\n":    0,
		"<!-- not run: -->\n```sh\nls\n```\n":            1,
		"<!-- prints: one -->\n```\nout\n```\n":          0,
		"<!-- not run: no tool -->\n\n```sh\nls\n```\n":  1,
		"<!-- background: dev -->\n```console\n$ x\n```": 1,
	} {
		if got := unmarked(text, []string{`Text(t, "run: one")`}); len(got) != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	if got := unmarked("<!-- run -->\n```sh\nls\n```\n", []string{"Open(t, name).Follow(t, shell)"}); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
