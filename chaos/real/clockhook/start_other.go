//go:build !(linux && amd64)

package clockhook

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
)

// Supported returns ErrUnsupported: there is no hook for this platform.
func Supported() error {
	return fmt.Errorf("%w: no stubs for %s/%s", ErrUnsupported, runtime.GOOS, runtime.GOARCH)
}

// Start starts nothing and returns ErrUnsupported.
func Start(*exec.Cmd, Offsets) (*Hook, error) { return nil, Supported() }

func readClocks() readings { return readings{} }

func stop(context.Context, int) error { return ErrUnsupported }

func resume(int) error { return ErrUnsupported }
