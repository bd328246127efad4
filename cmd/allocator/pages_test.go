package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/pages"
)

// follow carries out a page in a directory that looks like a clone of this repository,
// with the program in bin if the page does not build it.
func follow(t *testing.T, page string, builds bool, tools ...string) {
	t.Helper()
	for _, tool := range append(tools, "curl") {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("not run: %s is not installed", tool)
		}
	}
	program, ok := pages.OwnNetwork(t, func() string {
		program, err := build.Dev(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return program
	})
	if !ok {
		return
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	clone := t.TempDir()
	for _, e := range entries {
		if e.Name() != "bin" && e.Name() != ".git" {
			if err := os.Symlink(filepath.Join(root, e.Name()), filepath.Join(clone, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Mkdir(filepath.Join(clone, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if !builds {
		if err := os.Symlink(program, filepath.Join(clone, "bin/allocator")); err != nil {
			t.Fatal(err)
		}
	}
	// On a terminal curl shows no progress.
	if err := os.WriteFile(filepath.Join(clone, ".curlrc"), []byte("silent\nshow-error\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pages.Open(t, filepath.Join(root, page)).Follow(t, pages.NewShell(t, pages.Config{Dir: clone, Env: []string{
		"CURL_HOME=" + clone, "TZ=UTC", "CGO_ENABLED=0", "GOFLAGS=-trimpath", // built like that it is in Go's cache
	}}))
}

func TestFiveMinutes(t *testing.T) { follow(t, "docs/tutorial/five-minutes.md", true) }

func TestBreakIt(t *testing.T) { follow(t, "docs/tutorial/break-it.md", false) }
