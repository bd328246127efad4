package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// The reference names every check, and no others.
func TestPageNamesEveryCheck(t *testing.T) {
	checks := map[string]bool{}
	for _, pattern := range []string{"*.go", "*/*.go"} {
		files, err := filepath.Glob(pattern)
		fatal.If(t, err)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			for _, m := range regexp.MustCompile(`\.Add\("([a-z-]+)"`).FindAllStringSubmatch(read(t, name), -1) {
				checks[m[1]] = true
			}
		}
	}
	if len(checks) < 25 {
		t.Fatalf("found %d checks", len(checks))
	}
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z, -]+) \|`).FindAllStringSubmatch(read(t, "../../../../docs/reference/doctor.md"), -1) {
		for _, name := range strings.Split(row[1], ", ") {
			if !checks[name] && name != "check" {
				t.Errorf("the page has a check %s, and the doctor has not", name)
			}
			delete(checks, name)
		}
	}
	for name := range checks {
		t.Errorf("the page does not name the check %s", name)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	fatal.If(t, err)
	return string(b)
}
