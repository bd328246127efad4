package interop

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/flakelease/allocator/chaos/build"
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
