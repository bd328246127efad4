package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
)

// programs is the directory that programs are built into.
var programs string

func TestMain(m *testing.M) {
	if what := os.Getenv(legacyVariable); what != "" {
		if err := generate(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	dir, err := os.MkdirTemp("", "interop")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// buildAllocator builds the allocator once and returns the program's path.
var buildAllocator = sync.OnceValues(func() (string, error) {
	return build.Allocator(context.Background(), programs)
})

// buildDev does so with its dev command.
var buildDev = sync.OnceValues(func() (string, error) {
	return build.Allocator(context.Background(), programs)
})

// allocator runs a command of the allocator and returns its standard output.
func allocator(t *testing.T, args ...string) string {
	t.Helper()
	path, err := buildAllocator()
	fatal.If(t, err)
	cmd := exec.CommandContext(t.Context(), path, args...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || errs.Len() > 0 {
		t.Fatalf("allocator %q: %v, stderr %q", args, err, &errs)
	}
	return out.String()
}
