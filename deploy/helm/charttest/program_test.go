package charttest

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/flakelease/allocator/chaos/build"
)

var printed = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "charttest")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	program, err := build.Allocator(context.Background(), dir)
	if err != nil {
		return "", err
	}
	out, err := exec.Command(program, "docs", "cli").Output()
	return string(out), err
})

// commandLine returns the page of all commands and their flags, as the program prints it.
func commandLine(t *testing.T) string {
	t.Helper()
	page, err := printed()
	if err != nil {
		t.Fatal(err)
	}
	return page
}
