// Package spool keeps what package audit cannot hold in memory in files.
package spool

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/flakelease/allocator/internal/audit"
)

// Dir is a directory of its own in the directory for temporary files. It is safe for
// concurrent use; its files are not.
type Dir struct{ path string }

// NewDir makes a directory in parent, or for "" in the system's directory for
// temporary files. The caller removes it with Close.
func NewDir(parent string) (Dir, error) {
	path, err := os.MkdirTemp(parent, "allocator-spool-")
	if err != nil {
		return Dir{}, fmt.Errorf("spool: %w", err)
	}
	return Dir{path}, nil
}

// Close removes the directory and everything in it.
func (d Dir) Close() error { return os.RemoveAll(d.path) }

// Create returns a new file to write.
func (d Dir) Create() (audit.Spooled, error) {
	f, err := os.CreateTemp(d.path, "")
	return file{f}, err
}

type file struct{ *os.File }

// Open opens what was written. Closing it removes the file.
func (f file) Open() (io.ReadCloser, error) {
	in, err := os.Open(f.Name())
	return reading{in}, err
}

type reading struct{ *os.File }

func (r reading) Close() error { return errors.Join(r.File.Close(), os.Remove(r.Name())) }
