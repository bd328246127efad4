package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flakelease/allocator/chaos/devtest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
)

// ran runs a command in a directory, and returns what it printed.
func ran(t *testing.T, dir string, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s%s", command, err, out, &problems)
	}
	return string(out)
}

// has skips a test without a program.
func has(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("not run: %s is not installed", p)
		}
	}
}

// TestNpmFiles: the tarball has what npm would put into it, and the license.
func TestNpmFiles(t *testing.T) {
	has(t, "npm")
	t.Chdir(root)
	var packages []struct{ Files []struct{ Path string } }
	out := ran(t, "clients/typescript", "npm", "pack", "--dry-run", "--json", "--ignore-scripts")
	if err := json.Unmarshal([]byte(out), &packages); err != nil || len(packages) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	want := []string{"package/LICENSE -rw-r--r--"}
	for _, f := range packages[0].Files {
		want = append(want, "package/"+f.Path+" -rw-r--r--")
	}
	file := filepath.Join(t.TempDir(), "npm.tgz")
	text, err := npmPackage("clients/typescript", "1.2.3", commitTime)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	fatal.If(t, err)
	got := unpack(t, file)
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" || len(got) == 0 {
		t.Errorf("files (-npm +ours):\n%s", diff)
	}
}

func TestPythonVersion(t *testing.T) {
	for version, want := range map[string]string{
		"0.1.0": "0.1.0", "0.1.0-rc.1": "0.1.0rc1", "1.2.3-alpha.10": "1.2.3a10", "1.2.3-beta": "1.2.3b0",
		"0.2.0-snapshot": "0.2.0.dev0", "0.2.0-mine": "",
	} {
		if got, err := pythonVersion(version); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", version, got, err, want)
		}
	}
}

// shown are the blocks of README's section "Call it", by language.
func shown(t *testing.T, addresses *strings.Replacer) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	fatal.If(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Call it\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)```(sh|go|ts|python)\n(.*?)```").FindAllStringSubmatch(section, -1) {
		blocks[m[1]] = addresses.Replace(m[2])
	}
	return blocks
}

// TestClients installs the clients from their files into clean projects, and runs there what README shows.
func TestClients(t *testing.T) {
	if *releaseDir == "" {
		tier.Check(t, "builds the program, and makes an environment of Python")
	}
	r := release{version: "0.1.0-rc.1", dir: t.TempDir(), at: commitTime}
	if *releaseDir != "" {
		r.dir = *releaseDir
	} else {
		t.Chdir(root)
		fatal.If(t, r.clients())
	}
	nodes := devtest.Dev(t, devtest.Program(t), 2)
	blocks := shown(t, strings.NewReplacer("127.0.0.1:8080", nodes[0].HTTP, "127.0.0.1:8090", nodes[1].HTTP,
		"127.0.0.1:9000", nodes[0].GRPC, "127.0.0.1:9010", nodes[1].GRPC))
	write := func(t *testing.T, name, text string) string {
		t.Helper()
		fatal.If(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	prints := func(t *testing.T, out, pattern string) {
		t.Helper()
		if !regexp.MustCompile(`^` + pattern + `\s*$`).MatchString(out) {
			t.Errorf("it printed %q", out)
		}
	}
	const wide = `[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`
	t.Setenv("CLONE", root)
	install := func(t *testing.T, dir, with string) { // as README says, from the clone
		t.Helper()
		for line := range strings.Lines(blocks["sh"]) {
			if strings.HasPrefix(line, with) {
				ran(t, dir, "sh", "-c", line)
				return
			}
		}
		t.Fatalf("no line begins with %q: %q", with, blocks["sh"])
	}
	t.Run("go", func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("GONOSUMDB", "*") // go.sum of this repository has these sums
		write(t, filepath.Join(dir, "go.mod"), "module clean\n\ngo 1.26\n")
		block := strings.Replace(blocks["go"], "id, err :=", "if err != nil {\n panic(err)\n}\nid, err :=", 1)
		write(t, filepath.Join(dir, "main.go"), `package main
import ("context"; "fmt"; "github.com/flakelease/allocator/client")
func main() {
	ctx := context.Background()
	`+block+`
	if err != nil { panic(err) }
	fmt.Println(id)
}`)
		install(t, dir, "go ")
		prints(t, ran(t, dir, "go", "run", "."), `[0-7][0-9A-Z]{12}`)
	})
	t.Run("npm", func(t *testing.T) {
		has(t, "npm", "node")
		dir := t.TempDir()
		write(t, filepath.Join(dir, "package.json"), `{"name": "clean", "private": true}`)
		ran(t, dir, "npm", "install", "--offline", "--no-audit", "--no-fund", "--ignore-scripts",
			only(t, filepath.Join(r.dir, "flakelease-allocator-*.tgz")))
		module := write(t, filepath.Join(dir, "a.mjs"),
			blocks["ts"]+"console.log(typeof id, String(id))\nawait ids.close()\n")
		prints(t, ran(t, dir, "node", module), `bigint [0-9]+`)
		common := write(t, filepath.Join(dir, "b.cjs"), `const { Allocator } = require('@flakelease/allocator')
const ids = new Allocator({ nodes: ['http://`+nodes[1].HTTP+`'] })
ids.next({ form: 'uuid' }).then(id => { console.log(id); return ids.close() })`)
		prints(t, ran(t, dir, "node", common), wide)
		install(t, dir, "npm ")
		prints(t, ran(t, dir, "node", module), `bigint [0-9]+`)
	})
	t.Run("pip", func(t *testing.T) {
		dir := t.TempDir()
		python := filepath.Join(dir, "bin/python")
		venv := func(t *testing.T, from string, args ...string) {
			t.Helper()
			has(t, from)
			args = append([]string{"-m", "venv", "--clear"}, append(args, dir)...)
			if out, err := exec.Command(from, args...).CombinedOutput(); err != nil {
				t.Skipf("not run: %s makes no environment: %s", from, out)
			}
		}
		// installed returns the files and the metadata of what pip has installed, after it ran what README shows.
		installed := func(t *testing.T) string {
			t.Helper()
			program := write(t, filepath.Join(dir, "a.py"), blocks["python"]+"print(id)\nids.close()\n")
			prints(t, ran(t, dir, python, program), wide)
			return ran(t, dir, python, "-c", `from importlib.metadata import files, metadata
own = [str(p) for p in files("flakelease-allocator")]
print(*sorted(p for p in own if "dist-info" not in p and "pycache" not in p), sep="\n")
m = metadata("flakelease-allocator")
print(*sorted(f"{k}: {v}" for k, v in m.items() if k != "Metadata-Version"), m.get_payload(), sep="\n")`)
		}
		t.Setenv("PIP_NO_INDEX", "1")
		t.Setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
		venv(t, "python3")
		ran(t, dir, python, "-m", "pip", "install", "--quiet",
			only(t, filepath.Join(r.dir, "flakelease_allocator-*.whl")))
		ran(t, dir, python, "-m", "pip", "check")
		wheel := installed(t)
		if !strings.Contains(wheel, "flakelease_allocator/py.typed\n") || !strings.Contains(wheel, "\nVersion: ") {
			t.Errorf("it has installed\n%s", wheel)
		}
		// The wheel is what the backend of pyproject.toml makes of the sdist.
		if exec.Command("/usr/bin/python3", "-c", "import hatchling").Run() != nil {
			t.Skip("not run: Debian's python3-hatchling is not installed")
		}
		venv(t, "/usr/bin/python3", "--system-site-packages")
		t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
		t.Setenv("PIP_NO_BUILD_ISOLATION", "0") // which switches isolation off: nothing comes from PyPI
		ran(t, dir, "pip", "install", "--quiet", only(t, filepath.Join(r.dir, "flakelease_allocator-*.tar.gz")))
		if diff := cmp.Diff(installed(t), wheel); diff != "" {
			t.Errorf("of the sdist, and of the wheel (-sdist +wheel):\n%s", diff)
		}
		install(t, dir, "pip ")
		installed(t)
	})
}
