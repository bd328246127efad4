//go:build !linux

package netswitch

import (
	"context"
	"fmt"
	"net"
	"runtime"
)

type place struct{}

// Supported returns ErrUnsupported: there are no network namespaces.
func Supported() error {
	return fmt.Errorf("%w: no network namespaces on %s", ErrUnsupported, runtime.GOOS)
}

// Enter returns ErrUnsupported.
func Enter() error { return Supported() }

// Do returns ErrUnsupported.
func (h *Host) Do(func() error) error { return Supported() }

// DialContext returns ErrUnsupported.
func (h *Host) DialContext(context.Context, string, string) (net.Conn, error) {
	return nil, Supported()
}

func (h *Host) open() error { return Supported() }

func (h *Host) close() error { return nil }
