package charttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
)

// printed is the page of the program's commands, which a test writes, and the help of the agent.
var printed = sync.OnceValues(func() (out [2]string, err error) {
	dir, err := os.MkdirTemp("", "charttest")
	if err != nil {
		return out, err
	}
	defer os.RemoveAll(dir)
	page := filepath.Join(dir, "cli.md")
	test := exec.Command("go", "test", "-count", "1", "./cmd/allocator", "-run", "TestReference", "-page", page)
	test.Dir, test.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	if text, err := test.CombinedOutput(); err != nil {
		return out, fmt.Errorf("%w: %s", err, text)
	}
	program, err := build.Allocator(context.Background(), dir)
	if err != nil {
		return out, err
	}
	commands, err1 := os.ReadFile(page)
	help, err2 := exec.Command(program, "agent", "--help").Output()
	return [2]string{string(commands), string(help)}, errors.Join(err1, err2)
})

// commandLine returns the page of all commands and their flags.
func commandLine(t *testing.T) string {
	t.Helper()
	pages, err := printed()
	fatal.If(t, err)
	return pages[0]
}
