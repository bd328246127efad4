package archtest

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What the root does not build is broken unnoticed unless `make` vets and tests it, and
// staticcheck reads it.
func TestModulesAreChecked(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("not run: make is not installed")
	}
	for _, step := range []string{"check-modules", "check-static"} {
		out, err := exec.Command("make", "-C", root(t), "--no-print-directory", "-n", "TIER=nightly", step).CombinedOutput()
		if err != nil {
			t.Fatalf("make -n %s: %v\n%s", step, err, out)
		}
		checked := regexp.MustCompile(`for m in ([^;]*);`).FindSubmatch(out)
		if checked == nil {
			t.Fatalf("make -n %s: no loop over modules in\n%s", step, out)
		}
		for _, dir := range everyModule(t) {
			// The root has steps of its own, and those of tools have no packages.
			if !slices.Contains([]string{".", "tools", "tools/contracts"}, dir) && !slices.Contains(strings.Fields(string(checked[1])), dir) {
				t.Errorf("make %s leaves out module %s", step, dir)
			}
		}
	}
}
