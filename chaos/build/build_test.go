package build

import (
	"bufio"
	"context"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
)

func root(t *testing.T) string {
	t.Helper()
	dir, err := Root(t.Context())
	fatal.If(t, err)
	return dir
}

// The harness runs what users get: the command is that of `make build`.
func TestFlagsAreTheReleases(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	fatal.If(t, err)
	recipe := regexp.MustCompile(`(?m)^build:.*\n(?:\t@.*\n)*\t(.*)$`).FindSubmatch(data)
	if recipe == nil {
		t.Fatal("the Makefile has no recipe build")
	}
	want := strings.Join(environment, " ") + " $(GO) build -o $(BIN)/allocator ./cmd/allocator"
	// The version is of a commit, and with it each program would be linked again.
	if got := strings.Replace(string(recipe[1]), " -ldflags '$(STAMP)'", "", 1); got != want {
		t.Errorf("make build runs\n%s\nand the harness\n%s", got, want)
	}
	if _, err := os.Stat(filepath.Join(root(t), ".git")); err != nil {
		t.Skip("not run: there is no commit to put into a program")
	}
	out, err := exec.Command("make", "-C", root(t), "-n", "build").CombinedOutput()
	if err != nil || !regexp.MustCompile(`go build -ldflags '-X main\.version=[^' ]+' -o`).Match(out) {
		t.Errorf("make build puts no version into the program: %v\n%s", err, out)
	}
}

// The release is one program with everything in it: an etcd to run inside, and dev.
func TestAllocatorHasEtcd(t *testing.T) {
	tier.Check(t, "builds the release")
	path, err := Allocator(t.Context(), t.TempDir())
	fatal.If(t, err)
	info, err := buildinfo.ReadFile(path)
	fatal.If(t, err)
	if !slices.ContainsFunc(info.Deps, func(m *debug.Module) bool { return m.Path == "go.etcd.io/etcd/server/v3" }) {
		t.Error("the release does not contain etcd")
	}
	if out, err := exec.Command(path, "dev", "--help").CombinedOutput(); err != nil {
		t.Errorf("allocator dev: %v\n%s", err, out)
	}
}

// versions returns the modules that a go.mod requires.
func versions(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	fatal.If(t, err)
	defer f.Close()
	line := regexp.MustCompile(`^\s+(\S+) (v\S+)`)
	out := map[string]string{}
	for in := bufio.NewScanner(f); in.Scan(); {
		if m := line.FindStringSubmatch(in.Text()); m != nil {
			out[m[1]] = m[2]
		}
	}
	return out
}

// What other modules of ours run and show is what the product has.
func TestVersionsAreTheRoots(t *testing.T) {
	ours := versions(t, filepath.Join(root(t), "go.mod"))
	for _, dir := range []string{"chaos/real", "examples"} {
		theirs := versions(t, filepath.Join(root(t), dir, "go.mod"))
		if ours["go.etcd.io/etcd/server/v3"] == "" || len(theirs) < 20 {
			t.Fatalf("found %d modules, and %d in %s", len(ours), len(theirs), dir)
		}
		for path, version := range theirs {
			if ours[path] != "" && ours[path] != version {
				t.Errorf("%s has %s %s, and the allocator %s: edit %s/go.mod and run \"go mod tidy\" there", dir, path, version, ours[path], dir)
			}
		}
	}
}

func TestEtcd(t *testing.T) {
	tier.Check(t, "builds etcd's own programs")
	dir := t.TempDir()
	path, err := Etcd(t.Context(), dir)
	fatal.If(t, err)
	version := strings.TrimPrefix(versions(t, filepath.Join(root(t), "go.mod"))["go.etcd.io/etcd/server/v3"], "v")
	out, err := exec.Command(path, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "etcd Version: "+version) {
		t.Errorf("%s --version: %v\n%s", path, err, out)
	}
	out, err = exec.Command(path, "snapshot", "restore", filepath.Join(dir, "none"), "--data-dir", filepath.Join(dir, "data")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no such file") {
		t.Errorf("a snapshot that is not there: %v\n%s", err, out)
	}
}

func TestOutside(t *testing.T) {
	t.Chdir(t.TempDir())
	if path, err := Etcd(t.Context(), "."); err == nil {
		t.Errorf("built %s in a directory without a module", path)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Allocator(ctx, "."); err == nil {
		t.Error("built, though it was cancelled")
	}
}
