package interop

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/flake"
)

const workersGuide = "../../../docs/how-to/use-your-snowflake-library.md"

// TestWorkersGuide follows docs/how-to/use-your-snowflake-library.md: every command in
// it, with each of examples/workers.
func TestWorkersGuide(t *testing.T) {
	n := dev(t, "twitter")
	program, err := buildAllocator()
	fatal.If(t, err)
	dir := t.TempDir()
	fatal.If(t, os.CopyFS(filepath.Join(dir, "examples/workers"), os.DirFS("../../../examples/workers")))
	root, err := filepath.Abs("../../..")
	fatal.If(t, err)
	// The Go example is in the module of all examples, which compiles against the two above it.
	for _, name := range []string{"examples/go.mod", "examples/go.sum", "go.mod", "go.sum", "api", "client", "flake", "ulid", "internal", "worker"} {
		fatal.If(t, os.Symlink(filepath.Join(root, name), filepath.Join(dir, name)))
	}
	guide, sh := pages.Open(t, workersGuide), pages.NewShell(t, pages.Config{
		Dir:  dir,
		Env:  []string{"PATH=" + filepath.Dir(program) + ":" + os.Getenv("PATH"), "ALLOCATOR_ADDR=" + n.GRPC},
		Here: strings.NewReplacer("127.0.0.1:9000", n.GRPC, "http://127.0.0.1:8080", "http://"+strings.TrimPrefix(n.HTTP, "http://")),
	})
	run := func(mark string) (string, int) {
		t.Helper()
		return sh.Must(guide.Text(t, "run: "+mark))
	}
	if out, code := run("runner"); code != 0 || !regexp.MustCompile(`(?m)^worker (5[1-9]\d|[6-9]\d\d|10[01]\d|102[0-3]), datacenter (1[6-9]|2\d|3[01]), worker of it ([12]?\d|3[01])$`).MatchString(out) {
		t.Fatalf("exit code %d:\n%s", code, out)
	}

	seen, used := map[flake.ID]string{}, map[int64]string{}
	for _, example := range []struct {
		mark  string
		needs []string
		files map[string]int // with how many IDs
	}{
		{"node", []string{"node", "npm"}, map[string]int{"node.txt": 1000}},
		{"go", []string{"go"}, map[string]int{"go.txt": 1000}},
		{"file", []string{"python3", "od"}, map[string]int{"python.txt": 1000, "shell.txt": 100}},
		{"http", []string{"curl", "od"}, map[string]int{"http.txt": 100}},
	} {
		for name := range example.files { // audit reads all of them, also where one is not run
			fatal.If(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		}
		t.Run(example.mark, func(t *testing.T) {
			for _, name := range example.needs {
				tool(t, name)
			}
			out, code := run(example.mark)
			if code != 0 && example.mark == "node" && strings.Contains(out, "npm error") {
				t.Skipf("not run: npm ci: %s", out)
			}
			if code != 0 {
				t.Fatalf("exit code %d:\n%s", code, out)
			}
			for name, count := range example.files {
				text, err := os.ReadFile(filepath.Join(dir, name))
				fatal.If(t, err)
				lines := strings.Fields(string(text))
				if len(lines) != count {
					t.Errorf("%s has %d IDs, not %d", name, len(lines), count)
				}
				for _, line := range lines {
					v, err := strconv.ParseInt(line, 10, 64)
					fatal.If(t, err)
					id := flake.ID(v)
					if other := seen[id]; other != "" {
						t.Errorf("%d is in %s and in %s", v, other, name)
					}
					worker := v >> 12 & 0x3FF
					if worker < 512 {
						t.Fatalf("%s: ID %d of worker %d, which is a node's", name, v, worker)
					}
					seen[id], used[worker] = name, name
				}
			}
		})
	}
	t.Run("node, with a clock that is set back", func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(dir, "examples/workers/node/node_modules/flake-idgen")); err != nil {
			t.Skipf("not run: the library is not installed: %v", err)
		}
		stepped := "const right = Date.now; let reads = 0; Date.now = () => right() - (++reads > 500 ? 30_000 : 0)\n"
		fatal.If(t, os.WriteFile(filepath.Join(dir, "stepped.mjs"), []byte(stepped), 0o600))
		out, code := sh.Must("allocator worker run --name stepped -- node --import ./stepped.mjs examples/workers/node/ids.mjs 5000")
		made := map[string]bool{}
		for _, id := range regexp.MustCompile(`(?m)^\d{15,}$`).FindAllString(out, -1) {
			if v, err := strconv.ParseInt(id, 10, 64); err != nil || made[id] || seen[flake.ID(v)] != "" {
				t.Errorf("%s was made before: %v", id, err)
			}
			made[id] = true
		}
		if code == 0 || len(made) == 0 || len(made) > 500 || !strings.Contains(out, "Clock moved backwards") {
			t.Errorf("exit code %d after %d IDs:\n%s", code, len(made), out)
		}
	})
	t.Logf("%d IDs of workers %v", len(seen), used)
	if out, code := run("status"); code != 0 || !strings.Contains(out, "node-1") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if out, code := run("audit"); code != 0 || !strings.Contains(out, "duplicates  0\n") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
