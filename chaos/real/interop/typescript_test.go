package interop

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/tier"
)

// typescript is the package for Node.js.
const typescript = "../../../clients/typescript"

// TestTypeScript runs the package's own tests, with nodes.
func TestTypeScript(t *testing.T) {
	tier.Check(t, "Node.js draws from three nodes")
	var list []string
	for _, n := range devNodes(t, 3) {
		list = append(list, n.HTTP)
	}
	cmd := exec.CommandContext(t.Context(), tool(t, "npm"), "test")
	cmd.Dir = typescript
	cmd.Env = append(os.Environ(), "NODES="+strings.Join(urls(list), ","), "WORKERS=1")
	if out, err := cmd.CombinedOutput(); err != nil || bytes.Contains(out, []byte("# SKIP")) {
		t.Errorf("npm test: %v\n%s", err, out)
	}
}

// pack returns the file that npm makes of the package.
func pack(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := run(t, "", tool(t, "npm"), "pack", "--silent", "--ignore-scripts", "--pack-destination", dir, typescript)
	if err != nil {
		t.Fatalf("npm pack: %v\n%s", err, out)
	}
	return filepath.Join(dir, strings.TrimSpace(out))
}

// TestTypeScriptPackage installs the package from its file in an empty project. Programs that use it compile under
// strict, with ES modules and with CommonJS, and those of README.md run.
func TestTypeScriptPackage(t *testing.T) {
	tier.Check(t, "npm installs the compiler")
	program, file := tool(t, "node"), pack(t)
	first, err := os.ReadFile(file)
	fatal.If(t, err)
	if second, err := os.ReadFile(pack(t)); err != nil || !bytes.Equal(first, second) {
		t.Errorf("a second build gives another file: %v", err)
	}
	dir := t.TempDir()
	fatal.If(t, os.CopyFS(dir, os.DirFS(filepath.Join(typescript, "test", "types"))))
	t.Run("README", func(t *testing.T) {
		alone := t.TempDir()
		fatal.If(t, os.WriteFile(filepath.Join(alone, "package.json"), []byte(`{"private": true}`), 0o600))
		if out, err := npm(t, alone, "install", "--offline", file); err != nil {
			t.Fatalf("npm install: %v\n%s", err, out)
		}
		node := dev(t, "scalable")
		text := ""
		for _, b := range pages.Open(t, filepath.Join(typescript, "README.md")).Blocks {
			if b.Mark == "program" {
				text += strings.ReplaceAll(b.Text, "127.0.0.1:8080", node.HTTP)
			}
		}
		path := filepath.Join(alone, "program.mjs")
		fatal.If(t, os.WriteFile(path, []byte(text+"console.log(now > id)\n"), 0o600))
		got := strings.Fields(output(t, "", program, path))
		if len(got) != 4 || len(got[0]) != 17 && len(got[0]) != 18 || len(got[1]) != 36 || got[2] != "1000" || got[3] != "true" {
			t.Errorf("%q", got)
		}
	})

	t.Run("types", func(t *testing.T) {
		if out, err := npm(t, dir, "install", file); err != nil {
			t.Skipf("not run: npm install: %v\n%s", err, out)
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "node_modules", ".bin", "tsc"), "-p", ".")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("tsc: %v\n%s", err, out)
		}
	})
}

// TestOtherRuntimes holds the package to the table of clients/conformance in Deno and in Bun.
func TestOtherRuntimes(t *testing.T) {
	tier.Nightly(t, "npm installs 200 MB")
	dir := t.TempDir()
	if out, err := npm(t, dir, "install", "deno@2.9.6", "bun@1.4.5"); err != nil {
		t.Skipf("not run: npm install: %v\n%s", err, out)
	}
	// Bun's only script puts the program of this platform, which is another package, into its place.
	if out, err := npm(t, dir, "rebuild", "--ignore-scripts=false", "bun"); err != nil {
		t.Skipf("not run: npm rebuild: %v\n%s", err, out)
	}
	for name, args := range map[string][]string{"deno": {"run", "--allow-all"}, "bun": {"run"}} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(dir, "node_modules", ".bin", name)
			if out, err := run(t, "", program, "--version"); err != nil {
				t.Skipf("not run: %s: %v\n%s", name, err, out)
			}
			cmd := exec.CommandContext(t.Context(), "go", "run", "./clients/conformance", program)
			cmd.Args = append(append(cmd.Args, args...), "clients/typescript/conformance/driver.mjs")
			cmd.Dir = "../../.."
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
