package ulid_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Whoever compiles against the ID formats gets the standard library and the
// alphabet with them, nothing else.
func TestDependencies(t *testing.T) {
	const module = "github.com/flakelease/allocator/"
	allowed := map[string]bool{module + "flake": true, module + "ulid": true, module + "internal/crockford": true}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", module+"flake", module+"ulid").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	got := strings.Fields(string(out))
	for _, path := range got {
		if !allowed[path] {
			t.Errorf("depends on %s", path)
		}
	}
	if len(got) != len(allowed) {
		t.Errorf("got %v, want three packages", got)
	}
}
