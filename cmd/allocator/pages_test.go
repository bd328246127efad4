package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/tier"
)

// follow carries out a page in a directory that looks like a clone of this repository,
// with the program in bin if the page does not build it.
func follow(t *testing.T, page string, builds bool, tools ...string) {
	t.Helper()
	t.Parallel()
	for _, tool := range append(tools, "curl") {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("not run: %s is not installed", tool)
		}
	}
	program, ok := pages.OwnNetwork(t, func() string {
		program, err := buildDev()
		fatal.If(t, err)
		return program
	})
	if !ok {
		return
	}
	root, err := filepath.Abs("../..")
	fatal.If(t, err)
	entries, err := os.ReadDir(root)
	fatal.If(t, err)
	clone := t.TempDir()
	for _, e := range entries {
		if e.Name() != "bin" && e.Name() != ".git" && e.Name() != "Makefile" {
			fatal.If(t, os.Symlink(filepath.Join(root, e.Name()), filepath.Join(clone, e.Name())))
		}
	}
	fatal.If(t, os.Mkdir(filepath.Join(clone, "bin"), 0o700))
	// Targets are made where Go has compiled this module: in another directory it would compile all packages again.
	makefile := "%:\n\t@$(MAKE) --no-print-directory -C " + root + " BIN=$(CURDIR)/bin $@\n"
	fatal.If(t, os.WriteFile(filepath.Join(clone, "Makefile"), []byte(makefile), 0o600))
	if !builds {
		fatal.If(t, os.Symlink(program, filepath.Join(clone, "bin/allocator")))
	}
	// What programs print on a terminal: curl no progress, redis-cli quoted texts.
	terminal := t.TempDir()
	redis, _ := exec.LookPath("redis-cli")
	for name, text := range map[string]string{".curlrc": "silent\nshow-error\n", "redis-cli": "#!/bin/sh\nexec " + redis + " --no-raw \"$@\"\n"} {
		fatal.If(t, os.WriteFile(filepath.Join(terminal, name), []byte(text), 0o700))
	}
	pages.Open(t, filepath.Join(root, page)).Follow(t, pages.NewShell(t, pages.Config{Dir: clone, Within: 15 * time.Minute, Env: []string{
		"CURL_HOME=" + terminal, "PATH=" + terminal + ":" + os.Getenv("PATH"), "TZ=UTC", "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false",
	}}))
}

func TestFiveMinutes(t *testing.T) {
	tier.Check(t, "follows the tutorial")
	follow(t, "docs/tutorial/five-minutes.md", true, "make")
}

func TestReadme(t *testing.T) { follow(t, "README.md", true, "make") }

func TestCallIt(t *testing.T) {
	tier.Check(t, "follows the page about calls")
	follow(t, "docs/how-to/call-it.md", true, "make", "redis-cli")
}

func TestClosePartitions(t *testing.T) {
	tier.Check(t, "follows the page that closes files")
	follow(t, "docs/how-to/close-partitions.md", false, "flock")
}

func TestBreakIt(t *testing.T) {
	tier.Check(t, "follows the page that breaks a cluster")
	follow(t, "docs/tutorial/break-it.md", false)
}
