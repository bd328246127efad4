// Package spool keeps what package audit cannot hold in memory in files.
package spool

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/flakelease/allocator/internal/audit"
)

// Dir is a directory of its own in the directory for temporary files. It is safe for
// concurrent use; its files are not.
type Dir struct {
	path  string
	watch func(wrote, read int) error
}

// NewDir makes a directory in parent, or for "" in the system's directory for
// temporary files. The caller removes it with Close. watch is called before bytes of a file are
// written, and after some were read, and its error ends the writing or reading; nil: nothing is.
func NewDir(parent string, watch func(wrote, read int) error) (Dir, error) {
	if watch == nil {
		watch = func(int, int) error { return nil }
	}
	path, err := os.MkdirTemp(parent, "allocator-spool-")
	if err != nil {
		return Dir{}, fmt.Errorf("spool: %w", err)
	}
	return Dir{path, watch}, nil
}

// Close removes the directory and everything in it.
func (d Dir) Close() error { return os.RemoveAll(d.path) }

// Create returns a new file to write.
func (d Dir) Create() (audit.Spooled, error) {
	f, err := os.CreateTemp(d.path, "")
	return file{f, d.watch}, err
}

type file struct {
	*os.File
	watch func(wrote, read int) error
}

func (f file) Write(b []byte) (int, error) {
	if err := f.watch(len(b), 0); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

// Open opens what was written. Closing it removes the file.
func (f file) Open() (io.ReadCloser, error) {
	in, err := os.Open(f.Name())
	return reading{in, f.watch}, err
}

type reading file

func (r reading) Read(b []byte) (int, error) {
	n, err := r.File.Read(b)
	return n, cmp.Or(r.watch(0, n), err)
}

func (r reading) Close() error { return errors.Join(r.File.Close(), os.Remove(r.Name())) }
