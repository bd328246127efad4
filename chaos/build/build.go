// Package build makes the programs that the harness runs: the allocator exactly as
// `make build` makes it, and the etcd server of chaos/real/etcd.
//
// It runs the go command in the repository that the caller was started in; go's own
// cache makes a second build take a second or less.
package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "github.com/flakelease/allocator"

// The environment of `make build`; a test compares. The programs are static, not position-independent, and
// keep their symbols. A release adds -trimpath, which changes nothing but the names of source files: without it,
// programs and tests share Go's cache.
var environment = []string{"CGO_ENABLED=0"}

// Allocator builds the allocator into dir and returns the program's path.
func Allocator(ctx context.Context, dir string) (string, error) {
	return program(ctx, dir, "allocator", ".", "./cmd/allocator")
}

// Embedded builds the harness's program that embeds an allocator into dir and returns
// the program's path.
func Embedded(ctx context.Context, dir string) (string, error) {
	return program(ctx, dir, "embedded", "chaos/real", "./embedded")
}

// Legacy builds the harness's program with a Snowflake library into dir and returns the
// program's path.
func Legacy(ctx context.Context, dir string) (string, error) {
	return program(ctx, dir, "legacy", "chaos/real", "./workers/legacy")
}

// Etcd builds the etcd server into dir and returns the program's path. Its first
// argument may also be "snapshot", which does what etcdutl does.
func Etcd(ctx context.Context, dir string) (string, error) {
	return program(ctx, dir, "etcd", "chaos/real", "./etcd")
}

// Etcdctl builds etcd's own command line into dir and returns the program's path.
func Etcdctl(ctx context.Context, dir string) (string, error) {
	return program(ctx, dir, "etcdctl", "chaos/real", "go.etcd.io/etcd/etcdctl/v3")
}

// Root returns the directory of this repository: the one that the working
// directory is in, or else the one that this program is in, as bin/chaos is.
func Root(ctx context.Context) (string, error) {
	dirs := []string{"."}
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}
	var errs []error
	for _, dir := range dirs {
		out, err := run(ctx, dir, "list", "-m", "-f", "{{.Dir}}", module)
		if err == nil {
			return strings.TrimSpace(out), nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("find the repository of %s: %w; start the harness in it", module, errors.Join(errs...))
}

func program(ctx context.Context, dir, name, from, what string) (string, error) {
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	if _, err := run(ctx, filepath.Join(root, from), "build", "-o", path, what); err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return path, nil
}

// run runs the go command in dir and returns what it printed.
func run(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), environment...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.String(), nil
}
