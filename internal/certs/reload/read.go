package reload

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"syscall"
	"time"
)

const (
	// maxFile is the maximum size of a file, in bytes. A hundred authorities take a tenth
	// of it.
	maxFile = 1 << 20
	// readTimeout is how long reading all files may take. A hanging network mount blocks
	// without end.
	readTimeout = 3 * time.Second
	// settleTime is the pause before changed files are read again. Both reads must return
	// the same: else somebody is still writing, and half a file must not count.
	settleTime = 50 * time.Millisecond
)

// ErrTimeout says that the files could not be read in time.
var ErrTimeout = fmt.Errorf("reload: reading did not finish within %v: check the file system", readTimeout)

// errChanging says that the files are being written.
var errChanging = errors.New("reload: the files change while they are read: wait until they are written")

// File is a file and what people call it.
type File struct {
	Name string // The setting or flag with the path has this name, such as tls.cert.
	Path string // "": no file, with nil as its contents
	// Secret is set for a file that others on the machine must not read or write.
	Secret bool
	// Trusted is set for a file that others must not write.
	Trusted bool
}

// exposed returns to whom a mode of the file gives too much; "": to nobody. Groups may read
// secrets, as in volumes of Kubernetes.
func (f File) exposed(mode fs.FileMode) string {
	var others fs.FileMode
	switch {
	case f.Secret:
		others = 0o006
	case f.Trusted:
		others = 0o002
	default:
		return ""
	}
	switch {
	case mode&others != 0:
		return "others"
	case mode&0o020 != 0:
		return "group"
	}
	return ""
}

// warn logs to whom the file gives too much.
func (f File) warn(log *slog.Logger, who string) {
	log.Warn("file is accessible to others: they could use or replace what is in it; remove their permissions "+
		"(chmod o-rw,g-w)",
		"setting", f.Name, "path", f.Path, "to", who)
}

// contents are what was in the files, with a hash of all of them. Only the hash is kept for
// the next comparison, so that a private key is not in memory twice.
type contents struct {
	files   [][]byte
	exposed []string // by file: to whom its mode gives too much
	sum     [sha256.Size]byte
	err     error
}

func readAll(files []File) (c contents) {
	h := sha256.New()
	for _, f := range files {
		var b []byte
		var mode fs.FileMode
		if f.Path != "" {
			if b, mode, c.err = readFile(f.Path); c.err != nil {
				c.err = fmt.Errorf("%s: %w", f.Name, c.err)
				return c
			}
		}
		c.files, c.exposed = append(c.files, b), append(c.exposed, f.exposed(mode))
		_ = binary.Write(h, binary.BigEndian, int64(len(b))) // never fails on a hash
		h.Write(b)
	}
	h.Sum(c.sum[:0])
	return c
}

// readFile returns the contents of a regular file, and its mode. It does not wait for a writer of a
// named pipe; only the file system can block it.
func readFile(path string) ([]byte, fs.FileMode, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		kind := "it has mode " + info.Mode().String()
		if info.IsDir() {
			kind = "it is a directory"
		}
		return nil, 0, &fs.PathError{Op: "read", Path: path, Err: errors.New("it is not a regular file: " + kind)}
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes: check that it is the right file", path, maxFile)
	}
	return b, info.Mode(), err
}

// reader reads files one read at a time, without waiting for a read that is blocked.
// It is for one goroutine.
type reader struct {
	files   []File
	pending chan contents // A read that timed out sends its result here; nil: none is under way.
}

// read returns the contents of the files now, or ErrTimeout, or the error of ctx or of a
// file.
func (r *reader) read(ctx context.Context) contents {
	timer := time.NewTimer(readTimeout)
	defer timer.Stop()
	for {
		late := r.pending != nil // began earlier, so what it returns may be outdated
		if !late {
			r.pending = make(chan contents, 1)
			go func(done chan<- contents) { done <- readAll(r.files) }(r.pending)
		}
		select {
		case c := <-r.pending:
			r.pending = nil
			if !late {
				return c
			}
		case <-timer.C:
			return contents{err: ErrTimeout}
		case <-ctx.Done():
			return contents{err: ctx.Err()}
		}
	}
}

// settled is read, repeated after a pause if the files are not those with hash known. It
// returns errChanging if both reads differ.
func (r *reader) settled(ctx context.Context, known [sha256.Size]byte) contents {
	first := r.read(ctx)
	if first.err != nil || first.sum == known {
		return first
	}
	select {
	case <-time.After(settleTime):
	case <-ctx.Done():
		return contents{err: ctx.Err()}
	}
	again := r.read(ctx)
	if again.err == nil && again.sum != first.sum {
		return contents{err: errChanging}
	}
	return again
}

// ReadFile returns the contents of a regular file of at most 1 MiB, or ErrTimeout. It logs a mode
// that gives others too much.
func ReadFile(f File, log *slog.Logger) ([]byte, error) {
	r := reader{files: []File{f}}
	c := r.read(context.Background())
	if c.err != nil {
		return nil, c.err
	}
	if who := c.exposed[0]; who != "" {
		f.warn(log, who)
	}
	return c.files[0], nil
}
