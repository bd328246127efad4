package durable

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, mode := range []os.FileMode{0o600, 0o755} {
		fatal.If(t, Replace(path, mode, From(strings.NewReader("1"))))
		if i, err := os.Stat(path); err != nil || i.Mode() != mode {
			t.Errorf("mode %v, %v, want %v", i.Mode(), err, mode)
		}
	}
	failed := errors.New("full")
	if err := Replace(path, 0o600, func(f *os.File) error { _, _ = f.Write([]byte("half")); return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	text, err := os.ReadFile(path)
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
	if err != nil || string(text) != "1" || len(left) > 0 {
		t.Errorf("after a failed write: %q, %v, left %v", text, err, left)
	}
	// A file that does not get its name was not written.
	dir := filepath.Join(t.TempDir(), "dir")
	fatal.If(t, os.MkdirAll(filepath.Join(dir, "full"), 0o700))
	if err := Replace(dir, 0o600, From(strings.NewReader("2"))); err == nil {
		t.Error("a directory was replaced")
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}
