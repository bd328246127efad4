package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
)

const pythonPackage = "../../../clients/python"

// inPython runs a Python program with the package's sources, and returns what it printed. A program
// that needs a module which is not there is skipped by name.
func inPython(t *testing.T, env []string, needs string, args ...string) string {
	t.Helper()
	python := tool(t, "python3")
	for module := range strings.FieldsSeq(needs) {
		if exec.Command(python, "-c", "import "+module).Run() == nil {
			continue
		}
		// Another Python may be first in PATH than that of the packages of Debian.
		if python = "/usr/bin/python3"; exec.Command(python, "-c", "import "+module).Run() != nil {
			t.Skipf("not run: %s of Python is not installed", module)
		}
	}
	cmd := exec.CommandContext(t.Context(), python, args...)
	source, err := filepath.Abs(pythonPackage + "/src")
	fatal.If(t, err)
	cmd.Dir = pythonPackage
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+source), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestPythonPackage runs the own tests of clients/python, which have nodes in their process, and beside
// them real ones: NODES has their URLs.
func TestPythonPackage(t *testing.T) {
	tier.Check(t, "it starts many processes")
	nodes := devNodes(t, 3)
	env := []string{"NODES=http://" + nodes[0].HTTP + ",http://" + nodes[1].HTTP + ",http://" + nodes[2].HTTP}
	out := inPython(t, env, "", "-m", "unittest", "discover", "-v", "-s", "tests")
	if !regexp.MustCompile(`(?m)^Ran [1-9]`).MatchString(out) {
		t.Errorf("no tests were run: %s", out)
	}
	if strings.Contains(out, "skipped") { // A test is skipped without nodes alone.
		t.Errorf("a test was skipped: %s", out)
	}
}

// TestPythonTypes checks the annotations of clients/python.
func TestPythonTypes(t *testing.T) {
	t.Parallel()
	inPython(t, nil, "mypy", "-m", "mypy", "--cache-dir", t.TempDir())
}

// TestPythonORMs runs the defaults of keys for object mappers.
func TestPythonORMs(t *testing.T) {
	t.Parallel()
	inPython(t, nil, "sqlalchemy django sqlmodel fastapi", "tests/orms.py")
}
