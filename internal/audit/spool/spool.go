// Package spool keeps what package audit cannot hold in memory in files.
package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"github.com/flakelease/allocator/internal/audit"
)

// ErrFull is returned for bytes above the limit of a Dir.
var ErrFull = errors.New("spool: byte limit reached")

// Dir is a directory of its own in the directory for temporary files. It is safe for
// concurrent use; its files are not.
type Dir struct {
	path  string
	limit int64

	mu    sync.Mutex // guards all below
	count int
	bytes int64
}

// NewDir makes a directory in parent, or for "" in the system's directory for
// temporary files. Its files hold at most limit bytes at a time; 0 is no bound.
// The caller removes it with Close.
func NewDir(parent string, limit int64) (*Dir, error) {
	path, err := os.MkdirTemp(parent, "allocator-spool-")
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	return &Dir{path: path, limit: limit}, nil
}

// Close removes the directory and everything in it.
func (d *Dir) Close() error { return os.RemoveAll(d.path) }

// Bytes returns how many bytes the files hold now.
func (d *Dir) Bytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bytes
}

// Create returns a new file to write.
func (d *Dir) Create() (audit.Spooled, error) {
	d.mu.Lock()
	d.count++
	name := d.path + string(os.PathSeparator) + strconv.Itoa(d.count)
	d.mu.Unlock()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &file{File: f, dir: d}, nil
}

func (d *Dir) take(n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.limit > 0 && d.bytes+n > d.limit {
		return fmt.Errorf("%w: %d", ErrFull, d.limit)
	}
	d.bytes += n
	return nil
}

type file struct {
	*os.File
	dir  *Dir
	size int64
}

func (f *file) Write(b []byte) (int, error) {
	if err := f.dir.take(int64(len(b))); err != nil {
		return 0, err
	}
	f.size += int64(len(b))
	return f.File.Write(b)
}

// Open opens what was written. Closing it removes the file.
func (f *file) Open() (io.ReadCloser, error) {
	in, err := os.Open(f.Name())
	if err != nil {
		return nil, err
	}
	return &reading{in, f}, nil
}

type reading struct {
	*os.File
	f *file
}

func (r *reading) Close() error {
	_ = r.f.dir.take(-r.f.size) // giving back is never over the limit
	return errors.Join(r.File.Close(), os.Remove(r.f.Name()))
}
