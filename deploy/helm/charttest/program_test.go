package charttest

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
)

// printed is what the program prints: the page of its commands, and the help of the agent.
var printed = sync.OnceValues(func() (out [2]string, err error) {
	dir, err := os.MkdirTemp("", "charttest")
	if err != nil {
		return out, err
	}
	defer os.RemoveAll(dir)
	program, err := build.Allocator(context.Background(), dir)
	if err != nil {
		return out, err
	}
	for i, args := range [][]string{{"docs", "cli"}, {"agent", "--help"}} {
		text, err := exec.Command(program, args...).Output()
		if err != nil {
			return out, err
		}
		out[i] = string(text)
	}
	return out, nil
})

// commandLine returns the page of all commands and their flags, as the program prints it.
func commandLine(t *testing.T) string {
	t.Helper()
	pages, err := printed()
	fatal.If(t, err)
	return pages[0]
}
